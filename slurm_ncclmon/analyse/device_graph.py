"""The wait-for graph as the GPUs have it: which kernels each process has begun, and who is missed in them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from slurm_ncclmon.analyse.graph import Numbers, Sinks, WaitGraph, find_sinks
from slurm_ncclmon.detect.layout import Layout
from slurm_ncclmon.probe.layout import OP_RECV, OP_SEND
from slurm_ncclmon.probe.standing import ENQUEUED, ENTERED, NOT_ENTERED, STARTED, Standing


@dataclass(frozen=True)
class Pair:
    """A send or receive that some GPU has begun, between two ranks of a communicator. `sends`: which of both send, as far as
    seen."""

    comm: int
    ranks: tuple[int, int]
    begun: frozenset[int]
    sends: frozenset[int]


@dataclass
class DeviceGraph:
    """Vertices are processes, communicators, and pairs, which are numbered after the communicators."""

    layout: Layout
    stands: dict[int, Standing]
    pairs: list[Pair] = field(default_factory=list)
    unseen: set[int] = field(default_factory=set)
    """Processes without any frame: whatever ends there is not known."""
    _wait: list[tuple[int, int]] = field(default_factory=list)
    _miss: list[tuple[int, int]] = field(default_factory=list)
    _launched: list[tuple[int, int]] = field(default_factory=list)
    """Of `_miss`, those who have launched it, and whose GPU has not begun it."""

    def sinks(self) -> Sinks:
        """Where all waiting ends."""
        wait, miss = (np.array(edges, np.int64).reshape(-1, 2) for edges in (self._wait, self._miss))
        graph = WaitGraph(
            processes=len(self.layout.processes.gpus),
            comms=np.unique(wait[:, 1]),
            total_comms=len(self.layout.comms) + len(self.pairs),
            wait_process=wait[:, 0],
            wait_comm=wait[:, 1],
            await_comm=miss[:, 0],
            await_process=miss[:, 1],
        )
        return find_sinks(graph)

    def process(self, comm: int, rank: int) -> int:
        """The process of a communicator's rank."""
        return int(self.layout.process[self.layout.start[comm] + rank])

    def pair_of(self, vertex: int) -> Pair | None:
        """The pair that is numbered `vertex`; None for a communicator."""
        number = vertex - len(self.layout.comms)
        return self.pairs[number] if number >= 0 else None

    def add_collective(self, comm: int, stand: Standing) -> None:
        """Members wait in a collective whose kernel they have begun, and it misses those who have not."""
        begun = stand.frames.rank[np.isin(stand.stage, (STARTED, ENTERED)) & ~in_transfer(stand)].tolist()
        late = stand.frames.rank[np.isin(stand.stage, (NOT_ENTERED, ENQUEUED))].tolist()
        if not begun:
            return
        self._wait += [(self.process(comm, rank), comm) for rank in begun]
        self._miss += [(comm, self.process(comm, rank)) for rank in late]
        launched = stand.frames.rank[stand.stage == ENQUEUED].tolist()
        self._launched += [(comm, self.process(comm, rank)) for rank in launched]
        self._miss += [(comm, p) for rank in stand.missing.tolist() if (p := self.process(comm, rank)) in self.unseen]

    def add_transfers(self, comm: int, stand: Standing) -> None:
        """A rank waits in a send or receive that it has begun, which misses the peer until that has begun its half."""
        frames = stand.frames
        begun = in_transfer(stand) & (~np.isnan(frames.oldest.started_s) | ~frames.kernel_seen)
        peer = dict(zip(frames.rank[begun].tolist(), frames.oldest.peer[begun].tolist()))
        sends = frozenset(frames.rank[begun & (frames.oldest.flags & OP_SEND != 0)].tolist())
        numbers: dict[tuple[int, int], int] = {}
        for rank, other in sorted(peer.items()):
            ends = (min(rank, other), max(rank, other))
            both = frozenset(end for end in ends if peer.get(end) in ends)
            if ends not in numbers:
                numbers[ends] = len(self.layout.comms) + len(self.pairs)
                self.pairs.append(Pair(comm, ends, both, sends & both))
            self._wait.append((self.process(comm, rank), numbers[ends]))
            if peer.get(other) != rank:
                self._miss.append((numbers[ends], self.process(comm, other)))


def in_transfer(stand: Standing) -> np.ndarray:
    """(m,) members whose oldest unfinished operation is a send or receive."""
    oldest = stand.frames.oldest
    found: np.ndarray = oldest.known & (oldest.flags & (OP_SEND | OP_RECV) != 0)
    return found


def device_graph(layout: Layout, stands: list[tuple[int, Standing]]) -> DeviceGraph:
    """The graph over all communicators in which some rank has an unfinished operation."""
    graph = DeviceGraph(layout, dict(stands))
    seen = {graph.process(comm, rank) for comm, stand in stands for rank in stand.frames.rank.tolist()}
    graph.unseen = set(layout.present.tolist()) - seen
    for comm, stand in stands:
        graph.add_collective(comm, stand)
        graph.add_transfers(comm, stand)
    return graph


def missed_in(graph: DeviceGraph, processes: Numbers) -> list[tuple[int, Numbers]]:
    """Of `processes`, who is missed in which communicator: each once, where it has launched what it is missed in (what it has
    not called comes after that), else in the one that misses most of them."""
    wanted = set(processes.tolist()) - graph.unseen
    result: list[tuple[int, Numbers]] = []
    for pairs in (graph._launched, graph._miss):
        per_comm: dict[int, set[int]] = {}
        for comm, process in pairs:
            if process in wanted:
                per_comm.setdefault(comm, set()).add(process)
        for comm, missed in sorted(per_comm.items(), key=lambda item: (-len(item[1]), item[0])):
            here = missed & wanted
            if here:
                result.append((comm, np.array(sorted(here), np.int64)))
                wanted -= here
    return result
