"""Membership of this Python process in a real NCCL RAS mesh, without a GPU.

The process loads a shipped libnccl.so.2 and hands its RAS code hand-made communicator objects, laid out as the
library's own debug information says (layouts/). Threads, mesh, keep-alives, protocol and answers are NVIDIA's code; only
what collective launches would write into a communicator, counters and flags, is written from here.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

PREFIX = Path(os.environ.get("NCCLMON_PREFIX", "/opt/slurm-ncclmon"))
LAYOUTS = Path(__file__).resolve().parent / "layouts"
COUNTED = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")  # order of ncclComm.seqNumber
IN_PROGRESS = 7  # ncclInProgress: a communicator that is still being initialised
REMOTE_ERROR = 6  # ncclRemoteError
_WIDTH = {1: ctypes.c_uint8, 4: ctypes.c_uint32, 8: ctypes.c_uint64}


@dataclass(frozen=True)
class Layout:
    """Sizes and offsets in bytes of one release's structures, and offsets of its functions in the library."""

    sizes: dict[str, int]  # comm, peer, rri
    fields: dict[str, tuple[int, int]]  # "comm.rank" -> offset, width
    symbols: dict[str, int]  # init, fini, addranks

    @classmethod
    def of(cls, version: str) -> Layout:
        """The layout of an NCCL release; FileNotFoundError if layouts/ has none (layouts/mklayout makes one)."""
        sizes, fields, symbols = {}, {}, {}
        for line in (LAYOUTS / f"{version}.layout").read_text().split():
            key, _, value = line.partition("=")
            structure, _, name = key.partition(".")
            if structure == "sym":
                symbols[name] = int(value, 16)
            elif name == "size":
                sizes[structure] = int(value)
            else:
                offset, width = value.split(",")
                fields[key] = int(offset), int(width)
        return cls(sizes, fields, symbols)


def library_path(version: str) -> Path:
    """Where scripts/setup put that release's library; FileNotFoundError says how to get it."""
    path = PREFIX / "nccl" / version / "lib" / "libnccl.so.2"
    if not path.exists():
        raise FileNotFoundError(f"no NCCL {version} at {path}: run scripts/setup --nccl {version}")
    return path


@dataclass(frozen=True)
class Peer:
    """One process as RAS tells it to the others."""

    address: str  # IPv4 address of the bootstrap interface
    pid: int
    device: int
    host_hash: int
    pid_hash: int

    @classmethod
    def on(cls, address: str, pid: int, device: int) -> Peer:
        """A process by its node's address and its pid; the hashes follow from them."""
        node = int.from_bytes(socket.inet_aton(address), "big")
        return cls(address, pid, device, _mix(node) or 1, _mix((node << 32) + pid) or 1)


def _mix(value: int) -> int:
    """A 62-bit hash (splitmix64's finaliser), so that sums with a communicator's hash stay below 2**64."""
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & (2**64 - 1)
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & (2**64 - 1)
    return (value ^ (value >> 31)) >> 2


class Library:
    """A loaded libnccl.so.2 with the entry points of its RAS code. One a process."""

    def __init__(self, version: str) -> None:
        path = library_path(version)
        self.layout = Layout.of(version)
        library = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
        with open("/proc/self/maps") as maps:
            base = next(int(line.split("-")[0], 16) for line in maps if str(path.resolve()) in line)
        entry = {name: base + offset for name, offset in self.layout.symbols.items()}
        if ctypes.cast(library.ncclGetVersion, ctypes.c_void_p).value != entry["getversion"]:
            raise OSError(
                f"layouts/{version}.layout was made for another build than {path}: make it anew with layouts/mklayout"
            )
        pointer, integer = ctypes.c_void_p, ctypes.c_int
        self.comm_init = ctypes.CFUNCTYPE(integer, pointer, pointer)(entry["init"])
        self.comm_fini = ctypes.CFUNCTYPE(integer, pointer)(entry["fini"])
        self._add_ranks = ctypes.CFUNCTYPE(integer, pointer, integer)(entry["addranks"])
        self._malloc = ctypes.CDLL(None).malloc
        self._malloc.restype = pointer

    def rank_init(self, peer: Peer) -> ctypes.Array[ctypes.c_char]:
        """A rasRankInit structure for that process."""
        record = ctypes.create_string_buffer(self.layout.sizes["rri"])
        family = struct.pack("<H", socket.AF_INET) + bytes(2) + socket.inet_aton(peer.address) + bytes(8)
        offset = self.layout.fields["rri.addr"][0]
        ctypes.memmove(ctypes.addressof(record) + offset, family, len(family))
        self.put(record, "rri.pid", peer.pid)
        for name in ("cudaDev", "nvmlDev"):
            self.put(record, f"rri.{name}", peer.device)
        self.put(record, "rri.hostHash", peer.host_hash)
        self.put(record, "rri.pidHash", peer.pid_hash)
        return record

    def add_ranks(self, records: Sequence[bytes]) -> None:
        """Tells RAS of the processes in the mesh, by their communicators' `record`; every member does so."""
        together = b"".join(records)
        owned = self._malloc(len(together))  # RAS frees it
        ctypes.memmove(owned, together, len(together))
        _check(self._add_ranks(owned, len(records)), "ncclRasAddRanks")

    def put(self, buffer: object, field: str, value: int, offset: int = 0) -> None:
        """Writes one field of a structure in `buffer`; a field that this release does not have is left out."""
        if field in self.layout.fields:
            where, width = self.layout.fields[field]
            _WIDTH[width].from_buffer(buffer, offset + where).value = value  # type: ignore[arg-type]


