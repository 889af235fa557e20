"""Facts about processes from /proc: the part of the evidence that disturbs nobody and needs no permission but the owner's."""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass, field
from pathlib import Path

PROC = Path("/proc")
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Stat:
    """The fields of /proc/PID/stat that matter. `cpu_s` is user and system time."""

    name: str
    state: str
    ppid: int
    threads: int
    cpu_s: float
    started: int
    """Ticks after boot: together with the pid it names a process beyond doubt."""


@dataclass(frozen=True)
class Memory:
    """What is kept in the process's own address space; reading it may block when that is locked, see bounded.py."""

    environment: dict[str, str]
    command: tuple[str, ...]
    has_nccl: bool
    """It has NCCL's library, or PyTorch's with NCCL inside, in its address space."""
    has_python: bool


EMPTY = Memory({}, (), False, False)


@dataclass(frozen=True)
class Look:
    """One look at a process that never blocks."""

    pid: int
    stat: Stat
    ns_pid: int
    tracer_pid: int
    wchan: str
    cgroup: str
    thread_states: dict[str, int] = field(default_factory=dict)
    write_bytes: int | None = None
    age_s: float = 3600.0


def own_pids(uid: int, proc: Path = PROC) -> list[int]:
    """Pids of a user's processes. The folder's owner is the effective user, for zombies as well."""
    found = []
    for entry in os.scandir(proc):
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if entry.stat().st_uid == uid:
                    found.append(int(entry.name))
    return sorted(found)


def read_stat(folder: Path) -> Stat:
    """Raises OSError when the process (or thread: `task/TID`) is gone."""
    text = (folder / "stat").read_text(encoding="utf-8", errors="replace")
    head, _, tail = text.rpartition(")")  # a name may itself hold brackets and blanks
    fields = tail.split()
    return Stat(
        name=head.partition("(")[2],
        state=fields[0],
        ppid=int(fields[1]),
        threads=int(fields[17]),
        cpu_s=(int(fields[11]) + int(fields[12])) / TICKS,
        started=int(fields[19]),
    )


def look(pid: int, proc: Path = PROC) -> Look:
    """Raises OSError when the process is gone."""
    folder = proc / str(pid)
    stat = read_stat(folder)
    status = _text(folder / "status")
    return Look(
        pid=pid,
        stat=stat,
        ns_pid=int(_status_field(status, "NSpid", str(pid)).split()[-1]),
        tracer_pid=int(_status_field(status, "TracerPid", "0")),
        wchan=_text(folder / "wchan").strip("0\n"),
        cgroup=_text(folder / "cgroup"),
        thread_states=thread_states(folder),
        write_bytes=_write_bytes(folder),
        age_s=float(_text(proc / "uptime").split()[0]) - stat.started / TICKS,
    )


def thread_states(folder: Path) -> dict[str, int]:
    """State letter -> number of threads in it."""
    counts: dict[str, int] = {}
    with contextlib.suppress(OSError):
        for task in os.scandir(folder / "task"):
            with contextlib.suppress(OSError, IndexError, ValueError):
                state = read_stat(Path(task.path)).state
                counts[state] = counts.get(state, 0) + 1
    return counts


def read_memory(pid: int, proc: Path = PROC) -> Memory:
    """May block; raises OSError when the process is gone or not ours."""
    folder = proc / str(pid)
    environ = (folder / "environ").read_bytes()
    if not environ:
        environ = _environ_of_a_thread(folder)
    words = (folder / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    maps = b""
    with contextlib.suppress(OSError):
        maps = (folder / "maps").read_bytes()
    return Memory(
        environment=parse_environ(environ),
        command=tuple(word.decode(errors="replace") for word in words if word),
        has_nccl=any(name in maps for name in (b"libnccl", b"libtorch_cuda")),
        has_python=bool(re.search(rb"/(libpython|python)[23]?[0-9.]*[^/\n]*\n", maps)),
    )


def _environ_of_a_thread(folder: Path) -> bytes:
    """A main thread that has ended is a zombie without memory, but other threads may live on and still have it."""
    for task in os.scandir(folder / "task"):
        with contextlib.suppress(OSError):
            environ = (Path(task.path) / "environ").read_bytes()
            if environ:
                return environ
    return b""


def parse_environ(data: bytes) -> dict[str, str]:
    """Name -> value of a /proc/PID/environ."""
    pairs = (entry.partition(b"=") for entry in data.split(b"\0") if b"=" in entry)
    return {name.decode(errors="replace"): value.decode(errors="replace") for name, _, value in pairs}


def _text(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text(encoding="utf-8", errors="replace")
    return ""


def _status_field(status: str, name: str, default: str) -> str:
    match = re.search(rf"^{name}:\s*(.*)$", status, re.MULTILINE)
    return match.group(1) if match and match.group(1) else default


def _write_bytes(folder: Path) -> int | None:
    match = re.search(r"^write_bytes: (\d+)", _text(folder / "io"), re.MULTILINE)
    return int(match.group(1)) if match else None
