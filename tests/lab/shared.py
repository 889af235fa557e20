"""What the ranks of one job share: a file in the job's folder, mapped by every rank (they are all on one machine).

No server stands between the ranks: each writes only its own words and reads the others'. So a rank that is killed or
stopped blocks exactly those that wait for it. Waiting is by futex: a blocked rank sleeps.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from pathlib import Path
from typing import Callable

MAX_RANKS = 128
MAX_GROUPS = 512  # static groups and, behind them, those made and destroyed while the job runs
RING = 64  # signatures that a member keeps; more than any run-ahead
FIRST_DYNAMIC = MAX_GROUPS - 16

_HEADER = 8  # in 8-byte words: start time, spare
_SLOT = 20  # per rank: pid, device, node's index, spare, 4 words of the node's name, record's size, record
_RECORD = 9
_MEMBER = 8 + RING  # per member of a group: arrivals, four point-to-point counters, spare, signatures
_FUTEX = _HEADER + MAX_RANKS * _SLOT
_GROUPS = _FUTEX + MAX_GROUPS
_WORDS = _GROUPS + MAX_GROUPS * MAX_RANKS * _MEMBER  # a sparse file: only what is used takes room

_SYS_FUTEX = 202  # x86-64
_FUTEX_WAIT, _FUTEX_WAKE = 0, 1
_LONGEST_SLEEP_NS = 250_000_000  # a wake-up that fell between two arrivals is made good after that


class _Timespec(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]


class SharedFile:
    """The mapped file. Words are 64 bits wide; each is written by one rank only, except the wake-up words."""

    def __init__(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        os.ftruncate(descriptor, _WORDS * 8)  # new parts are zero; the same for whoever comes first
        self._memory = mmap.mmap(descriptor, _WORDS * 8)
        os.close(descriptor)
        self.words = memoryview(self._memory).cast("Q")
        self._syscall = ctypes.CDLL(None, use_errno=True).syscall
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._timeout = _Timespec(0, _LONGEST_SLEEP_NS)
        if not self.words[0]:  # two ranks may both write: their times differ by no more than they started apart
            self.words[0] = time.time_ns()

    @property
    def started(self) -> float:
        """Unix time at which the first rank came."""
        return self.words[0] / 1e9

    # ---- ranks

    def announce(self, rank: int, pid: int, device: int, node_id: int, node: str) -> None:
        """Tells the others of this process; its pid comes last, so that who sees it sees the rest."""
        slot = _HEADER + rank * _SLOT
        self._memory[(slot + 4) * 8 : (slot + 8) * 8] = node.encode()[:32].ljust(32, b"\0")
        self.words[slot + 1], self.words[slot + 2] = device, node_id
        self.words[slot] = pid
        self.wake(0)

    def wait_for_all(self, ranks: int) -> None:
        """Sleeps until that many ranks have announced themselves."""
        self.wait(0, lambda: all(self.process(rank)[0] for rank in range(ranks)))

    def node(self, rank: int) -> str:
        """Name of the node that the rank runs on."""
        slot = _HEADER + rank * _SLOT
        return self._memory[(slot + 4) * 8 : (slot + 8) * 8].rstrip(b"\0").decode()

    def process(self, rank: int) -> tuple[int, int, int]:
        """Pid, device and node index of a rank; zeros if it has not announced itself."""
        slot = _HEADER + rank * _SLOT
        return self.words[slot], self.words[slot + 1], self.words[slot + 2]

    def publish(self, rank: int, record: bytes) -> None:
        """Gives the others what they need to reach this process's RAS thread."""
        start = _HEADER + rank * _SLOT + _RECORD
        self._memory[start * 8 : start * 8 + len(record)] = record
        self.words[start - 1] = len(record)
        self.wake(0)

    def record(self, rank: int) -> bytes:
        """What the rank published; empty if it has not."""
        start = _HEADER + rank * _SLOT + _RECORD
        return self._memory[start * 8 : start * 8 + self.words[start - 1]]

    # ---- groups

    def member(self, group: int, rank: int) -> int:
        """Index of the first word of that member of that group."""
        return _GROUPS + (group * MAX_RANKS + rank) * _MEMBER

    def signature_at(self, member: int, number: int) -> int:
        """Index of the word that holds the signature of a member's collective `number`."""
        return member + 8 + number % RING

    # ---- sleeping and waking

    def wait(self, group: int, done: Callable[[], bool]) -> None:
        """Sleeps until `done`, which is asked again whenever a member of the group arrives somewhere."""
        word = self._address + (_FUTEX + group) * 8
        while True:
            seen = self.words[_FUTEX + group] & 0xFFFFFFFF
            if done():
                return
            self._syscall(
                _SYS_FUTEX, ctypes.c_void_p(word), _FUTEX_WAIT, ctypes.c_uint32(seen), ctypes.byref(self._timeout)
            )

    def wake(self, group: int) -> None:
        """Wakes all who wait on the group."""
        index = _FUTEX + group
        self.words[index] = (self.words[index] + 1) & 0xFFFFFFFF
        self._syscall(_SYS_FUTEX, ctypes.c_void_p(self._address + index * 8), _FUTEX_WAKE, 0x7FFFFFFF, None)
