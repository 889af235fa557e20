"""What one rule on probe frames found in one communicator."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slurm_ncclmon.analyse.graph import Numbers
from slurm_ncclmon.probe.layout import FUNCTIONS
from slurm_ncclmon.probe.standing import Standing
from slurm_ncclmon.verdict import Edge


@dataclass(frozen=True)
class Found:
    """What one rule found in one communicator."""

    kind: str
    comm: int
    ranks: Numbers
    whys: tuple[str, ...]
    confidence: float
    evidence: tuple[str, ...]
    operation: str | None = None
    round: int | None = None
    edges: tuple[Edge, ...] = ()
    alternatives: tuple[str, ...] = ()
    not_decidable: tuple[str, ...] = ()


def function_of(stand: Standing) -> str:
    """Name of the collective that its members are at."""
    row = int(np.argmax(stand.operation.known))
    return FUNCTIONS[stand.operation.function[row]] if stand.operation.known[row] else "a collective"
