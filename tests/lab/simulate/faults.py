"""The faults: each lays out a job's life up to the hang and the truth about it."""

from __future__ import annotations

from math import inf

import numpy as np

from slurm_ncclmon.ras.report import ABORTED
from tests.lab.simulate.job import Job, Mark, Window
from tests.lab.simulate.layout import FROM_NEXT, FROM_PREV, TO_NEXT, TO_PREV
from tests.lab.simulate.machine import Harm
from tests.lab.simulate.scene import (
    AFTERWARDS_S,
    begin,
    case,
    choose,
    conclude_inside,
    conclude_not_entered,
    hang,
    pick,
    sides,
)
from tests.lab.simulate.steps import (
    ALL_GATHER,
    ALL_REDUCE,
    BROADCAST,
    CALL,
    COMPUTE,
    INIT,
    Item,
    Program,
    call,
    stop,
    sync,
)
from tests.lab.simulate.truth import COUNTS, FRAMES, NODE

STUCK = ("sleep", "python", "lock", "storage", "dataload")
CHANNELS = (TO_NEXT, FROM_PREV, TO_PREV, FROM_NEXT)
INSIDE = ("H3", "H2", "None")
"""What may be said of a hang inside a collective that evidence cannot tell apart."""


def _cut(job: Job, rank: int, index: int, label: str) -> Program:
    return [*job.programs[rank][:index], stop(label)]


@case("P1", True, cls="H1")
def not_entered(job: Job) -> None:
    """One rank sleeps, computes or waits for a lock instead of entering its next collective."""
    begin(job)
    rank = pick(job)
    hang(job, {rank: _cut(job, rank, choose(job, job.spots(rank)), str(job.rng.choice(STUCK)))})
    conclude_not_entered(job, f"rank {rank} never enters its next collective", {rank})


@case("P2", True, cls="H1")
def exception(job: Job) -> None:
    """One rank raised and waits in its handler."""
    begin(job)
    rank = pick(job)
    hang(job, {rank: _cut(job, rank, choose(job, job.spots(rank)), "exception")})
    conclude_not_entered(job, f"rank {rank} is in its exception handler", {rank})


@case("P3", True, cls="H1")
def exits_early(job: Job) -> None:
    """One rank ends, with success, a step before the others."""
    begin(job)
    rank = pick(job)
    job.gone[rank] = (job.now + job.period * 0.1, "exited")
    hang(job, {rank: [stop("teardown")]})
    job.truth.since_s = max(job.truth.since_s, job.gone[rank][0])
    _absent(job, f"rank {rank} exited a step early", rank, ("exited_early", "dead", "missing"))


def _absent(job: Job, what: str, rank: int, kinds: tuple[str, ...]) -> None:
    conclude_not_entered(job, what, {rank}, kinds, classes=("H1", "H3"))
    job.truth.visible[COUNTS] = job.truth.decidable[COUNTS] = True


def _ended(job: Job, rank: int) -> float:
    """When in the coming step something happens to a rank's process; its host and its GPU end then."""
    offset = float(job.rng.uniform(0.1, 0.9)) * job.period
    hang(job, harm=Harm({rank: job.unit(offset)}, {rank: job.unit(offset)}), follow=3)
    return job.history.pieces[-1].start + offset


@case("P4", True, cls="H3")
def killed(job: Job) -> None:
    """One rank is killed in the middle of a step."""
    begin(job)
    rank = pick(job)
    job.gone[rank] = (_ended(job, rank), "killed")
    _absent(job, f"rank {rank} was killed", rank, ("dead", "exited_early", "missing"))


@case("P5", True, cls="H1")
def stopped(job: Job) -> None:
    """One rank is stopped by a signal."""
    begin(job)
    rank = pick(job)
    job.stopped[rank] = (_ended(job, rank), inf)
    _absent(job, f"rank {rank} was stopped", rank, ("stopped", "dead", "missing"))


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
    if not truth.decidable[NODE]:
        truth.classes = INSIDE


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


def _tie(job: Job, ranks: tuple[int, ...]) -> None:
    """Of two that disagree nobody can say who is wrong."""
    if len(ranks) == 2:
        job.truth.also = (frozenset(ranks),)


def _same_spot(job: Job, rank: int, index: int, other: int) -> int:
    """Where another rank issues the same collective: the same count of them on that role."""
    role = job.programs[rank][index][1] or ""
    number = job.spots(rank, roles=(role,)).index(index)
    return job.spots(other, roles=(role,))[number]


