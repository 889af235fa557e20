"""Process groups and collectives that really block, with the names under which training programs call them.

A collective counts its launch where RAS reads it and then runs on the rank's stream: in order, one after the other. It
ends when every member has arrived at the same number of the same group with the same signature (operation and size): a
wrong collective never ends. With a run-ahead of 0 a call blocks until its collective ended; with N the host goes on
until N are pending. Launches, starts and ends are told to the probe where the job has one.
"""

from __future__ import annotations

import functools
import hashlib
import os
import queue
import threading
from dataclasses import dataclass, field
from typing import Callable

from . import frames, ras
from .identity import Identity
from .probe_caller import Operation
from .shared import FIRST_DYNAMIC, MAX_GROUPS, SharedFile

OPERATIONS = {"Init": 1, "AllReduce": 2, "AllGather": 3, "ReduceScatter": 4, "Broadcast": 5, "Reduce": 6}


@dataclass
class ProcessGroup:
    """One communicator as this rank sees it."""

    kind: str  # world, tp, dp, pp, or late and churn for those made while the job runs
    name: str
    ranks: list[int]  # global ranks, in the order of the communicator's own ranks
    rank: int  # this process's rank in it
    index: int  # place in the shared file
    communicator: ras.Communicator
    launched: int = 0  # collectives before the first one, if the place was used before
    probe: frames.Member = field(default_factory=frames.Member)


class Stream:
    """Runs the operations of one rank in order, as a CUDA stream does; without run-ahead in the calling thread."""

    def __init__(self, run_ahead: int) -> None:
        self._queue: queue.Queue[Callable[[], None]] | None = None
        if run_ahead > 0:
            self._queue = queue.Queue(maxsize=run_ahead)
            threading.Thread(target=self._run, name="stream", daemon=True).start()

    def submit(self, operation: Callable[[], None]) -> None:
        """Runs or queues it; blocks while the queue is full."""
        if self._queue is None:
            operation()
        else:
            self._queue.put(operation)

    def synchronize(self) -> None:
        """Blocks until all that was submitted has ended."""
        if self._queue is not None:
            self._queue.join()

    def _run(self) -> None:
        assert self._queue is not None
        while True:
            operation = self._queue.get()
            operation()
            self._queue.task_done()


class World:
    """This process in its job: its identity, the library, the shared file, the stream and the groups it is in."""

    def __init__(self, identity: Identity, version: str, shared: SharedFile, run_ahead: int = 0) -> None:
        self.identity, self.shared, self.stream = identity, shared, Stream(run_ahead)
        self.library = ras.Library(version)
        self.profiler = frames.load()
        self.groups: dict[str, ProcessGroup] = {}
        self.made_dynamic = 0  # groups made while the job runs

    def peer(self, rank: int) -> ras.Peer:
        pid, device, node_id = self.shared.process(rank)
        return ras.Peer.on(f"127.0.0.{1 + node_id}", pid, device)

    def next_dynamic_index(self) -> int:
        """A place for a group that comes and goes; the same on all ranks, which make such groups in the same order."""
        self.made_dynamic += 1
        return FIRST_DYNAMIC + self.made_dynamic % (MAX_GROUPS - FIRST_DYNAMIC)


def announce(world: World) -> None:
    """Makes this process known to the others; the first thing that a rank does."""
    me = world.identity
    world.shared.announce(me.rank, os.getpid(), me.local_rank, me.node_id, me.node)


