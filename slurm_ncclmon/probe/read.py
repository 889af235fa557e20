"""Reads the probe files of a step on this node. Never writes, never maps, never waits; what it finds may be anybody's bytes."""

from __future__ import annotations

import os
import stat
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from slurm_ncclmon.errors import FrameError
from slurm_ncclmon.probe import layout
from slurm_ncclmon.probe.decode import check
from slurm_ncclmon.probe.image import MOST_BYTES, Image

TRIES = 3
MOST_FILES = 1024
RECORDS = [
    layout.FRAME.fields[name][1] + index * layout.OP.itemsize  # type: ignore[index]
    for name, count in (("newest", 1), ("oldest", 1), ("recent", layout.RECENT))
    for index in range(count)
]
"""Offsets of the operation records in a frame."""


@dataclass(frozen=True)
class Reading:
    """What one look at a folder gave: an image for each process, and a sentence for each file that gave none."""

    images: tuple[Image, ...]
    problems: tuple[str, ...] = ()


def read_folder(folder: Path, uid: int, host: str) -> Reading:
    """The probe files in `folder` that belong to user `uid`. No folder is no files: no process has made any yet."""
    images, problems = [], []
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(".frames"))
    except OSError as error:
        missing = isinstance(error, FileNotFoundError)
        return Reading((), () if missing else (f"{folder}: {error.strerror}",))
    if len(names) > MOST_FILES:
        problems.append(f"{folder}: {len(names)} probe files, the first {MOST_FILES} were read")
    for name in names[:MOST_FILES]:
        try:
            images.append(read_file(folder / name, uid, host))
        except (OSError, FrameError) as error:
            problems.append(f"{folder / name}: {error}")
    return Reading(tuple(images), tuple(problems))


def read_file(path: Path, uid: int, host: str) -> Image:
    """The image of one file. Raises OSError, or FrameError if it cannot be a probe file of user `uid`."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != uid:
            raise FrameError(f"not a file of user {uid}")
        if not layout.HEADER_BYTES <= status.st_size <= MOST_BYTES:
            raise FrameError(f"{status.st_size} bytes are no probe file's size")
        header = os.pread(descriptor, layout.HEADER.itemsize, 0)
        frames = settled(descriptor, used(header, status.st_size))
    finally:
        os.close(descriptor)
    now = time.monotonic()
    data = header + frames
    check(data)
    return Image(host, path.name, now, time.time() - now, data)


def used(header: bytes, size: int) -> int:
    """Bytes of frames to read: those in use, as far as the file goes."""
    if len(header) < layout.HEADER.itemsize:
        raise FrameError("cut short")
    count = int(np.frombuffer(header, layout.HEADER, 1)["used"][0])
    return min(count, (size - layout.HEADER_BYTES) // layout.FRAME.itemsize) * layout.FRAME.itemsize


def settled(descriptor: int, size: int) -> bytes:
    """The frames' bytes, each record as it was when nobody wrote it; one that never was has an odd version.

    A record is sound if its version is even and still the same in a second read begun after the first had ended.
    """
    first = os.pread(descriptor, size, layout.HEADER_BYTES)
    for _ in range(TRIES):
        second = os.pread(descriptor, size, layout.HEADER_BYTES)
        if len(second) != len(first):
            raise FrameError("changes its size")
        torn = torn_records(first, second)
        if not torn:
            return first
        previous, first = first, second
    marked = bytearray(previous)
    for at in torn:
        marked[at] |= 1
    return bytes(marked)


def torn_records(first: bytes, second: bytes) -> list[int]:
    """Offsets of the records that were being written in or between the two reads."""
    frames = len(first) // layout.FRAME.itemsize
    offsets = (np.arange(frames)[:, None] * layout.FRAME.itemsize + np.array(RECORDS)).ravel() // 4
    before, after = (
        np.frombuffer(each, np.uint32, frames * layout.FRAME.itemsize // 4)[offsets] for each in (first, second)
    )
    return [int(at) * 4 for at in offsets[(before != after) | (before & 1 == 1)]]
