"""`ncclmon report JOB|DIR`: print the reports of a job, or of one folder."""

from __future__ import annotations

import json
from pathlib import Path

import click

from slurm_ncclmon.folders import find_folders
from slurm_ncclmon.verdict import CONFIRMED, SUSPECTED


@click.command("report")
@click.argument("target")
@click.option("--json", "as_json", is_flag=True, help="Print verdict.json instead of the text.")
def command(target: str, as_json: bool) -> int:
    """Print the report of a job (JOB or JOB.STEP) or of a report folder. Exit code 1 when it holds a finding."""
    found = False
    name = "verdict.json" if as_json else "report.txt"
    for folder in find_folders(target):
        path = folder / name
        if not path.exists():
            click.echo(
                f"{folder}: no {name} yet; the step is still watched, or its monitor was killed (see monitor.log)",
                err=True,
            )
            continue
        click.echo(path.read_text(encoding="utf-8"), nl=False)
        found = found or has_finding(folder)
    return 1 if found else 0


def has_finding(folder: Path) -> bool:
    """Whether a folder's verdict.json lists an incident that is one by Verdict.is_finding."""
    try:
        incidents = json.loads((folder / "verdict.json").read_text(encoding="utf-8"))["incidents"]
        return any(
            incident["state"] == CONFIRMED or (incident["state"] == SUSPECTED and incident["class"])
            for incident in incidents
        )
    except (OSError, ValueError, KeyError, TypeError):
        return False
