"""`ncclmon replay DIR`: judge a recording again, offline."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import click

from slurm_ncclmon.commands.arguments import DURATION
from slurm_ncclmon.config import Settings
from slurm_ncclmon.events import Event
from slurm_ncclmon.evidence.render import render_stacks
from slurm_ncclmon.notices import notice
from slurm_ncclmon.recording import read
from slurm_ncclmon.replay import replay
from slurm_ncclmon.report.files import verdict_document
from slurm_ncclmon.report.text import render_report
from slurm_ncclmon.start import read_start


@click.command("replay")
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the verdicts as one JSON object.")
@click.option("--suspect", type=DURATION, help="Suspicion after this long instead of the recorded setting.")
@click.option("--confirm", type=DURATION, help="Confirmation after this long instead of the recorded setting.")
@click.option("--interval", type=DURATION, help="Time between answers in a folder that says no times.")
@click.option("--verbose", "-v", is_flag=True, help="Also print what the live monitor would have said, and when.")
def command(
    folder: Path, as_json: bool, suspect: float | None, confirm: float | None, interval: float | None, verbose: bool
) -> int:
    """Judge a recording (a ncclmon-JOB.STEP folder, or plain RAS answers poll_000.json …) again, offline.

    Gives the verdict that the live monitor gave. Exit code 1 when something hangs, or was suspected to at the end for a
    reason; 3 when no poll was usable.
    """
    start = read_start(folder)
    settings = _settings(start.settings, suspect, confirm)

    def tell(event: Event) -> None:
        text = notice(event, settings.mode)
        if verbose and text:
            click.echo(f"[{event.t_s:10.1f} s] {text}", err=as_json)

    case = replay(read(folder, interval), settings, start.step, tell)
    if as_json:
        click.echo(json.dumps(verdict_document(case), indent=1))
    else:
        click.echo(render_report(case, render_stacks), nl=False)
    if any(verdict.is_finding() for verdict in case.verdicts):
        return 1
    return 3 if case.polls and case.polls == case.unusable_polls else 0


def _settings(recorded: Settings, suspect: float | None, confirm: float | None) -> Settings:
    """Recorded settings, changed by the command line; what is given explicitly is not scaled."""
    settings = replace(recorded, confirm=recorded.confirm if confirm is None else confirm).scaled()
    return settings if suspect is None else replace(settings, suspect=suspect)
