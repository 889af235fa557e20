"""An answer of any shape, entry by entry: what is not as it should be costs itself and nothing else.

The slow and careful way. Answers in the layout that NCCL prints are read by rows.py; both give the same report.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from slurm_ncclmon.errors import ReportError
from slurm_ncclmon.ras import problems as kind
from slurm_ncclmon.ras.columns import Comms, Gpus, Head, Rows, build
from slurm_ncclmon.ras.report import (
    ABORTED,
    DEAD,
    DESTROYED,
    FINALIZED,
    MISSING,
    OPERATIONS,
    UNRESPONSIVE,
    CommKey,
    Gpu,
    Problem,
    Report,
)

_STATUS_BITS = (("finalize_called", FINALIZED), ("destroy_flag", DESTROYED), ("abort_flag", ABORTED))
_MISSING_BITS = (("unresponsive", UNRESPONSIVE), ("considered_dead", DEAD))
_NO_COUNTS = (0,) * len(OPERATIONS)
INT16, INT32, UINT64 = (1 << 15) - 1, (1 << 31) - 1, (1 << 64) - 1


class _BadEntryError(Exception):
    """The entry is not what it should be; the text says where."""


@dataclass
class _Reading:
    """Rows and communicators read so far."""

    gpus: Gpus
    problems: list[Problem] = field(default_factory=list)
    keys: list[CommKey] = field(default_factory=list)
    claims: list[tuple[int, int, int, int]] = field(default_factory=list)
    rows: list[tuple[int, int, int, int, int, int]] = field(default_factory=list)
    counts: list[tuple[int, ...]] = field(default_factory=list)


def report_of(answer: Any, gpus: Gpus, found: list[Problem]) -> Report:
    """The report in `answer`, a JSON value; `found` is what was wrong with its text.

    Raises ReportError when it is no RAS answer at all.
    """
    if not isinstance(answer, dict) or not isinstance(answer.get("communicators"), list):
        raise ReportError("not a RAS answer: no list of communicators")
    reading = _Reading(gpus, list(found))
    head = _head(answer, reading)
    for number, comm in enumerate(answer["communicators"]):
        _take_comm(comm, number, reading)
    return build(head, _comms(reading), _rows(reading), gpus, reading.problems)


def _head(answer: dict[str, Any], reading: _Reading) -> Head:
    listed = len(answer["communicators"])
    claimed = answer.get("communicators_count", listed)
    if type(claimed) is not int or claimed != listed:
        text = f"{str(claimed)[:20]} communicators announced, {listed} listed"
        reading.problems.append(Problem(kind.COUNT_MISMATCH, text))
    ras = answer.get("ras")
    values = ras if isinstance(ras, dict) else {}
    seconds: Any = values.get("collection_time_sec")
    timeouts: Any = values.get("timeouts_count")
    texts = [answer.get(name) for name in ("nccl_version", "timestamp")]
    good_seconds, good_timeouts = _is_seconds(seconds), _is_integer(timeouts, 0, INT32)
    if not (good_seconds and good_timeouts and all(isinstance(text, str) for text in texts)):
        reading.problems.append(
            Problem(kind.BAD_ENTRY, "version, time or statistics of the answer are missing or wrong")
        )
    version, taken_at = (text if isinstance(text, str) else "" for text in texts)
    return Head(version, taken_at, float(seconds) if good_seconds else 0.0, timeouts if good_timeouts else 0)


def _take_comm(comm: Any, number: int, reading: _Reading) -> None:
    """Add one communicator and its members, or a problem."""
    try:
        if not isinstance(comm, dict):
            raise _BadEntryError("not an object")
        key = CommKey(_text(comm, "hash"), _text(comm, "secondary_hash"))
        size, answered, missing = (
            _integer(comm, name, 0, INT32) for name in ("size", "ranks_count", "missing_ranks_count")
        )
        lists = [_list(comm, name) for name in ("ranks", "missing_ranks")]
    except _BadEntryError as error:
        reading.problems.append(Problem(kind.BAD_ENTRY, f"communicator number {number}: {error}"))
        return
    reading.keys.append(key)
    reading.claims.append((size, answered, missing, sum(map(len, lists))))
    for entries, take in zip(lists, (_take_rank, _take_missing)):
        for entry in entries:
            try:
                take(entry, reading)
            except _BadEntryError as error:
                reading.problems.append(Problem(kind.BAD_ENTRY, f"a member: {error}", key))


def _take_rank(entry: Any, reading: _Reading) -> None:
    rank, gpu = _member(entry, reading)
    status, counts = _object(entry, "status"), _object(entry, "collective_counts")
    flags = _bits(status, _STATUS_BITS)
    init_state, error = (_integer(status, name, 0, INT16) for name in ("init_state", "async_error"))
    launches = tuple(_integer(counts, name, 0, UINT64) for name in OPERATIONS)
    reading.rows.append((len(reading.keys) - 1, rank, gpu, init_state, error, flags))
    reading.counts.append(launches)


def _take_missing(entry: Any, reading: _Reading) -> None:
    rank, gpu = _member(entry, reading)
    flags = MISSING | _bits(_object(entry, "status"), _MISSING_BITS)
    reading.rows.append((len(reading.keys) - 1, rank, gpu, 0, 0, flags))
    reading.counts.append(_NO_COUNTS)


def _member(entry: Any, reading: _Reading) -> tuple[int, int]:
    if not isinstance(entry, dict):
        raise _BadEntryError("not an object")
    rank = _integer(entry, "rank", -INT32, INT32)
    pid, cuda_dev, nvml_dev = (_integer(entry, name, -INT32, INT32) for name in ("pid", "cuda_dev", "nvml_dev"))
    return rank, reading.gpus.number(Gpu(_text(entry, "host"), pid, cuda_dev, nvml_dev))


def _comms(reading: _Reading) -> Comms:
    claims = np.array(reading.claims, np.int64).reshape(-1, 4)
    return Comms(tuple(reading.keys), *(claims[:, column].copy() for column in range(4)))


def _rows(reading: _Reading) -> Rows:
    table = np.array(reading.rows, np.int64).reshape(-1, 6)
    return Rows(
        comm=table[:, 0].copy(),
        rank=table[:, 1].copy(),
        gpu=table[:, 2].copy(),
        counts=np.array(reading.counts, np.uint64).reshape(-1, len(OPERATIONS)),
        init_state=table[:, 3].astype(np.int16),
        async_error=table[:, 4].astype(np.int16),
        flags=table[:, 5].astype(np.uint8),
    )


def _list(entry: dict[str, Any], name: str) -> list[Any]:
    value = entry.get(name)
    if not isinstance(value, list):
        raise _BadEntryError(f"{name} is no list")
    return value


def _object(entry: dict[str, Any], name: str) -> dict[str, Any]:
    value = entry.get(name)
    if not isinstance(value, dict):
        raise _BadEntryError(f"{name} is no object")
    return value


def _text(entry: dict[str, Any], name: str) -> str:
    value = entry.get(name)
    if not isinstance(value, str) or len(value) > 256:
        raise _BadEntryError(f"{name} is no text")
    return value


def _integer(entry: dict[str, Any], name: str, least: int, most: int) -> int:
    value: Any = entry.get(name)
    if not _is_integer(value, least, most):
        raise _BadEntryError(f"{name} is no number between {least} and {most}")
    return int(value)


def _bits(entry: dict[str, Any], bits: tuple[tuple[str, int], ...]) -> int:
    flags = 0
    for name, bit in bits:
        value = entry.get(name)
        if not isinstance(value, bool):
            raise _BadEntryError(f"{name} is neither true nor false")
        flags |= bit if value else 0
    return flags


def _is_integer(value: Any, least: int, most: int) -> bool:
    return type(value) is int and least <= value <= most


def _is_seconds(value: Any) -> bool:
    return type(value) in (int, float) and value >= 0 and math.isfinite(value)
