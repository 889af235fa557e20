"""From sinks to causes: which of them are one and the same, what each holds up, and which communicator shows it best."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from slurm_ncclmon.analyse.graph import Numbers, WaitGraph, find_sinks, wait_graph
from slurm_ncclmon.detect.shape import Mask
from slurm_ncclmon.detect.stuck import Stuck

MOST_CAUSES = 8
"""More sinks than that at once have one cause that counts do not show (storage, network): they are told as one."""


@dataclass(frozen=True)
class Cause:
    """One cause: the processes or the communicator where all waiting in `comms` ends."""

    sort: str
    """`processes`, `inside` (a communicator that misses nobody) or `cycle`."""
    processes: Numbers
    """The processes that waiting ends at; of a cycle those in it; none for `inside`."""
    own: int
    """The communicator that shows it: the first to stand still of those next to it."""
    comms: Numbers
    """All communicators held up by it, `own` first, then in the order in which they stopped."""
    members: int
    """Number of processes in these communicators."""
    scattered: bool = False
    """More than MOST_CAUSES sinks, told as one."""
    certainty: str = "shown"
    """How sure it is that waiting ends there: see settle.py."""
    demoted: Numbers = field(default_factory=lambda: np.zeros(0, np.int64))
    """Processes that looked like causes too, and wait themselves or are its consequence."""


def find_causes(stuck: Stuck) -> list[Cause]:
    """All causes, the one that holds up most ranks first."""
    if not len(stuck.comms):
        return []
    graph = wait_graph(stuck)
    sinks = find_sinks(graph)
    groups = _grouped(stuck, graph, sinks.processes)
    scattered = len(groups) > MOST_CAUSES
    if scattered:
        groups = [np.sort(np.concatenate(groups))]
    causes = [_cause(stuck, graph, "processes", group, _next_to(graph, group), scattered) for group in groups]
    nobody = np.zeros(0, np.int64)
    causes += [_cause(stuck, graph, "inside", nobody, np.array([comm])) for comm in sinks.comms[:MOST_CAUSES]]
    causes += [_cause(stuck, graph, "cycle", processes, comms) for processes, comms in sinks.cycles]
    return sorted(causes, key=lambda cause: (-cause.members, stuck.clock_since[cause.own], cause.own))


def _cause(
    stuck: Stuck, graph: WaitGraph, sort: str, processes: Numbers, near: Numbers, scattered: bool = False
) -> Cause:
    at_process, at_comm = np.zeros(graph.processes, np.bool_), np.zeros(graph.total_comms, np.bool_)
    at_process[processes] = sort == "processes"
    at_comm[near] = sort != "processes"
    _, comms = graph.reaching(at_process, at_comm)
    own = _closest(stuck, near, processes)
    rest = np.flatnonzero(comms)
    rest = rest[rest != own]
    ordered = np.concatenate([[own], rest[np.lexsort((rest, stuck.clock_since[rest]))]]).astype(np.int64)
    members = int(stuck.history.layout.processes_in(ordered).sum())
    return Cause(sort, processes, own, ordered, members, scattered)


def _next_to(graph: WaitGraph, processes: Numbers) -> Numbers:
    """Communicators that miss one of `processes`."""
    wanted = np.zeros(graph.processes, np.bool_)
    wanted[processes] = True
    near = np.zeros(graph.total_comms, np.bool_)
    near[graph.await_comm[wanted[graph.await_process]]] = True
    return np.flatnonzero(near)


def _closest(stuck: Stuck, near: Numbers, processes: Numbers) -> int:
    """Of the communicators next to the cause the one that misses nobody else, stopped first, and is smallest. Whoever is gone is
    gone from all of its communicators at once: there the largest."""
    layout = stuck.history.layout

    def order(comm: int) -> tuple[bool, float, int, str, str]:
        missed = stuck.rows_of(comm, stuck.awaited)
        if stuck.shape.gone[missed].any():
            return (False, -np.inf, -int(layout.size[comm]), *layout.comms[comm])
        others = bool(len(processes)) and not np.isin(layout.process[missed], processes).all()
        return (others, float(stuck.clock_since[comm]), int(layout.size[comm]), *layout.comms[comm])

    return min(map(int, near), key=order)


def _grouped(stuck: Stuck, graph: WaitGraph, sinks: Numbers) -> list[Numbers]:
    """Sinks that belong together: missed by one communicator that misses only sinks; all members of a communicator; all of their
    node, or gone from it."""
    if len(sinks) < 2:
        return [sinks] if len(sinks) else []
    is_sink = np.zeros(graph.processes, np.bool_)
    is_sink[sinks] = True
    sets = DisjointSets(sinks.tolist())
    _missed_together(graph, is_sink, sets)
    _whole_communicators(stuck, is_sink, sets)
    _whole_nodes(stuck, is_sink, sets)
    return [np.array(group, np.int64) for group in sets.groups()]


def _missed_together(graph: WaitGraph, is_sink: Mask, sets: DisjointSets) -> None:
    """Join the sinks that a communicator misses, and nobody besides."""
    others = np.zeros(graph.total_comms, np.bool_)
    others[graph.await_comm[~is_sink[graph.await_process]]] = True
    together = ~others[graph.await_comm]
    first: dict[int, int] = {}
    for comm, process in zip(graph.await_comm[together].tolist(), graph.await_process[together].tolist()):
        sets.join(first.setdefault(comm, process), process)


def _whole_communicators(stuck: Stuck, is_sink: Mask, sets: DisjointSets) -> None:
    """Join the members of every communicator that has only sinks."""
    layout = stuck.history.layout
    only = np.logical_and.reduceat(is_sink[layout.process], layout.start[:-1])
    for comm in np.flatnonzero(only & (layout.size > 1)):
        members = layout.process[layout.rows(int(comm))].tolist()
        for process in members[1:]:
            sets.join(members[0], process)


def _whole_nodes(stuck: Stuck, is_sink: Mask, sets: DisjointSets) -> None:
    """Join sinks of one node that are all gone, or that are all of that node."""
    layout = stuck.history.layout
    gone = np.zeros(len(is_sink), np.bool_)
    gone[layout.process[stuck.shape.gone]] = True
    host_of = np.array(layout.processes.hosts, np.int64)
    working = np.zeros(int(host_of.max()) + 1, np.bool_)
    working[host_of[layout.process[~is_sink[layout.process]]]] = True
    first: dict[tuple[int, bool], int] = {}
    for process in np.flatnonzero(is_sink).tolist():
        host = int(host_of[process])
        if gone[process] or not working[host]:
            sets.join(first.setdefault((host, bool(gone[process])), process), process)


class DisjointSets:
    """Union-find over a few numbers (Tarjan 1975, path halving)."""

    def __init__(self, members: list[int]) -> None:
        self._parent = {member: member for member in members}

    def root(self, member: int) -> int:
        """The representative of the set that `member` is in."""
        while self._parent[member] != member:
            self._parent[member] = self._parent[self._parent[member]]
            member = self._parent[member]
        return member

    def join(self, one: int, other: int) -> None:
        """Make one set of the two that these are in."""
        one, other = sorted((self.root(one), self.root(other)))
        self._parent[other] = one

    def groups(self) -> list[list[int]]:
        """All sets, each in ascending order."""
        groups: dict[int, list[int]] = {}
        for member in sorted(self._parent):
            groups.setdefault(self.root(member), []).append(member)
        return list(groups.values())
