"""Sends and receives: a half that was not posted, a transfer that does not end, waits that stand out among all pairs."""

from __future__ import annotations

import numpy as np

from slurm_ncclmon.analyse.device_graph import DeviceGraph, Pair, in_transfer
from slurm_ncclmon.analyse.found import Found
from slurm_ncclmon.analyse.frontier import pair_faults
from slurm_ncclmon.analyse.graph import Numbers
from slurm_ncclmon.analyse.names import Names
from slurm_ncclmon.analyse.wording import comm_phrase, ranks_phrase
from slurm_ncclmon.probe.layout import WAIT_RECV_NETWORK, WAIT_SEND_NETWORK, WAIT_SEND_PEER
from slurm_ncclmon.probe.standing import Standing, waits
from slurm_ncclmon.verdict import Edge

_FOR_THE_PEER = frozenset({WAIT_RECV_NETWORK, WAIT_SEND_NETWORK, WAIT_SEND_PEER})


def unmatched(pair: Pair, graph: DeviceGraph, processes: Numbers, names: Names) -> Found:
    """A rank that has not begun its half of a transfer, and is in nothing else."""
    ranks = [rank for rank in pair.ranks if graph.process(pair.comm, rank) in processes.tolist()]
    others = [rank for rank in pair.ranks if rank not in ranks]
    half = "receive" if set(others) & pair.sends else "send"
    return Found(
        kind="p2p_unmatched",
        comm=pair.comm,
        ranks=np.array(ranks, np.int64),
        whys=(
            f"has not begun its {half}, while the other half waits on {ranks_phrase(others)}, and is in nothing else",
        )
        * len(ranks),
        confidence=0.85,
        evidence=(
            f"On {comm_phrase(names.reference(pair.comm))} followed from peer to peer all waiting ends at {ranks_phrase(ranks)}.",
        ),
        operation="Send/Recv",
    )


def unending(pair: Pair, names: Names) -> Found:
    """A transfer of which both halves have begun, and where all waiting ends."""
    first, second = pair.ranks
    source, target = (second, first) if second in pair.sends and first not in pair.sends else (first, second)
    return Found(
        kind="in_collective",
        comm=pair.comm,
        ranks=np.array(pair.ranks, np.int64),
        whys=(f"an end of the transfer from rank {source} to {target}: both halves have begun, and it does not end",)
        * 2,
        confidence=0.75,
        evidence=(
            f"On {comm_phrase(names.reference(pair.comm))} rank {source} sends to rank {target}, which receives; both have"
            " begun, and all"
            " other waits end there.",
        ),
        operation="Send/Recv",
        edges=(Edge(source, target, "both halves have begun, and it does not end"),),
        not_decidable=("Whether the link, or the GPU of one end is at fault.",),
    )


def standing_out(comm: int, stand: Standing, names: Names) -> Found | None:
    """All-to-all traffic: a destination, a source or a pair whose waits are far above those of all others. Only where all ranks
    are seen: of one rank's few waits each stands out."""
    if len(stand.missing) or not in_transfer(stand).any():
        return None
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
