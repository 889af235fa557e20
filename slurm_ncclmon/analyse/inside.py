"""What probe frames tell when counts are all the same: who differs, whose GPU did not start, where the data stopped."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from slurm_ncclmon.analyse.draft import Draft
from slurm_ncclmon.analyse.graph import Numbers, WaitGraph, find_sinks
from slurm_ncclmon.analyse.links import find_stop
from slurm_ncclmon.analyse.names import Names
from slurm_ncclmon.analyse.wording import comm_phrase, ranks_phrase, verb
from slurm_ncclmon.detect.history import History
from slurm_ncclmon.durations import format_duration
from slurm_ncclmon.probe.decode import together
from slurm_ncclmon.probe.frame import Frames
from slurm_ncclmon.probe.layout import FUNCTIONS, OP_RECV, OP_SEND
from slurm_ncclmon.probe.standing import ENQUEUED, ENTERED, NOT_ENTERED, STARTED, Signature, Standing, standing
from slurm_ncclmon.verdict import Culprit, Edge

MOST_COMMUNICATORS = 512
"""Communicators with unfinished operations that are looked into; a hang has a cause among the first, or is too large to draw."""


@dataclass(frozen=True)
class _Found:
    """What one rule found in one communicator."""

    kind: str
    comm: int
    ranks: Numbers
    whys: tuple[str, ...]
    confidence: float
    evidence: tuple[str, ...]
    operation: str | None = None
    round: int | None = None
    edges: tuple[Edge, ...] = ()
    alternatives: tuple[str, ...] = ()
    not_decidable: tuple[str, ...] = ()


class Inside:
    """The newest frames of each node, and when they last showed anything move."""

    def __init__(self) -> None:
        self._frames: dict[str, Frames] = {}
        self.moved_at = -np.inf
        """Step's time of the last sign of progress in any frame."""
        self.seen_at = -np.inf

    def take(self, frames: Frames, now: float) -> None:
        """Frames of one or more nodes, read at the step's time `now`."""
        self.seen_at = now
        for host in sorted(set(frames.host.tolist())):
            new = frames.take(frames.host == host)
            old = self._frames.get(host)
            if old is not None and _moved(old, new):
                self.moved_at = now
            self._frames[host] = new

    def drafts(self, history: History, names: Names, now: float) -> list[Draft]:
        """Causes inside of collectives, for a step in which nothing moves; none where frames do not tell."""
        if not self._frames or now - self.moved_at <= 0:
            return []
        stands = self._standing(history)
        found = [f for comm, stand in stands if (f := _signatures(comm, stand, names)) is not None]
        found = found or _through_the_graph(history, stands, names) or _point_to_point(history, stands, names)
        since = max(self.moved_at, float(history.members.since[history.members.known].max()))
        members = len(history.layout.present)
        return [_draft(history, names, one, now - since, members) for one in found]

    def _standing(self, history: History) -> list[tuple[int, Standing]]:
        """Communicators of the history in which some rank has an unfinished operation."""
        frames = together(self._frames.values())
        frames = frames.take(~frames.finalised)
        numbers = {int(key.hash, 16): number for number, key in enumerate(history.layout.comms)}
        busy = [hash_ for hash_ in np.unique(frames.communicator[frames.oldest.known]).tolist() if hash_ in numbers]
        stands = []
        for hash_ in busy[:MOST_COMMUNICATORS]:
            stand = standing(frames, hash_)
            if stand is not None and int(stand.frames.size.max()) == history.layout.size[numbers[hash_]]:
                stands.append((numbers[hash_], stand))
        return stands


def _moved(old: Frames, new: Frames) -> bool:
    """Whether any member of a communicator has enqueued, finished, sent or received anything between both."""
    before = dict(zip(_keys(old), _progress(old)))
    return any(key in before and before[key] != values for key, values in zip(_keys(new), _progress(new)))


def _keys(frames: Frames) -> list[tuple[int, ...]]:
    return list(zip(frames.pid.tolist(), frames.communicator.tolist(), frames.rank.tolist()))


def _progress(frames: Frames) -> list[tuple[int, ...]]:
    columns = (
        frames.enqueued,
        frames.finished,
        frames.send_done,
        frames.receive_done,
        frames.steps_sent,
        frames.steps_arrived,
    )
    return list(zip(*(column.tolist() for column in columns), frames.started_channels.tolist()))