def _replace(program: Program, index: int, item: Item) -> Program:
    return [*program[:index], item, *program[index + 1 :]]


@case("P7", True, cls="H2")
def other_operation(job: Job) -> None:
    """One rank calls AllGather where the others call something else."""
    begin(job)
    rank, index = _with_spot(job, 3)
    kind, role, operation, duration, label = job.programs[rank][index]
    other = ALL_GATHER if operation != ALL_GATHER else ALL_REDUCE
    hang(job, {rank: _replace(job.programs[rank], index, (kind, role, other, duration, label))})
    _differ(job, f"rank {rank} calls another operation on {role}", {rank}, role or "", ("inconsistent_op",))


@case("P8", True, cls="H2")
def other_size(job: Job) -> None:
    """One rank calls the right operation with another count or type."""
    begin(job)
    rank, index = _with_spot(job, 2)
    kind, role, operation, duration, _ = job.programs[rank][index]
    hang(job, {rank: _replace(job.programs[rank], index, (kind, role, operation, duration, "other size"))})
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
    truth.decidable[COUNTS] = truth.decidable[NODE] = truth.visible[COUNTS]
    if not truth.visible[COUNTS]:
        truth.classes = INSIDE


def _round(job: Job, rank: int, index: int) -> tuple[int, int]:
    """(communicator, round within the step) of a rank's item."""
    role = job.programs[rank][index][1] or ""
    return job.mesh.comm(role, rank), job.spots(rank, roles=(role,)).index(index)


def _across(job: Job, rank: int) -> list[int]:
    """Spots of a rank on communicators that span nodes; any where there are none."""

    def spans(index: int) -> bool:
        ranks = job.mesh.comms[job.mesh.comm(job.programs[rank][index][1] or "", rank)].ranks
        return len({job.layout.node(other) for other in ranks}) > 1

    spots = job.spots(rank, counted=True)
    return [index for index in spots if spans(index)] or spots


def _stall(job: Job) -> tuple[int, int]:
    """A collective in which the data stop at a link (between nodes, where there is one): its two ends."""
    rank = pick(job)
    while not job.spots(rank, counted=True):
        rank = pick(job)
    comm, round_ = _round(job, rank, choose(job, _across(job, rank)))
    ranks = job.mesh.comms[comm].ranks
    links = [
        index
        for index in range(len(ranks))
        if job.layout.node(ranks[index]) != job.layout.node(ranks[index - len(ranks) + 1])
    ]
    link = choose(job, links or list(range(len(ranks))))
    job.dead_links[comm] = frozenset({link})
    hang(job, harm=Harm(stalled={(comm, round_)}))
    job.truth.decidable[FRAMES] = bool(links)
    return ranks[link], ranks[link - len(ranks) + 1]


def _link(job: Job, ends: tuple[int, int]) -> None:
    """Whoever names either end of a link, or both, is right."""
    job.truth.also = (frozenset({ends[1]}), frozenset(ends))


def _error(job: Job, rank: int, code: int) -> None:
    """RAS shows an asynchronous error on all communicators of a rank from some time after the fault on."""
    time = job.truth.since_s + float(job.rng.uniform(1, 60))
    job.marks += [Mark(time, slots[rank], "async", code) for slots in job.mesh.slots.values() if slots[rank] >= 0]


@case("P12", True, cls="H3")
def network_down(job: Job) -> None:
    """A rank's network card goes down in the middle of a collective."""
    begin(job)
    rank, other = _stall(job)
    shown = job.truth.decidable[FRAMES]
    told, error = job.rng.random() < 0.5, job.rng.random() < 0.3
    if told:
        job.node_events[job.layout.node(rank)] = [(job.truth.since_s - 1, "mlx5_core 0000:1b:00.0 ib0: link down")]
    if error:
        _error(job, rank, 6)
    conclude_inside(
        job,
        f"the network card of rank {rank} went down",
        {rank},
        ("H3", "None") if not error else ("H3",),
        ("in_collective", "symmetric", "async_error", "network", "hardware"),
        {COUNTS: error, NODE: error, FRAMES: error or shown},
    )
    _link(job, (rank, other))
    job.truth.visible[COUNTS] |= error


