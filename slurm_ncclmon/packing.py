"""Many answers (or images) that resemble each other, in few bytes and back, byte for byte.

An answer differs from the one before in its counters. So it is taken apart into a template (the text without its numbers) and the
numbers; the template is written once, and of the numbers only how much they grew, which for a thousand ranks in step is almost
always the same number and compresses to nothing.
"""

from __future__ import annotations

import base64
import hashlib
import re
import zlib
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slurm_ncclmon.probe import image as probe_image
from slurm_ncclmon.probe.image import Image

MOST_TEMPLATES = 8
MOST_TEMPLATE_BYTES = 256 << 20
"""Kept by writer and reader alike, one at least; one that was dropped is written in full again."""
LARGEST = 1 << 30

_CLOCK = re.compile(
    rb'(?<="timestamp": ")[^"\n]*|(?<="collection_time_sec": )[0-9.]+|(?<=Communicators\.\.\. \()[0-9.]+'
)
_EDGE = 4096
"""Bytes at the beginning and at the end in which times are looked for."""
_CHUNK = 1 << 18
"""Bytes that are taken apart at once, so that they stay in the processor's cache."""
_DIGITS = 18
_NUMBER_HERE, _CLOCK_HERE = b"\x00", b"\x01"
_WIDTHS = ("i1", "<i2", "<i4", "<i8")


@dataclass(frozen=True)
class _Parts:
    """`template` with `numbers` at each 0 byte and `clocks` at each 1 byte is the text."""

    template: bytes
    numbers: NDArray[np.int64]
    clocks: list[bytes]


class Packer:
    """Texts to JSON objects. Each depends on those before it; Unpacker takes them in the same order."""

    def __init__(self) -> None:
        self._templates: OrderedDict[bytes, tuple[int, int, NDArray[np.int64]]] = OrderedDict()
        """Number, size and last numbers of each template, by its digest."""
        self._next = 0

    def pack(self, text: bytes) -> dict[str, Any]:
        """The text as JSON values: in full, or as what changed since an earlier one."""
        parts = _take_apart(text)
        digest = hashlib.blake2b(parts.template, digest_size=16).digest() if parts else b""
        known = self._templates.get(digest)
        if parts is None or known is None:
            return self._pack_whole(text, digest, parts)
        number, size, before = known
        self._templates[digest] = (number, size, parts.numbers)
        self._templates.move_to_end(digest)
        packed = {"on": number, "clocks": [clock.decode("latin-1") for clock in parts.clocks], "crc": zlib.crc32(text)}
        growth = parts.numbers - before
        if growth.any():
            width = next(w for w in _WIDTHS if np.array_equal(growth.astype(w), growth))
            packed.update(width=width, grew=_compress(growth.astype(width).tobytes()))
        return packed

    def _pack_whole(self, text: bytes, digest: bytes, parts: _Parts | None) -> dict[str, Any]:
        packed: dict[str, Any] = {"text": _compress(text)}
        if parts is not None:
            packed["is"] = self._next
            self._templates[digest] = (self._next, len(parts.template), parts.numbers)
            self._next += 1
            _trim(self._templates, [size for _, size, _ in self._templates.values()])
        return packed


class Unpacker:
    """The texts again. Raises ValueError for what Packer did not write in this order."""

    def __init__(self) -> None:
        self._templates: OrderedDict[int, tuple[bytes, NDArray[np.int64]]] = OrderedDict()

    def unpack(self, packed: Any) -> bytes:
        """The text of one object, checked against its sum."""
        if not isinstance(packed, dict):
            raise ValueError("an answer is not an object")
        if "text" in packed:
            return self._unpack_whole(packed)
        template, before = self._templates[packed["on"]]
        growth = np.zeros(len(before), np.int64)
        if "grew" in packed:
            if packed["width"] not in _WIDTHS:
                raise ValueError("numbers of unknown width")
            growth = np.frombuffer(_decompress(packed["grew"]), packed["width"]).astype(np.int64)
        if len(growth) != len(before):
            raise ValueError("an answer does not fit the one that it is built on")
        numbers = before + growth
        text = _put_together(template, numbers, [clock.encode("latin-1") for clock in packed["clocks"]])
        if zlib.crc32(text) != packed["crc"]:
            raise ValueError("an answer's sum is wrong")
        self._templates[packed["on"]] = (template, numbers)
        self._templates.move_to_end(packed["on"])
        return text

    def _unpack_whole(self, packed: dict[str, Any]) -> bytes:
        text = _decompress(packed["text"])
        if "is" in packed:
            parts = _take_apart(text)
            if parts is None:
                raise ValueError("an answer cannot be taken apart")
            self._templates[packed["is"]] = (parts.template, parts.numbers)
            _trim(self._templates, [len(template) for template, _ in self._templates.values()])
        return text


def _trim(templates: OrderedDict[Any, Any], sizes: list[int]) -> None:
    """Drop the templates that were not used for longest, the same for writer and reader."""
    while len(sizes) > MOST_TEMPLATES or (len(sizes) > 1 and sum(sizes) > MOST_TEMPLATE_BYTES):
        templates.popitem(last=False)
        del sizes[0]