def _draft(history: History, names: Names, found: _Found, stalled_s: float, members: int) -> Draft:
    layout = history.layout
    first = int(layout.start[found.comm])
    rows = [first + int(rank) for rank in found.ranks]
    culprits: tuple[Culprit, ...] = tuple(names.culprit(row, why) for row, why in zip(rows, found.whys))
    return Draft(
        kind=found.kind,
        comm=names.reference(found.comm),
        operation=found.operation,
        round=found.round,
        culprits=culprits,
        confidence=found.confidence,
        frozen_s=stalled_s,
        clock_s=stalled_s,
        evidence=(
            *found.evidence,
            "By counts all ranks have launched the same, and neither counts nor frames have moved for"
            f" {format_duration(stalled_s)}.",
        ),
        keys=frozenset(layout.comms),
        processes=frozenset(int(layout.process[row]) for row in rows),
        alternatives=found.alternatives,
        not_decidable=found.not_decidable,
        victims=members - len(set(rows)),
        edges=found.edges,
        pause=(layout.comms[found.comm], found.kind),
    )


# -- what members of one collective think that it is


def _signatures(comm: int, stand: Standing, names: Names) -> _Found | None:
    """Members that call different things, or for which NCCL chose differently."""
    told = {int(stand.frames.rank[row]): stand.signature(row) for row in range(len(stand.frames))}
    known = {rank: signature for rank, signature in told.items() if signature is not None}
    arguments = {rank: signature[:4] for rank, signature in known.items()}
    choices = {rank: signature[4:6] for rank, signature in known.items()}
    values: dict[int, tuple[object, ...]] = dict(arguments)
    chosen = len(set(arguments.values())) < 2
    if chosen:
        values = dict(choices)
        if len(set(values.values())) < 2:
            return None
    usual, tie = _plurality(values)
    odd = np.array(sorted(rank for rank, value in values.items() if tie or value != usual), np.int64)
    others = len(values) - len(odd)
    whys = tuple(
        f"calls {_called(known[int(rank)], chosen)}, where {others} others call {_words(usual, chosen)}" for rank in odd
    )
    if tie:
        whys = tuple(f"calls {_called(known[int(rank)], chosen)}, others do not" for rank in odd)
    subject = (
        "NCCL runs it differently on them (NCCL_ALGO, NCCL_PROTO or a tuner set on some ranks only)"
        if chosen
        else "they differ"
    )
    covered = len(values) == int(stand.frames.size.max())
    return _Found(
        kind="inconsistent_op",
        comm=comm,
        ranks=odd,
        whys=whys,
        confidence=0.5 if tie else 0.95 if covered else 0.7,
        evidence=(
            f"Probe frames of {len(values)} of {int(stand.frames.size.max())} ranks of {comm_phrase(names.reference(comm))}"
            " tell what each"
            f" calls as its collective number {stand.round}: {subject}."
            f" {'; '.join(f'{n} x {_words(value, chosen)}' for value, n in Counter(values.values()).most_common(4))}.",
        ),
        operation=str(usual[0]) if not chosen else known[int(odd[0])].function,
        round=stand.round,
        not_decidable=("Which of two equally large groups is wrong.",) if tie else (),
    )


def _plurality(values: dict[int, tuple[object, ...]]) -> tuple[tuple[object, ...], bool]:
    """The most frequent value, and whether another is as frequent."""
    ranked = Counter(values.values()).most_common(2)
    return ranked[0][0], len(ranked) > 1 and ranked[0][1] == ranked[1][1]


def _called(signature: Signature, chosen: bool) -> str:
    return _words(signature[4:6] if chosen else signature[:4], chosen)


def _words(value: tuple[object, ...], chosen: bool) -> str:
    if chosen:
        return f"{value[0]}/{value[1]}"
    function, datatype, count, root = value
    rooted = f", root {root}" if function in ("Broadcast", "Reduce") else ""
    return f"{function} of {count} {datatype}{rooted}"


# -- who is inside which communicator


