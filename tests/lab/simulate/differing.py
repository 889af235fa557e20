"""Faults of ranks that call something else than the others, or in another order."""

from __future__ import annotations

import numpy as np

from tests.lab.simulate.job import Job
from tests.lab.simulate.scene import (
    INSIDE,
    begin,
    case,
    choose,
    conclude_inside,
    conclude_not_entered,
    final_counts,
    hang,
    pick,
    replaced,
    sides,
)
from tests.lab.simulate.steps import (
    ALL_GATHER,
    ALL_REDUCE,
    BROADCAST,
    Program,
    call,
    stop,
    sync,
)
from tests.lab.simulate.truth import COUNTS, FRAMES, NODE


def _big(job: Job, rank: int, least: int) -> list[int]:
    """Spots of a rank on communicators of at least that size, counted and needed at once or later."""
    return [
        index
        for index in job.spots(rank, counted=True)
        if len(job.mesh.comms[job.mesh.comm(job.programs[rank][index][1] or "", rank)].ranks) >= least
    ]


def _with_spot(job: Job, least: int) -> tuple[int, int]:
    """A rank and one of its spots on a communicator of at least that size."""
    for _ in range(200):
        rank = pick(job)
        spots = _big(job, rank, least)
        if spots:
            return rank, choose(job, spots)
    raise AssertionError("no communicator is that large")


def _differ(job: Job, what: str, culprits: set[int], role: str, kinds: tuple[str, ...]) -> None:
    """The truth where ranks issue something else: named by counts where their counts differ from a majority's alone."""
    conclude_inside(job, what, culprits, ("H2",), kinds)
    rank = next(iter(culprits))
    number = job.mesh.comm(role, rank)
    comm, base = job.mesh.comms[number], job.mesh.base[number]
    _tie(job, comm.ranks)
    part = job.history.counts(np.full(job.mesh.size, 1e15))[base : base + len(comm.ranks)]
    odd = {
        comm.ranks[row] for row in range(len(comm.ranks)) if (part != part[row]).any(axis=1).sum() > len(comm.ranks) / 2
    }
    truth = job.truth
    _, _, differs = sides(job)
    truth.decidable[COUNTS] = truth.decidable[NODE] = odd == culprits and (differs or "extra_op" in kinds)
    behind = part[[comm.ranks.index(other) for other in culprits]].sum(axis=1).max() < part.sum(axis=1).max()
    if not truth.decidable[NODE]:
        truth.classes = INSIDE
    elif behind and not differs:
        # What it called too many is even by now, and it is behind: exactly what a rank looks like that did not come.
        truth.classes = ("H2", "H1", "None")


def _tie(job: Job, ranks: tuple[int, ...]) -> None:
    """Of two that disagree nobody can say who is wrong."""
    if len(ranks) == 2:
        job.truth.also = (frozenset(ranks),)


@case("P6", True, cls="H2", kinds=("ddp", "fsdp", "hsdp", "megatron"))
def extra_operation(job: Job) -> None:
    """Two ranks (one in a small communicator) issue an AllGather that the others do not."""
    begin(job)
    rank, index = _with_spot(job, 4)
    role = job.programs[rank][index][1] or ""
    ranks = job.mesh.comms[job.mesh.comm(role, rank)].ranks
    culprits = {rank} if len(ranks) < 8 else {rank, int(job.rng.choice([other for other in ranks if other != rank]))}
    extra: Program = [call(role, ALL_GATHER)] + ([sync("collective")] if job.style.blocking else [])
    changes = {}
    for other in culprits:
        spot = index if job.programs[other] is job.programs[rank] else _same_spot(job, rank, index, other)
        changes[other] = job.programs[other][:spot] + extra + job.programs[other][spot:]
    hang(job, changes)
    _differ(
        job,
        f"ranks {sorted(culprits)} issue an AllGather too many on {role}",
        culprits,
        role,
        ("extra_op", "inconsistent_op"),
    )


def _same_spot(job: Job, rank: int, index: int, other: int) -> int:
    """Where another rank issues the same collective: the same count of them on that role."""
    role = job.programs[rank][index][1] or ""
    number = job.spots(rank, roles=(role,)).index(index)
    return job.spots(other, roles=(role,))[number]


@case("P7", True, cls="H2")
def other_operation(job: Job) -> None:
    """One rank calls AllGather where the others call something else."""
    begin(job)
    rank, index = _with_spot(job, 3)
    kind, role, operation, duration, label = job.programs[rank][index]
    other = ALL_GATHER if operation != ALL_GATHER else ALL_REDUCE
    hang(job, {rank: replaced(job.programs[rank], index, (kind, role, other, duration, label))})
    _differ(job, f"rank {rank} calls another operation on {role}", {rank}, role or "", ("inconsistent_op",))


