"""What nodes say of themselves beside their ranks: trouble with GPUs, kernel messages, what could not be seen. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from slurm_ncclmon.evidence.model import GpuReport, NodeReport
from slurm_ncclmon.slurm.hostlist import fold

_IDLE_W = 0.2
"""Share of its power limit below which a GPU that claims to be busy is only waiting in a kernel."""


def notes(nodes: Sequence[NodeReport], most: int = 20) -> list[str]:
    """`n[1-2]: text` lines, equal texts of several nodes once, at most so many. Silent nodes are told of elsewhere."""
    said: dict[str, list[str]] = {}
    for node in nodes:
        if node.answered:
            for text in (*node.problems, *node.events, *(line for gpu in node.gpus for line in gpu_notes(gpu))):
                said.setdefault(text, []).append(node.node)
    lines = [f"{fold(names)}: {text}" for text, names in said.items()]
    return lines if len(lines) <= most else [*lines[:most], f"… {len(lines) - most} more such lines"]


def gpu_notes(gpu: GpuReport) -> Iterable[str]:
    """What is odd about a GPU."""
    name = f"GPU {gpu.index}"
    if gpu.problem:
        yield f"{name}: {gpu.problem}"
    if gpu.ecc_uncorrected:
        yield f"{name}: {gpu.ecc_uncorrected} uncorrected memory errors"
    slowing = [reason for reason in gpu.throttle if reason not in ("power cap", "sync boost")]
    if slowing:
        yield f"{name}: slowed down ({', '.join(slowing)})"
    if _spins(gpu):
        power = f"{gpu.power_w:.0f} of {gpu.power_limit_w:.0f} W"
        yield f"{name}: fully busy at {power}: it spins in a kernel, as in a collective that waits"


def _spins(gpu: GpuReport) -> bool:
    """A kernel that waits keeps a GPU at 100 % and cool."""
    if gpu.utilisation is None or gpu.power_w is None or not gpu.power_limit_w:
        return False
    return gpu.utilisation >= 99 and gpu.power_w < _IDLE_W * gpu.power_limit_w
