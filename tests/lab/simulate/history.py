"""What had been launched by when: pieces of a job's life, each a schedule of launches, summed to the counts that RAS reads."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Union

import numpy as np
from numpy.typing import NDArray

from tests.lab.simulate.machine import Trace

OPERATIONS = 5


@dataclass
class Periodic:
    """`steps` equal steps. `offset` (launches,): seconds after `start` of the first step; `cell`: slot * 5 + operation."""

    start: float
    period: float
    steps: int
    offset: NDArray[np.float64]
    cell: NDArray[np.int64]

    @property
    def last(self) -> float:
        """When the last launch was."""
        return self.start + (self.steps - 1) * self.period + (float(self.offset.max()) if len(self.offset) else 0.0)

    def counts(self, time: NDArray[np.float64], cells: int) -> NDArray[np.float64]:
        """(cells,) launches by `time` (cells,)."""
        done = np.floor((time[self.cell] - self.start - self.offset) / self.period) + 1
        return np.bincount(self.cell, np.clip(done, 0, self.steps), cells)

    @property
    def spans(self) -> tuple[float, float]:
        """Begin and end."""
        return self.start, self.start + self.steps * self.period


@dataclass
class Once:
    """A run of the machine that happens once, from `start`, its clock being `scale` seconds a unit. `end` is inf for a hang."""

    start: float
    scale: float
    trace: Trace
    at: NDArray[np.float64]
    cell: NDArray[np.int64]
    end: float

    @property
    def last(self) -> float:
        """When the last launch was."""
        return float(self.at.max()) if len(self.at) else self.start

    def counts(self, time: NDArray[np.float64], cells: int) -> NDArray[np.float64]:
        """(cells,) launches by `time` (cells,)."""
        return np.bincount(self.cell, self.at <= time[self.cell], cells)

    @property
    def spans(self) -> tuple[float, float]:
        """Begin and end."""
        return self.start, self.end

    def item(self, rank: int, time: float) -> int:
        """What a rank's host is at (see Trace.item)."""
        return self.trace.item(rank, (time - self.start) / self.scale)


Piece = Union[Periodic, Once]


@dataclass
class History:
    """The pieces of a job's life in order, and what was there before them."""

    slots: int
    pieces: list[Piece] = field(default_factory=list)
    before: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))

    def __post_init__(self) -> None:
        self.before = np.zeros(self.slots * OPERATIONS)
        self._sums: dict[int, NDArray[np.float64]] = {}

    def counts(self, time: NDArray[np.float64]) -> NDArray[np.float64]:
        """(slots, 5) launches by `time` (slots,), the instant at which each slot was read."""
        first, cells = float(time.min()), self.slots * OPERATIONS
        spread = np.repeat(time, OPERATIONS)
        total = self.before.copy()
        for index, piece in enumerate(self.pieces):
            if piece.last < first:
                total += self._whole(index, piece, cells)
            elif piece.start <= float(time.max()):
                total += piece.counts(spread, cells)
        return total.reshape(self.slots, OPERATIONS)

    def _whole(self, index: int, piece: Piece, cells: int) -> NDArray[np.float64]:
        if index not in self._sums:
            self._sums[index] = piece.counts(np.full(cells, piece.last + 1.0), cells)
        return self._sums[index]

    def piece(self, time: float) -> Piece | None:
        """What the job does at a time."""
        for piece in self.pieces:
            begin, end = piece.spans
            if begin <= time < end:
                return piece
        return None
