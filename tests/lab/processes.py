"""The processes of one cluster, found by what they carry rather than by a list that a crash could lose."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path


def read_bytes(pid: int, name: str) -> bytes:
    """Content of /proc/PID/NAME; empty if the process is gone or closed to us."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def stat_fields(pid: int) -> list[str]:
    """Fields of /proc/PID/stat behind the command name: state, parent, ...; empty if the process is gone."""
    return read_bytes(pid, "stat").decode(errors="replace").rpartition(")")[2].split()


def is_alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    fields = stat_fields(pid)
    return bool(fields) and fields[0] not in "ZX"


def all_pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def ancestors(pid: int) -> set[int]:
    """The process itself and all above it."""
    chain = set()
    while pid > 1:
        chain.add(pid)
        fields = stat_fields(pid)
        pid = int(fields[1]) if fields else 0
    return chain


def belonging_to(folder: Path) -> set[int]:
    """Pids of all processes of the cluster in `folder`, without ours and those above us.

    A process belongs if its environment names the cluster's slurm.conf, if it works in the folder, or if its parent belongs.
    """
    marker = f"SLURM_CONF={folder}/".encode()
    parent: dict[int, int] = {}
    found: set[int] = set()
    for pid in all_pids():
        fields = stat_fields(pid)
        if not fields or fields[0] in "ZX":
            continue
        parent[pid] = int(fields[1])
        if marker in read_bytes(pid, "environ") or _works_in(pid, folder):
            found.add(pid)
    grown = True
    while grown:
        grown = False
        for pid, above in parent.items():
            if above in found and pid not in found:
                found.add(pid)
                grown = True
    return found - ancestors(os.getpid())


def _works_in(pid: int, folder: Path) -> bool:
    try:
        cwd = os.readlink(f"/proc/{pid}/cwd")
    except OSError:
        return False
    return cwd == str(folder) or cwd.startswith(f"{folder}/")


def kill_all(folder: Path, timeout_s: float = 20.0) -> set[int]:
    """Kills every process of the cluster; returns those that are still there after `timeout_s`.

    All are stopped before the first is killed: otherwise a daemon that sees another one die starts new processes meanwhile.
    """
    deadline = time.monotonic() + timeout_s
    while pids := belonging_to(folder):
        if time.monotonic() > deadline:
            return pids
        for signum in (signal.SIGSTOP, signal.SIGKILL):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signum)
        time.sleep(0.02)
    return set()
