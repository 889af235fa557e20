"""Reports on their way through srun's standard output: many nodes at once, in lines that Slurm does not tear.

Slurm forwards output by lines, but cuts those over about a kilobyte and may then mix the pieces of several nodes. So a message is
compressed, and sent as short lines of their own:

    NCCLMON1 NODE MESSAGE PART OF KIND BASE64

A later message of a kind replaces an earlier one, so a node first sends what it knows at once and later what it learnt.
Within a message equal strings and stacks stand once, for the ranks of a node mostly stand at the same place.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from slurm_ncclmon.errors import EvidenceError
from slurm_ncclmon.evidence.model import Frame, NodeReport, ProcessReport, Thread

MAGIC = "NCCLMON1"
REPORT, FLIGHT = "report", "flight-"
"""Kinds of messages; the rank follows FLIGHT."""
_PIECE = 720
"""Base64 characters a line: with the head well below Slurm's limit of 1 KiB."""
_LARGEST = 64 << 20
"""Bytes of one decompressed message; more is no report of ours."""

Frames = tuple[Frame, ...]


def pack(report: NodeReport) -> bytes:
    """One report as compressed JSON with a table of stacks."""
    stacks: dict[Frames, int] = {}
    processes = []
    for process in report.processes:
        threads = [
            [t.name, t.tid, t.active, t.gil, t.main, stacks.setdefault(t.frames, len(stacks))] for t in process.threads
        ]
        processes.append((replace(process, threads=()), threads))
    frames: dict[Frame, int] = {}
    table = [[frames.setdefault(frame, len(frames)) for frame in stack] for stack in stacks]
    message = {
        "report": replace(report, processes=()),
        "processes": processes,
        "stacks": table,
        "frames": [[frame.function, frame.file, frame.line, frame.native] for frame in frames],
    }
    return zlib.compress(msgspec.json.encode(message), 6)


def lines(node: str, number: int, kind: str, payload: bytes) -> Iterator[str]:
    """The lines of one message, without newlines."""
    text = base64.b64encode(payload).decode()
    pieces = [text[start : start + _PIECE] for start in range(0, len(text), _PIECE)] or [""]
    for part, piece in enumerate(pieces):
        yield f"{MAGIC} {node} {number} {part} {len(pieces)} {kind} {piece}"


@dataclass
class Unpacker:
    """Reports back from messages. Equal strings, frames and stacks of all nodes become one object each: 98,304 ranks that
    wait at the same line cost one stack."""

    _frames: dict[Frame, Frame] = field(default_factory=dict)
    _stacks: dict[Frames, Frames] = field(default_factory=dict)

    def unpack(self, payload: bytes) -> NodeReport:
        """Raises EvidenceError when it is no report."""
        try:
            message = _MESSAGE.decode(_inflate(payload))
            frames = [self._frame(Frame(*entry)) for entry in message.frames]
            stacks = [self._stack(tuple(frames[number] for number in entry)) for entry in message.stacks]
            processes = tuple(_with_threads(process, threads, stacks) for process, threads in message.processes)
        except (zlib.error, msgspec.MsgspecError, IndexError, TypeError, ValueError) as error:
            raise EvidenceError(f"not a node report: {error}") from None
        return replace(message.report, processes=processes)

    def _frame(self, frame: Frame) -> Frame:
        return self._frames.setdefault(frame, frame)

    def _stack(self, stack: Frames) -> Frames:
        return self._stacks.setdefault(stack, stack)


class _Message(msgspec.Struct):
    report: NodeReport
    processes: list[tuple[ProcessReport, list[list[Any]]]]
    stacks: list[list[int]]
    frames: list[list[Any]]


_MESSAGE = msgspec.json.Decoder(_Message)


def _with_threads(process: ProcessReport, threads: list[list[Any]], stacks: list[Frames]) -> ProcessReport:
    return replace(
        process,
        threads=tuple(
            Thread(name=name, tid=tid, active=active, gil=gil, frames=stacks[stack], main=main)
            for name, tid, active, gil, main, stack in threads
        ),
    )


def unpack_flight(message: Message) -> tuple[int, bytes] | None:
    """Rank and content of a flight recorder dump; None when the message is something else."""
    rank = message.kind.removeprefix(FLIGHT)
    if rank == message.kind or not rank.isdigit():
        return None
    try:
        return int(rank), _inflate(message.payload)
    except (zlib.error, ValueError):
        return None


def _inflate(payload: bytes) -> bytes:
    machine = zlib.decompressobj()
    data = machine.decompress(payload, _LARGEST)
    if machine.unconsumed_tail or not machine.eof:
        raise ValueError("cut off, or too large")
    return data


@dataclass(frozen=True)
class Message:
    """A whole message of a node."""

    node: str
    kind: str
    payload: bytes


class Assembler:
    """Messages from lines of many nodes; lines that are not ours are kept for the error report."""

    def __init__(self) -> None:
        self._parts: dict[tuple[str, str], list[str | None]] = {}
        self.foreign: list[str] = []

    def feed(self, line: str) -> Message | None:
        """The message that this line completes, if it does."""
        words = line.split(" ", 6)
        if words[0] != MAGIC or len(words) != 7 or not all(word.isdigit() for word in words[3:5]):
            if line.strip():
                self.foreign = [*self.foreign[-19:], line.strip()]
            return None
        _, node, number, part, of, kind, piece = words
        if not int(part) < int(of) <= _LARGEST // _PIECE:
            return None
        parts = self._parts.setdefault((node, number), [None] * int(of))
        if int(part) < len(parts):
            parts[int(part)] = piece
        if any(known is None for known in parts):
            return None
        del self._parts[node, number]
        try:
            return Message(node, kind, base64.b64decode("".join(known for known in parts if known), validate=True))
        except binascii.Error:
            return None
