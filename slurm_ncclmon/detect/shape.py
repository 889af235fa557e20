"""What the counts of one instant say of each communicator: who is behind, who is ahead, and whether they still agree."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slurm_ncclmon.detect.history import History
from slurm_ncclmon.detect.layout import Layout, spread
from slurm_ncclmon.ras.report import ABORTED, DEAD, DESTROYED, FINALIZED, MISSING, UNRESPONSIVE

Mask = NDArray[np.bool_]
_HIGH = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Shape:
    """Masks (M,) over the history's rows and columns (C,) over its communicators."""

    total: NDArray[np.int64]
    """(M,) launches of all operations together."""
    running: Mask
    """It reports, and has not begun to leave."""
    gone: Mask
    """Its process does not answer, or RAS considers it dead, and it had not begun to leave before."""
    left: Mask
    """It finalised, destroyed or aborted the communicator, or has it no more although its process answers."""
    awaited: Mask
    """The oldest round that somebody launched misses this member: it is behind all others, gone, or left before."""
    waiting: Mask
    """It launched a round that an awaited member did not."""
    lowest: NDArray[np.int64]
    """(C,) launches of its slowest and its fastest running member."""
    highest: NDArray[np.int64]
    level: Mask
    """(C,) all running members have the same counts, or there are none."""


def row_totals(counts: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Launches of all operations together, (M,)."""
    total = counts[:, 0].astype(np.int64)
    for column in range(1, counts.shape[1]):
        total += counts[:, column].astype(np.int64)
    return total


def shape_of(history: History) -> Shape:
    """The shape as of the last usable report."""
    layout, members = history.layout, history.members
    flags, known = members.flags, members.known
    missing = (flags & MISSING) != 0
    gone = missing & ((flags & (UNRESPONSIVE | DEAD)) != 0) & ~members.said_goodbye
    left = ~gone & (missing | ((flags & (FINALIZED | DESTROYED | ABORTED)) != 0))
    running = known & ~gone & ~left
    total = row_totals(members.counts)
    start = layout.start[:-1]
    if not len(start):
        none = np.zeros(0, np.int64)
        return Shape(total, running, gone, left, gone, gone, none, none, np.zeros(0, np.bool_))
    lowest = np.minimum.reduceat(np.where(running, total, _HIGH), start)
    highest = np.maximum.reduceat(np.where(running, total, -1), start)
    awaited, waiting = _sides(layout, total, running, gone, left, highest)
    level = (lowest >= highest) & _same_vectors(members.counts, running, start)
    return Shape(total, running, gone, left, awaited, waiting, lowest, highest, level)


def _sides(
    layout: Layout, total: NDArray[np.int64], running: Mask, gone: Mask, left: Mask, highest: NDArray[np.int64]
) -> tuple[Mask, Mask]:
    """Awaited and waiting members. Communicators without any count have neither."""
    start, of = layout.start[:-1], layout.comm_of
    short = left & (total < highest[of])
    part = running | gone | short
    floor = np.minimum.reduceat(np.where(part, total, _HIGH), start)[of]
    counted = (highest > 0)[of]
    awaited = counted & (gone | short | (running & (total == floor) & (floor < highest[of])))
    alone = np.logical_or.reduceat(gone, start)[of] & (floor >= highest[of])
    waiting = counted & running & ((total > floor) | alone)
    return awaited, waiting


def _same_vectors(counts: NDArray[np.uint64], running: Mask, start: NDArray[np.int64]) -> Mask:
    """(C,) whether the running members' vectors are all equal."""
    same = np.ones(len(start), np.bool_)
    for column in range(counts.shape[1]):
        low = np.minimum.reduceat(np.where(running, counts[:, column], np.uint64(_HIGH)), start)
        high = np.maximum.reduceat(np.where(running, counts[:, column], np.uint64(0)), start)
        same &= low >= high
    return same


def diverged(layout: Layout, counts: NDArray[np.uint64], shape: Shape, comms: NDArray[np.int64]) -> Mask:
    """(len(comms),) whether the running members' operations can not be the same sequence, cut off at different places.

    Members that issue one sequence have counts that are prefixes of it: of any two vectors one is at least the other in every
    operation. Sorted by their sum it is enough to compare neighbours. Two that are not comparable prove different sequences,
    whenever each of them was read; the reverse does not hold (equal counts hide another size, type, root or order).
    """
    rows = spread(layout, comms)
    rows = rows[shape.running[rows]]
    if not len(rows):
        return np.zeros(len(comms), np.bool_)
    rows = rows[np.lexsort((shape.total[rows], layout.comm_of[rows]))]
    vectors = counts[rows]
    fell = (vectors[1:] < vectors[:-1]).any(axis=1) & (layout.comm_of[rows[1:]] == layout.comm_of[rows[:-1]])
    return np.isin(comms, layout.comm_of[rows[1:][fell]])
