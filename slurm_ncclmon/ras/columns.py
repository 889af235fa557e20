"""From rows as they were read, however they were read, to a checked Report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from slurm_ncclmon.ras import problems as kind
from slurm_ncclmon.ras.report import (
    DEAD,
    MISSING,
    OPERATIONS,
    RESULT_IN_PROGRESS,
    UNRESPONSIVE,
    CommKey,
    Gpu,
    Problem,
    Report,
)

NO_HASH = ("0x0", "")


@dataclass
class Gpus:
    """Numbers for processes and devices, kept from answer to answer."""

    known: list[Gpu] = field(default_factory=list)
    numbers: dict[Gpu, int] = field(default_factory=dict)
    _last: tuple[list[int], tuple[Gpu, ...]] = ([], ())

    def number(self, gpu: Gpu) -> int:
        """The number of `gpu`, a new one for a new one."""
        found = self.numbers.get(gpu)
        if found is None:
            found = self.numbers[gpu] = len(self.known)
            self.known.append(gpu)
        return found

    def listed(self, numbers: list[int]) -> tuple[Gpu, ...]:
        """What the numbers stand for; the same object as before where they are the same."""
        if numbers != self._last[0]:
            self._last = (numbers, tuple(self.known[number] for number in numbers))
        return self._last[1]


@dataclass(frozen=True)
class Head:
    """What an answer says once."""

    nccl_version: str = ""
    taken_at: str = ""
    collection_s: float = 0.0
    timeouts: int = 0


@dataclass(frozen=True)
class Comms:
    """C communicators in the answer's order, and what they claim of themselves."""

    keys: tuple[CommKey, ...]
    size: NDArray[np.int64]
    answered: NDArray[np.int64]
    """`ranks_count`."""
    missing: NDArray[np.int64]
    """`missing_ranks_count`."""
    told: NDArray[np.int64]
    """Entries in both lists, unreadable ones included."""


@dataclass(frozen=True)
class Rows:
    """M members, grouped by communicator in order; columns as in Report."""

    comm: NDArray[np.int64]
    rank: NDArray[np.int64]
    gpu: NDArray[np.int64]
    """Number in Gpus."""
    counts: NDArray[np.uint64]
    init_state: NDArray[np.int16]
    async_error: NDArray[np.int16]
    flags: NDArray[np.uint8]

    def take(self, index: NDArray[np.int64] | NDArray[np.bool_]) -> Rows:
        """Only the rows that `index` (mask or numbers) selects."""
        return Rows(**{name: column[index] for name, column in vars(self).items()})


def build(head: Head, comms: Comms, rows: Rows, gpus: Gpus, found: Sequence[Problem] = ()) -> Report:
    """The report of these rows: contradictions named and left out, members ascending by rank."""
    problems = list(found)
    keep = _sound(comms, problems)
    good = keep[rows.comm] & _in_range(comms, rows, problems, keep)
    if not good.all():
        rows = rows.take(good)
    rows = _ordered(rows)
    rows = _unique(comms, rows, problems)
    counted = all(problem.kind != kind.TEXT_ONLY for problem in found)
    if counted:
        _find_unfinished(comms, rows, problems)
    if not keep.all():
        renumbered = np.cumsum(keep) - 1
        rows = Rows(**{**vars(rows), "comm": renumbered[rows.comm]})
    if head.timeouts:
        problems.append(
            Problem(kind.TIMEOUTS, f"{head.timeouts} connections of the mesh were given up while collecting")
        )
    if counted and len(rows.rank) and not rows.counts.any():
        problems.append(Problem(kind.ALL_ZERO, "no rank has launched a counted collective"))
    return _report(head, comms, keep, rows, gpus, problems)


def _report(
    head: Head, comms: Comms, keep: NDArray[np.bool_], rows: Rows, gpus: Gpus, problems: list[Problem]
) -> Report:
    number, used = in_order_of_appearance(rows.gpu, len(gpus.known))
    kept = np.flatnonzero(keep)
    members = np.bincount(rows.comm, minlength=len(kept))
    return Report(
        nccl_version=head.nccl_version,
        taken_at=head.taken_at,
        collection_s=head.collection_s,
        timeouts=head.timeouts,
        comms=comms.keys if len(kept) == len(comms.keys) else tuple(comms.keys[c] for c in kept),
        size=comms.size[kept].astype(np.int32),
        start=np.concatenate([np.zeros(1, np.int64), np.cumsum(members, dtype=np.int64)]),
        rank=rows.rank.astype(np.int32),
        gpu=number,
        counts=rows.counts.reshape(-1, len(OPERATIONS)),
        init_state=rows.init_state,
        async_error=rows.async_error,
        flags=rows.flags,
        gpus=gpus.listed(used),
        problems=tuple(problems),
        coherent=all(problem.kind not in kind.CONTRADICTIONS for problem in problems),
    )


