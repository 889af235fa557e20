"""Kernel messages that explain a dead GPU, link or process; read without blocking, and only where a user may."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable

_WANTED = re.compile(
    r"NVRM: Xid|NVRM: GPU .*(lost|fallen)|nvidia-nvswitch|EDAC .* UE |Hardware Error|"
    r"mlx5_core .*(error|timeout|link down|health)|link (down|is down)|Out of memory: Killed process|oom-kill:|"
    r"blocked for more than|task .* hung|nfs: server .* not responding|LustreError|I/O error",
    re.IGNORECASE,
)
_NOW = re.compile(r"^(\d+),(\d+),(\d+),[^;]*;(.*)$")
_MOST = 20
_LONGEST = 240


def recent_events(path: str = "/dev/kmsg") -> tuple[str, ...]:
    """The last such messages, each with its age; none where the kernel log is closed to users (dmesg_restrict)."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return ()
    try:
        return pick(_records(handle), time.clock_gettime(time.CLOCK_BOOTTIME))
    finally:
        os.close(handle)


def _records(handle: int) -> Iterable[str]:
    while True:
        try:
            record = os.read(handle, 8192)
        except BrokenPipeError:  # overwritten while it was read: go on with the next
            continue
        except OSError:
            return
        if not record:
            return
        yield record.decode(errors="replace")


def pick(records: Iterable[str], uptime_s: float) -> tuple[str, ...]:
    """Of records in the form of /dev/kmsg (`priority,number,microseconds,-;text`), those that matter."""
    found = []
    for record in records:
        match = _NOW.match(record.partition("\n")[0])
        if match and _WANTED.search(match.group(4)):
            age_s = max(0.0, uptime_s - int(match.group(3)) / 1e6)
            found.append(f"{age_s:.0f} s ago: {match.group(4)[:_LONGEST]}")
    return tuple(found[-_MOST:])
