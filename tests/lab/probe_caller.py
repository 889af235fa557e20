"""Gives a Python rank the probe's frames: loads the real profiler plugin and makes the calls that NCCL makes at a collective.

    caller = probe_caller.from_environment()            # None unless NCCL_PROFILER_PLUGIN names the plugin
    comm = caller.communicator(comm_hash, rank, size, nodes)
    operation = comm.enqueue("AllReduce", count=1 << 20)   # when the host launches it
    comm.begin(operation)                                   # when its kernel starts on the stream
    comm.end(operation)                                     # when it is over

A collective that is stuck inside is shown by `comm.stuck(operation, culprit)`, after `begin`, on every rank that entered it; the
culprit whose GPU starts nothing leaves out the kernel, `comm.begin(operation, kernel=False)`. Not thread-safe for one communicator
beyond what NCCL does: one thread enqueues, one (the stream's) begins, advances and ends.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

GROUP, COLL, P2P, PROXY_OP, PROXY_STEP, KERNEL = 1, 2, 4, 8, 16, 64
GROUP_API, COLL_API, P2P_API = 256, 512, 1024
SEND_GPU_WAIT, SEND_WAIT, RECV_WAIT, RECV_FLUSH_WAIT, RECV_GPU_WAIT = 8, 9, 10, 11, 12
IN_PROGRESS, SEND_PEER_WAIT, KERNEL_STOP = 19, 20, 22
STEP_BYTES = 1 << 16
LITERALS: dict[str, bytes] = {}  # NCCL passes literals: an address means one name for good


class _Coll(ctypes.Structure):
    _fields_ = [
        ("sequence", ctypes.c_uint64),
        ("function", ctypes.c_char_p),
        ("send_buffer", ctypes.c_void_p),
        ("recv_buffer", ctypes.c_void_p),
        ("count", ctypes.c_size_t),
        ("root", ctypes.c_int),
        ("datatype", ctypes.c_char_p),
        ("channels", ctypes.c_uint8),
        ("warps", ctypes.c_uint8),
        ("algorithm", ctypes.c_char_p),
        ("protocol", ctypes.c_char_p),
        ("parent_group", ctypes.c_void_p),
    ]


class _P2p(ctypes.Structure):
    _fields_ = [
        ("function", ctypes.c_char_p),
        ("buffer", ctypes.c_void_p),
        ("datatype", ctypes.c_char_p),
        ("count", ctypes.c_size_t),
        ("peer", ctypes.c_int),
        ("channels", ctypes.c_uint8),
        ("parent_group", ctypes.c_void_p),
    ]


class _ProxyOp(ctypes.Structure):
    _fields_ = [
        ("pid", ctypes.c_int),
        ("channel", ctypes.c_uint8),
        ("peer", ctypes.c_int),
        ("steps", ctypes.c_int),
        ("chunk", ctypes.c_int),
        ("is_send", ctypes.c_int),
    ]


class _Kernel(ctypes.Structure):
    _fields_ = [("channel", ctypes.c_uint8), ("gpu_ns", ctypes.c_uint64)]


class _Any(ctypes.Union):
    _fields_ = [
        ("coll", _Coll),
        ("p2p", _P2p),
        ("proxy_op", _ProxyOp),
        ("step", ctypes.c_int),
        ("kernel", _Kernel),
        ("room", ctypes.c_uint64 * 16),
    ]


class _Event(ctypes.Structure):
    _anonymous_ = ("any",)
    _fields_ = [("type", ctypes.c_uint64), ("parent", ctypes.c_void_p), ("rank", ctypes.c_int), ("any", _Any)]


_INIT = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.c_uint64,
    ctypes.POINTER(ctypes.c_int),
    ctypes.c_char_p,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_void_p,
)
_START = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(_Event))
_STOP = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
_RECORD = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.POINTER(ctypes.c_uint64))


class _Table(ctypes.Structure):
    """ncclProfiler_v5, chosen because of it the plugin knows the NCCL release without asking a library."""

    _fields_ = [
        ("name", ctypes.c_char_p),
        ("init", _INIT),
        ("start", _START),
        ("stop", _STOP),
        ("record", _RECORD),
        ("finalize", _STOP),
    ]


@dataclass
class Link:
    """One direction of one channel of an operation in progress, to the ring's next or previous rank."""

    handle: int | None
    sends: bool
    done: int = 0
    step: int | None = None


@dataclass
class Operation:
    """A collective, send or receive on its way."""

    handle: int | None
    channels: int
    kernels: list[int | None] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)


class Caller:
    """The plugin, loaded into this process as NCCL would."""

    def __init__(self, path: str) -> None:
        self._library = ctypes.CDLL(path, mode=os.RTLD_NOW | os.RTLD_LOCAL)
        self.table = _Table.in_dll(self._library, "ncclProfiler_v5")
        self.mask = ctypes.c_int(0)

    def communicator(self, comm_hash: int, rank: int, size: int, nodes: int, name: str = "") -> Communicator:
        """A communicator whose frame the plugin keeps."""
        context = ctypes.c_void_p()
        self.table.init(
            ctypes.byref(context), comm_hash, ctypes.byref(self.mask), name.encode(), nodes, size, rank, None
        )
        return Communicator(self, context.value, rank, size)

    def start(self, context: int | None, kind: int, parent: int | None = None, **values: object) -> int | None:
        """An event's handle."""
        event = _Event(type=kind, parent=parent)
        for key, value in values.items():
            setattr(event.any, key, value)
        handle = ctypes.c_void_p()
        self.table.start(context, ctypes.byref(handle), ctypes.byref(event))
        return handle.value

    def stop(self, handle: int | None) -> None:
        if handle:
            self.table.stop(handle)

    def state(self, handle: int | None, state: int, argument: int = 0) -> None:
        if handle:
            self.table.record(handle, state, ctypes.byref(ctypes.c_uint64(argument)))


