"""PyTorch's flight recorder: a ring of the last collectives in each process, which the job may have armed.

Armed means that it has a buffer and a pipe: PyTorch makes `<stem><rank>.pipe`, and writes its dump to `<prefix><rank>` when
anything is written to that pipe. Only such pipes are touched, and never in a way that could block.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from slurm_ncclmon.evidence.procfs import PROC

_PIPES = ("TORCH_FR_DEBUG_INFO_PIPE_FILE", "TORCH_NCCL_DEBUG_INFO_PIPE_FILE")
_BUFFERS = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
_DUMPS = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
_OLD_DEFAULT = "/tmp/nccl_trace_rank_"  # noqa: S108  # where PyTorch before 2.8 puts them

LARGEST = 4 << 20
"""Bytes of one dump that are brought along; a larger one is only named."""


@dataclass(frozen=True)
class Recorder:
    """An armed flight recorder of one rank. Paths are as this process sees them, through the rank's own root folder."""

    rank: int
    pipe: Path
    dumps: tuple[Path, ...]
    """Where the dump may appear; which one depends on PyTorch's release."""


def armed(pid: int, rank: int, environment: Mapping[str, str], proc: Path = PROC) -> Recorder | None:
    """The recorder of a rank, None when the job has armed none."""
    stem = _first(environment, _PIPES)
    buffer = _first(environment, _BUFFERS)
    if not stem or not buffer.isdigit() or int(buffer) == 0:
        return None
    cache = environment.get("XDG_CACHE_HOME") or f"{environment.get('HOME', '')}/.cache"
    prefix = _first(environment, _DUMPS)
    prefixes = [prefix] if prefix else [f"{cache}/torch/comm_lib_trace_rank_", _OLD_DEFAULT]
    dumps = tuple(_inside(pid, f"{one}{rank}", proc) for one in prefixes)
    return Recorder(rank, _inside(pid, f"{stem}{rank}.pipe", proc), dumps)


def _first(environment: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((environment[name] for name in names if environment.get(name)), "")


def _inside(pid: int, path: str, proc: Path) -> Path:
    """A path of the process, through its root (containers) or working folder."""
    folder = proc / str(pid)
    return folder / "root" / path.lstrip("/") if path.startswith("/") else folder / "cwd" / path


def trigger(recorder: Recorder) -> bool:
    """Ask for a dump; False when nobody listens at the pipe."""
    with contextlib.suppress(OSError):
        handle = os.open(recorder.pipe, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
        try:
            return stat.S_ISFIFO(os.fstat(handle).st_mode) and os.write(handle, b"1\n") > 0
        finally:
            os.close(handle)
    return False


def fresh_dump(recorder: Recorder, since_s: float, deadline: float) -> Path | None:
    """The dump written after `since_s` (seconds since 1970), once it has stopped growing; None at `deadline` (monotonic)."""
    size = -1
    while time.monotonic() < deadline:
        for path in recorder.dumps:
            with contextlib.suppress(OSError):
                status = path.stat()
                if status.st_mtime >= since_s - 1.0 and status.st_size > 0:
                    if status.st_size == size:
                        return path
                    size = status.st_size
        time.sleep(0.1)
    return None


def read_dump(path: Path) -> bytes | None:
    """Its content; None when it is too large to bring along or cannot be read."""
    with contextlib.suppress(OSError):
        if path.stat().st_size <= LARGEST:
            return path.read_bytes()
    return None