def _through_the_graph(history: History, stands: list[tuple[int, Standing]], names: Names) -> list[_Found]:
    """The wait-for graph as the GPUs have it: a process waits in a communicator whose kernel it has begun, and is missed in one
    that others have begun and it has not."""
    by_comm = {comm: stand for comm, stand in stands if not _is_point_to_point(stand)}
    edges: dict[str, list[int]] = {"wait_process": [], "wait_comm": [], "await_comm": [], "await_process": []}
    for comm, stand in by_comm.items():
        begun = np.isin(stand.stage, (STARTED, ENTERED))
        late = np.isin(stand.stage, (NOT_ENTERED, ENQUEUED))
        process = history.layout.process[history.layout.start[comm] + stand.frames.rank]
        if begun.any():
            edges["wait_process"] += process[begun].tolist()
            edges["wait_comm"] += [comm] * int(begun.sum())
            edges["await_process"] += process[late].tolist()
            edges["await_comm"] += [comm] * int(late.sum())
    if not edges["wait_comm"]:
        return []
    graph = WaitGraph(
        processes=len(history.layout.processes.gpus),
        comms=np.unique(edges["wait_comm"]),
        total_comms=len(history.layout.comms),
        **{name: np.array(values, np.int64) for name, values in edges.items()},
    )
    sinks = find_sinks(graph)
    found = [_late(comm, stand, history, sinks.processes, names) for comm, stand in by_comm.items()]
    if any(found):
        return [one for one in found if one is not None]
    stopped = [_stopped(int(comm), by_comm[int(comm)], names) for comm in sinks.comms]
    return [one for one in stopped if one is not None] or [_circle(history, cycle, names) for cycle in sinks.cycles]


def _late(comm: int, stand: Standing, history: History, ends: Numbers, names: Names) -> _Found | None:
    """Members whose GPU has not begun what others are in, and that are in nothing else."""
    late = np.isin(stand.stage, (NOT_ENTERED, ENQUEUED))
    process = history.layout.process[history.layout.start[comm] + stand.frames.rank]
    rows = np.flatnonzero(late & np.isin(process, ends))
    if not len(rows):
        return None
    device = bool((stand.stage[rows] == ENQUEUED).all())
    begun = int(np.isin(stand.stage, (STARTED, ENTERED)).sum())
    what = _function(stand)
    why = (
        f"has launched {what}, but its GPU has not begun it, while {begun} others' have: something earlier on its stream"
        " does not end"
        if device
        else f"has not called {what}, in which {begun} others are"
    )
    ranks = stand.frames.rank[rows].astype(np.int64)
    return _Found(
        kind="device_not_started" if device else "not_entered",
        comm=comm,
        ranks=ranks,
        whys=(why,) * len(rows),
        confidence=0.9,
        evidence=(
            f"On {comm_phrase(names.reference(comm))} the GPUs of {begun} ranks are in {what} number {stand.round}, and those of"
            f" {ranks_phrase(ranks.tolist())} {verb(len(ranks), 'is', 'are')} not.",
        ),
        operation=what,
        round=stand.round,
    )


def _function(stand: Standing) -> str:
    row = int(np.argmax(stand.operation.known))
    return FUNCTIONS[stand.operation.function[row]] if stand.operation.known[row] else "a collective"