@case("P13", True, cls="H3")
def gpu_lost(job: Job) -> None:
    """A rank's GPU falls off the bus."""
    begin(job)
    rank = pick(job)
    told, error = job.rng.random() < 0.6, job.rng.random() < 0.5
    hang(job, harm=Harm(gpu_end={rank: job.unit(float(job.rng.uniform(0.1, 0.9)) * job.period)}), follow=3)
    if told:
        pid = job.processes[rank].pid
        job.node_events[job.layout.node(rank)] = [
            (job.truth.since_s, f"NVRM: Xid (PCI:0000:1b:00): 79, pid={pid}, name=python, GPU has fallen off the bus.")
        ]
        job.lost_gpus.add(rank)
    if error:
        _error(job, rank, 1)
    conclude_inside(
        job,
        f"the GPU of rank {rank} is lost",
        {rank},
        ("H3",) if error else ("H3", "H1", "None"),
        ("in_collective", "symmetric", "async_error", "gpu_lost", "hardware", "device_not_started"),
        {COUNTS: error, NODE: error or told},
    )
    job.truth.visible[COUNTS] |= error


@case("P14", True, cls="H1")
def kernel_spins(job: Job) -> None:
    """A compute kernel of one rank never ends, so that its GPU never comes to the next collective."""
    begin(job)
    rank = pick(job)
    kernels = [index for index in job.spots(rank, (COMPUTE,)) if index < job.spots(rank)[-1]]
    index = choose(job, kernels)
    hang(job, {rank: _replace(job.programs[rank], index, (COMPUTE, None, -1, inf, ""))})
    conclude_inside(
        job,
        f"a kernel of rank {rank} never ends",
        {rank},
        ("H1", *INSIDE),
        ("device_not_started", "in_collective", "symmetric"),
    )


@case("P15", True, cls="H3")
def link_ring(job: Job) -> None:
    """A link of a ring loses everything."""
    begin(job)
    rank, other = _stall(job)
    shown = job.truth.decidable[FRAMES]
    what = f"the link from rank {rank} to {other} is dead"
    conclude_inside(job, what, {rank}, INSIDE, ("in_collective", "symmetric", "link"), {FRAMES: shown})
    _link(job, (rank, other))


@case("P16", True, cls="H3")
def link_tree(job: Job) -> None:
    """A link of a tree loses everything."""
    link_ring(job)


@case("P17", True, cls="H1", kinds=("megatron",), tp=True)
def cascade(job: Job) -> None:
    """A tensor-parallel rank is stuck; data-parallel peers and then everybody wait."""
    begin(job)
    rank = pick(job)
    hang(job, {rank: _cut(job, rank, choose(job, job.spots(rank, roles=("tp",))), str(job.rng.choice(STUCK)))})
    conclude_not_entered(job, f"rank {rank} never enters its tensor-parallel collective", {rank})


@case("P18", True, cls="H3", kinds=("megatron",), pp=True)
def pipeline_link(job: Job) -> None:
    """The transfer between two pipeline stages never ends."""
    begin(job)
    rank = pick(job)
    index = choose(job, job.spots(rank, roles=CHANNELS))
    number, round_ = _round(job, rank, index)
    hang(job, harm=Harm(stalled={(number, round_)}))
    sender, receiver = job.mesh.comms[number].ranks
    conclude_inside(
        job,
        f"the transfer from rank {sender} to {receiver} never ends",
        {sender, receiver},
        ("H1", *INSIDE),
        ("in_collective", "symmetric", "p2p_unmatched", "not_entered", "p2p"),
    )
    job.truth.also = (frozenset({receiver}), frozenset({sender}))


@case("P19", True, cls="H1", kinds=("megatron",), pp=True)
def missing_receive(job: Job) -> None:
    """A rank never posts the receive that its neighbour sends to."""
    begin(job)
    rank = pick(job)
    spots = job.spots(rank, (CALL,), roles=CHANNELS)
    hang(job, {rank: _cut(job, rank, choose(job, spots), str(job.rng.choice(STUCK)))})
    conclude_not_entered(
        job, f"rank {rank} never posts its receive", {rank}, ("not_entered", "p2p_unmatched"), classes=("H1", "H2")
    )