def in_order_of_appearance(gpu: NDArray[np.int64], known: int) -> tuple[NDArray[np.int32], list[int]]:
    """Each row's number, counted from 0 in order of first appearance, and which of the `known` those numbers stand for."""
    first = np.full(known, -1, np.int64)
    first[gpu[::-1]] = np.arange(len(gpu))[::-1]
    used = np.flatnonzero(first >= 0)
    used = used[np.argsort(first[used])]
    number = np.empty(known, np.int32)
    number[used] = np.arange(len(used), dtype=np.int32)
    return number[gpu], used.tolist()


def _sound(comms: Comms, problems: list[Problem]) -> NDArray[np.bool_]:
    """(C,) communicators to keep; what is wrong with the others, and with the sums of those kept, goes to `problems`."""
    empty = (comms.size <= 0) | np.array([key.hash in NO_HASH for key in comms.keys], np.bool_)
    if empty.any():
        count = int(empty.sum())
        problems.append(
            Problem(
                kind.EMPTY_COMMUNICATOR, f"{count} communicator(s) without hash or ranks: one is under construction"
            )
        )
    repeated = _repeated(comms.keys) & ~empty
    for c in np.flatnonzero(repeated):
        problems.append(Problem(kind.DUPLICATE_COMMUNICATOR, "listed more than once", comms.keys[c]))
    keep: NDArray[np.bool_] = ~(empty | repeated)
    sums = comms.answered + comms.missing
    for c in np.flatnonzero(keep & (sums != comms.size)):
        text = f"{comms.answered[c]} ranks and {comms.missing[c]} missing ones do not make {comms.size[c]}"
        problems.append(Problem(kind.SUM_MISMATCH, text, comms.keys[c]))
    for c in np.flatnonzero(keep & (sums == comms.size) & (comms.told != sums)):
        text = f"{sums[c]} ranks announced, {comms.told[c]} listed"
        problems.append(Problem(kind.COUNT_MISMATCH, text, comms.keys[c]))
    return keep


def _repeated(keys: tuple[CommKey, ...]) -> NDArray[np.bool_]:
    """(C,) communicators whose key is there more than once; nobody can tell which is right."""
    result = np.zeros(len(keys), np.bool_)
    if len(set(keys)) != len(keys):
        seen: dict[CommKey, int] = {}
        for c, key in enumerate(keys):
            if key in seen:
                result[[seen[key], c]] = True
            seen[key] = c
    return result


def _in_range(comms: Comms, rows: Rows, problems: list[Problem], keep: NDArray[np.bool_]) -> NDArray[np.bool_]:
    inside: NDArray[np.bool_] = (rows.rank >= 0) & (rows.rank < comms.size[rows.comm])
    for row in np.flatnonzero(~inside & keep[rows.comm]):
        c = int(rows.comm[row])
        text = f"rank {rows.rank[row]} of {comms.size[c]}"
        problems.append(Problem(kind.RANK_OUT_OF_RANGE, text, comms.keys[c]))
    return inside


def _ordered(rows: Rows) -> Rows:
    order = rows.comm * (1 << 32) + rows.rank
    if (order[1:] > order[:-1]).all():
        return rows
    return rows.take(np.argsort(order, kind="stable"))


def _unique(comms: Comms, rows: Rows, problems: list[Problem]) -> Rows:
    """Without ranks that are told more than once: nobody can tell which entry is right."""
    again = (rows.comm[1:] == rows.comm[:-1]) & (rows.rank[1:] == rows.rank[:-1])
    if not again.any():
        return rows
    for row in np.flatnonzero(again):
        text = f"rank {rows.rank[row]} is listed more than once"
        problems.append(Problem(kind.DUPLICATE_RANK, text, comms.keys[int(rows.comm[row])]))
    bad = np.zeros(len(rows.rank), np.bool_)
    bad[1:] |= again
    bad[:-1] |= again
    return rows.take(~bad)


def _find_unfinished(comms: Comms, rows: Rows, problems: list[Problem]) -> None:
    """Communicators that some of their processes have not finished making, though others have: nothing was launched in them, and
    processes that answer have no data of them. NCCL then also loses data of other communicators, sometimes without another sign.

    The same is seen of a communicator without collectives that processes have destroyed; those that did so with all
    their communicators, used ones too, are recognised and let pass. Members that say themselves that they are still initialising
    contradict nobody.
    """
    gone = (rows.flags & (MISSING | UNRESPONSIVE | DEAD)) == MISSING
    if not gone.any():
        return
    used, made = np.zeros((2, len(comms.keys)), np.bool_)
    used[rows.comm[rows.counts.any(axis=1)]] = True
    present = (rows.flags & MISSING) == 0
    made[rows.comm[present & (rows.init_state != RESULT_IN_PROGRESS)]] = True
    suspects = gone & (made & ~used)[rows.comm]
    if not suspects.any():
        return
    left = np.setdiff1d(rows.gpu[gone & used[rows.comm]], rows.gpu[present])
    for c in np.unique(rows.comm[suspects & ~np.isin(rows.gpu, left)]):
        text = "nothing was launched in it, and processes that answer have no data of it: it is being made"
        problems.append(Problem(kind.UNFINISHED_COMMUNICATOR, text, comms.keys[c]))
