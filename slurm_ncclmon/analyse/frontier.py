"""Where inside one collective the data stopped, by what each rank's links have and lack. Pure.

A collective over channels is a dataflow: each rank repeats a step that needs input on all its incoming links and a free slot
on all its outgoing ones. When nothing moves any more, a healthy rank lacks one of both. Whoever lacks neither, has work left,
and does not move is where it stopped; for one fault that is one rank, in a ring, in a tree, and in a chain
(tests/analyse/test_frontier.py plays all three).

The rank with the fewest steps, which other tools name, is the same one only for a GPU fault in a ring. In a tree all ancestors
of the one at fault (on the way up) or all its descendants (on the way down) tie with it; for a link at fault in a ring it is
the receiver.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]
Mask = NDArray[np.bool_]

ROW_OR_COLUMN, POINT = 3.0, 5.0
"""A row, column (single cell) of a matrix of waits is at fault where it exceeds the mean of all so many times (as in
DeepXTrace)."""


@dataclass(frozen=True)
class Links:
    """E links between n ranks; one channel's, or those of many channels with a rank number of its own in each."""

    source: Numbers
    target: Numbers
    arrived: Mask
    """(E,) the target has input on it that it has not consumed, or needs none now."""
    slot: Mask
    """(E,) the source may put more on it."""


def frontier(ranks: int, links: Links, unfinished: Mask) -> Numbers:
    """Ranks with work left, all input and all room, ascending. Ranks without any link are not among them. O(E)."""
    starved, full, linked = np.zeros((3, ranks), np.bool_)
    starved[links.target[~links.arrived]] = True
    full[links.source[~links.slot]] = True
    linked[links.source] = linked[links.target] = True
    return np.flatnonzero(unfinished & linked & ~starved & ~full)


def counted_links(
    source: Numbers,
    target: Numbers,
    sent: Numbers,
    came: Numbers,
    got: Numbers,
    credits: int,
    needed: Mask | None = None,
) -> Links:
    """Links told by counters: `sent` by the source, `came` to the target, `got` (consumed) there, at most `credits` between sent
    and got. `needed` (E,): whether the target needs input on it for its next step at all (a ring rank's first step of a
    loop and a tree's leaf do not)."""
    arrived = came > got
    if needed is not None:
        arrived |= ~needed
    return Links(source, target, arrived, sent - got < credits)


def torn_links(links: Links, in_flight: Mask) -> Numbers:
    """Indices of links that hold something which does not arrive, while the target lacks just that: the link is at fault, or
    one of its two ends' network devices."""
    return np.flatnonzero(in_flight & ~links.arrived)


@dataclass(frozen=True)
class PairFaults:
    """What stands out in a matrix of waits: destinations, sources, single pairs."""

    destinations: Numbers
    sources: Numbers
    pairs: tuple[tuple[int, int], ...]


def pair_faults(ages: NDArray[np.float64]) -> PairFaults:
    """Of `ages` (n, n), seconds that rank i has waited for rank j (0 = not at all): columns, rows and cells far above the mean. A
    cell of a column or row that stands out is not told again."""
    n = len(ages)
    mean = ages.sum() / max(1, n * (n - 1))
    if not mean > 0:
        none = np.zeros(0, np.int64)
        return PairFaults(none, none, ())
    share = max(1, n - 1)
    columns = np.flatnonzero(ages.sum(axis=0) / share > ROW_OR_COLUMN * mean)
    lines = np.flatnonzero(ages.sum(axis=1) / share > ROW_OR_COLUMN * mean)
    cells = ages > POINT * mean
    cells[:, columns] = cells[lines, :] = False
    if (ages > 0).sum() == 1:
        return PairFaults(
            np.zeros(0, np.int64), np.zeros(0, np.int64), tuple((int(i), int(j)) for i, j in np.argwhere(ages > 0))
        )
    return PairFaults(columns, lines, tuple((int(i), int(j)) for i, j in np.argwhere(cells)))
