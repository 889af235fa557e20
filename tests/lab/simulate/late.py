"""Faults of ranks that do not come to a collective: stuck, gone, stopped, or never in the communicator."""

from __future__ import annotations

from math import inf

from slurm_ncclmon.ras.report import ABORTED
from tests.lab.simulate.job import Job, Mark, Window, restart
from tests.lab.simulate.machine import Harm
from tests.lab.simulate.scene import (
    AFTERWARDS_S,
    CHANNELS,
    begin,
    case,
    choose,
    conclude_not_entered,
    hang,
    pick,
)
from tests.lab.simulate.steps import (
    ALL_REDUCE,
    CALL,
    INIT,
    Item,
    Program,
    call,
    stop,
    sync,
)
from tests.lab.simulate.truth import COUNTS, NODE

STUCK = ("sleep", "python", "lock", "storage", "dataload")


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


@case("P17", True, cls="H1", kinds=("megatron",), tp=True)
def cascade(job: Job) -> None:
    """A tensor-parallel rank is stuck; data-parallel peers and then everybody wait."""
    begin(job)
    rank = pick(job)
    hang(job, {rank: _cut(job, rank, choose(job, job.spots(rank, roles=("tp",))), str(job.rng.choice(STUCK)))})
    conclude_not_entered(job, f"rank {rank} never enters its tensor-parallel collective", {rank})


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


@case("P33", True, cls="H1", kinds=("ddp", "fsdp", "hsdp"), world=True)
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


@case("P35", True, cls="H1")
def debugger(job: Job) -> None:
    """Somebody holds one rank in a debugger."""
    begin(job)
    rank = pick(job)
    hang(job, {rank: _cut(job, rank, choose(job, job.spots(rank)), "debugger")})
    conclude_not_entered(job, f"rank {rank} is held by a debugger", {rank}, ("stopped", "traced", "not_entered"))


@case("P36", True, cls="H1")
def after_pauses(job: Job) -> None:
    """A rank is stuck after the job has shown two long checkpoints of rank 0."""
    begin(job)
    for _ in range(2):
        saving = job.pause(float(job.rng.uniform(70, 190)), "checkpoint")
        barrier: Program = [call("world", ALL_REDUCE), sync("barrier")]
        job.special({0: [saving, *barrier, *job.programs[0]]}, everyone=lambda program: barrier + program)  # noqa: B023
        job.healthy(60.0)
    rank = pick(job)
    hang(job, {rank: _cut(job, rank, choose(job, job.spots(rank)), str(job.rng.choice(STUCK)))})
    job.truth.settle_s, job.end = 300.0, job.end + 300.0
    conclude_not_entered(job, f"rank {rank} never enters its next collective", {rank})


@case("P37", True, cls="H1", kinds=("islands",), most=128)
def on_an_island(job: Job) -> None:
    """One of several independent replicas hangs; each poll shows any one of them."""
    begin(job, 400.0)
    rank, since = pick(job), job.now
    changes = {rank: _cut(job, rank, choose(job, job.spots(rank)), str(job.rng.choice(STUCK)))}
    hang(job, changes, follow=int((AFTERWARDS_S + 60.0) / job.period))
    job.truth.since_s, job.end = since + job.period, since + AFTERWARDS_S
    conclude_not_entered(job, f"rank {rank} of a replica never enters its next collective", {rank})


@case("P38", True, cls="H1")
def after_a_restart(job: Job) -> None:
    """A rank is stuck after an elastic restart."""
    begin(job)
    begins = job.now
    job.now += float(job.rng.uniform(20, 120))
    job.blind.append((begins, job.now, "connection refused"))
    restart(job, job.now)
    job.healthy(float(job.rng.uniform(30, 120)))
    rank = pick(job)
    hang(job, {rank: _cut(job, rank, choose(job, job.spots(rank)), str(job.rng.choice(STUCK)))})
    conclude_not_entered(job, f"rank {rank} never enters its next collective", {rank})
