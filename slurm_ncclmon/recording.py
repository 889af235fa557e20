"""Observations to and from a folder.

`polls.jsonl` has one line an observation, in the order in which they were made: RAS answers as packing.py packs them, probe
images, the state of the step, and which files under `nodes/` hold gathered evidence. A line is written at once and whole, so
whatever ends the monitor costs the last line at most. Replay decodes the same bytes by the same code.

A folder of plain answers is read as well: `poll_000.json` (or `.txt`), `poll_001.json` …, with times in a `polls.jsonl` whose
lines have `n`, `t` and `fmt`, else one every `interval`. A number without an answer is a poll that failed.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from slurm_ncclmon.errors import FrameError, RecordingError
from slurm_ncclmon.evidence.model import NodeReport
from slurm_ncclmon.observation import Evidence, FramePoll, Observation, Poll, StepState
from slurm_ncclmon.packing import ImagePacker, ImageUnpacker, Packer, Unpacker
from slurm_ncclmon.probe import decode as probe_decode
from slurm_ncclmon.ras.decode import Decoder
from slurm_ncclmon.ras.merge import poll_of
from slurm_ncclmon.ras.report import CommKey, Problem

log = logging.getLogger(__name__)

SCHEMA = 1
POLLS, NODES = "polls.jsonl", "nodes"
_ANSWER = re.compile(r"poll_([0-9]+)\.(json|txt)")


class Recorder:
    """Writes a recording; a folder that has one already is continued."""

    def __init__(self, folder: Path) -> None:
        """Raises OSError."""
        self._folder = folder
        self._packer, self._images = Packer(), ImagePacker()
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / POLLS
        torn = path.exists() and not _ends_with_newline(path)
        self._file = open(path, "ab", buffering=0, opener=_opener)  # noqa: SIM115
        self._line({"kind": "begin", "schema": SCHEMA}, b"\n" if torn else b"")

    def write(self, observation: Observation) -> None:
        """Add one observation. Raises OSError."""
        if isinstance(observation, Poll):
            self._line(self._poll(observation))
        elif isinstance(observation, Evidence):
            self._line(self._evidence(observation))
        elif isinstance(observation, FramePoll):
            images = [self._images.pack(image) for image in observation.images]
            self._line({"kind": "frames", "t": observation.t_s, "images": images})
        else:
            self._line({"kind": "state", "t": observation.t_s, "state": observation.state})

    def close(self) -> None:
        """Sync and close; nothing can be written afterwards. Raises OSError."""
        os.fsync(self._file.fileno())
        self._file.close()

    def _poll(self, poll: Poll) -> dict[str, Any]:
        line: dict[str, Any] = {
            "kind": "poll",
            "n": poll.n,
            "t": poll.t_s,
            "wall": poll.wall_s,
            "ok": poll.report is not None,
        }
        if poll.trouble is not None:
            line["trouble"] = poll.trouble
        if poll.answers:
            line["answers"] = [self._packer.pack(answer) for answer in poll.answers]
        if poll.notes:
            line["notes"] = [[note.kind, note.text, note.comm] for note in poll.notes]
        return line

    def _evidence(self, evidence: Evidence) -> dict[str, Any]:
        """The line that names the files, which are on disk before it."""
        (self._folder / NODES).mkdir(exist_ok=True)
        names = []
        for node in evidence.nodes:
            path = _free(self._folder / NODES, node.node)
            path.write_bytes(msgspec.json.format(msgspec.json.encode(node), indent=1))
            names.append(f"{NODES}/{path.name}")
        return {
            "kind": "evidence",
            "t": evidence.t_s,
            "wall": evidence.wall_s,
            "reason": evidence.reason,
            "nodes": names,
        }

    def _line(self, line: dict[str, Any], before: bytes = b"") -> None:
        self._file.write(before + json.dumps(line, separators=(",", ":")).encode() + b"\n")


def _opener(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)


def _ends_with_newline(path: Path) -> bool:
    with path.open("rb") as file:
        if file.seek(0, os.SEEK_END) == 0:
            return True
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


def _free(folder: Path, node: str) -> Path:
    """`<node>.json`, or `<node>@2.json` and so on for what a later gathering found: @ is in no node's name."""
    name = re.sub(r"[^A-Za-z0-9._-]", "_", node) or "unknown"
    path, count = folder / f"{name}.json", 1
    while path.exists():
        count += 1
        path = folder / f"{name}@{count}.json"
    return path


def read(folder: Path, interval: float | None = None) -> Iterator[Observation]:
    """The observations of a recording, or of a folder of plain answers, which come every `interval` seconds (1 if None) unless
    told otherwise.

    A recording whose last line is cut off (the node died) is read up to there. Raises RecordingError with file and line.
    """
    path = folder / POLLS
    lines = _lines(path) if path.exists() else []
    if any("kind" in line for _, line in lines):
        return _recorded(folder, path, lines)
    return _plain(folder, lines, interval)


