"""What a rank tells the probe of its collectives: all that NCCL tells, with ring neighbours on other nodes over the network.

NCCL's profiler plugin is loaded where NCCL_PROFILER_PLUGIN names one by its path. As in NCCL, a plugin that is missing or
broken costs the frames and nothing else.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from .probe_caller import Caller, Operation, from_environment

IN_BYTES = ("AllGather", "Broadcast")  # operations whose count NCCL turns into bytes
PIECE = 1024  # elements that are said for a send or receive


def load() -> Caller | None:
    """The plugin, or None."""
    try:
        return from_environment()
    except (OSError, ValueError) as error:
        print(f"no frames: {error}", file=sys.stderr, flush=True)
        return None


class Member:
    """This rank in one communicator, towards the probe. Without a plugin nothing is told."""

    def __init__(
        self, caller: Caller | None = None, comm_hash: int = 0, rank: int = 0, nodes: Sequence[int] = (), name: str = ""
    ) -> None:
        """`nodes` are those of all ranks of the communicator, in order."""
        self._rank, self._nodes = rank, nodes
        self._ring = [(sends, peer) for sends in (False, True) if self._is_far(peer := self._neighbour(sends))]
        self._told = caller.communicator(comm_hash, rank, len(nodes), len(set(nodes)), name) if caller else None

    def _neighbour(self, sends: bool) -> int:
        return (self._rank + (1 if sends else -1)) % max(1, len(self._nodes))

    def _is_far(self, peer: int) -> bool:
        return bool(self._nodes) and self._nodes[peer] != self._nodes[self._rank]

    def enqueue(self, operation: str, nbytes: int) -> Operation | None:
        """The host launches a collective of that many bytes."""
        if self._told is None:
            return None
        if operation in IN_BYTES:
            return self._told.enqueue(operation, nbytes, "ncclInt8")
        return self._told.enqueue(operation, nbytes // 4, "ncclFloat32")

    def enqueue_p2p(self, sends: bool, peer: int) -> Operation | None:
        """The host launches a send or a receive."""
        return self._told.enqueue_p2p("Send" if sends else "Recv", peer, PIECE) if self._told else None

    def begin(self, operation: Operation | None) -> None:
        """The kernel of a collective starts."""
        if self._told and operation:
            self._told.begin(operation, self._ring)

    def begin_p2p(self, operation: Operation | None, sends: bool, peer: int) -> None:
        """The kernel of a send or receive starts."""
        if self._told and operation:
            self._told.begin(operation, [(sends, peer)] if self._is_far(peer) else [])

    def end(self, operation: Operation | None) -> None:
        """The kernel has ended."""
        if self._told and operation:
            self._told.end(operation)

    def begin_torn(self, operation: Operation | None, source: int) -> None:
        """Its kernel starts, and comes as far as a ring does whose link from rank `source` to the next delivers nothing."""
        if self._told and operation:
            self._told.begin(operation, self._ring)
            self._told.stuck(operation, source, link=True)

    def stall(self, operation: Operation | None) -> None:
        """What the network sees of a kernel that never starts: data comes, and nothing takes it."""
        if self._told and operation:
            self._told.begin(operation, self._ring, kernel=False)
            self._told.stuck(operation, self._rank)

    def finalize(self) -> None:
        """The communicator is destroyed."""
        if self._told:
            self._told.finalize()
