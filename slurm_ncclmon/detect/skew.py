"""Unevenness that a communicator always shows: a rank that counted one more at the start stays one ahead for ever, and waits for
nobody. It is no evidence of a hang, however long the communicator rests."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slurm_ncclmon.detect.history import History
from slurm_ncclmon.detect.layout import Layout, common_rows
from slurm_ncclmon.detect.shape import Mask, Shape

SAMPLES = 3
"""So many different states in a row, in all of which everybody had moved on, must show the very same offsets …"""
SAMPLES_AFTER_OTHERS = 16
"""… and so many where it has shown others before, as a rank does that is merely slow."""


@dataclass
class _Seen:
    layout: Layout
    offsets: NDArray[np.int64]
    """(M, 5) distance to the communicator's highest count, at the last sample."""
    lowest: NDArray[np.uint64]
    """(C,) launches of the slowest member at the last sample."""
    streak: NDArray[np.int64]
    samples: NDArray[np.int64]


class Skew:
    """`update` after each report that changed counts; `steady` are then the communicators whose present unevenness is their
    usual."""

    def __init__(self) -> None:
        self._seen: _Seen | None = None
        self._version = -1
        self._steady: Mask = np.zeros(0, np.bool_)

    def steady(self, history: History, shape: Shape) -> Mask:
        """(C,) as of the history's last report."""
        if self._version != history.version:
            self._version = history.version
            self._steady = self._update(history, shape)
        return self._steady

    def _update(self, history: History, shape: Shape) -> Mask:
        layout = history.layout
        if not len(layout.comms):
            return np.zeros(0, np.bool_)
        seen = self._seen = self._carried(layout)
        if shape.level.all() and not seen.streak.any():
            moved = history.comms.lowest > seen.lowest
            seen.samples += moved
            seen.lowest = np.where(moved, history.comms.lowest, seen.lowest)
            return np.zeros(len(layout.comms), np.bool_)
        offsets = _offsets(history, shape)
        start = layout.start[:-1]
        different = np.zeros(len(offsets), np.bool_)
        for column in range(offsets.shape[1]):
            different |= offsets[:, column] != seen.offsets[:, column]
        same = ~np.logical_or.reduceat(different, start)
        moved = (history.comms.lowest > seen.lowest) | (seen.samples == 0)
        seen.streak = np.where(moved, np.where(shape.level, 0, np.where(same, seen.streak, 0) + 1), seen.streak)
        seen.samples += moved
        seen.lowest = np.where(moved, history.comms.lowest, seen.lowest)
        rows = moved[layout.comm_of]
        seen.offsets[rows] = offsets[rows]
        enough = np.where(seen.streak == seen.samples, SAMPLES, SAMPLES_AFTER_OTHERS)
        steady: Mask = ~shape.level & (same | moved) & (seen.streak >= enough)
        return steady

    def _carried(self, layout: Layout) -> _Seen:
        """What was seen, in the order of `layout`."""
        old = self._seen
        if old is not None and old.layout is layout:
            return old
        rows, comms = len(layout.rank), len(layout.comms)
        new = _Seen(
            layout,
            np.zeros((rows, 5), np.int64),
            np.zeros(comms, np.uint64),
            np.zeros(comms, np.int64),
            np.zeros(comms, np.int64),
        )
        if old is not None:
            pairs, rows_from, rows_to = common_rows(old.layout, layout)
            new.offsets[rows_to] = old.offsets[rows_from]
            for name in ("lowest", "streak", "samples"):
                getattr(new, name)[pairs[1]] = getattr(old, name)[pairs[0]]
        return new


def _offsets(history: History, shape: Shape) -> NDArray[np.int64]:
    """(M, 5) how far each running member is behind its communicator's highest count of each operation."""
    layout = history.layout
    offsets = np.zeros((len(layout.rank), 5), np.int64)
    for column in range(5):
        count = np.where(shape.running, history.members.counts[:, column].astype(np.int64), -1)
        highest = np.maximum.reduceat(count, layout.start[:-1])[layout.comm_of]
        offsets[:, column] = np.where(shape.running, highest - count, 0)
    return offsets