def _stopped(comm: int, stand: Standing, names: Names) -> _Found | None:
    """Everybody is inside: where the data stopped."""
    frames, ranks = stand.frames, stand.frames.rank
    stop = find_stop(frames, np.isin(stand.stage, (STARTED, ENTERED)))
    what, whole = _function(stand), len(stand.missing) == 0
    base = {"comm": comm, "operation": what, "round": stand.round, "kind": "in_collective"}
    comm_text = comm_phrase(names.reference(comm))
    unseen = () if whole else (f"No frames of {ranks_phrase(stand.missing.tolist())}: the cause may be there.",)
    if stop.links and not len(stop.gpus):
        edges = tuple(
            Edge(int(ranks[a]), int(ranks[b]), "sent, and not arrived while the receiver waits for just that")
            for a, b in stop.links
        )
        ends = np.array(sorted({rank for edge in edges for rank in (edge.source, edge.target)}), np.int64)
        return _Found(
            **base,  # type: ignore[arg-type]
            ranks=ends,
            whys=tuple(f"an end of the link that does not deliver ({_link(edges, int(rank))})" for rank in ends),
            confidence=0.85 if len(edges) == 1 else 0.6,
            evidence=(
                f"In {what} on {comm_text} all GPUs have begun. Data from"
                f" {', '.join(f'rank {e.source} to {e.target}' for e in edges)}"
                f" left the sender and did not arrive, seen on {stop.channels}"
                f" {verb(stop.channels, 'channel', 'channels')}; upstream of it"
                " buffers are full, downstream they are empty.",
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
    return _Found(
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


def _circle(history: History, cycle: tuple[Numbers, Numbers], names: Names) -> _Found:
    """Communicators whose kernels wait for each other on the GPUs."""
    layout = history.layout
    processes, comms = cycle
    rows = np.arange(layout.start[comms[0]], layout.start[comms[0] + 1])
    ranks = layout.rank[rows[np.isin(layout.process[rows], processes)]].astype(np.int64)
    hashes = ", ".join(layout.comms[comm].hash for comm in comms)
    return _Found(
        kind="wrong_order",
        comm=int(comms[0]),
        ranks=ranks,
        whys=(f"its GPU is in one of {hashes} and is missed in another",) * len(ranks),
        confidence=0.8,
        evidence=(f"The GPUs wait in a circle: communicators {hashes} were begun in different order.",),
    )


# -- send and receive


def _is_point_to_point(stand: Standing) -> bool:
    oldest = stand.frames.oldest
    return bool((oldest.known & (oldest.flags & (OP_SEND | OP_RECV) != 0)).any())


def _point_to_point(history: History, stands: list[tuple[int, Standing]], names: Names) -> list[_Found]:
    """Follow each unfinished send and receive to its peer, from peer to peer, until one that has posted nothing."""
    for comm, stand in stands:
        if _is_point_to_point(stand):
            found = _unmatched(comm, stand, names)
            if found is not None:
                return [found]
    return []


def _unmatched(comm: int, stand: Standing, names: Names) -> _Found | None:
    frames, oldest = stand.frames, stand.frames.oldest
    pending = oldest.known & (oldest.flags & (OP_SEND | OP_RECV) != 0)
    waits_for = dict(zip(frames.rank[pending].tolist(), oldest.peer[pending].tolist()))
    sends = dict(zip(frames.rank.tolist(), (oldest.flags & OP_SEND != 0).tolist()))
    seen = set(frames.rank.tolist())
    ends = sorted({_follow(rank, waits_for) for rank in waits_for})
    idle = [rank for rank in ends if rank in seen and rank not in waits_for]
    base = {"comm": comm, "round": None}
    if idle:
        peers = {rank: sorted(r for r, peer in waits_for.items() if peer == rank) for rank in idle}
        return _Found(
            **base,  # type: ignore[arg-type]
            kind="p2p_unmatched",
            ranks=np.array(idle, np.int64),
            whys=tuple(
                f"has posted nothing, while {ranks_phrase(peers[rank])} wait for its half of a send or receive"
                for rank in idle
            ),
            confidence=0.85,
            evidence=(
                f"On {comm_phrase(names.reference(comm))} {len(waits_for)} ranks have unfinished sends or receives;"
                " followed from peer to"
                f" peer all end at {ranks_phrase(idle)}.",
            ),
            operation="Send/Recv",
        )
    pairs = sorted(
        {tuple(sorted((a, b))) for a, b in waits_for.items() if waits_for.get(b) == a and sends[a] != sends[b]}
    )
    if len(pairs) != 1:
        return None
    a, b = pairs[0]
    source, target = (a, b) if sends[a] else (b, a)
    return _Found(
        **base,  # type: ignore[arg-type]
        kind="in_collective",
        ranks=np.array(sorted((a, b)), np.int64),
        whys=(
            f"an end of the transfer from rank {source} to {target}, of which both halves are posted and which does not end",
        )
        * 2,
        confidence=0.75,
        evidence=(
            f"Rank {source} sends to rank {target}, which receives; both are posted, and all other waits end there.",
        ),
        edges=(Edge(source, target, "both halves are posted, and it does not end"),),
        operation="Send/Recv",
        not_decidable=("Whether the link, or the GPU of one end is at fault.",),
    )


def _follow(rank: int, waits_for: dict[int, int]) -> int:
    """The rank at which the chain of waits from `rank` ends; in a circle, any of it."""
    passed = set()
    while rank in waits_for and rank not in passed:
        passed.add(rank)
        rank = waits_for[rank]
    return rank
