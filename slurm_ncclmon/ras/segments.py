"""An answer cut into pieces, so that what has not changed since the last one is not read again.

Pieces begin where a communicator or a member begins, at places that the content decides: a new communicator shifts what follows
it, and leaves it recognisable. What a piece means depends on its bytes and on the state in which it begins; both must be the same
for it to be used again. Pieces that are new are read many at a time, since small ones would cost more than they save.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from slurm_ncclmon.ras.columns import Gpus
from slurm_ncclmon.ras.report import CommKey
from slurm_ncclmon.ras.rows import (
    LINES,
    NOBODY,
    Block,
    GpuTexts,
    IrregularError,
    Members,
    join,
    read_blocks,
    read_missing,
)

MEMBERS = 256
"""Most members of one communicator in a piece, and enough of several to end one."""
_FEW = MEMBERS // 4
_BATCH = 4096
"""Members that are read together."""
_LIFE = 4
"""Answers that a piece stays known for without being seen: several meshes may be asked in turn."""
_CHUNK = 1 << 17
"""Bytes in which line ends are looked for at once."""

_HEADER = re.compile(
    rb'    \{\n      "hash": "(0x[0-9a-f]{1,16})",\n      "secondary_hash": "(0x[0-9a-f]{1,16}:0x[0-9a-f]{1,16})",\n'
    rb'      "size": (0|[1-9][0-9]{0,8}),\n      "ranks_count": (0|[1-9][0-9]{0,8}),\n'
    rb'      "missing_ranks_count": (0|[1-9][0-9]{0,8}),\n      "ranks": \[\n'
)
_HASH_AT = len(b'    {\n      "hash": "0x')
"""First digit of a header's hash."""
_HALF = ord("8")
_MIDDLE = b'      ],\n      "missing_ranks": [\n'
_NONE = b"\n"
"""An empty list has an empty line in it."""
_FOOTER = re.compile(rb"      \]\n    \}(,?)\n")


class State(NamedTuple):
    """Where a piece begins: between communicators (`key` None), or in one that still has members to come."""

    key: CommKey | None = None
    ranks: int = 0
    missing: int = 0
    done: int = 0
    last: bool = False
    """The communicator before was the last one."""


NOTHING = memoryview(b"")
BETWEEN = State()
END = State(last=True)


@dataclass
class Piece:
    """C communicators begin in it; its members are first those of a communicator that began earlier, then theirs in order."""

    raw: memoryview
    """Its bytes, in the last answer that had them."""
    after: State = BETWEEN
    keys: list[CommKey] = field(default_factory=list)
    claims: list[tuple[int, int, int]] = field(default_factory=list)
    """(C) size, ranks_count, missing_ranks_count."""
    told: list[int] = field(default_factory=lambda: [0])
    """(C + 1) members of the earlier communicator, and of each that begins here."""
    members: Members = NOBODY
    broken: bool = False
    """Commas are missing in it."""
    seen: int = 0


class Pieces:
    """Cuts answers, and remembers pieces from one to the next."""

    def __init__(self, gpus: Gpus) -> None:
        self._gpus = GpuTexts(gpus)
        self._known: dict[tuple[State, bytes], Piece] = {}
        self._answers = 0

    def cut(self, text: bytes, begin: int) -> tuple[list[Piece], int]:
        """All pieces from byte `begin`, where the first communicator begins, and the place behind the last communicator.

        Raises IrregularError.
        """
        self._answers += 1
        reader, view = _Reader(text, self._gpus), memoryview(text)
        state, at, pieces = BETWEEN, begin, []
        fresh: dict[tuple[State, bytes], Piece] = {}
        while state != END:
            name = (state, text[at : at + 120])
            piece = self._known.get(name)
            if piece is None or not text.startswith(piece.raw, at):
                piece = fresh[name] = reader.piece(at, state)
            begin, at = at, at + len(piece.raw)
            piece.raw = view[begin:at]
            piece.seen = self._answers
            pieces.append(piece)
            state = piece.after
        reader.finish()
        self._known.update(fresh)
        self._forget()
        return pieces, at

    def _forget(self) -> None:
        old = [name for name, piece in self._known.items() if piece.seen <= self._answers - _LIFE]
        for name in old:
            del self._known[name]


