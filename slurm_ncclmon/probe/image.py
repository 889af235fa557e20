"""One process's probe file as it was read: bytes and where they come from. What a node sends and a recording keeps."""

from __future__ import annotations

import base64
import binascii
import zlib
from dataclasses import dataclass
from typing import Any

from slurm_ncclmon.errors import FrameError
from slurm_ncclmon.probe import layout

MOST_BYTES = layout.HEADER_BYTES + 1024 * layout.FRAME.itemsize
"""A file may have 1,024 frames; nothing larger is ever unpacked."""


@dataclass(frozen=True)
class Image:
    """`data` is the header struct and then the frames in use; a record that never settled while reading has an odd version."""

    host: str
    file: str
    read_s: float
    """When it was read, on the host's monotonic clock."""
    wall_offset_s: float
    """Wall clock less monotonic clock of that host."""
    data: bytes


def to_dict(image: Image) -> dict[str, Any]:
    """The image as plain JSON values."""
    packed = base64.b64encode(zlib.compress(image.data, 6)).decode()
    return {
        "host": image.host,
        "file": image.file,
        "read_s": image.read_s,
        "wall_offset_s": image.wall_offset_s,
        "data": packed,
    }


def from_dict(values: Any) -> Image:
    """The image that `to_dict` made `values` from. Raises FrameError if they are nothing of the kind."""
    try:
        packed = base64.b64decode(str(values["data"]), validate=True)
        unpacker = zlib.decompressobj()
        data = unpacker.decompress(packed, MOST_BYTES)
        return Image(
            host=str(values["host"]),
            file=str(values["file"]),
            read_s=float(values["read_s"]),
            wall_offset_s=float(values["wall_offset_s"]),
            data=data,
        )
    except (KeyError, TypeError, ValueError, binascii.Error, zlib.error) as error:
        raise FrameError(f"not a probe image: {error}") from error