def communicator_hash(step: str, name: str, made_before: int = 0) -> int:
    """A communicator's hash: the same on all its ranks, different for each step of each job."""
    digest = hashlib.sha256(f"{step} {name} {made_before}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 2 | 1


def new_group(world: World, kind: str, name: str, ranks: list[int], index: int, joins_mesh: bool) -> ProcessGroup:
    """Makes a communicator over `ranks`; blocks, as NCCL does, until every one of them came to make it.

    `joins_mesh`: whether it brings its ranks into the RAS mesh, as a communicator does that is not split from another.
    """
    me = world.identity
    shared, rank = world.shared, ranks.index(me.rank)
    own = ras.Peer.on(me.address, os.getpid(), me.local_rank)
    comm_hash = communicator_hash(me.step, name, world.made_dynamic)
    communicator = ras.Communicator(world.library, comm_hash, rank, len(ranks), own, joins_mesh)
    group = ProcessGroup(
        kind, name, ranks, rank, index, communicator, launched=shared.words[shared.member(index, rank)]
    )
    if joins_mesh:
        shared.publish(me.rank, communicator.record)
    _wait_for_members(world, group)
    if joins_mesh:
        world.library.add_ranks([shared.record(r) for r in ranks])
    communicator.ready([world.peer(r) for r in ranks])
    nodes = [shared.process(r)[2] for r in ranks]
    group.probe = frames.Member(world.profiler, comm_hash, rank, nodes, name)
    world.groups[name] = group
    return group


def _wait_for_members(world: World, group: ProcessGroup) -> None:
    """The bootstrap of a communicator: ends when all members are there."""
    _launch(world, group, "Init", 0)
    world.stream.synchronize()


def destroy_process_group(world: World, group: ProcessGroup) -> None:
    """Takes the communicator out of use and out of RAS."""
    group.communicator.set("finalizeCalled", 1)
    group.communicator.set("destroyFlag", 1)
    group.communicator.fini()
    group.probe.finalize()
    world.groups.pop(group.name, None)


# ---- collectives


def all_reduce(world: World, nbytes: int, group: ProcessGroup) -> None:
    _collective(world, group, "AllReduce", nbytes)


def all_gather_into_tensor(world: World, nbytes: int, group: ProcessGroup) -> None:
    _collective(world, group, "AllGather", nbytes)


def reduce_scatter_tensor(world: World, nbytes: int, group: ProcessGroup) -> None:
    _collective(world, group, "ReduceScatter", nbytes)


def broadcast(world: World, nbytes: int, group: ProcessGroup) -> None:
    _collective(world, group, "Broadcast", nbytes)


def _collective(world: World, group: ProcessGroup, operation: str, nbytes: int) -> None:
    group.communicator.count(operation)
    _launch(world, group, operation, nbytes)


def launch_that_never_ends(
    world: World, group: ProcessGroup, operation: str, nbytes: int, torn_after: int | None = None
) -> None:
    """A collective that all members enter and none leaves, like one whose network or kernel is stuck.

    `torn_after`: the rank in the group whose link to the next one no longer delivers; None: no data moves at all.
    """

    def kernel(told: Operation | None, number: int, signature: int) -> None:
        if torn_after is None:
            group.probe.begin(told)
        else:
            group.probe.begin_torn(told, torn_after)
        _run_collective(world.shared, group, number, signature | (1 + group.rank) << 44)

    group.communicator.count(operation)
    _launch(world, group, operation, nbytes, kernel)


def launch_that_never_starts(world: World, group: ProcessGroup, operation: str, nbytes: int) -> None:
    """A collective that this rank's host launches as it should; its device is stuck in what comes before it."""

    def kernel(told: Operation | None, number: int, signature: int) -> None:
        group.probe.stall(told)
        world.shared.wait(group.index, lambda: False)

    group.communicator.count(operation)
    _launch(world, group, operation, nbytes, kernel)


def _launch(
    world: World,
    group: ProcessGroup,
    operation: str,
    nbytes: int,
    kernel: Callable[[Operation | None, int, int], None] | None = None,
) -> None:
    """Launches a collective; `kernel` is what its kernel does instead of running as it should."""
    group.launched += 1
    number = group.launched
    signature = OPERATIONS[operation] << 56 | nbytes
    told = group.probe.enqueue(operation, nbytes) if operation != "Init" else None

    def run() -> None:
        group.probe.begin(told)
        _run_collective(world.shared, group, number, signature)
        group.probe.end(told)

    world.stream.submit(functools.partial(kernel, told, number, signature) if kernel else run)


def _run_collective(shared: SharedFile, group: ProcessGroup, number: int, signature: int) -> None:
    """Arrives at collective `number` of the group and sleeps until every member has arrived with the same signature."""
    words = shared.words
    members = [shared.member(group.index, rank) for rank in range(len(group.ranks))]
    own = members[group.rank]
    words[shared.signature_at(own, number)] = signature
    words[own] = number

    def all_arrived() -> bool:
        return all(words[m] >= number for m in members) and all(
            words[shared.signature_at(m, number)] == signature or words[m] > number for m in members
        )

    if all(words[member] >= number for member in members):
        shared.wake(group.index)
    shared.wait(group.index, all_arrived)


# ---- point to point, along the ranks of a group


def send(world: World, group: ProcessGroup, to: int) -> None:
    """Sends to the next or the previous rank of the group; blocks until that rank receives. RAS does not count it."""
    forward = to > group.rank
    _point_to_point(world, group, to, sends=True, mine=1 if forward else 3, theirs=2 if forward else 4)


def recv(world: World, group: ProcessGroup, source: int) -> None:
    """Receives from the next or the previous rank of the group; blocks until that rank sends."""
    forward = source < group.rank
    _point_to_point(world, group, source, sends=False, mine=2 if forward else 4, theirs=1 if forward else 3)


def _point_to_point(world: World, group: ProcessGroup, other: int, sends: bool, mine: int, theirs: int) -> None:
    """Words of a member: 1 sent forward, 2 received forward, 3 sent backward, 4 received backward."""
    shared = world.shared
    own = shared.member(group.index, group.rank) + mine
    partner = shared.member(group.index, other) + theirs
    told = group.probe.enqueue_p2p(sends, other)

    def run() -> None:
        group.probe.begin_p2p(told, sends, other)
        number = shared.words[own] + 1
        shared.words[own] = number
        shared.wake(group.index)
        shared.wait(group.index, lambda: shared.words[partner] >= number)
        group.probe.end(told)

    world.stream.submit(run)
