"""Members in the layout that NCCL prints, read many at a time.

NCCL prints every member with the same 21 lines, so the place of each value follows from the places of the line ends. All values
of a field are then turned into numbers together, digit by digit, and every byte between the values is compared with what NCCL
prints there. Text in any other layout is refused, never guessed at (entries.py reads it).
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slurm_ncclmon.ras.columns import Gpus
from slurm_ncclmon.ras.report import ABORTED, DEAD, DESTROYED, FINALIZED, MISSING, OPERATIONS, UNRESPONSIVE, Gpu

LINES = 21
"""Lines of a member."""

_GPU = re.compile(
    rb'"host": "([^"\\]*)",\n +"pid": (-?[0-9]{1,9}),\n +"cuda_dev": (-?[0-9]{1,9}),\n +"nvml_dev": (-?[0-9]{1,9})'
)
_MISSING = re.compile(
    rb'        \{\n          "rank": (0|[1-9][0-9]{0,8}),\n          ("host": "[^"\\\n]*",\n          "pid": -?[0-9]{1,9},\n'
    rb'          "cuda_dev": -?[0-9]{1,9},\n          "nvml_dev": -?[0-9]{1,9})(,?)\n'
    rb'          "status": \{\n            "unresponsive": (true|false),\n            "considered_dead": (true|false)\n'
    rb"          \}\n        \}(,?)\n"
)

_IN, _DEEP = " " * 10, " " * 12
_FLAGS = (("finalize_called", FINALIZED), ("destroy_flag", DESTROYED), ("abort_flag", ABORTED))
_GPU_LINE = 5
_NUMBERS = ((1, "rank"), *((14 + i, name) for i, name in enumerate(OPERATIONS)))
"""Line and name of each number."""


_Constants = list[tuple[int, int, bytes]]
"""What stands between values: a line, how far before its end the text begins, and the text."""


def _constants(*texts: tuple[int, str]) -> _Constants:
    return [(line, text.index("\n"), text.encode()) for line, text in texts]


_STATUS_TEXTS = (
    (5, f',\n{_IN}"status": {{\n{_DEEP}"init_state": '),
    (7, f',\n{_DEEP}"async_error": '),
    (8, f',\n{_DEEP}"finalize_called": '),
    (9, f',\n{_DEEP}"destroy_flag": '),
    (10, f',\n{_DEEP}"abort_flag": '),
    (11, f'\n{_IN}}},\n{_IN}"collective_counts": {{\n{_DEEP}"{OPERATIONS[0]}": '),
)
_STATUS = _constants(*_STATUS_TEXTS)
_VALUES = ("0", "0", "false", "false", "false", "")
_WELL = _constants((5, "".join(text + value for (_, text), value in zip(_STATUS_TEXTS, _VALUES))))
"""The same of a member that is well, as nearly all are nearly always: one text."""
_REST = _constants(
    (0, f'        {{\n{_IN}"rank": '),
    (1, f",\n{_IN}"),
    *((14 + i, f',\n{_DEEP}"{name}": ') for i, name in enumerate(OPERATIONS[1:])),
    (18, f"\n{_IN}}}\n        }}"),
)
_OPENING = len("        {") + 1
_CLOSING = len(_REST[-1][2])
_POWERS = np.array([10**k for k in range(19)], np.uint64)


class IrregularError(Exception):
    """The text is not in the layout that NCCL prints."""


_Status = tuple[NDArray[np.int16], NDArray[np.int16], NDArray[np.uint8]]


class Members(NamedTuple):
    """n members; columns as in Report, `gpu` as a number of Gpus."""

    rank: NDArray[np.int64]
    gpu: NDArray[np.int64]
    counts: NDArray[np.uint64]
    init_state: NDArray[np.int16]
    async_error: NDArray[np.int16]
    flags: NDArray[np.uint8]

    def part(self, first: int, end: int) -> Members:
        """Members `first` to `end`."""
        columns: tuple[Any, ...] = tuple(column[first:end] for column in self)
        return Members(*columns)


NOBODY = Members(
    np.zeros(0, np.int64),
    np.zeros(0, np.int64),
    np.zeros((0, len(OPERATIONS)), np.uint64),
    np.zeros(0, np.int16),
    np.zeros(0, np.int16),
    np.zeros(0, np.uint8),
)


def join(tables: list[Members]) -> Members:
    """The members of all tables, in order."""
    if len(tables) == 1:
        return tables[0]
    return Members(*(np.concatenate(columns) for columns in zip(*tables))) if tables else NOBODY


class GpuTexts:
    """Numbers of processes by the text that NCCL prints for them."""

    def __init__(self, gpus: Gpus) -> None:
        self._gpus = gpus
        self._numbers: dict[bytes, int] = {}

    def number(self, text: bytes) -> int:
        """Raises IrregularError."""
        found = self._numbers.get(text)
        if found is None:
            match = _GPU.fullmatch(text)
            if match is None:
                raise IrregularError
            try:
                host = match.group(1).decode()
            except UnicodeDecodeError:
                raise IrregularError from None
            found = self._gpus.number(Gpu(host, *(_integer(digits) for digits in match.groups()[1:])))
            self._numbers[text] = found
        return found

    def numbers(self, text: bytes, begin: list[int], end: list[int]) -> NDArray[np.int64]:
        """Those of the pieces of `text`."""
        known = self._numbers
        try:
            return np.array([known[text[a:b]] for a, b in zip(begin, end)], np.int64)
        except KeyError:
            return np.array([self.number(text[a:b]) for a, b in zip(begin, end)], np.int64)


def _integer(digits: bytes) -> int:
    if digits.lstrip(b"-")[:1] == b"0" and digits != b"0":
        raise IrregularError
    return int(digits)


class Block(NamedTuple):
    """Members that follow each other: where the first begins, the line ends of all, and whether a comma is behind the last."""

    begin: int
    ends: NDArray[np.int64]
    more: bool


def read_blocks(text: bytes, data: NDArray[np.uint8], blocks: list[Block], gpus: GpuTexts) -> Members:
    """The n members of the blocks in `text`; `data` is the same bytes. Raises IrregularError."""
    ends = np.concatenate([block.ends for block in blocks]).reshape(-1, LINES)
    _check_edges(data, ends, blocks)
    for constant in _REST:
        _compare(text, ends, constant)
    rank, *counts = (_read(data, ends, line, name) for line, name in _NUMBERS)
    init_state, async_error, flags = _read_status(text, data, ends)
    begin = (ends[:, 1] + 1 + len(_IN)).tolist()
    end = (ends[:, _GPU_LINE] - 1).tolist()
    return Members(
        rank=rank.astype(np.int64),
        gpu=gpus.numbers(text, begin, end),
        counts=np.stack(counts, axis=1),
        init_state=init_state,
        async_error=async_error,
        flags=flags,
    )


def _check_edges(data: NDArray[np.uint8], ends: NDArray[np.int64], blocks: list[Block]) -> None:
    """Each member must begin where its block begins or the one before ends, and have a comma behind it if another follows."""
    behind = np.cumsum([len(block.ends) // LINES for block in blocks])
    before, more = np.empty(len(ends), np.int64), np.ones(len(ends), np.bool_)
    before[1:] = ends[:-1, -1]
    before[[0, *behind[:-1].tolist()]] = [block.begin - 1 for block in blocks]
    more[behind - 1] = [block.more for block in blocks]
    commas = data[ends[:, -1] - 1] == 44
    rest = ends[:, -1] - ends[:, 18] - _CLOSING
    if (ends[:, 0] - before != _OPENING).any() or (rest != more).any() or (commas != more).any():
        raise IrregularError


def _read_status(text: bytes, data: NDArray[np.uint8], ends: NDArray[np.int64]) -> _Status:
    """init_state, async_error and flags."""
    init_state, async_error = np.zeros((2, len(ends)), np.int16)
    flags = np.zeros(len(ends), np.uint8)
    odd = ~_agree(text, ends, _WELL[0])
    if odd.any():
        ends = ends[odd]
        for constant in _STATUS:
            _compare(text, ends, constant)
        init_state[odd] = _small(_read(data, ends, 7, "init_state"))
        async_error[odd] = _small(_read(data, ends, 8, "async_error"))
        flags[odd] = _flags(text, ends)
    return init_state, async_error, flags


def _compare(text: bytes, ends: NDArray[np.int64], constant: tuple[int, int, bytes]) -> None:
    if not _agree(text, ends, constant).all():
        raise IrregularError


def _agree(text: bytes, ends: NDArray[np.int64], constant: tuple[int, int, bytes]) -> NDArray[np.bool_]:
    """(n,) whether the constant is in its place."""
    line, newline, word = constant
    return _stands(text, ends[:, line] - newline, word)


def _stands(text: bytes, at: NDArray[np.int64], word: bytes) -> NDArray[np.bool_]:
    """(n,) whether `word` stands at each of the places."""
    places = np.ndarray((len(text) - len(word) + 1,), f"S{len(word)}", text, strides=(1,))
    if int(at.max()) >= len(places) or int(at.min()) < 0:
        raise IrregularError
    agree: NDArray[np.bool_] = places[at] == word
    return agree


def _read(data: NDArray[np.uint8], ends: NDArray[np.int64], line: int, name: str) -> NDArray[np.uint64]:
    """The number at the end of a line, a comma after it or not."""
    begin = ends[:, line - 1] + 1 + (len(_IN) if line == 1 else len(_DEEP)) + len(name) + 4
    last = ends[:, line] - (1 if line == 18 else 2)
    width = last - begin + 1
    most = int(width.max())
    least = int(width.min())
    if least < 1 or most > len(_POWERS):
        raise IrregularError
    value = np.zeros(len(width), np.uint64)
    for k in range(most):
        digit = data[last - k] - np.uint8(48)
        if k >= least:
            digit[width <= k] = 0
        if digit.max() > 9:
            raise IrregularError
        value += digit * _POWERS[k]
    if most > 1 and ((width > 1) & (data[begin] == 48)).any():
        raise IrregularError
    return value


def _small(value: NDArray[np.uint64]) -> NDArray[np.int16]:
    if value.max() >= 1 << 15:
        raise IrregularError
    return value.astype(np.int16)


def _flags(text: bytes, ends: NDArray[np.int64]) -> NDArray[np.uint8]:
    flags = np.zeros(len(ends), np.uint8)
    for line, (name, bit) in enumerate(_FLAGS, 9):
        begin = ends[:, line - 1] + 1 + len(_DEEP) + len(name) + 4
        width = ends[:, line] - begin - (0 if line == 11 else 1)
        true = (width == 4) & _stands(text, begin, b"true")
        if not (true | (width == 5) & _stands(text, begin, b"false")).all():
            raise IrregularError
        flags[true] |= np.uint8(bit)
    return flags


def read_missing(text: bytes, begin: int, count: int, gpus: GpuTexts) -> tuple[Members, int, bool]:
    """`count` missing members from byte `begin` on, the place behind them, and whether commas are missing.

    Raises IrregularError.
    """
    rows: list[tuple[int, int, int]] = []
    at, broken = begin, False
    for number in range(count):
        match = _MISSING.match(text, at)
        if match is None or bool(match.group(6)) != (number < count - 1):
            raise IrregularError
        rank, gpu, comma, unresponsive, dead, _ = match.groups()
        flags = MISSING | (UNRESPONSIVE if unresponsive == b"true" else 0) | (DEAD if dead == b"true" else 0)
        rows.append((int(rank), gpus.number(gpu), flags))
        broken |= not comma
        at = match.end()
    table = np.array(rows, np.int64).reshape(-1, 3)
    none = np.zeros(count, np.int16)
    counts = np.zeros((count, len(OPERATIONS)), np.uint64)
    return Members(table[:, 0], table[:, 1], counts, none, none, table[:, 2].astype(np.uint8)), at, broken
