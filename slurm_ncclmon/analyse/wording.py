"""Sentences for a person at 3 a.m."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from slurm_ncclmon.ras.report import OPERATIONS
from slurm_ncclmon.verdict import CommunicatorRef

RESULTS = {
    1: "unhandled CUDA error",
    2: "unhandled system error",
    3: "internal error",
    4: "invalid argument",
    5: "invalid usage",
    6: "remote process exited or network error",
    8: "timeout",
}
"""ncclResult_t in words."""


def folded(ranks: Iterable[int], most: int = 12) -> str:
    """`0-2,5`; of very many separate runs only the first `most`."""
    parts: list[str] = []
    ordered = sorted(set(ranks))
    begin = 0
    for end in range(1, len(ordered) + 1):
        if end == len(ordered) or ordered[end] != ordered[end - 1] + 1:
            first, last = ordered[begin], ordered[end - 1]
            parts.append(str(first) if first == last else f"{first}-{last}")
            begin = end
    return ",".join(parts[:most]) + (f" and {len(parts) - most} more groups" if len(parts) > most else "")


def ranks_phrase(ranks: Sequence[int]) -> str:
    """`rank 3`, `ranks 3-7`."""
    return f"rank{'' if len(ranks) == 1 else 's'} {folded(ranks)}"


def counted(vector: NDArray[np.uint64]) -> str:
    """`12 AllReduce and 3 AllGather`."""
    parts = [f"{int(number)} {name}" for number, name in zip(vector, OPERATIONS) if number]
    return " and ".join(parts) if parts else "nothing"


def more(ahead: NDArray[np.uint64], behind: NDArray[np.uint64]) -> str:
    """What `ahead` has beyond `behind`: `1 AllReduce`."""
    return counted(np.where(ahead > behind, ahead - behind, 0).astype(np.uint64))


def verb(number: int, one: str, many: str) -> str:
    """`one` after a single subject, `many` otherwise."""
    return one if number == 1 else many


def comm_phrase(comm: CommunicatorRef) -> str:
    """`communicator 0x1f (world, 8 ranks)`."""
    role = f"{comm.role}, " if comm.role else ""
    return f"communicator {comm.hash} ({role}{comm.size} ranks)"
