"""`ncclmon stacks JOB[.STEP]`: where every rank of a running step stands, the odd ones first."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import click

from slurm_ncclmon.commands.arguments import DURATION
from slurm_ncclmon.errors import EvidenceError, SlurmError
from slurm_ncclmon.evidence.fanout import Wish, gather
from slurm_ncclmon.evidence.merge import merge
from slurm_ncclmon.evidence.model import NodeReport
from slurm_ncclmon.evidence.notes import notes
from slurm_ncclmon.evidence.render import render_text, to_json
from slurm_ncclmon.evidence.tree import render_tree
from slurm_ncclmon.plain import plain
from slurm_ncclmon.slurm.commands import CommandClient


@click.command("stacks")
@click.argument("target", metavar="JOB[.STEP]")
@click.option("--tree", "as_tree", is_flag=True, help="One call tree of all ranks instead of groups.")
@click.option("--json", "as_json", is_flag=True, help="JSON for programs.")
@click.option(
    "--within", type=DURATION, default=9.0, show_default="9s", help="Hard limit; what came until then is shown."
)
@click.option(
    "--again", type=DURATION, default=2.0, show_default="2s", help="Look twice, so long apart, and say who moved."
)
@click.option("--once", is_flag=True, help="Look once only.")
@click.option("--python-only", is_flag=True, help="No C frames; pauses the ranks for a shorter time.")
@click.option(
    "--flight", type=click.Path(path_type=Path), help="Folder for PyTorch's flight recorder dumps, where armed."
)
def command(
    target: str,
    as_tree: bool,
    as_json: bool,
    within: float,
    again: float,
    once: bool,
    python_only: bool,
    flight: Path | None,
) -> int:
    """Print where all ranks of a running job stand: groups of equal stacks, the odd ones first.

    Works for any running job of yours, watched or not, on all its nodes at once; the job goes on. Without STEP, its newest step.
    """
    client = CommandClient()
    step = client.find_step(target)
    parts = client.step_parts(step)
    progress = _Progress(sum(len(part.nodes) for part in parts))
    wish = Wish(gap_s=0.0 if once else again, native=not python_only, flight=flight is not None)
    reports = gather(step, parts, within, wish=wish, client=client, on_report=progress.show, flight_folder=flight)
    progress.clear()
    if not any(report.answered for report in reports):
        said = "; ".join(dict.fromkeys(reports[0].problems))
        raise (SlurmError if "srun: error:" in said else EvidenceError)(f"no node of step {step} answered: {said}")
    merged = merge(reports)
    if as_json:
        click.echo(json.dumps(to_json(merged), indent=1))
    else:
        click.echo(f"step {step}, {time.strftime('%Y-%m-%d %H:%M:%S')}")
        click.echo(plain(render_tree(merged) if as_tree else render_text(merged)), nl=False)
        for line in notes(reports):
            click.echo(plain(line))
    return 0


class _Progress:
    """A line on the terminal while nodes answer; nothing where standard error is a file."""

    def __init__(self, nodes: int) -> None:
        self._nodes = nodes
        self._first: set[str] = set()
        self._messages = 0
        self._live = sys.stderr.isatty()

    def show(self, report: NodeReport) -> None:
        """Count a report."""
        self._messages += 1
        self._first.add(report.node)
        if self._live:
            done = self._messages - len(self._first)
            click.echo(f"\r{len(self._first)} of {self._nodes} nodes answered, {done} done ", nl=False, err=True)

    def clear(self) -> None:
        """Leave no trace."""
        if self._live:
            click.echo("\r\033[K", nl=False, err=True)
