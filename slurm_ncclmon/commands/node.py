"""`ncclmon node`: what a fan-out runs on each node. For programs; people call `ncclmon stacks`."""

from __future__ import annotations

import os
import sys

import click

from slurm_ncclmon.config import SITE_FILE, load_site
from slurm_ncclmon.errors import OptionError
from slurm_ncclmon.evidence import wire
from slurm_ncclmon.evidence.model import NodeReport
from slurm_ncclmon.evidence.node import Ask, collect
from slurm_ncclmon.slurm.step import StepId


@click.command("node", hidden=True)
@click.argument("step")
@click.option("--seconds", type=float, default=8.0, help="Hard limit for all of it.")
@click.option("--gap", type=float, default=2.0, help="Seconds between two samples; 0: one sample.")
@click.option("--native/--no-native", default=True, help="C frames as well.")
@click.option("--stacks/--no-stacks", default=True)
@click.option("--gpus/--no-gpus", default=True)
def command(step: str, seconds: float, gap: float, native: bool, stacks: bool, gpus: bool) -> None:
    """Look at this node's processes of STEP and write the report to standard output, in the lines of evidence/wire.py."""
    name = os.environ.get("SLURMD_NODENAME") or os.uname().nodename
    ask = Ask(StepId.parse(step), name, seconds, gap, native, stacks, gpus, _site_phases())
    messages = iter(range(1 << 30))

    def emit(report: NodeReport) -> None:
        text = "".join(f"{line}\n" for line in wire.lines(name, next(messages), wire.REPORT, wire.pack(report)))
        sys.stdout.write(text)
        sys.stdout.flush()

    emit(collect(ask, emit))
    # Threads that sleep in the kernel for ever must not hold up the end; all output is flushed.
    os._exit(0)


def _site_phases() -> tuple[tuple[str, str], ...]:
    try:
        return load_site(SITE_FILE).phases
    except OptionError:  # said where the job is started; here it must not cost the evidence
        return ()