def _lines(path: Path) -> list[tuple[int, dict[str, Any]]]:
    """Line numbers and objects. A broken line may only be the last of all, or the last before a new beginning."""
    result: list[tuple[int, dict[str, Any]]] = []
    broken = 0
    for number, text in enumerate(_read_bytes(path).split(b"\n"), 1):
        if not text.strip():
            continue
        value = _object(text)
        if broken and (value is None or value.get("kind") != "begin"):
            raise RecordingError(f"{path}:{broken}: not a JSON object; restore the file or delete from there on")  # noqa: S608
        broken = 0
        if value is None:
            broken = number
        else:
            result.append((number, value))
    if broken:
        log.warning("%s:%d: the last line is cut off; what is before it is read", path, broken)
    return result


def _object(text: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise RecordingError(f"{path}: {error.strerror}") from None


@dataclass
class _Memory:
    """What later lines of one monitor's recording are built on."""

    answers: Unpacker = field(default_factory=Unpacker)
    images: ImageUnpacker = field(default_factory=ImageUnpacker)
    decoder: Decoder = field(default_factory=Decoder)


def _recorded(folder: Path, path: Path, lines: list[tuple[int, dict[str, Any]]]) -> Iterator[Observation]:
    memory = _Memory()
    for number, line in lines:
        if line.get("kind") == "begin":
            memory = _Memory()
            if line.get("schema") != SCHEMA:
                raise RecordingError(
                    f"{path}:{number}: made by another release (schema {line.get('schema')}, known: {SCHEMA})"
                )
            continue
        try:
            observation = _observation(folder, line, memory)
        except (KeyError, TypeError, ValueError, FrameError) as error:
            raise RecordingError(f"{path}:{number}: damaged ({type(error).__name__}: {error})") from None
        if observation is not None:
            yield observation


def _observation(folder: Path, line: dict[str, Any], memory: _Memory) -> Observation | None:
    kind, t_s = line["kind"], float(line.get("t", 0.0))
    if kind == "poll":
        answers = tuple(memory.answers.unpack(packed) for packed in line.get("answers", ()))
        notes = tuple(
            Problem(str(note), str(text), CommKey(*comm) if comm else None)
            for note, text, comm in line.get("notes", ())
        )
        return poll_of(int(line["n"]), t_s, float(line["wall"]), answers, memory.decoder, notes, line.get("trouble"))
    if kind == "evidence":
        nodes = tuple(_node(folder / str(name)) for name in line["nodes"])
        return Evidence(t_s, float(line["wall"]), str(line["reason"]), nodes)
    if kind == "frames":
        images = tuple(memory.images.unpack(image) for image in line["images"])
        return FramePoll(t_s, probe_decode.decode(images), images)
    return StepState(t_s, str(line["state"])) if kind == "state" else None


def _node(path: Path) -> NodeReport:
    try:
        return msgspec.json.decode(_read_bytes(path), type=NodeReport)
    except msgspec.DecodeError as error:
        raise RecordingError(f"{path}: not a node's report ({error})") from None


def _plain(folder: Path, lines: list[tuple[int, dict[str, Any]]], interval: float | None) -> Iterator[Observation]:
    """Polls of a folder of plain answers: JSON where there is any, else text."""
    files = {
        (int(match.group(1)), match.group(2)): path
        for path in _listed(folder)
        if (match := _ANSWER.fullmatch(path.name))
    }
    told = [line for _, line in lines if type(line.get("n")) is int and line["n"] >= 0]
    json_here = any(kind == "json" for _, kind in files) or any(line.get("fmt") == "json" for line in told)
    suffix, form = ("json", "json") if json_here else ("txt", "text")
    lines_of = {line["n"]: line for line in told if line.get("fmt", form) == form}
    numbers = {n for n, kind in files if kind == suffix} | set(lines_of)
    if not numbers:
        raise RecordingError(f"{folder}: neither a recording ({POLLS}) nor answers (poll_000.json, poll_001.json …)")
    if max(numbers) > 10 * len(numbers) + 1000:
        raise RecordingError(
            f"{folder}: poll numbers up to {max(numbers)}, but only {len(numbers)} of them; renumber them from 0"
        )
    decoder = Decoder()
    for n in range(min(numbers), max(numbers) + 1):
        line = lines_of.get(n, {})
        t_s = _seconds(line.get("t"), n * (interval or 1.0))
        path = files.get((n, suffix))
        answers = (_read_bytes(path),) if path else ()
        trouble = str(line.get("stderr") or "no answer") if not path else None
        yield poll_of(n, t_s, _seconds(line.get("wall"), t_s), answers, decoder, (), trouble)


def _seconds(value: object, otherwise: float) -> float:
    return float(value) if type(value) in (int, float) else otherwise  # type: ignore[arg-type]


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError as error:
        raise RecordingError(f"{folder}: {error.strerror}") from None
