"""The probe's frames of a simulated job: what each rank has enqueued, what its GPU has begun, and how far a ring's data came.

Made as the bytes of frame files would hold them and turned into columns by the probe's own reader. Inside a collective the data
go round a ring of the communicator's ranks, step by step, with so many steps of credit a link; only links between nodes show.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from slurm_ncclmon.probe import layout
from slurm_ncclmon.probe.decode import decode
from slurm_ncclmon.probe.frame import Frames
from slurm_ncclmon.probe.image import Image
from tests.lab.simulate.history import OPERATIONS, Once
from tests.lab.simulate.job import Job
from tests.lab.simulate.layout import FROM_NEXT, FROM_PREV, TO_NEXT, TO_PREV
from tests.lab.simulate.steps import CALL, LAUNCH

CREDITS, STEPS, CHANNEL_COUNT = 8, 40, 2
NO_PEER = 0xFFFFF
CHANNEL_ROLES = {TO_NEXT: layout.OP_SEND, TO_PREV: layout.OP_SEND, FROM_PREV: layout.OP_RECV, FROM_NEXT: layout.OP_RECV}
ALL_TO_ALL = layout.FUNCTIONS.index("AlltoAll")


@dataclass
class Called:
    """One operation that a rank has launched in a communicator since the last even step: what it is and how far it came."""

    function: int
    label: str
    flags: int
    peer: int
    at: float
    started: bool
    done: bool


@dataclass
class Member:
    """One rank in one communicator."""

    rank: int
    comm: int
    calls: list[Called] = field(default_factory=list)


def images(job: Job, time: float, ranks: range) -> tuple[Image, ...]:
    """The probe files of some ranks' processes, as they are read at a time."""
    alive = [rank for rank in ranks if job.gone.get(rank, (np.inf, ""))[0] > time]
    members = [member for rank in alive for member in _members(job, rank, time)]
    record = np.zeros(len(members), layout.FRAME)
    counts = job.history.counts(np.full(job.mesh.size, time))
    base = _before(job, time)
    for row, member in enumerate(members):
        _fill(job, record[row], member, counts, base, time)
    _flow(job, record, members, time)
    owner = np.array([member.rank for member in members], np.int64)
    return tuple(_image(job, rank, record[owner == rank], time) for rank in alive)


def frames(job: Job, time: float, ranks: range) -> Frames:
    """The same as the probe's reader understands it."""
    return decode(images(job, time, ranks))


def _image(job: Job, rank: int, record: NDArray[np.void], time: float) -> Image:
    process = job.processes_at(time)[rank]
    header = np.zeros(1, layout.HEADER)
    header["magic"], header["abi"], header["frame_bytes"] = layout.MAGIC, layout.ABI, layout.FRAME.itemsize
    header["pid"], header["task"], header["rank"] = process.ns_pid, rank, rank
    return Image(process.node, f"{process.ns_pid}.frames", time, job.wall(0.0), header.tobytes() + record.tobytes())


def _before(job: Job, time: float) -> NDArray[np.float64]:
    """(slots,) counted launches before the piece that the job is in; in even steps all members have as many."""
    piece = job.history.piece(time)
    when = piece.start - 1e-6 if isinstance(piece, Once) else time
    return job.history.counts(np.full(job.mesh.size, when)).sum(axis=1)


def _members(job: Job, rank: int, time: float) -> list[Member]:
    """A rank's communicators with what it has launched in the present piece; a pipeline's channels belong to its communicator."""
    made: dict[int, Member] = {}
    for role, slots in job.mesh.slots.items():
        if slots[rank] >= 0 and role not in CHANNEL_ROLES:
            comm = job.mesh.comm(role, rank)
            if job.born.get(comm, 0.0) <= time:
                made[comm] = Member(rank, comm)
    piece = job.history.piece(time)
    if isinstance(piece, Once):
        _replay(job, rank, time, piece, made)
    return list(made.values())