class Communicator:
    """One communicator of this rank."""

    def __init__(self, caller: Caller, context: int | None, rank: int, size: int) -> None:
        self._caller, self._context, self._rank, self._size = caller, context, rank, size
        self._sequence: dict[str, int] = {}

    def enqueue(
        self,
        function: str,
        count: int,
        datatype: str = "ncclFloat32",
        root: int = 0,
        channels: int = 2,
        algorithm: str = "RING",
        protocol: str = "SIMPLE",
    ) -> Operation:
        """The host launches a collective."""
        sequence = self._sequence.get(function, 0)
        self._sequence[function] = sequence + 1
        coll = _Coll(
            sequence=sequence,
            function=literal(function),
            count=count,
            root=root,
            datatype=literal(datatype),
            channels=channels,
            algorithm=literal(algorithm),
            protocol=literal(protocol),
        )
        return self._launch(COLL_API, COLL, channels, coll=coll)

    def enqueue_p2p(self, function: str, peer: int, count: int, datatype: str = "ncclFloat32") -> Operation:
        """The host launches a "Send" or a "Recv"."""
        p2p = _P2p(function=literal(function), count=count, peer=peer, datatype=literal(datatype), channels=1)
        return self._launch(P2P_API, P2P, 1, p2p=p2p)

    def _launch(self, api: int, kind: int, channels: int, **values: object) -> Operation:
        caller, context = self._caller, self._context
        outer = caller.start(context, GROUP_API)
        call = caller.start(context, api, outer)
        caller.stop(call)
        group = caller.start(context, GROUP)
        operation = Operation(caller.start(context, kind, call, **values), channels)
        for handle in (operation.handle, group, outer):
            caller.stop(handle)
        return operation

    def begin(self, operation: Operation, links: Sequence[tuple[bool, int]] | None = None, kernel: bool = True) -> None:
        """Its kernel starts on all channels. `links` are those over the network, (sends, peer); by default both of a ring's."""
        caller, now = self._caller, time.monotonic_ns()
        if links is None:
            links = [(False, self._neighbour(False)), (True, self._neighbour(True))]
        for channel in range(operation.channels):
            for sends, peer in links:
                proxy_op = _ProxyOp(os.getpid(), channel, peer, 8, STEP_BYTES, sends)
                handle = caller.start(self._context, PROXY_OP, operation.handle, proxy_op=proxy_op)
                caller.state(handle, IN_PROGRESS)
                operation.links.append(Link(handle, sends))
            if kernel:
                event = _Kernel(channel, now)
                operation.kernels.append(caller.start(self._context, KERNEL, operation.handle, kernel=event))
        self.advance(operation, 0, 0)

    def _neighbour(self, sends: bool) -> int:
        return (self._rank + (1 if sends else -1)) % self._size

    def advance(
        self,
        operation: Operation,
        sent: int,
        received: int,
        send_waits: int = SEND_GPU_WAIT,
        receive_waits: int = RECV_WAIT,
    ) -> None:
        """Up to `sent` and `received` steps are done on each channel; the next of each direction waits, in the given state."""
        for link in operation.links:
            target, waits = (sent, send_waits) if link.sends else (received, receive_waits)
            while link.done < target:
                self._finish_step(link)
            self._wait(link, waits)

    def stuck(self, operation: Operation, culprit: int, link: bool = False) -> None:
        """How far a ring comes before it stands still because rank `culprit`'s GPU does, or its link to the next rank."""
        behind = (self._rank - culprit) % self._size
        if behind:
            self.advance(operation, sent=behind, received=behind - 1)
        elif link:
            self.advance(operation, sent=0, received=self._size - 1, send_waits=SEND_WAIT)
        else:
            self.advance(operation, sent=0, received=0, receive_waits=RECV_GPU_WAIT)

    def _wait(self, link: Link, state: int) -> None:
        caller = self._caller
        if link.step is None:
            link.step = caller.start(self._context, PROXY_STEP, link.handle, step=link.done)
        caller.state(link.step, SEND_GPU_WAIT if link.sends else RECV_WAIT)
        if state not in (SEND_GPU_WAIT, RECV_WAIT):
            caller.state(link.step, state, STEP_BYTES)

    def _finish_step(self, link: Link) -> None:
        self._wait(link, SEND_WAIT if link.sends else RECV_GPU_WAIT)
        self._caller.stop(link.step)
        link.step = None
        link.done += 1

    def end(self, operation: Operation) -> None:
        """It is over on all channels."""
        for link in operation.links:
            self._finish_step(link)
            self._caller.stop(link.handle)
        now = time.monotonic_ns()
        for kernel in operation.kernels:
            self._caller.state(kernel, KERNEL_STOP, now)
            self._caller.stop(kernel)

    def finalize(self) -> None:
        """The communicator is destroyed."""
        self._caller.table.finalize(self._context)


def literal(name: str) -> bytes:
    """The same bytes object for the same name, always."""
    return LITERALS.setdefault(name, name.encode())


def from_environment() -> Caller | None:
    """The plugin that NCCL_PROFILER_PLUGIN names with a path; None if it names none."""
    path = os.environ.get("NCCL_PROFILER_PLUGIN", "")
    return Caller(path) if "/" in path and os.path.exists(path) else None
