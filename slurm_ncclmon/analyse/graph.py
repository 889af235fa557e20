"""Who waits for whom, over ranks and communicators, and where all waiting ends.

Vertices are processes and stuck communicators. A process has an edge to every communicator in which it waits; a communicator to
every process that it misses. All waiting ends in the graph's sink components, of which there are three sorts: a process that
waits for nobody (it is stuck outside of NCCL, or dead), a communicator that misses nobody (its members are inside and do not
get through), and a cycle (communicators entered in different order by different processes).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slurm_ncclmon.detect.layout import spread
from slurm_ncclmon.detect.shape import Mask
from slurm_ncclmon.detect.stuck import Stuck

Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class WaitGraph:
    """Edges as index pairs. Communicators are numbered as in the history's layout, processes as in its `processes`."""

    processes: int
    comms: Numbers
    """(S,) the stuck ones."""
    total_comms: int
    wait_process: Numbers
    wait_comm: Numbers
    await_comm: Numbers
    await_process: Numbers

    def reaching(self, processes: Mask, comms: Mask) -> tuple[Mask, Mask]:
        """Everything from which one of the given vertices can be reached, these included."""
        processes, comms = processes.copy(), comms.copy()
        found = -1
        while found != (found := int(processes.sum()) + int(comms.sum())):
            comms[self.await_comm[processes[self.await_process]]] = True
            processes[self.wait_process[comms[self.wait_comm]]] = True
        return processes, comms


@dataclass(frozen=True)
class Sinks:
    """Where waiting ends."""

    processes: Numbers
    """Awaited, and waiting nowhere."""
    comms: Numbers
    """Missing nobody."""
    cycles: tuple[tuple[Numbers, Numbers], ...]
    """(processes, communicators) of each cyclic wait."""


def wait_graph(stuck: Stuck) -> WaitGraph:
    """The graph over all stuck communicators."""
    layout = stuck.history.layout
    rows = spread(layout, stuck.comms)
    waiting, awaited = rows[stuck.waiting[rows]], rows[stuck.awaited[rows]]
    return WaitGraph(
        processes=len(layout.processes.gpus),
        comms=stuck.comms,
        total_comms=len(layout.comms),
        wait_process=layout.process[waiting],
        wait_comm=layout.comm_of[waiting],
        await_comm=layout.comm_of[awaited],
        await_process=layout.process[awaited],
    )


def find_sinks(graph: WaitGraph) -> Sinks:
    """All sink components. O(edges) times the depth of the longest wait; only cycles, which are left of that, are walked
    singly."""
    awaited, waits = np.zeros((2, graph.processes), np.bool_)
    awaited[graph.await_process] = True
    waits[graph.wait_process] = True
    ends = awaited & ~waits
    misses = np.zeros(graph.total_comms, np.bool_)
    misses[graph.await_comm] = True
    closed = np.zeros_like(misses)
    closed[graph.comms] = True
    closed &= ~misses
    _, reached = graph.reaching(ends, closed)
    left = graph.comms[~reached[graph.comms]]
    cycles = _cycles(graph, left) if len(left) else ()
    return Sinks(np.flatnonzero(ends), np.flatnonzero(closed), cycles)


def _cycles(graph: WaitGraph, comms: Numbers) -> tuple[tuple[Numbers, Numbers], ...]:
    """Sink components among `comms` and the processes between them (Tarjan 1972, without recursion). Communicators are
    vertices; k leads to l when k misses a process that waits in l."""
    inside = np.zeros(graph.total_comms, np.bool_)
    inside[comms] = True
    waits_in: dict[int, list[int]] = {}
    for process, comm in zip(graph.wait_process.tolist(), graph.wait_comm.tolist()):
        if inside[comm]:
            waits_in.setdefault(process, []).append(comm)
    follows: dict[int, set[int]] = {int(comm): set() for comm in comms}
    between: dict[tuple[int, int], set[int]] = {}
    for comm, process in zip(graph.await_comm.tolist(), graph.await_process.tolist()):
        if inside[comm]:
            for target in waits_in.get(process, ()):
                follows[comm].add(target)
                between.setdefault((comm, target), set()).add(process)
    result = []
    for component in strong_components(follows):
        members = set(component)
        if all(follows[comm] <= members for comm in component):
            processes = {p for ends, ps in between.items() if members.issuperset(ends) for p in ps}
            result.append((np.array(sorted(processes), np.int64), np.array(sorted(members), np.int64)))
    return tuple(result)


def strong_components(follows: dict[int, set[int]]) -> list[list[int]]:
    """Strongly connected components of a graph given as vertex -> successors, sinks first."""
    order: dict[int, int] = {}
    low: dict[int, int] = {}
    path: list[int] = []
    on_path: set[int] = set()
    components: list[list[int]] = []
    for root in sorted(follows):
        if root in order:
            continue
        work = [(root, iter(sorted(follows[root])))]
        order[root] = low[root] = len(order)
        path.append(root)
        on_path.add(root)
        while work:
            vertex, successors = work[-1]
            for successor in successors:
                if successor not in order:
                    order[successor] = low[successor] = len(order)
                    path.append(successor)
                    on_path.add(successor)
                    work.append((successor, iter(sorted(follows[successor]))))
                    break
                if successor in on_path:
                    low[vertex] = min(low[vertex], order[successor])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[vertex])
                if low[vertex] == order[vertex]:
                    cut = path.index(vertex)
                    components.append(path[cut:])
                    on_path.difference_update(path[cut:])
                    del path[cut:]
    return components
