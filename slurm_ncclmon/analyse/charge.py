"""One cause as a rule charges it: which members, of what kind, why, and how sure; and what was not completed there."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slurm_ncclmon.analyse.graph import Numbers
from slurm_ncclmon.detect.stuck import Stuck
from slurm_ncclmon.ras.report import OPERATIONS


@dataclass(frozen=True)
class Blame:
    """The named members, and what makes them culprits."""

    kind: str
    rows: Numbers
    whys: tuple[str, ...]
    confidence: float
    evidence: tuple[str, ...]
    alternatives: tuple[str, ...] = ()
    not_decidable: tuple[str, ...] = ()
    since: float = -np.inf
    """The kind's own condition holds since then."""
    operation: str | None = None
    round: int | None = None


def next_operation(stuck: Stuck, comm: int) -> tuple[str | None, int | None]:
    """Name and number (from 1, over all operations) of the collective that did not complete; the name is None where those ahead
    launched several sorts. Nobody waits for ranks that are gone at a number known for sure, for they may have launched more
    than they told: there it is the oldest that a running member is in."""
    counts, shape = stuck.history.members.counts, stuck.shape
    awaited, waiting = stuck.rows_of(comm, stuck.awaited), stuck.rows_of(comm, stuck.waiting)
    if not len(waiting):
        return None, None
    running = awaited[shape.running[awaited] | shape.left[awaited]]
    ahead = waiting[np.argmin(shape.total[waiting])]
    behind = counts[running[0]] if len(running) else np.zeros(5, np.uint64)
    differs = np.flatnonzero(counts[ahead] > behind)
    number = int(shape.total[running[0]]) + 1 if len(running) else int(shape.total[ahead])
    return OPERATIONS[differs[0]] if len(differs) == 1 else None, number