def _replay(job: Job, rank: int, time: float, piece: Once, made: dict[int, Member]) -> None:
    trace, issued = piece.trace, dict.fromkeys(range(len(job.mesh.comms)), 0)
    program = trace.programs[rank]
    for index in range(piece.item(rank, time)):
        kind, role, operation, _, label = program[index]
        if kind not in (LAUNCH, CALL) or role is None:
            continue
        slot = job.mesh.slots[role][rank]
        number = job.mesh.comm(role, rank)
        round_ = issued[number]
        issued[number] += 1
        owner = job.mesh.comm("pp", rank) if role in CHANNEL_ROLES else number
        flags, peer = CHANNEL_ROLES.get(role, 0), 0
        if flags:
            ends = job.mesh.comms[number].ranks
            other = ends[1] if ends[0] == rank else ends[0]
            peer = job.mesh.comms[owner].ranks.index(other)
        function = operation + 1 if operation >= 0 else ALL_TO_ALL
        if flags:
            function = layout.FUNCTIONS.index("Send" if flags == layout.OP_SEND else "Recv")
        made[owner].calls.append(
            Called(
                function,
                label,
                flags,
                peer,
                piece.start + trace.reached[rank][index] * piece.scale,
                trace.arrived[slot] > round_,
                trace.done[number] > round_,
            )
        )


def _fill(
    job: Job, record: np.void, member: Member, counts: NDArray[np.float64], base: NDArray[np.float64], time: float
) -> None:
    comm = job.mesh.comms[member.comm]
    own = comm.ranks.index(member.rank)
    slot = job.mesh.base[member.comm] + own
    before = int(base[slot])
    unfinished = next((n for n, called in enumerate(member.calls) if not called.done), len(member.calls))
    paired = [called for called in member.calls if called.flags]
    grouped = len(member.calls) - len(paired)
    record["magic"], record["state"] = layout.MAGIC & 0xFFFFFFFF, layout.FRAME_LIVE
    record["flags"] = layout.FLAG_KERNEL_EVENTS | layout.FLAG_KERNEL_SEEN
    record["communicator"], record["rank"], record["size"] = job.hashes_at(time)[member.comm][0], own, len(comm.ranks)
    record["nodes"] = len({job.layout.node(rank) for rank in comm.ranks})
    record["init_ns"] = int(1e9)
    record["enqueued"] = (before + len(member.calls)) | (before + grouped) << 32
    record["calls"] = before + len(member.calls)
    record["sends"] = sum(called.flags == layout.OP_SEND for called in paired)
    record["receives"] = len(paired) - int(record["sends"])
    record["sequence"] = counts[slot][:OPERATIONS].astype(np.uint32)
    record["finished"] = before + unfinished
    record["kernel_ns"] = int(time * 1e9)
    for number, called in enumerate(member.calls):
        if number == unfinished:
            _operation(record["oldest"], member.calls, number, before)
            if called.started:
                record["started_channels"] = (1 << CHANNEL_COUNT) - 1
        elif unfinished - layout.RECENT <= number < unfinished:
            _operation(record["recent"][(before + number + 1) % layout.RECENT], member.calls, number, before)
    if member.calls:
        _operation(record["newest"], member.calls, len(member.calls) - 1, before)


def _operation(record: np.void, calls: list[Called], number: int, before: int) -> None:
    called = calls[number]
    record["function"], record["position"] = called.function, before + number + 1
    alike = [one for one in calls[: number + 1] if one.flags == called.flags]
    record["round"] = len(alike) + (0 if called.flags else before)
    record["sequence"] = record["round"] - 1
    record["algorithm"], record["protocol"] = layout.ALGORITHMS.index("RING"), layout.PROTOCOLS.index("SIMPLE")
    record["datatype"] = layout.DATATYPES.index("ncclBfloat16")
    record["count"] = 1 << 20 if called.label != "other size" else 3 << 18
    record["peer"] = called.peer if called.flags else int(called.label == "other root")
    record["channels"], record["flags"] = CHANNEL_COUNT, called.flags
    record["enqueued_ns"] = int(called.at * 1e9)
    if called.started:
        record["started"], record["started_ns"] = CHANNEL_COUNT, int((called.at + 0.001) * 1e9)
    if called.done:
        record["stopped"], record["ended_ns"] = CHANNEL_COUNT, int((called.at + 0.002) * 1e9)


