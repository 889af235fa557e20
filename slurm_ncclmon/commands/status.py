"""`ncclmon status JOB|DIR`: what the monitor of a running step sees now."""

from __future__ import annotations

import time
from pathlib import Path

import click

from slurm_ncclmon.durations import format_duration
from slurm_ncclmon.folders import find_folders
from slurm_ncclmon.recording import read
from slurm_ncclmon.replay import replay
from slurm_ncclmon.report.sentence import headline
from slurm_ncclmon.report.text import Case
from slurm_ncclmon.start import read_start
from slurm_ncclmon.verdict import RECOVERED


@click.command("status")
@click.argument("target")
def command(target: str) -> int:
    """Say what the monitors of a job (JOB, JOB.STEP or a folder) have seen so far.

    Exit code 1 when something hangs or is suspected to, 3 when a monitor sees nothing.
    """
    codes = []
    for folder in find_folders(target):
        case = _judge(folder)
        click.echo(f"step {case.step}: {_age(folder, case)}; {_state(case)}")
        for verdict in case.verdicts:
            click.echo(f"  {headline(verdict)}.")
        for advisory in case.advisories:
            click.echo(f"  note: {advisory.text}")
        codes.append(_code(case))
    return max(codes, key=(0, 3, 1).index)


def _judge(folder: Path) -> Case:
    start = read_start(folder)
    return replay(read(folder), start.settings.scaled(), start.step)


def _age(folder: Path, case: Case) -> str:
    if not case.wall_s:
        return "no poll yet"
    over = " (the watch is over)" if (folder / "report.txt").exists() and not _is_fresh(case) else ""
    return f"{case.polls} polls, the last {format_duration(max(0.0, time.time() - case.wall_s))} ago{over}"


def _is_fresh(case: Case) -> bool:
    return time.time() - case.wall_s < 300


def _state(case: Case) -> str:
    states = {verdict.state for verdict in case.verdicts} - {RECOVERED}
    if states:
        return " and ".join(sorted(states))
    return "it sees nothing" if case.polls == case.unusable_polls else "nothing hangs"


def _code(case: Case) -> int:
    if any(verdict.is_finding() for verdict in case.verdicts):
        return 1
    return 3 if case.polls == case.unusable_polls else 0
