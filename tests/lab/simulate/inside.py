"""Faults inside a collective or transfer that everybody entered: links, cards, GPUs, kernels."""

from __future__ import annotations

from math import inf

from tests.lab.simulate.job import Job, Mark
from tests.lab.simulate.machine import Harm
from tests.lab.simulate.scene import (
    CHANNELS,
    INSIDE,
    begin,
    case,
    choose,
    conclude_inside,
    hang,
    pick,
    replaced,
)
from tests.lab.simulate.steps import (
    COMPUTE,
)
from tests.lab.simulate.truth import COUNTS, FRAMES, NODE


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
    hang(job, {rank: replaced(job.programs[rank], index, (COMPUTE, None, -1, inf, ""))})
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
