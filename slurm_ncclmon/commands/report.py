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
    """Print the report of a job (JOB or JOB.STEP) or of a report folder.

    Exit code 1 when it holds a finding, 3 when there is no report or its monitor saw nothing.
    """
    codes = [_show(folder, as_json) for folder in find_folders(target)]
    return max(codes, key=(0, 3, 1).index)


def _show(folder: Path, as_json: bool) -> int:
    name = "verdict.json" if as_json else "report.txt"
    path = folder / name
    if not path.exists():
        reason = "the step is still watched, or its monitor was killed (see monitor.log)"
        click.echo(f"{folder}: no {name} yet; {reason}; ncclmon status {folder}", err=True)
        return 3
    click.echo(path.read_text(encoding="utf-8"), nl=False)
    if has_finding(folder):
        return 1
    return 3 if saw_nothing(folder) else 0


def saw_nothing(folder: Path) -> bool:
    """Whether none of its polls was usable."""
    try:
        document = json.loads((folder / "verdict.json").read_text(encoding="utf-8"))
        return bool(document["polls"] == document["unusable_polls"])
    except (OSError, ValueError, KeyError, TypeError):
        return True


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
