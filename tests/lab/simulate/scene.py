"""What all cases share: how a job begins, how a hang is left to itself, and what its last state lets one decide."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Callable

import numpy as np

from tests.lab.simulate.history import Once
from tests.lab.simulate.job import Job, Window
from tests.lab.simulate.layout import FROM_NEXT, FROM_PREV, TO_NEXT, TO_PREV
from tests.lab.simulate.machine import Harm
from tests.lab.simulate.steps import Item, Program
from tests.lab.simulate.truth import COUNTS, FRAMES, NODE, Truth

AFTERWARDS_S = 640.0
"""How long a hang is watched: Ray's detector confirms after 600 s."""


CHANNELS = (TO_NEXT, FROM_PREV, TO_PREV, FROM_NEXT)
INSIDE = ("H3", "H2", "None")
"""What may be said of a hang inside a collective that evidence cannot tell apart."""


@dataclass(frozen=True)
class Case:
    """One fault or silent situation, and the jobs that can have it."""

    name: str
    what: str
    build: Callable[[Job], None]
    hang: bool
    cls: str = ""
    """The class that it truly is."""
    kinds: tuple[str, ...] = ()
    """Layout kinds; any if empty."""
    most: int = 4096
    least: int = 8
    late: bool = False
    tp: bool = False
    """Tensor parallel only."""
    pp: bool = False
    """Pipeline parallel only."""
    blocking: bool | None = None
    world: bool | None = None
    """Whether every step must (not) have a collective of everybody."""


CASES: dict[str, Case] = {}


def case(name: str, hang: bool, **limits: object) -> Callable[[Callable[[Job], None]], Callable[[Job], None]]:
    """Register a case; its docstring says what happens."""

    def register(build: Callable[[Job], None]) -> Callable[[Job], None]:
        CASES[name] = Case(name, (build.__doc__ or "").strip(), build, hang, **limits)  # type: ignore[arg-type]
        return build

    return register


def begin(job: Job, seconds: float | None = None) -> None:
    """The launcher, communicators, perhaps a first step that is compiled, and training for a while."""
    rng = job.rng
    job.up = float(rng.uniform(1, 20))
    job.now = job.up + float(rng.uniform(1, 25))
    if rng.random() < 0.3 and job.mesh.has("world"):
        half = job.up + float(rng.uniform(1, 12))
        whole = half + float(rng.uniform(0, 8))
        job.windows.append(Window(job.mesh.comm("world", 0), job.up, half, whole, some_ranks(job)))
        job.now = max(job.now, whole + 0.5)
    if rng.random() < 0.4:
        compiled = job.pause(float(rng.uniform(10, 90)), "compile")
        job.special(everyone=lambda program: [compiled, *program])
    job.healthy(float(rng.uniform(60, 180)) if seconds is None else seconds)


def some_ranks(job: Job) -> frozenset[int]:
    """Half of the ranks or so."""
    return frozenset(np.flatnonzero(job.rng.random(job.layout.ranks) < 0.5).tolist())


def pick(job: Job) -> int:
    """Any rank."""
    return int(job.rng.integers(job.layout.ranks))


def choose(job: Job, options: list[int]) -> int:
    """One of them."""
    return int(job.rng.choice(options))


def hang(
    job: Job,
    changes: dict[int, Program] | None = None,
    harm: Harm | None = None,
    everyone: Callable[[Program], Program] = lambda program: program,
    follow: int = 2,
) -> Once:
    """The step that hangs; AssertionError when it does not."""
    since = job.now
    piece = job.special(changes, everyone, follow, harm)
    if not piece.trace.stuck:
        raise AssertionError(f"{job.truth.case} with seed {job.seed}: nothing hangs")
    job.truth.since_s = max(since, piece.last)
    job.end = job.truth.since_s + AFTERWARDS_S
    return piece


def final_counts(job: Job) -> np.ndarray:
    """(slots, 5) when nothing moves any more."""
    return job.history.counts(np.full(job.mesh.size, 1e15))


def sides(job: Job) -> tuple[set[int], set[int], bool]:
    """Ranks that are behind in some communicator, ranks that are ahead in some, and whether operations differ anywhere.

    What counts alone show of a hang: who is behind somewhere and ahead nowhere waits, as far as counts can tell, for nobody.
    """
    counts = final_counts(job)
    behind: set[int] = set()
    ahead: set[int] = set()
    differs = False
    for number, comm in enumerate(job.mesh.comms):
        if not comm.visible:
            continue
        base = job.mesh.base[number]
        part = counts[base : base + len(comm.ranks)]
        total = part.sum(axis=1)
        vectors = np.unique(part, axis=0)
        if len(vectors) == 1:
            continue
        ordered = vectors[np.argsort(vectors.sum(axis=1), kind="stable")]
        if (np.diff(ordered, axis=0) < 0).any():
            differs = True
        ranks = np.asarray(comm.ranks)
        behind |= set(ranks[total == total.min()].tolist())
        ahead |= set(ranks[total > total.min()].tolist())
    return behind, ahead, differs


def conclude_not_entered(
    job: Job,
    what: str,
    culprits: set[int],
    kinds: tuple[str, ...] = ("not_entered",),
    incidents: tuple[int, ...] = (1,),
    classes: tuple[str, ...] = ("H1",),
) -> None:
    """The truth of ranks that do not come to a collective, with what of it can be decided from the final state.

    By counts alone nobody can be told where a whole communicator is late: it may as well be stuck inside a collective of its own.
    """
    behind, ahead, _ = sides(job)
    truth = job.truth
    truth.what, truth.classes, truth.kinds, truth.culprits, truth.incidents = (
        what,
        classes,
        kinds,
        frozenset(culprits),
        incidents,
    )
    truth.visible = {COUNTS: bool(behind), NODE: True, FRAMES: True}
    alone = behind - ahead == culprits and not any(
        set(comm.ranks) <= culprits for comm in job.mesh.comms if comm.visible
    )
    truth.decidable = {COUNTS: alone, NODE: True, FRAMES: True}


def conclude_inside(
    job: Job,
    what: str,
    culprits: set[int],
    classes: tuple[str, ...],
    kinds: tuple[str, ...],
    named: dict[str, bool] | None = None,
) -> None:
    """The truth of a hang inside a collective: without frames nobody can be named, unless `named` says otherwise."""
    behind, _, _ = sides(job)
    truth = job.truth
    truth.what, truth.classes, truth.kinds, truth.culprits = what, classes, kinds, frozenset(culprits)
    truth.visible = {COUNTS: bool(behind), NODE: True, FRAMES: True}
    truth.decidable = {COUNTS: False, NODE: False, FRAMES: True, **(named or {})}


def silent(job: Job, what: str, suspicion: bool = True, after_s: float = 60.0) -> None:
    """The truth of a job with which nothing is wrong."""
    job.truth = Truth(
        job.truth.case, False, what, suspicion=suspicion, decidable={COUNTS: True, NODE: True, FRAMES: True}
    )
    if job.now < inf and job.end <= 0:
        job.end = job.now + after_s


def replaced(program: Program, index: int, item: Item) -> Program:
    """A program with another item at one place."""
    return [*program[:index], item, *program[index + 1 :]]