class _Lines:
    """Where the lines of a text end, found as they are needed."""

    def __init__(self, data: NDArray[np.uint8]) -> None:
        self._data = data
        self._ends = np.zeros(0, np.int64)
        self._next = 0
        """Line ends are known up to this byte, from some byte on."""

    def following(self, begin: int, count: int) -> NDArray[np.int64]:
        """The ends of `count` lines from byte `begin` on. Raises IrregularError when there are fewer."""
        first = int(self._ends.searchsorted(begin))
        if first == len(self._ends) and begin > self._next:
            self._next = begin
        while len(self._ends) - first < count:
            if self._next >= len(self._data):
                raise IrregularError
            more = np.flatnonzero(self._data[self._next : self._next + _CHUNK] == 10)
            more += self._next
            self._ends = np.concatenate([self._ends[first:], more])
            self._next += _CHUNK
            first = 0
        return self._ends[first : first + count]


class _Reader:
    """Reads pieces of one answer: their frame at once, their members when there are enough of them."""

    def __init__(self, text: bytes, gpus: GpuTexts) -> None:
        self._text, self._view, self._gpus = text, memoryview(text), gpus
        self._data = np.frombuffer(text, np.uint8)
        self._lines = _Lines(self._data)
        self._blocks: list[Block] = []
        self._waiting: list[tuple[Piece, list[int | Members]]] = []
        """Pieces whose members are still to be read: so many of the blocks' members, or some that are there, in turn."""
        self._count = 0
        self._piece = Piece(NOTHING)
        self._parts: list[int | Members] = []
        self._at = 0
        self._state = BETWEEN

    def piece(self, begin: int, state: State) -> Piece:
        """The piece that begins there; its members are there after `finish`. Raises IrregularError."""
        self._at, self._state = begin, state
        piece, parts = Piece(NOTHING), []  # type: Piece, list[int | Members]
        self._piece, self._parts = piece, parts
        while True:
            if self._state.key is None:
                self._take_header()
            if self._state.ranks:
                self._take_ranks()
            if self._state.ranks:
                break
            self._take_rest(self._state)
            if self._state.last or self._full():
                break
        piece.raw = self._view[begin : self._at]
        piece.after = self._state
        self._waiting.append((piece, parts))
        if self._count >= _BATCH:
            self.finish()
        return piece

    def _full(self) -> bool:
        """Whether to cut here, before the next communicator: when there is enough, or the next one's hash says so."""
        count = sum(self._piece.told)
        return count >= MEMBERS or (count >= _FEW and self._text[self._at + _HASH_AT] < _HALF)

    def _take_header(self) -> None:
        match = _HEADER.match(self._text, self._at)
        if match is None:
            raise IrregularError
        name, secondary, size, ranks, missing = match.groups()
        key = CommKey(name.decode(), secondary.decode())
        self._piece.keys.append(key)
        self._piece.claims.append((int(size), int(ranks), int(missing)))
        self._piece.told.append(0)
        self._state = State(key, int(ranks), int(missing))
        self._at = match.end()

    def _take_ranks(self) -> None:
        """As many members of the communicator as may be in this piece."""
        state = self._state
        count = min(state.ranks, MEMBERS - state.done % MEMBERS)
        ends = self._lines.following(self._at, count * LINES)
        self._blocks.append(Block(self._at, ends, state.ranks > count))
        self._parts.append(count)
        self._piece.told[-1] += count
        self._count += count
        self._at = int(ends[-1]) + 1
        self._state = state._replace(ranks=state.ranks - count, done=state.done + count)

    def _take_rest(self, state: State) -> None:
        """From the end of the ranks to the end of the communicator."""
        self._skip(_MIDDLE if state.done else _NONE + _MIDDLE)
        if state.missing:
            members, self._at, broken = read_missing(self._text, self._at, state.missing, self._gpus)
            self._parts.append(members)
            self._piece.told[-1] += state.missing
            self._piece.broken |= broken
        else:
            self._skip(_NONE)
        match = _FOOTER.match(self._text, self._at)
        if match is None:
            raise IrregularError
        self._at = match.end()
        self._state = BETWEEN if match.group(1) else END

    def _skip(self, what: bytes) -> None:
        if not self._text.startswith(what, self._at):
            raise IrregularError
        self._at += len(what)

    def finish(self) -> None:
        """Read the members of all pieces so far. Raises IrregularError."""
        members = read_blocks(self._text, self._data, self._blocks, self._gpus) if self._blocks else NOBODY
        row = 0
        for piece, parts in self._waiting:
            tables: list[Members] = []
            for table in _runs(parts):
                if isinstance(table, int):
                    tables.append(members.part(row, row + table))
                    row += table
                else:
                    tables.append(table)
            piece.members = join(tables)
        self._blocks, self._waiting, self._count = [], [], 0


def _runs(parts: list[int | Members]) -> list[int | Members]:
    """The parts, with counts that follow each other summed up."""
    if not any(isinstance(part, Members) for part in parts):
        return [sum(parts)]  # type: ignore[arg-type]
    return parts
