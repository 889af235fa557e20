"""What can be told of a process without asking it anything: whether it runs, and which NCCL it has loaded."""

from __future__ import annotations

import mmap
import os
import re
import struct
from pathlib import Path
from typing import NamedTuple

_IN_NAME = re.compile(r"libnccl\.so\.([0-9]+\.[0-9]+\.[0-9]+)$")
_IN_DATA = re.compile(rb"NCCL version ([0-9]+\.[0-9]+\.[0-9]+)\+cuda")
_LIBRARIES = ("libnccl.so", "libtorch_cuda.so")
"""PyTorch may be linked with NCCL inside."""


class Version(NamedTuple):
    """An NCCL release."""

    major: int
    minor: int
    patch: int

    @classmethod
    def parse(cls, text: str) -> Version | None:
        """From `2.28.9`; None for what is no version."""
        match = re.match(r"([0-9]{1,4})\.([0-9]{1,4})\.([0-9]{1,4})", text)
        return cls(*map(int, match.groups())) if match else None

    def __str__(self) -> str:
        return ".".join(map(str, self))


def loaded_version(pid: int) -> Version | None:
    """The NCCL release in the memory of process `pid`; None when it has none, or we may not look."""
    try:
        maps = Path(f"/proc/{pid}/maps").read_text(errors="replace")
    except OSError:
        return None
    paths = dict.fromkeys(line.split(maxsplit=5)[5] for line in maps.splitlines() if line.count("/"))
    for name in _LIBRARIES:
        for path in paths:
            if os.path.basename(path).startswith(name):
                version = _of_library(Path(f"/proc/{pid}/root{path}"))
                if version is not None:
                    return version
    return None


def is_running(pid: int) -> bool:
    """Whether process `pid` is there and neither stopped nor dead."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state not in "TtZXx"


def _of_library(path: Path) -> Version | None:
    try:
        match = _IN_NAME.search(path.resolve().name)
        text = match.group(1) if match else _text_in_data(path)
    except (OSError, ValueError, struct.error):
        return None
    return Version.parse(text) if text else None


def _text_in_data(path: Path) -> str | None:
    """The version that the library would print. Only constants are searched: the rest of the file is GPU code, most of 400 MB."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        begin, end = _constants(data)
        match = _IN_DATA.search(data, begin, end)
        return match.group(1).decode() if match else None


def _constants(data: mmap.mmap) -> tuple[int, int]:
    """Where `.rodata` is in a 64-bit little-endian ELF file. Raises ValueError for anything else."""
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not a 64-bit ELF file")
    (sections,) = struct.unpack_from("<Q", data, 0x28)
    size, count, names = struct.unpack_from("<HHH", data, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", data, sections + size * index) for index in range(count)]
    name_table = headers[names][4]
    for name, _, _, _, offset, length in headers:
        if data[name_table + name : name_table + name + 8] == b".rodata\0":
            return offset, offset + length
    raise ValueError("no constants")
