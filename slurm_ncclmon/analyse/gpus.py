"""Who is inside which collective as the GPUs have it, and where in it the data stopped."""

from __future__ import annotations

import numpy as np

from slurm_ncclmon.analyse.device_graph import DeviceGraph, device_graph, missed_in
from slurm_ncclmon.analyse.found import Found, function_of
from slurm_ncclmon.analyse.graph import Numbers
from slurm_ncclmon.analyse.links import find_stop
from slurm_ncclmon.analyse.names import Names
from slurm_ncclmon.analyse.point_to_point import unending, unmatched
from slurm_ncclmon.analyse.wording import comm_phrase, ranks_phrase, verb
from slurm_ncclmon.detect.history import History
from slurm_ncclmon.probe.standing import ENQUEUED, ENTERED, STARTED, Standing
from slurm_ncclmon.verdict import Edge

MOST_ENDS = 8
"""More processes at which waiting ends than that have a cause that frames do not show either."""


def through_the_graph(history: History, stands: list[tuple[int, Standing]], names: Names) -> list[Found]:
    """Follow the wait-for graph of the GPUs to its ends: ranks that have not begun what others wait in, a collective or transfer
    that all have begun, or a circle. Nothing where an end is a rank without frames, or where there are too many."""
    graph = device_graph(history.layout, stands)
    sinks = graph.sinks()
    if len(sinks.processes) > MOST_ENDS or graph.unseen & set(sinks.processes.tolist()):
        return []
    found = [_missed(graph, vertex, processes, names) for vertex, processes in missed_in(graph, sinks.processes)]
    if found:
        return found
    stopped = [_inside(graph, int(vertex), names) for vertex in sinks.comms[:MOST_ENDS]]
    inside = [one for one in stopped if one is not None]
    return inside or [
        _circle(history, cycle, names) for cycle in sinks.cycles if (cycle[1] < len(history.layout.comms)).any()
    ]


def _missed(graph: DeviceGraph, vertex: int, processes: Numbers, names: Names) -> Found:
    """Ranks that are in nothing and are missed in a collective or transfer."""
    pair = graph.pair_of(vertex)
    if pair is not None:
        return unmatched(pair, graph, processes, names)
    return _late(vertex, graph.stands[vertex], graph, processes, names)


def _inside(graph: DeviceGraph, vertex: int, names: Names) -> Found | None:
    """Everybody has begun it, and it does not end."""
    pair = graph.pair_of(vertex)
    return unending(pair, names) if pair is not None else _stopped(vertex, graph.stands[vertex], names)


def _late(comm: int, stand: Standing, graph: DeviceGraph, ends: Numbers, names: Names) -> Found:
    """Members whose GPU has not begun what others are in, and that are in nothing else."""
    own = np.array([graph.process(comm, rank) for rank in stand.frames.rank.tolist()])
    rows = np.flatnonzero(np.isin(own, ends))
    device = bool((stand.stage[rows] == ENQUEUED).all())
    begun = int(np.isin(stand.stage, (STARTED, ENTERED)).sum())
    what = function_of(stand)
    why = (
        f"has launched {what}, but its GPU has not begun it, while {begun} others' have: something earlier on its stream"
        " does not end"
        if device
        else f"has not called {what}, in which {begun} others are"
    )
    ranks = stand.frames.rank[rows].astype(np.int64)
    return Found(
        kind="device_not_started" if device else "not_entered",
        comm=comm,
        ranks=ranks,
        whys=(why,) * len(rows),
        confidence=0.9,
        evidence=(
            f"On {comm_phrase(names.reference(comm))} the GPUs of {begun} ranks are in {what} number {stand.round}, and"
            f" {verb(len(ranks), 'that', 'those')} of {ranks_phrase(ranks.tolist())} {verb(len(ranks), 'is', 'are')} not.",
        ),
        operation=what,
        round=stand.round,
    )


def _stopped(comm: int, stand: Standing, names: Names) -> Found | None:
    """Everybody is inside: where the data stopped."""
    frames, ranks = stand.frames, stand.frames.rank
    stop = find_stop(frames, np.isin(stand.stage, (STARTED, ENTERED)))
    what, whole = function_of(stand), len(stand.missing) == 0
    base = {"comm": comm, "operation": what, "round": stand.round, "kind": "in_collective"}
    comm_text = comm_phrase(names.reference(comm))
    unseen = () if whole else (f"No frames of {ranks_phrase(stand.missing.tolist())}: the cause may be there.",)
    if stop.links:
        edges = tuple(
            Edge(int(ranks[a]), int(ranks[b]), "sent, and not arrived while the receiver waits for just that")
            for a, b in stop.links
        )
        ends = np.array(sorted({rank for edge in edges for rank in (edge.source, edge.target)}), np.int64)
        return Found(
            **base,  # type: ignore[arg-type]
            ranks=ends,
            whys=tuple(f"an end of the link that does not deliver ({_link(edges, int(rank))})" for rank in ends),
            confidence=0.85 if len(edges) == 1 else 0.6,
            evidence=(
                f"In {what} on {comm_text} all GPUs have begun. Data from"
                f" {', '.join(f'rank {e.source} to {e.target}' for e in edges)}"
                f" left the sender and did not arrive, seen on {stop.channels}"
                f" {verb(stop.channels, 'channel', 'channels')}.",
            ),
            edges=edges,
            not_decidable=("Whether the link itself or the network device of one end is at fault.", *unseen),
        )
    rows = stop.gpus if len(stop.gpus) else stop.silent
    if not len(rows) or len(rows) * 2 > len(frames):
        return None
    why = (
        "its GPU has all input and all room to send, and does not go on"
        if len(stop.gpus)
        else "posts no buffer although a peer wants to send to it: its network thread or CPU does not go on"
    )
    named = ranks[rows].astype(np.int64)
    return Found(
        **base,  # type: ignore[arg-type]
        ranks=named,
        whys=(why,) * len(named),
        confidence=0.85 if len(named) == 1 and whole else 0.6,
        evidence=(
            f"In {what} on {comm_text} all GPUs have begun; all others lack input or room, {ranks_phrase(named.tolist())}"
            f" {verb(len(named), 'lacks', 'lack')} neither.",
        ),
        not_decidable=unseen,
    )


def _link(edges: tuple[Edge, ...], rank: int) -> str:
    return ", ".join(f"{edge.source} to {edge.target}" for edge in edges if rank in (edge.source, edge.target))


def _circle(history: History, cycle: tuple[Numbers, Numbers], names: Names) -> Found:
    """Communicators whose kernels wait for each other on the GPUs."""
    layout = history.layout
    processes, comms = cycle[0], cycle[1][cycle[1] < len(layout.comms)]
    rows = np.arange(layout.start[comms[0]], layout.start[comms[0] + 1])
    ranks = layout.rank[rows[np.isin(layout.process[rows], processes)]].astype(np.int64)
    hashes = ", ".join(layout.comms[comm].hash for comm in comms)
    return Found(
        kind="wrong_order",
        comm=int(comms[0]),
        ranks=ranks,
        whys=(f"its GPU is in one of {hashes} and is missed in another",) * len(ranks),
        confidence=0.8,
        evidence=(f"The GPUs wait in a circle: communicators {hashes} were begun in different order.",),
    )
