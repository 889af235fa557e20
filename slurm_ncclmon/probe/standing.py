"""Where each rank of one communicator stands in the collective that holds it up: the facts that a diagnosis starts from. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from slurm_ncclmon.probe.frame import WAITS, Frames, Links, Operations, joined, rows
from slurm_ncclmon.probe.layout import (
    ALGORITHMS,
    DATATYPES,
    FUNCTIONS,
    OP_RECV,
    OP_SEND,
    PROTOCOLS,
    WAIT_NONE,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

NOT_ENTERED, ENQUEUED, STARTED, FINISHED, ENTERED = range(5)
STAGES = ("not entered", "enqueued, not started on the GPU", "started on the GPU", "finished", "entered")
"""ENTERED: enqueued, and no kernel event ever told this rank's frames more."""


class Signature(NamedTuple):
    """What all members of a collective must agree on, and (the last three) what NCCL then chose for it."""

    function: str
    datatype: str
    elements: int
    root: int
    algorithm: str
    protocol: str
    channels: int


class Wait(NamedTuple):
    """One link with a step in flight. `age_s`: since the last step of this rank in this direction was done, NaN = never."""

    rank: int
    peer: int
    channel: int
    sends: bool
    wait: int
    done: int
    posted: int
    moved: int
    age_s: float

    def __str__(self) -> str:
        arrow = "->" if self.sends else "<-"
        return (
            f"rank {self.rank} {arrow} {self.peer}, channel {self.channel}, {self.done} steps done: {WAITS[self.wait]}"
        )


@dataclass(frozen=True)
class Standing:
    """The m members of a communicator that have a frame, ascending by rank, seen at collective number `round`. Shapes (m,)."""

    frames: Frames
    missing: NDArray[np.int32]
    """Ranks of the communicator without a frame here."""
    round: int
    """The earliest collective that some rank has not finished (or, all being idle, not entered)."""
    stage: NDArray[np.uint8]
    """NOT_ENTERED … ENTERED, towards `round`."""
    operation: Operations
    """That collective's record on each rank; `known` False where it was not entered or is no longer kept."""

    def signature(self, row: int) -> Signature | None:
        """What the member in `row` thinks that the collective is; None if it is not known."""
        return signature(self.operation, row)


def standing(frames: Frames, communicator: int) -> Standing | None:
    """Where the members of `communicator` stand; None when there is no frame of any. A rank seen twice counts once, the newer."""
    own = frames.of(communicator)
    if len(own) == 0:
        return None
    newest = np.lexsort((own.init_s, own.rank))
    last = np.flatnonzero(np.append(np.diff(own.rank[newest]) != 0, True))
    own = own.take(newest[last])
    next_round = np.array([reached(own, row) for row in range(len(own))])
    at = int(next_round.min())
    absent = np.ones(own.size.max(), np.bool_)
    absent[own.rank] = False
    missing = np.flatnonzero(absent).astype(np.int32)
    return Standing(own, missing, at, stages(own, next_round, at), operation_at(own, at))


def reached(frames: Frames, row: int) -> int:
    """The number of the first collective that the rank in `row` has not finished: the one it is at, or will enter next."""
    oldest = frames.oldest
    if not oldest.known[row]:
        behind = max(0, int(frames.enqueued[row]) - int(frames.finished[row]))
        return max(1, int(frames.collectives[row]) + 1 - behind)
    if not oldest.flags[row] & (OP_SEND | OP_RECV):
        return int(oldest.round[row])
    done = frames.recent.round[row][frames.recent.known[row] & (frames.recent.flags[row] & (OP_SEND | OP_RECV) == 0)]
    return int(done.max()) + 1 if len(done) else int(frames.collectives[row])


def stages(frames: Frames, next_round: NDArray[np.int64], at: int) -> NDArray[np.uint8]:
    """The stage of each rank towards collective `at`, given the first that it has not finished."""
    oldest = frames.oldest
    begun = oldest.known & (oldest.round == at) & ~np.isnan(oldest.started_s)
    return np.select(
        [next_round > at, frames.collectives < at, begun, ~frames.kernel_seen],
        [FINISHED, NOT_ENTERED, STARTED, ENTERED],
        ENQUEUED,
    ).astype(np.uint8)


def operation_at(frames: Frames, at: int) -> Operations:
    """The record of collective `at` on each rank, from wherever its frame still has it."""
    columns = [rows(frames.recent, (slice(None), slot)) for slot in range(frames.recent.known.shape[1])]
    sources = [frames.oldest, frames.newest, *columns]
    everything = joined(sources)
    right = everything.known & (everything.round == at) & (everything.flags & (OP_SEND | OP_RECV) == 0)
    choice = right.reshape(len(sources), len(frames))
    picked = rows(everything, choice.argmax(axis=0) * len(frames) + np.arange(len(frames)))
    values = {**vars(picked), "known": choice.any(axis=0)}
    return Operations(**values)


def signature(operation: Operations, row: int) -> Signature | None:
    """The signature of one record; None if the record is not known."""
    if not operation.known[row]:
        return None
    return Signature(
        FUNCTIONS[operation.function[row]],
        DATATYPES[operation.datatype[row]],
        int(operation.count[row]),
        int(operation.peer[row]),
        ALGORITHMS[operation.algorithm[row]],
        PROTOCOLS[operation.protocol[row]],
        int(operation.channels[row]),
    )


def waits(frames: Frames) -> list[Wait]:
    """Every link that has a step in flight, by row, direction and channel."""
    return [*waiting(frames, frames.send, True), *waiting(frames, frames.receive, False)]


def waiting(frames: Frames, links: Links, sends: bool) -> list[Wait]:
    """The links of one direction that have a step in flight."""
    last = frames.read_s - (frames.send_s if sends else frames.receive_s)
    return [
        Wait(
            rank=int(frames.rank[row]),
            peer=int(links.peer[row, channel]),
            channel=int(channel),
            sends=sends,
            wait=int(links.wait[row, channel]),
            done=int(links.done[row, channel]),
            posted=int(links.posted[row, channel]),
            moved=int(links.moved[row, channel]),
            age_s=float(last[row]),
        )
        for row, channel in zip(*np.nonzero(links.wait != WAIT_NONE))
    ]