@case("P8", True, cls="H2")
def other_size(job: Job) -> None:
    """One rank calls the right operation with another count or type."""
    begin(job)
    rank, index = _with_spot(job, 2)
    kind, role, operation, duration, _ = job.programs[rank][index]
    hang(job, {rank: replaced(job.programs[rank], index, (kind, role, operation, duration, "other size"))})
    conclude_inside(
        job,
        f"rank {rank} calls with another size on {role}",
        {rank},
        INSIDE,
        ("inconsistent_op", "in_collective", "symmetric"),
    )
    _tie(job, job.mesh.comms[job.mesh.comm(role or "", rank)].ranks)


@case("P9", True, cls="H2", kinds=("megatron", "fsdp", "hsdp"))
def swapped(job: Job) -> None:
    """One rank issues two successive collectives of one communicator the other way round."""
    begin(job)
    role = "tp" if job.mesh.has("tp") else "shard" if job.mesh.has("shard") else "world"
    rank = pick(job)
    pair: Program = [call(role, ALL_REDUCE), call(role, ALL_GATHER)]
    if job.style.blocking:
        pair = [pair[0], sync("collective"), pair[1], sync("collective")]
        odd = [pair[2], pair[1], pair[0], pair[3]]
    else:
        odd = pair[::-1]
    hang(job, {rank: odd + job.programs[rank]}, everyone=lambda program: pair + program)
    _differ(job, f"rank {rank} swaps two collectives of {role}", {rank}, role, ("inconsistent_op", "wrong_order"))


@case("P10", True, cls="H2")
def other_root(job: Job) -> None:
    """One rank broadcasts from another root."""
    begin(job)
    rank = 1 + int(job.rng.integers(job.layout.ranks - 1))
    usual, odd = call("world", BROADCAST), call("world", BROADCAST, "other root")
    hang(job, {rank: [odd, *job.programs[rank]]}, everyone=lambda program: [usual, *program])
    conclude_inside(
        job, f"rank {rank} names another root", {rank}, INSIDE, ("inconsistent_op", "in_collective", "symmetric")
    )


@case("P11", True, cls="H2", kinds=("megatron", "hsdp"))
def wrong_order(job: Job) -> None:
    """One rank uses two communicators in the other order."""
    begin(job)
    rank = pick(job)
    role = next(role for role in ("tp", "dp", "shard") if job.mesh.has(role))
    between = [sync("collective")] if job.style.blocking else []
    usual = [call(role, ALL_REDUCE), *between, call("world", ALL_REDUCE), *between]
    odd = [call("world", ALL_REDUCE), *between, call(role, ALL_REDUCE), *between]
    hang(job, {rank: odd + job.programs[rank]}, everyone=lambda program: usual + program)
    mates = set(job.mesh.comms[job.mesh.comm(role, rank)].ranks)
    conclude_inside(
        job,
        f"rank {rank} uses world before {role}, the others after it",
        mates,
        ("H2",),
        ("wrong_order", "inconsistent_op"),
    )
    truth = job.truth
    truth.also = (frozenset({rank}),)
    own = final_counts(job)[[job.mesh.slots[role][mate] for mate in sorted(mates)]]
    truth.decidable[COUNTS] = truth.decidable[NODE] = bool((own != own[0]).any())
    if not truth.decidable[NODE]:
        truth.classes = INSIDE


@case("P34", True, cls="H2", kinds=("ddp", "fsdp", "hsdp"))
def one_more_at_the_end(job: Job) -> None:
    """The last step is over; one rank has a barrier of its own in a branch that only it takes, the others end."""
    begin(job)
    rank = int(job.rng.choice([0, pick(job)]))
    others = [other for other in range(job.layout.ranks) if other != rank]
    barrier: Program = [call("world", ALL_REDUCE), sync("barrier")]
    changes: dict[int, Program] = {other: [stop("teardown")] for other in others}
    changes[rank] = barrier
    hang(job, changes)
    for other in others:
        job.gone[other] = (job.truth.since_s + float(job.rng.uniform(2, 25)), "exited")
    conclude_not_entered(
        job,
        f"rank {rank} has a barrier of its own at the end",
        {rank},
        ("extra_op", "exited_early", "dead", "missing"),
        classes=("H2", "H1", "H3"),
    )
    job.truth.also = (frozenset(others),)
    job.truth.decidable = {COUNTS: False, NODE: False, FRAMES: False}
