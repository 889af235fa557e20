"""`ncclmon node`: what a fan-out runs on each node. For programs; people call `ncclmon stacks`."""

from __future__ import annotations

import os
import sys
import threading
import zlib
from pathlib import Path

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
@click.option("--flight/--no-flight", default=False, help="PyTorch's flight recorder where it is armed.")
@click.option("--preflight/--no-preflight", default=False, help="Say what keeps stacks from being taken.")
@click.option("--frames/--no-frames", default=False, help="What the probe has written.")
def command(
    step: str,
    seconds: float,
    gap: float,
    native: bool,
    stacks: bool,
    gpus: bool,
    flight: bool,
    preflight: bool,
    frames: bool,
) -> None:
    """Look at this node's processes of STEP and write the report to standard output, in the lines of evidence/wire.py."""
    name = os.environ.get("SLURMD_NODENAME") or os.uname().nodename
    ask = Ask(StepId.parse(step), name, seconds, gap, native, stacks, gpus, flight, preflight, frames, _site_phases())
    # Threads that sleep in the kernel for ever must not hold up the end: every message was flushed when it was written.
    last = threading.Timer(seconds + 1.0, os._exit, [3])
    last.daemon = True
    last.start()
    collect(ask, _Output(name))
    os._exit(0)


class _Output:
    """Standard output as the sink of what is found."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._number = 0

    def report(self, report: NodeReport) -> None:
        self._write(wire.REPORT, wire.pack(report))

    def flight_record(self, rank: int, content: bytes) -> None:
        self._write(f"{wire.FLIGHT}{rank}", zlib.compress(content))

    def _write(self, kind: str, payload: bytes) -> None:
        sys.stdout.write("".join(f"{line}\n" for line in wire.lines(self._node, self._number, kind, payload)))
        sys.stdout.flush()
        self._number += 1


def _site_phases() -> tuple[tuple[str, str], ...]:
    try:
        return load_site(Path(os.environ.get("NCCLMON_CONFIG") or SITE_FILE)).phases
    except OptionError:  # said where the job is started; here it must not cost the evidence
        return ()