def _flow(job: Job, record: NDArray[np.void], members: list[Member], time: float) -> None:
    """Steps on the links between nodes, of every communicator that some shown rank is in the middle of."""
    rows: dict[int, list[int]] = {}
    for row, member in enumerate(members):
        if any(called.started and not called.done and not called.flags for called in member.calls):
            rows.setdefault(member.comm, []).append(row)
    for comm, own in rows.items():
        ranks = job.mesh.comms[comm].ranks
        if len({job.layout.node(rank) for rank in ranks}) < 2:
            continue
        sent, got, taken = ring(_entered(job, comm, time), job.dead_links.get(comm, frozenset()))
        for row in own:
            _links(job, record[row], ranks, ranks.index(members[row].rank), sent, got, taken)


def _entered(job: Job, comm: int, time: float) -> NDArray[np.bool_]:
    """(n,) whose GPUs are in the communicator's present round."""
    piece = job.history.piece(time)
    size, base = len(job.mesh.comms[comm].ranks), job.mesh.base[comm]
    if not isinstance(piece, Once):
        return np.ones(size, np.bool_)
    return np.array([piece.trace.arrived[base + index] > piece.trace.done[comm] for index in range(size)])


def ring(
    entered: NDArray[np.bool_], dead: frozenset[int]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """(sent, got, taken) of each rank when nothing moves any more: steps that its GPU has put out to the next, steps that have
    arrived from the one before, steps that its GPU has taken in. `dead`: ranks whose link to the next loses everything from the
    middle of the collective on."""
    count = len(entered)
    sent, got, taken = (np.zeros(count, np.int64) for _ in range(3))
    loses = np.full(count, STEPS)
    loses[list(dead)] = STEPS // 3
    while True:
        room = np.roll(taken, -1) + CREDITS
        new_sent = np.where(entered, np.minimum.reduce([taken + 1, room, np.full(count, STEPS)]), 0)
        new_got = np.roll(np.minimum(new_sent, loses), 1)
        new_taken = np.where(entered, np.minimum(new_got, new_sent), 0)
        if (new_sent == sent).all() and (new_got == got).all() and (new_taken == taken).all():
            return sent, got, taken
        sent, got, taken = new_sent, new_got, new_taken


def _links(
    job: Job,
    record: np.void,
    ranks: tuple[int, ...],
    own: int,
    sent: NDArray[np.int64],
    got: NDArray[np.int64],
    taken: NDArray[np.int64],
) -> None:
    count = len(ranks)
    after, ahead = (own + 1) % count, (own - 1) % count
    flying = int(sent[own] - got[after])
    if job.layout.node(ranks[own]) != job.layout.node(ranks[after]):
        record["flags"] |= layout.FLAG_STEPS_SEEN
        full = int(sent[own] - taken[after]) >= CREDITS
        wait = layout.WAIT_SEND_NETWORK if flying else layout.WAIT_SEND_PEER if full else layout.WAIT_SEND_GPU
        word = _word(int(got[after]), after, wait, min(CREDITS, STEPS - int(got[after])), flying)
        record["send"]["moved"] = CHANNEL_COUNT * int(sent[own])
        record["send"]["done"] = CHANNEL_COUNT * int(got[after])
        for channel in range(CHANNEL_COUNT):
            record["channel"][channel]["send"] = word
    if job.layout.node(ranks[own]) != job.layout.node(ranks[ahead]):
        record["flags"] |= layout.FLAG_STEPS_SEEN
        here = int(got[own] - taken[own])
        word = _word(
            int(taken[own]),
            ahead,
            layout.WAIT_RECV_GPU if here else layout.WAIT_RECV_NETWORK,
            min(CREDITS, STEPS - int(taken[own])),
            here,
        )
        record["recv"]["moved"] = CHANNEL_COUNT * int(got[own])
        record["recv"]["done"] = CHANNEL_COUNT * int(taken[own])
        for channel in range(CHANNEL_COUNT):
            record["channel"][channel]["recv"] = word
    for channel in range(CHANNEL_COUNT, layout.CHANNELS):
        record["channel"][channel]["send"] = record["channel"][channel]["recv"] = NO_PEER << 32
    for name, far in (("send", after), ("recv", ahead)):
        if job.layout.node(ranks[own]) == job.layout.node(ranks[far]):
            for channel in range(CHANNEL_COUNT):
                record["channel"][channel][name] = NO_PEER << 32


def _word(done: int, peer: int, wait: int, posted: int, moved: int) -> int:
    return done | peer << 32 | wait << 52 | min(posted, 15) << 56 | min(moved, 15) << 60
