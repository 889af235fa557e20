"""Probe frames as columns: what each rank has enqueued, what its GPU has begun and finished, what each of its links waits for.

A row is one communicator in one process. Times are seconds on the monotonic clock of the row's host, so only times of one host
may be compared; `read_s` is when the row was read (an age is `read_s - time`), and `wall_offset_s` added to a time gives that
host's wall clock. A time that has not come is NaN. Codes and names are those of layout.py. Arrays are read-only by agreement.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from slurm_ncclmon.probe.layout import (
    WAIT_NONE,
    WAIT_RECV_FLUSH,
    WAIT_RECV_GPU,
    WAIT_RECV_NETWORK,
    WAIT_SEND_GPU,
    WAIT_SEND_NETWORK,
    WAIT_SEND_PEER,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

WAITS = {
    WAIT_NONE: "no step in flight",
    WAIT_SEND_GPU: "its GPU must produce",
    WAIT_SEND_PEER: "the receiver must post a buffer",
    WAIT_SEND_NETWORK: "the network must deliver",
    WAIT_RECV_NETWORK: "data must arrive",
    WAIT_RECV_FLUSH: "arrived data must reach the GPU",
    WAIT_RECV_GPU: "its GPU must consume",
}
"""What the oldest unfinished step of a link waits for, in words."""

Table = TypeVar("Table")


def rows(table: Table, index: Any) -> Table:
    """`table`, a dataclass of columns, with only the rows that `index` (mask, slice or integers) selects."""
    picked: dict[str, Any] = {}
    for field in fields(table):  # type: ignore[arg-type]
        column = getattr(table, field.name)
        picked[field.name] = column[index] if isinstance(column, np.ndarray) else rows(column, index)
    return type(table)(**picked)


def joined(tables: Sequence[Table]) -> Table:
    """The rows of all `tables` (at least one), in order."""
    columns: dict[str, Any] = {}
    for field in fields(tables[0]):  # type: ignore[arg-type]
        parts = [getattr(table, field.name) for table in tables]
        columns[field.name] = np.concatenate(parts) if isinstance(parts[0], np.ndarray) else joined(parts)
    return type(tables[0])(**columns)


@dataclass(frozen=True)
class Operations:
    """One operation a row, shape S = (n,) for `Frames.newest` and `oldest`, (n, RECENT) for `recent`."""

    known: NDArray[np.bool_]
    """False: there is no such operation, or it could not be read whole; the other columns are then 0 or NaN."""
    function: NDArray[np.uint8]
    """Index into FUNCTIONS; 1 to 5 less one is RAS's index of the operation. Likewise the next three."""
    algorithm: NDArray[np.uint8]
    protocol: NDArray[np.uint8]
    datatype: NDArray[np.uint8]
    position: NDArray[np.uint32]
    """Number among all operations that this rank enqueued in the communicator, from 1."""
    round: NDArray[np.uint32]
    """Number among its collectives, from 1: equal on all ranks for one collective. Sends and receives have their own."""
    sequence: NDArray[np.uint32]
    """NCCL's own number for this function, from 0: RAS's count is `sequence + 1` once it is enqueued."""
    count: NDArray[np.uint64]
    """Elements of `datatype` (NCCL turns AllGather's and Broadcast's into bytes)."""
    peer: NDArray[np.int32]
    """Root of a rooted collective, peer of a send or receive, by rank in the communicator."""
    channels: NDArray[np.uint8]
    """Channels that the operation uses; `started` and `stopped` of them have a kernel that began, ended."""
    started: NDArray[np.uint8]
    stopped: NDArray[np.uint8]
    flags: NDArray[np.uint8]
    """OP_INFERRED: finished because a later one was, without events of its own; OP_SEND, OP_RECV."""
    enqueued_s: NDArray[np.float64]
    """To about 4 ms."""
    started_s: NDArray[np.float64]
    """First kernel seen to begin. The CPU sees it late by up to a few milliseconds; `device_s` is exact."""
    ended_s: NDArray[np.float64]
    device_s: NDArray[np.float64]
    """Duration by the GPU's own timer; NaN while it is not over or without kernel events; at most 274 s."""


@dataclass(frozen=True)
class Links:
    """One direction of each channel, shape (n, CHANNELS). A link exists where `peer` is not -1.

    Only connections over the network have steps. Several peers of one channel (a tree's children): the one most behind is told,
    `done` counts them together.
    """

    done: NDArray[np.uint32]
    """Steps completed so far, over all operations, modulo 2^32."""
    peer: NDArray[np.int32]
    """Rank in the communicator."""
    wait: NDArray[np.uint8]
    """WAIT_… of the oldest unfinished step."""
    posted: NDArray[np.uint8]
    """Steps offered (to the GPU, to the network) and not done: credits, not progress."""
    moved: NDArray[np.uint8]
    """Of these, handed to the network (send) or arrived (receive)."""


