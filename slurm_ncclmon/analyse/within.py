"""Causes with nobody behind: errors, operations that differ, communicators that wait for each other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from slurm_ncclmon.analyse.causes import Cause
from slurm_ncclmon.analyse.charge import Blame
from slurm_ncclmon.analyse.graph import Numbers
from slurm_ncclmon.analyse.names import Names
from slurm_ncclmon.analyse.wording import RESULTS, comm_phrase, counted, ranks_phrase, verb
from slurm_ncclmon.detect.stuck import Stuck
from slurm_ncclmon.durations import format_duration
from slurm_ncclmon.ras.report import OPERATIONS


def charge_within(stuck: Stuck, cause: Cause, names: Names) -> Blame:
    """A communicator that misses nobody: with an error of some member, or with operations that differ."""
    failed = bool(stuck.failed[stuck.history.layout.rows(cause.own)].any())
    return _failed(stuck, cause, names) if failed else _diverged(stuck, cause, names)


def error_text(stuck: Stuck, row: int) -> str:
    """The asynchronous error of a member in words."""
    code = int(stuck.history.members.async_error[row])
    return RESULTS.get(code, f"error {code}")


def _failed(stuck: Stuck, cause: Cause, names: Names) -> Blame:
    """An asynchronous error with nobody behind. A rank's own error comes before one that it only heard of (remote error)."""
    members = stuck.history.members
    rows = stuck.rows_of(cause.own, stuck.failed)
    own = rows[members.async_error[rows] != 6]
    named = own if len(own) else rows
    size = int(stuck.history.layout.size[cause.own])
    who = ranks_phrase(names.shown(rows))
    most = len(named) * 2 > size
    return Blame(
        kind="async_error",
        rows=named,
        whys=tuple(f"NCCL reports on it: {error_text(stuck, int(row))}" for row in named),
        confidence=0.4 if most else 0.8,
        evidence=(
            f"On {comm_phrase(names.reference(cause.own))} {who} {verb(len(rows), 'reports', 'report')} an error"
            f" ({error_text(stuck, int(named[0]))}), and nothing has moved for {format_duration(stuck.frozen_s(cause.own))}.",
        ),
        not_decidable=("Which link or peer failed, when all that is known is that a remote side did.",)
        if not len(own)
        else (),
        since=float(members.error_since[named].max()),
    )


def _diverged(stuck: Stuck, cause: Cause, names: Names) -> Blame:
    """Vectors of which neither is a prefix of the other: somebody called another operation."""
    layout, members = stuck.history.layout, stuck.history.members
    rows = stuck.rows_of(cause.own, stuck.shape.running)
    odd, most, tie = _outliers(members.counts[rows])
    named = rows if tie else rows[odd]
    usual, other = members.counts[rows[most]], members.counts[rows[np.flatnonzero(odd)[0]]]
    common = members.counts[rows].min(axis=0)
    number = int(common.sum()) + 1
    operation = _first(usual, common)
    comm = comm_phrase(names.reference(cause.own))
    side = f"{len(rows) - int(odd.sum())} of {int(layout.size[cause.own])} ranks"
    why = f"launched {{own}} where {side} launched {counted(usual)}: not the same sequence of operations"
    if tie:
        why = "launched {own}, which no shorter or longer run of the others' operations gives"
    return Blame(
        kind="inconsistent_op",
        rows=named,
        whys=tuple(why.format(own=counted(members.counts[row])) for row in named),
        confidence=0.5 if tie else 0.9,
        evidence=(
            f"On {comm} the operations themselves differ: {counted(usual)} on {side}, {counted(other)} on"
            f" {ranks_phrase(names.shown(rows[odd]))}. Ranks that call the same operations can only differ by how many.",
            f"All of them have stood still for {format_duration(stuck.clock_s(cause.own))}.",
        ),
        alternatives=("Either side may be the one that called the wrong operation.",) if tie else (),
        not_decidable=("From counts alone: which of two equally large groups is wrong.",) if tie else (),
        operation=operation,
        round=number,
    )


def _first(vector: NDArray[np.uint64], common: NDArray[np.uint64]) -> str | None:
    differs = np.flatnonzero(vector > common)
    return OPERATIONS[differs[0]] if len(differs) == 1 else None


def _outliers(vectors: NDArray[np.uint64]) -> tuple[NDArray[np.bool_], int, bool]:
    """Mask of the vectors that are not comparable with the one that most are comparable with; its index; whether both sides are
    equally large."""
    distinct, index, inverse, number = np.unique(
        vectors, axis=0, return_index=True, return_inverse=True, return_counts=True
    )
    inverse = inverse.reshape(-1)
    below = (distinct[:, None, :] <= distinct[None, :, :]).all(axis=2)
    comparable = below | below.T
    support = comparable @ number
    most = int(np.lexsort((number, support))[-1])
    odd = ~comparable[most][inverse]
    return odd, int(index[most]), int(odd.sum()) * 2 == len(vectors)


def charge_cycle(stuck: Stuck, cause: Cause, names: Names) -> Blame:
    """Communicators that wait for each other."""
    layout = stuck.history.layout
    ring = set(_cycle_comms(stuck, cause).tolist())
    rows, whys = [], []
    for process in cause.processes.tolist():
        waits = [c for c in ring if process in layout.process[stuck.rows_of(c, stuck.waiting)]]
        missed = [c for c in ring if process in layout.process[stuck.rows_of(c, stuck.awaited)]]
        row = stuck.rows_of(missed[0], stuck.awaited)
        rows.append(int(row[layout.process[row] == process][0]))
        whys.append(f"waits in {_hashes(layout.comms, waits)} and is missed in {_hashes(layout.comms, missed)}")
    return Blame(
        kind="wrong_order",
        rows=np.array(rows, np.int64),
        whys=tuple(whys),
        confidence=0.8,
        evidence=(
            f"{len(ring)} communicators wait for each other in a circle: {_hashes(layout.comms, sorted(ring))}."
            " Their members entered them in different order.",
        ),
        not_decidable=("Which order the program meant.",),
    )


def _cycle_comms(stuck: Stuck, cause: Cause) -> Numbers:
    layout = stuck.history.layout
    return np.array(
        [
            comm
            for comm in cause.comms
            if np.isin(layout.process[stuck.rows_of(int(comm), stuck.awaited)], cause.processes).any()
            and np.isin(layout.process[stuck.rows_of(int(comm), stuck.waiting)], cause.processes).any()
        ],
        np.int64,
    )


def _hashes(comms: Sequence[object], numbers: Sequence[int]) -> str:
    return ", ".join(str(comms[number]) for number in numbers)
