"""Which communicators stand still while some of their members wait for others, and since when."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slurm_ncclmon.detect.history import History
from slurm_ncclmon.detect.layout import spread
from slurm_ncclmon.detect.shape import Mask, Shape, diverged
from slurm_ncclmon.ras.report import RESULT_IN_PROGRESS, RESULT_OK


@dataclass(frozen=True)
class Stuck:
    """The communicators `comms` (numbers in the history's layout) that stand still with somebody waiting. Times are the step's.

    `waiting` and `awaited` (M,) are those of the shape, but in a diverged communicator everybody waits and nobody is awaited.
    """

    now: float
    """When the last usable report was received. What is known of a communicator is as of the last one that told of it."""
    history: History
    shape: Shape
    comms: NDArray[np.int64]
    waiting: Mask
    awaited: Mask
    diverged: Mask
    """(C,)"""
    failed: Mask
    """(M,) reports an asynchronous error."""
    frozen_since: NDArray[np.float64]
    """(C,) first report with the present counts of all its members."""
    clock_since: NDArray[np.float64]
    """(C,) the same, but no earlier than the last launch of any waiting member on any communicator: a communicator whose waiting
    members work elsewhere is abandoned, not stuck."""
    stale: NDArray[np.int64]
    """Communicators that stand still unevenly while those ahead work elsewhere."""

    def frozen_s(self, comm: int) -> float:
        """Seconds that nothing was launched on `comm`."""
        return float(self.history.comms.seen[comm] - self.frozen_since[comm])

    def clock_s(self, comm: int) -> float:
        """Seconds that it has been stuck."""
        return float(self.history.comms.seen[comm] - self.clock_since[comm])

    def launched(self, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """When the process of each of `rows` last launched anything."""
        layout, members = self.history.layout, self.history.members
        mine = np.zeros(len(layout.processes.gpus), np.bool_)
        mine[layout.process[rows]] = True
        all_rows = np.flatnonzero(mine[layout.process] & members.known)
        latest = np.full(len(mine), -np.inf)
        np.maximum.at(latest, layout.process[all_rows], members.since[all_rows])
        result: NDArray[np.float64] = latest[layout.process[rows]]
        return result

    def rows_of(self, comm: int, mask: Mask) -> NDArray[np.int64]:
        """Rows of `comm` where `mask` holds."""
        rows = self.history.layout.rows(comm)
        found: NDArray[np.int64] = np.flatnonzero(mask[rows]) + rows.start
        return found


def find_stuck(history: History, shape: Shape, steady: Mask, now: float, at_least: float) -> Stuck:
    """Everything that has been stuck for `at_least` seconds. `steady` (C,): it is always uneven in this way."""
    layout, members = history.layout, history.members
    failed = (
        members.known & ~shape.gone & (members.async_error != RESULT_OK) & (members.async_error != RESULT_IN_PROGRESS)
    )
    if not len(layout.comms):
        none = np.zeros(0)
        empty = np.zeros(0, np.int64)
        no = np.zeros(0, np.bool_)
        return Stuck(now, history, shape, empty, shape.waiting, shape.awaited, no, failed, none, none, empty)
    start, seen = layout.start[:-1], history.comms.seen
    frozen_since = np.maximum.reduceat(np.where(members.known, members.since, -np.inf), start)
    uneven = _uneven(shape, failed, steady, start)
    candidates = np.flatnonzero(uneven & (seen - frozen_since >= at_least))
    waiting, awaited, split = _with_divergence(history, shape, failed, candidates)
    clock_since = frozen_since.copy()
    stuck = stale = candidates
    if len(candidates):
        rows = spread(layout, candidates)
        launched = layout.latest_of_process(np.where(members.known, members.since, -np.inf))[rows]
        first = np.cumsum(layout.size[candidates]) - layout.size[candidates]
        latest = np.maximum.reduceat(np.where(waiting[rows], launched, -np.inf), first)
        clock_since[candidates] = np.maximum(frozen_since[candidates], latest)
        still = seen[candidates] - clock_since[candidates] >= at_least
        stuck, stale = candidates[still & np.isfinite(latest)], candidates[~still]
    return Stuck(now, history, shape, stuck, waiting, awaited, split, failed, frozen_since, clock_since, stale)


def _uneven(shape: Shape, failed: Mask, steady: Mask, start: NDArray[np.int64]) -> Mask:
    """(C,) somebody waits there for somebody, operations differ, or an error was reported."""
    absent = np.logical_or.reduceat(shape.awaited & ~shape.running, start)
    differs = ~shape.level & ~steady
    errors = np.logical_or.reduceat(failed, start)
    uneven: Mask = (differs | absent | errors) & (shape.highest > 0)
    return uneven


def _with_divergence(
    history: History, shape: Shape, failed: Mask, candidates: NDArray[np.int64]
) -> tuple[Mask, Mask, Mask]:
    layout = history.layout
    split = np.zeros(len(layout.comms), np.bool_)
    mixed = candidates[~shape.level[candidates]]
    split[mixed[diverged(layout, history.members.counts, shape, mixed)]] = True
    errors = np.zeros_like(split)
    errors[layout.comm_of[failed]] = True
    inside = (split | (errors & shape.level)) & ~_has(shape.awaited & shape.gone, layout.comm_of, len(split))
    if not inside.any():
        return shape.waiting, shape.awaited, split
    in_rows = inside[layout.comm_of]
    return np.where(in_rows, shape.running, shape.waiting), shape.awaited & ~in_rows, split & inside


def _has(mask: Mask, comm_of: NDArray[np.int64], comms: int) -> Mask:
    found = np.zeros(comms, np.bool_)
    found[comm_of[mask]] = True
    return found