class Communicator:
    """One hand-made communicator object of this process, from registration (`__init__`) to `fini`."""

    def __init__(self, library: Library, comm_hash: int, rank: int, members: int, own: Peer, joins_mesh: bool) -> None:
        """Registers it with RAS as being initialised.

        `joins_mesh` is true for a communicator made from scratch, which brings its processes into the mesh (`add_ranks`
        must follow, with every member's `record`); false for one split from another.
        """
        self.library, self.hash, self.members = library, comm_hash, members
        sizes, fields = library.layout.sizes, library.layout.fields
        self._memory = mmap.mmap(-1, sizes["comm"])  # pages that nobody writes cost nothing
        self._peers = ctypes.create_string_buffer(sizes["peer"] * (members + 1))
        self._abort = ctypes.c_uint32(0)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        pointers = {"peerInfo": ctypes.addressof(self._peers), "abortFlag": ctypes.addressof(self._abort)}
        plain = {"commHash": comm_hash, "rank": rank, "nRanks": members, "cudaDev": own.device, "nvmlDev": own.device}
        for name, value in {**plain, **pointers, "initState": IN_PROGRESS}.items():
            library.put(self._memory, f"comm.{name}", value)
        start = fields["comm.seqNumber"][0]
        self._counts = [ctypes.c_uint64.from_buffer(self._memory, start + 8 * i) for i in range(len(COUNTED))]
        total = fields.get("comm.collOpCount", (None, 0))[0]
        self._total = ctypes.c_uint64() if total is None else ctypes.c_uint64.from_buffer(self._memory, total)
        record = library.rank_init(own) if joins_mesh else None
        _check(library.comm_init(self._address, record and ctypes.addressof(record)), "ncclRasCommInit")
        self.record = record.raw if record else b""  # RAS put the address of its own listening socket into it

    def ready(self, peers: Sequence[Peer]) -> None:
        """Ends the initialisation: every member is known, the communicator can be used."""
        size = self.library.layout.sizes["peer"]
        for rank, peer in enumerate(peers):
            salted = {"hostHash": peer.host_hash + self.hash, "pidHash": peer.pid_hash + self.hash}
            fields = {"rank": rank, "cudaDev": peer.device, "nvmlDev": peer.device, **salted}
            for name, value in fields.items():
                self.library.put(self._peers, f"peer.{name}", value, rank * size)
        self.set("peerInfoValid", 1)
        self.set("initState", 0)

    def count(self, operation: str, launches: int = 1) -> None:
        """Counts launches of a collective as NCCL's host code does; sends and receives are not counted there."""
        self._counts[COUNTED.index(operation)].value += launches
        self._total.value += launches

    def set(self, field: str, value: int) -> None:
        """Writes a flag: finalizeCalled, destroyFlag, asyncResult, initState, ..., or abortFlag."""
        if field == "abortFlag":
            self._abort.value = value
        else:
            self.library.put(self._memory, f"comm.{field}", value)

    def fini(self) -> None:
        """Takes it out of RAS, as ncclCommDestroy does at its end."""
        _check(self.library.comm_fini(self._address), "ncclRasCommFini")


def _check(result: int, call: str) -> None:
    if result != 0:
        raise OSError(f"{call} returned {result}")
