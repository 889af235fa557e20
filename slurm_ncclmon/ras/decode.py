"""From the bytes of an answer to a Report."""

from __future__ import annotations

import contextlib
import gc
import re
from collections.abc import Iterator

import numpy as np

from slurm_ncclmon.errors import ReportError
from slurm_ncclmon.ras import entries, repair
from slurm_ncclmon.ras import text as text_form
from slurm_ncclmon.ras.client import MOST_BYTES
from slurm_ncclmon.ras.columns import Comms, Gpus, Head, Rows, build
from slurm_ncclmon.ras.report import Problem, Report
from slurm_ncclmon.ras.rows import IrregularError, join
from slurm_ncclmon.ras.segments import Piece, Pieces

_BEGIN = re.compile(rb"^(?:\{|NCCL version )", re.MULTILINE)
_HEAD = re.compile(
    rb'\{\n  "nccl_version": "([^"\\\n]*)",\n  "cuda_runtime_version": -?[0-9]+,\n  "cuda_driver_version": -?[0-9]+,\n'
    rb'  "timestamp": "([^"\\\n]*)",\n  "communicators_count": ([1-9][0-9]{0,8}),\n  "communicators": \[\n'
)
_TAIL = re.compile(
    rb'  \],\n  "ras": \{\n    "collection_time_sec": ([0-9]{1,9}\.[0-9]{1,9}),\n    "timeouts_count": ([0-9]{1,9})\n  \}\n\}\s*'
)


class Decoder:
    """Reads answers. What it remembers from one to the next only makes it faster: equal bytes give equal reports."""

    def __init__(self) -> None:
        self._gpus = Gpus()
        self._pieces = Pieces(self._gpus)

    def decode(self, answer: bytes) -> Report:
        """The report in `answer`, JSON or text, with whatever a launcher printed before it.

        Raises ReportError when it is no RAS answer, or breaks off before its first communicator.
        """
        if len(answer) > MOST_BYTES:
            raise ReportError(f"{len(answer)} bytes; no report is that long")
        begin = _BEGIN.search(answer)
        if begin is None:
            raise ReportError(f"not a RAS answer: {answer[:60]!r}" if answer.strip() else "an empty answer")
        with _no_collection():
            try:
                return self._regular(answer, begin.start())
            except IrregularError:
                return self._any(answer[begin.start() :].decode(errors="replace"))

    def _any(self, text: str) -> Report:
        if not text.startswith("{"):
            return text_form.report_of(text, self._gpus)
        value, found = repair.load(text)
        return entries.report_of(value, self._gpus, found)

    def _regular(self, answer: bytes, begin: int) -> Report:
        """The report in JSON as NCCL lays it out. Raises IrregularError for any other text."""
        start = _HEAD.match(answer, begin)
        if start is None:
            raise IrregularError
        pieces, end = self._pieces.cut(answer, start.end())
        tail = _TAIL.fullmatch(answer, end)
        version, taken_at, count = start.groups()
        if tail is None or sum(len(piece.keys) for piece in pieces) != int(count):
            raise IrregularError
        try:
            head = Head(version.decode(), taken_at.decode(), float(tail.group(1)), int(tail.group(2)))
        except UnicodeDecodeError:
            raise IrregularError from None
        comms, rows = _together(pieces)
        found = [Problem(*repair.COMMAS)] if any(piece.broken for piece in pieces) else []
        return build(head, comms, rows, self._gpus, found)


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Thousands of small objects come into being and none of them is garbage: looking for some would double the time."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def _together(pieces: list[Piece]) -> tuple[Comms, Rows]:
    """Communicators and members of all pieces."""
    keys = tuple(key for piece in pieces for key in piece.keys)
    claims = np.array([claim for piece in pieces for claim in piece.claims], np.int64)
    told: list[int] = []
    for piece in pieces:
        if piece.told[0]:
            told[-1] += piece.told[0]
        told += piece.told[1:]
    rows = Rows(np.repeat(np.arange(len(keys)), told), *join([piece.members for piece in pieces]))
    size, answered, missing = (claims[:, column].copy() for column in range(3))
    return Comms(keys, size, answered, missing, np.array(told, np.int64)), rows
