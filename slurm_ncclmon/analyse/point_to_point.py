"""Sends and receives: followed from peer to peer to one that has posted nothing, or to a transfer that does not end."""

from __future__ import annotations

import numpy as np

from slurm_ncclmon.analyse.found import Found, is_point_to_point
from slurm_ncclmon.analyse.frontier import pair_faults
from slurm_ncclmon.analyse.names import Names
from slurm_ncclmon.analyse.wording import comm_phrase, ranks_phrase
from slurm_ncclmon.probe.layout import OP_RECV, OP_SEND, WAIT_RECV_NETWORK, WAIT_SEND_NETWORK, WAIT_SEND_PEER
from slurm_ncclmon.probe.standing import Standing, waits
from slurm_ncclmon.verdict import Edge

_FOR_THE_PEER = frozenset({WAIT_RECV_NETWORK, WAIT_SEND_NETWORK, WAIT_SEND_PEER})


def point_to_point(stands: list[tuple[int, Standing]], names: Names) -> list[Found]:
    """Follow each unfinished send and receive to its peer, from peer to peer, until one that has posted nothing."""
    for comm, stand in stands:
        if is_point_to_point(stand):
            found = _unmatched(comm, stand, names) or _standing_out(comm, stand, names)
            if found is not None:
                return [found]
    return []


def _unmatched(comm: int, stand: Standing, names: Names) -> Found | None:
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
        return Found(
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
    return Found(
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


def _standing_out(comm: int, stand: Standing, names: Names) -> Found | None:
    """All-to-all traffic: a destination, a source or a pair whose waits are far above those of all others."""
    frames = stand.frames
    size = int(frames.size.max())
    ages = np.zeros((size, size))
    for wait in waits(frames):
        if wait.wait in _FOR_THE_PEER and np.isfinite(wait.age_s) and 0 <= wait.peer < size:
            ages[wait.rank, wait.peer] = max(ages[wait.rank, wait.peer], wait.age_s)
    faults = pair_faults(ages)
    ends = [*faults.destinations.tolist(), *faults.sources.tolist()]
    named = sorted({*ends, *(rank for pair in faults.pairs for rank in pair)})
    if not named or len(named) * 2 > size:
        return None
    return Found(
        comm=comm,
        kind="in_collective",
        ranks=np.array(named, np.int64),
        whys=("waits for it or of it are far longer than all others' among these ranks",) * len(named),
        confidence=0.6,
        evidence=(
            f"On {comm_phrase(names.reference(comm))} the waits between pairs of ranks stand out at {ranks_phrase(named)}.",
        ),
        operation="Send/Recv",
        edges=tuple(Edge(i, j, "this pair waits far longer than all others") for i, j in faults.pairs),
        not_decidable=("Whether the link, or the GPU of one end is at fault.",),
    )


def _follow(rank: int, waits_for: dict[int, int]) -> int:
    """The rank at which the chain of waits from `rank` ends; in a circle, any of it."""
    passed = set()
    while rank in waits_for and rank not in passed:
        passed.add(rank)
        rank = waits_for[rank]
    return rank
