"""A job for a seed: which case, how many ranks, which layout, all drawn from it."""

from __future__ import annotations

import numpy as np

from tests.lab.simulate import appearances, differing, inside, late, pauses  # noqa: F401  (they register their cases)
from tests.lab.simulate.job import Job, make
from tests.lab.simulate.layout import Layout, sample
from tests.lab.simulate.scene import CASES as REGISTERED
from tests.lab.simulate.scene import Case
from tests.lab.simulate.steps import Style

CASES = {name: REGISTERED[name] for name in sorted(REGISTERED, key=lambda name: (name[0] != "P", int(name[1:])))}
"""By name, the faults first."""
SIZES = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
SHARES = (0.18, 0.18, 0.17, 0.14, 0.11, 0.09, 0.06, 0.04, 0.018, 0.012)
TRIES = 20


def build(
    seed: int, name: str | None = None, ranks: int | None = None, tier: str | None = None, most: int = SIZES[-1]
) -> Job:
    """The job of a seed, of at most so many ranks; what is given is not drawn. AssertionError where a case cannot be had."""
    names = list(CASES)
    chosen = CASES[name or names[seed % len(names)]]
    for attempt in range(TRIES):
        rng = np.random.default_rng((seed, attempt))
        try:
            return _attempt(rng, seed, chosen, ranks, tier, most)
        except AssertionError:
            if attempt == TRIES - 1:
                raise
    raise AssertionError


def _attempt(rng: np.random.Generator, seed: int, chosen: Case, ranks: int | None, tier: str | None, most: int) -> Job:
    allowed = [size for size in SIZES if chosen.least <= size <= min(chosen.most, most)]
    share = np.array([SHARES[SIZES.index(size)] for size in allowed])
    layout = _layout(rng, chosen, ranks or int(rng.choice(allowed, p=share / share.sum())))
    job = make(seed, rng, layout, _style(rng, chosen, layout))
    job.truth.case = chosen.name
    if tier:
        job.tier = tier
    chosen.build(job)
    job.truth.case, job.truth.hang, job.truth.cls = chosen.name, chosen.hang, chosen.cls
    return job


def _layout(rng: np.random.Generator, chosen: Case, ranks: int) -> Layout:
    while True:
        drawn = sample(rng, ranks, chosen.kinds)
        if (drawn.tp > 1 or not chosen.tp) and (drawn.pp > 1 or not chosen.pp):
            return Layout(**{**vars(drawn), "late": chosen.late})


def _style(rng: np.random.Generator, chosen: Case, layout: Layout) -> Style:
    large = layout.ranks >= 1024
    world = bool(rng.random() < 0.5) if chosen.world is None else chosen.world
    return Style(
        layers=1 if large else int(rng.integers(1, 4)),
        microbatches=2 if large else int(rng.integers(1, 5)),
        buckets=int(rng.integers(1, 4)),
        world_each_step=world,
        distributed_optimizer=bool(rng.random() < 0.6),
        sequence_parallel=bool(rng.random() < 0.4),
        blocking=bool(rng.random() < 0.25) if chosen.blocking is None else chosen.blocking,
    )