@dataclass(frozen=True)
class Frames:
    """n communicator members, in no particular order; shapes (n,) unless told otherwise."""

    host: NDArray[np.str_]
    """Node name, as the reader on it gave it."""
    read_s: NDArray[np.float64]
    wall_offset_s: NDArray[np.float64]
    pid: NDArray[np.int64]
    """In the process's own namespace, as RAS reports it."""
    start_ticks: NDArray[np.uint64]
    task: NDArray[np.int32]
    """SLURM_PROCID, -1 = not known."""
    global_rank: NDArray[np.int32]
    """RANK, else SLURM_PROCID, -1 = not known."""
    communicator: NDArray[np.uint64]
    """commHash, as RAS prints it."""
    name: NDArray[np.str_]
    rank: NDArray[np.int32]
    """In the communicator, of `size` ranks on `nodes` nodes."""
    size: NDArray[np.int32]
    nodes: NDArray[np.int32]
    init_s: NDArray[np.float64]
    finalised: NDArray[np.bool_]
    kernel_events: NDArray[np.bool_]
    """Kernel starts and ends are asked for. Without them an operation that uses no network shows its enqueuing only."""
    kernel_seen: NDArray[np.bool_]
    """At least one came; else `started` 0 is no evidence."""
    steps_seen: NDArray[np.bool_]
    """This rank drives network connections of the communicator."""
    folded: NDArray[np.bool_]
    """Channels of 32 and more exist; they share the place of channel c % 32."""
    whole: NDArray[np.bool_]
    """False: a record was being written and did not settle (its process was stopped or killed then); counters hold."""
    lost_operations: NDArray[np.uint32]
    lost_steps: NDArray[np.uint32]
    enqueued: NDArray[np.uint64]
    """Operations enqueued: positions 1 to `enqueued`. Integer columns from here to `receive_bytes` only grow."""
    collectives: NDArray[np.uint64]
    """Collectives among them: rounds 1 to `collectives`."""
    calls: NDArray[np.uint64]
    """Calls of NCCL's functions, counted before anything in them can block; 0 before NCCL 2.28."""
    called_s: NDArray[np.float64]
    """Last of these (to about 4 ms)."""
    sends: NDArray[np.uint64]
    receives: NDArray[np.uint64]
    launches: NDArray[np.uint32]
    counts: NDArray[np.uint32]
    """(n, 5) as RAS counts, modulo 2^32: FUNCTIONS[1:6]."""
    finished: NDArray[np.uint64]
    """Operations 1 to `finished` are done on this rank's GPU; `oldest` is the next."""
    finished_bytes: NDArray[np.uint64]
    busy_s: NDArray[np.float64]
    """Seconds with an operation started and not ended; `idle_s` those between."""
    idle_s: NDArray[np.float64]
    busy_since_s: NDArray[np.float64]
    kernel_s: NDArray[np.float64]
    """An operation last started or ended."""
    steps_sent: NDArray[np.uint64]
    send_done: NDArray[np.uint64]
    send_bytes: NDArray[np.uint64]
    steps_arrived: NDArray[np.uint64]
    receive_done: NDArray[np.uint64]
    receive_bytes: NDArray[np.uint64]
    send_s: NDArray[np.float64]
    """Last step sent, received (to about 4 ms)."""
    receive_s: NDArray[np.float64]
    started_channels: NDArray[np.uint64]
    """Bit c: channel c's kernel of operation `finished + 1` has begun, has ended."""
    stopped_channels: NDArray[np.uint64]
    newest: Operations
    """Last enqueued."""
    oldest: Operations
    """Oldest unfinished: what this rank is at. `known` False: nothing is unfinished (`finished == enqueued`)."""
    recent: Operations
    """(n, RECENT) last finished, the latest first."""
    send: Links
    receive: Links

    def __len__(self) -> int:
        return len(self.pid)

    def take(self, index: Any) -> Frames:
        """The rows that `index` (mask, slice or integers) selects."""
        return rows(self, index)

    def of(self, communicator: int) -> Frames:
        """The members of `communicator` (its hash), ascending by rank."""
        members = np.flatnonzero(self.communicator == np.uint64(communicator))
        return self.take(members[np.argsort(self.rank[members], kind="stable")])