@case("P20", True, cls="H1", kinds=("megatron",), tp=True, least=16)
def two_culprits(job: Job) -> None:
    """Two ranks of different tensor-parallel groups are stuck, independently."""
    begin(job)
    first = pick(job)
    mates = job.mesh.comms[job.mesh.comm("tp", first)].ranks
    second = int(
        job.rng.choice(
            [
                rank
                for rank in range(job.layout.ranks)
                if rank not in mates and job.layout.stage(rank) == job.layout.stage(first)
            ]
            or [rank for rank in range(job.layout.ranks) if rank not in mates]
        )
    )
    spot = job.spots(first, roles=("tp",))[0]
    other = job.spots(second, roles=("tp",))[0]
    piece = hang(job, {first: _cut(job, first, spot, "sleep"), second: _cut(job, second, other, "python")})
    reached = {rank for rank in (first, second) if len(piece.trace.reached[rank]) == (spot if rank == first else other)}
    conclude_not_entered(
        job,
        f"ranks {sorted(reached)} are stuck, independently",
        reached,
        incidents=(1, 2) if len(reached) > 1 else (1,),
    )


@case("P21", True, cls="H1", most=256, late=True)
def never_joins(job: Job) -> None:
    """A rank never joins the initialisation of a communicator, at the start or later."""
    rank, later, named = pick(job), job.rng.random() < 0.5, job.rng.random() < 0.5
    others = frozenset(range(job.layout.ranks)) - {rank}
    label = str(job.rng.choice(["sleep", "python", "lock"]))
    if later:
        begin(job)
        late = job.mesh.comm("late", 0)
        entering: Item = (INIT, "late", -1, 0.0, "")
        hang(job, {rank: [stop(label)]}, everyone=lambda program: [entering, *program])
        start = job.truth.since_s
    else:
        job.up = float(job.rng.uniform(1, 20))
        start, late = job.up, job.mesh.comm("world", 0)
        for other in range(job.layout.ranks):
            job.phases[other] = [(0.0, inf, label if other == rank else "init")]
        job.born.update(dict.fromkeys(range(len(job.mesh.comms)), inf))
    half = start + 5.0 if named else inf
    job.born[late] = start
    job.windows.append(Window(late, start, half, inf, others))
    truth = job.truth
    truth.what = f"rank {rank} never joins the initialisation of a communicator"
    truth.since_s, truth.settle_s, job.end = start, 1800.0, start + 1800.0 + AFTERWARDS_S
    truth.classes, truth.kinds, truth.culprits = ("H1",), ("init_stall", "not_entered"), frozenset({rank})
    truth.visible = {COUNTS: named, NODE: True}
    truth.decidable = {COUNTS: named, NODE: True}


@case("P22", True, cls="H1")
def aborts(job: Job) -> None:
    """A rank aborts a communicator in which the others wait."""
    begin(job)
    rank = pick(job)
    index = choose(job, job.spots(rank, counted=True) or job.spots(rank))
    hang(job, {rank: _cut(job, rank, index, "exception")})
    role = job.programs[rank][index][1] or ""
    visible = job.programs[rank][index][2] >= 0
    slots = [job.mesh.slots[role][rank]] if visible else []
    time = job.truth.since_s + 0.5
    job.marks += [Mark(time, slot, "flags", ABORTED) for slot in slots]
    if job.rng.random() < 0.5:
        job.marks += [Mark(time + 40.0, slot, "gone") for slot in slots]
    conclude_not_entered(
        job, f"rank {rank} aborted {role}", {rank}, ("aborted", "exited_early", "not_entered"), classes=("H1", "H3")
    )


@case("P33", True, cls="H1", kinds=("ddp", "fsdp", "hsdp"))
def majority(job: Job) -> None:
    """More than half of the ranks take a branch without the collective that the others enter."""
    begin(job)
    ranks = job.layout.ranks
    size = int(job.rng.integers(ranks // 2 + 1, ranks * 3 // 4 + 1))
    away = {int(rank) for rank in job.rng.choice(ranks, size, replace=False)}
    barrier: Program = [call("world", ALL_REDUCE), sync("barrier")]
    changes = {rank: [stop("python")] for rank in away}
    hang(job, changes, everyone=lambda program: barrier + program)
    conclude_not_entered(
        job, f"{size} of {ranks} ranks skip a barrier", away, ("not_entered", "extra_op"), classes=("H1", "H2")
    )
    job.truth.also = (frozenset(range(ranks)) - frozenset(away),)
    job.truth.decidable[COUNTS] = False


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


@case("P35", True, cls="H1")
def debugger(job: Job) -> None:
    """Somebody holds one rank in a debugger."""
    begin(job)
    rank = pick(job)
    hang(job, {rank: _cut(job, rank, choose(job, job.spots(rank)), "debugger")})
    conclude_not_entered(job, f"rank {rank} is held by a debugger", {rank}, ("stopped", "traced", "not_entered"))