class ImagePacker:
    """Probe images to JSON objects: one that is as long as the one before is written as what differs from that."""

    def __init__(self) -> None:
        self._before: dict[tuple[str, str], bytes] = {}

    def pack(self, image: Image) -> dict[str, Any]:
        """The image as JSON values."""
        name = (image.host, image.file)
        before = self._before.get(name)
        self._before[name] = image.data
        if before is None or len(before) != len(image.data):
            return probe_image.to_dict(image)
        where = {"host": image.host, "file": image.file, "read_s": image.read_s, "wall_offset_s": image.wall_offset_s}
        return {**where, "differs": _compress(_differ(before, image.data))}


class ImageUnpacker:
    """The images again. Raises ValueError, KeyError or FrameError for what ImagePacker did not write in this order."""

    def __init__(self) -> None:
        self._before: dict[tuple[str, str], bytes] = {}

    def unpack(self, packed: Any) -> Image:
        """The image of one object."""
        if isinstance(packed, dict) and "differs" in packed:
            before = self._before[packed["host"], packed["file"]]
            data = _differ(before, _decompress(packed["differs"]))
            image = Image(packed["host"], packed["file"], float(packed["read_s"]), float(packed["wall_offset_s"]), data)
        else:
            image = probe_image.from_dict(packed)
        self._before[image.host, image.file] = image.data
        return image


def _differ(one: bytes, other: bytes) -> bytes:
    if len(one) != len(other):
        raise ValueError("an image does not fit the one that it is built on")
    return (np.frombuffer(one, np.uint8) ^ np.frombuffer(other, np.uint8)).tobytes()


def _take_apart(text: bytes) -> _Parts | None:
    """None where the text has the bytes that mark places."""
    if _NUMBER_HERE in text or _CLOCK_HERE in text:
        return None
    clocks: list[bytes] = []
    edges = [text] if len(text) <= 2 * _EDGE else [text[:_EDGE], text[-_EDGE:]]
    for edge in edges:
        clocks += _CLOCK.findall(edge)
    marked = [_CLOCK.sub(_CLOCK_HERE, edge) for edge in edges]
    whole = text[_EDGE:-_EDGE].join(marked)
    templates, numbers, at = [], [np.zeros(0, np.int64)], 0
    while at < len(whole):
        end = whole.find(b"\n", at + _CHUNK) + 1 or len(whole)
        template, number = _split(np.frombuffer(whole, np.uint8, end - at, at))
        templates.append(template)
        numbers.append(number)
        at = end
    return _Parts(b"".join(templates), np.concatenate(numbers), clocks)


def _split(data: NDArray[np.uint8]) -> tuple[bytes, NDArray[np.int64]]:
    """Template and numbers of some lines."""
    begin, width = _numbers_in(data)
    number = np.zeros(len(begin), np.int64)
    marked, keep = data.copy(), np.ones(len(data), np.bool_)
    marked[begin] = _NUMBER_HERE[0]
    for k in range(int(width.max(initial=0))):
        inside = np.flatnonzero(width > k)
        at = begin[inside] + k
        number[inside] = number[inside] * 10 + (data[at] - np.uint8(48))
        if k:
            keep[at] = False
    template: bytes = marked[keep].tobytes()
    return template, number


def _numbers_in(data: NDArray[np.uint8]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where numbers are that end a line, up to a comma, and their widths: after a space, no leading zeros, 18 digits at most."""
    last = np.flatnonzero(data == 10) - 1
    last = last[last > 0]
    last -= data[last] == 44
    width = np.zeros(len(last), np.int64)
    open_ = np.arange(len(last))
    for k in range(_DIGITS + 1):
        at = last[open_] - k
        open_ = open_[(at > 0) & (data[at] - np.uint8(48) < 10)]
        width[open_] += 1
    begin = last - width + 1
    good = (width > 0) & (width <= _DIGITS) & (data[begin - 1] == 32) & ((width == 1) | (data[begin] != 48))
    return begin[good], width[good]


def _put_together(template: bytes, numbers: NDArray[np.int64], clocks: list[bytes]) -> bytes:
    pieces = template.split(_NUMBER_HERE)
    if len(pieces) != len(numbers) + 1 or template.count(_CLOCK_HERE) != len(clocks):
        raise ValueError("an answer does not fit its template")
    woven: list[bytes] = [b""] * (2 * len(pieces) - 1)
    woven[0::2] = pieces
    woven[1::2] = [b"%d" % number for number in numbers.tolist()]
    parts = b"".join(woven).split(_CLOCK_HERE)
    return parts[0] + b"".join(clock + part for clock, part in zip(clocks, parts[1:]))


def _compress(data: bytes) -> str:
    return base64.b85encode(zlib.compress(data, 6)).decode()


def _decompress(text: Any) -> bytes:
    machine = zlib.decompressobj()
    try:
        data = machine.decompress(base64.b85decode(text), LARGEST)
    except zlib.error as error:
        raise ValueError(str(error)) from None
    if not machine.eof:
        raise ValueError("compressed data is cut off")
    return data
