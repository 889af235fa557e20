"""The frontier rule on models of collectives that stop: rings, trees and chains are played, not drawn."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_ncclmon.analyse.frontier import counted_links, frontier, pair_faults, torn_links

CREDITS = 8


class Model:
    """Ranks that repeat: take one from each incoming link, put one on each outgoing one. A link holds CREDITS at most.

    `stuck`: this rank stops for ever after `after` steps. `torn`: this link stops to deliver after `after` steps.
    """

    def __init__(
        self, ranks: int, links: list[tuple[int, int]], total: int, rng: np.random.Generator, free: int = 0
    ) -> None:
        self.n, self.total, self.rng, self.free = ranks, total, rng, free
        self.source = np.array([s for s, _ in links], np.int64)
        self.target = np.array([t for _, t in links], np.int64)
        self.sent, self.came, self.got = np.zeros((3, len(links)), np.int64)
        self.done = np.zeros(ranks, np.int64)

    def run(self, stuck: int = -1, torn: int = -1, after: int = 0) -> None:
        """Until nothing moves, in random order."""
        moved = True
        while moved:
            moved = False
            for link in self.rng.permutation(len(self.sent)):
                if self.came[link] < self.sent[link] and not (link == torn and self.came[link] >= after):
                    self.came[link] = self.sent[link]
                    moved = True
            for rank in self.rng.permutation(self.n):
                moved |= self._step(int(rank), stuck, after)

    def _step(self, rank: int, stuck: int, after: int) -> bool:
        if self.done[rank] >= self.total or (rank == stuck and self.done[rank] >= after):
            return False
        incoming, outgoing = self.target == rank, self.source == rank
        needs = self.done[rank] >= self.free
        if needs and (self.came[incoming] <= self.got[incoming]).any():
            return False
        if (self.sent[outgoing] - self.got[outgoing] >= CREDITS).any():
            return False
        if needs:
            self.got[incoming] += 1
        self.sent[outgoing] += 1
        self.done[rank] += 1
        return True

    def named(self) -> list[int]:
        """What the rule says."""
        needed = self.done[self.target] >= self.free
        links = counted_links(self.source, self.target, self.sent, self.came, self.got, CREDITS, needed)
        return frontier(self.n, links, self.done < self.total).tolist()

    def torn(self) -> list[tuple[int, int]]:
        """Links that hold what does not arrive while the target lacks it."""
        links = counted_links(self.source, self.target, self.sent, self.came, self.got, CREDITS)
        found = torn_links(links, self.sent > self.came)
        return [(int(self.source[link]), int(self.target[link])) for link in found]


def tree(size: int, rng: np.random.Generator) -> list[int]:
    """Parent of each rank of a random tree of at most two children; the root has -1."""
    parent, room = [-1], {0: 2}
    for rank in range(1, size):
        above = int(rng.choice(sorted(room)))
        parent.append(above)
        room[above] -= 1
        room = {r: n for r, n in {**room, rank: 2}.items() if n}
    return parent


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000), size=st.integers(2, 12), after=st.integers(0, 40))
def test_ring_with_a_stuck_gpu(seed: int, size: int, after: int) -> None:
    rng = np.random.default_rng(seed)
    stuck = int(rng.integers(size))
    model = Model(size, [(rank, (rank + 1) % size) for rank in range(size)], 60, rng, free=1)
    model.run(stuck=stuck, after=after)
    assert model.named() == [stuck]


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000), size=st.integers(3, 12), after=st.integers(1, 40))
def test_ring_with_a_torn_link(seed: int, size: int, after: int) -> None:
    rng = np.random.default_rng(seed)
    torn = int(rng.integers(size))
    model = Model(size, [(rank, (rank + 1) % size) for rank in range(size)], 60, rng, free=1)
    model.run(torn=torn, after=after)
    assert model.named() == []
    assert model.torn() == [(torn, (torn + 1) % size)]


@settings(max_examples=120, deadline=None)
@given(seed=st.integers(0, 100_000), size=st.integers(2, 40), after=st.integers(0, 40), up=st.booleans())
def test_tree_with_a_stuck_gpu(seed: int, size: int, after: int, up: bool) -> None:
    rng = np.random.default_rng(seed)
    parent, stuck = tree(size, rng), int(rng.integers(size))
    links = [(child, above) if up else (above, child) for child, above in enumerate(parent) if above >= 0]
    model = Model(size, links, 60, rng)
    model.run(stuck=stuck, after=after)
    assert model.named() == [stuck]


def test_the_fewest_steps_do_not_tell_it_in_a_tree() -> None:
    """Why not the simple rule: on the way up all ancestors of the one at fault have as few."""
    rng = np.random.default_rng(1)
    model = Model(7, [(1, 0), (2, 0), (3, 1), (4, 1), (5, 2), (6, 2)], 60, rng)
    model.run(stuck=3, after=5)
    assert np.flatnonzero(model.done == model.done.min()).tolist() == [0, 1, 3]
    assert model.named() == [3]


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), size=st.integers(2, 20), after=st.integers(0, 40))
def test_chain_of_a_broadcast(seed: int, size: int, after: int) -> None:
    rng = np.random.default_rng(seed)
    stuck = int(rng.integers(size))
    model = Model(size, [(rank, rank + 1) for rank in range(size - 1)], 60, rng)
    model.run(stuck=stuck, after=after)
    assert model.named() == [stuck]


@pytest.mark.parametrize("shape", ["ring", "chain"])
def test_nobody_is_named_when_all_is_done(shape: str) -> None:
    links = [(rank, (rank + 1) % 6) for rank in range(6 if shape == "ring" else 5)]
    model = Model(6, links, 30, np.random.default_rng(0), free=int(shape == "ring"))
    model.run()
    assert model.named() == []


def test_pairwise_waits() -> None:
    rng = np.random.default_rng(0)
    ages = rng.uniform(0.9, 1.1, (16, 16))
    np.fill_diagonal(ages, 0.0)
    for found in (pair_faults(ages), pair_faults(np.zeros((4, 4)))):
        assert (len(found.destinations), len(found.sources), found.pairs) == (0, 0, ())
    slow = ages.copy()
    slow[:, 5] *= 10
    assert pair_faults(slow).destinations.tolist() == [5]
    slow = ages.copy()
    slow[7, :] *= 10
    assert pair_faults(slow).sources.tolist() == [7]
    slow = ages.copy()
    slow[2, 9] = 30.0
    assert pair_faults(slow).pairs == ((2, 9),)
