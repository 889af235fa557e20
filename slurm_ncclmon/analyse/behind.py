"""Ranks that wait nowhere and are missed somewhere: behind, left, gone; or those ahead of them, or what all of them share."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from slurm_ncclmon.analyse.causes import Cause
from slurm_ncclmon.analyse.charge import Blame, next_operation
from slurm_ncclmon.analyse.graph import Numbers
from slurm_ncclmon.analyse.names import Names
from slurm_ncclmon.analyse.within import error_text
from slurm_ncclmon.analyse.wording import comm_phrase, counted, more, ranks_phrase, verb
from slurm_ncclmon.detect.stuck import Stuck
from slurm_ncclmon.durations import format_duration
from slurm_ncclmon.evidence.phases import CHECKPOINT, COMPILE, DATA, EVALUATION, IO
from slurm_ncclmon.ras.report import ABORTED, DEAD

EXTRA_SHARE = 1 / 3
"""At most so many of a communicator ahead of all others, who wait nowhere: the few called something extra. Between this and a
half nothing speaks for either side: those behind are named, and the other reading stands beside."""
_LATE = frozenset({CHECKPOINT, COMPILE, DATA, EVALUATION, IO})
"""Phases of a rank that is late for a collective rather than done with all."""
_ORDER = ("dead", "missing", "async_error", "aborted", "exited_early", "not_entered")


def charge_processes(stuck: Stuck, cause: Cause, names: Names) -> Blame:
    rows = _rows_of_processes(stuck, cause)
    kinds = np.array([_kind(stuck, int(row)) for row in rows])
    kind = min(set(kinds.tolist()), key=_ORDER.index)
    if cause.certainty == "waiting" and kind == "not_entered":
        ahead = _extra_comm(stuck, cause)
        return _group(stuck, cause, names, rows) if ahead is None else _extra(stuck, replace(cause, own=ahead), names)
    others = rows[kinds != kind]
    rows = rows[kinds == kind]
    if kind in ("not_entered", "exited_early") and _few_ahead(stuck, cause, names, rows):
        return _extra(stuck, cause, names)
    make = {"dead": _gone, "missing": _gone, "async_error": _gone}.get(kind, _behind)
    blame = make(stuck, cause, names, rows, kind)
    if not len(others):
        return blame
    late = f"{ranks_phrase(names.shown(others)).capitalize()} did not come either, most likely because of it."
    return Blame(**{**vars(blame), "evidence": (*blame.evidence, late)})


def _rows_of_processes(stuck: Stuck, cause: Cause) -> Numbers:
    """One row for each culprit: in the incident's own communicator where it is missed there, else where it is missed at all."""
    layout = stuck.history.layout
    found: dict[int, int] = {}
    wanted = set(cause.processes.tolist())
    for comm in cause.comms:
        for row in stuck.rows_of(int(comm), stuck.awaited).tolist():
            process = int(layout.process[row])
            if process in wanted:
                found.setdefault(process, row)
        if len(found) == len(wanted):
            break
    return np.array(sorted(found.values()), np.int64)


def _kind(stuck: Stuck, row: int) -> str:
    flags = int(stuck.history.members.flags[row])
    if stuck.shape.gone[row]:
        return "dead" if flags & DEAD else "missing"
    if stuck.failed[row]:
        return "async_error"
    if stuck.shape.left[row]:
        return "aborted" if flags & ABORTED else "exited_early"
    return "not_entered"


def _few_ahead(stuck: Stuck, cause: Cause, names: Names, rows: Numbers) -> bool:
    """Whether those ahead are so few, and those behind missed nowhere else, that the few rather called something extra; unless
    those behind are seen at work, and late."""
    size, ahead = int(stuck.history.layout.size[cause.own]), len(stuck.rows_of(cause.own, stuck.waiting))
    if size <= 2 or ahead > size * EXTRA_SHARE or _missed_elsewhere(stuck, cause, rows):
        return False
    seen = [phase for row in rows if (phase := names.facts.phase(int(stuck.history.layout.process[row]))) is not None]
    return sum(phase in _LATE for phase in seen) * 2 <= len(rows)


def _missed_elsewhere(stuck: Stuck, cause: Cause, rows: Numbers) -> bool:
    """Whether any of the processes in `rows` is missed in another communicator than the incident's own."""
    layout = stuck.history.layout
    process = layout.process[rows]
    elsewhere = (int(comm) for comm in cause.comms if comm != cause.own)
    return any(np.isin(layout.process[stuck.rows_of(comm, stuck.awaited)], process).any() for comm in elsewhere)


def _extra_comm(stuck: Stuck, cause: Cause) -> int | None:
    """A communicator in which only few wait, and for nobody but those who are seen waiting elsewhere themselves."""
    layout = stuck.history.layout
    for comm in sorted(map(int, cause.comms), key=lambda comm: (int(layout.size[comm]), layout.comms[comm])):
        missed, ahead = stuck.rows_of(comm, stuck.awaited), stuck.rows_of(comm, stuck.waiting)
        size = int(layout.size[comm])
        if size > 2 and len(ahead) <= size * EXTRA_SHARE and np.isin(layout.process[missed], cause.processes).all():
            return comm
    return None


def _group(stuck: Stuck, cause: Cause, names: Names, rows: Numbers) -> Blame:
    """All waiting ends at ranks of which none is late alone: what holds them up does not show in counts."""
    own = ranks_phrase(names.shown(rows))
    waits = (
        "by their stacks these wait themselves"
        if _seen(names, stuck, rows)
        else "these have launched the same on what they share"
    )
    return Blame(
        kind="stalled_group",
        rows=rows,
        whys=(
            "all waiting ends at this rank and others of its group, and what holds the group up does not show in counts",
        )
        * len(rows),
        confidence=0.5 if len(rows) > 1 else 0.4,
        evidence=(
            f"Followed from rank to rank, all waiting ends at {own}; {waits}. Nothing has moved for"
            f" {format_duration(stuck.frozen_s(cause.own))}.",
        ),
        alternatives=(
            f"{own.capitalize()} {verb(len(rows), 'is', 'are')} late, each outside of NCCL (input, storage, one node).",
        ),
        not_decidable=(
            f"From counts: what {own} {verb(len(rows), 'waits', 'wait')} in (a collective that all of them launched,"
            " send/recv, a CUDA"
            " graph), and which rank or link is at fault there. Probe frames tell it.",
        ),
        operation=next_operation(stuck, cause.own)[0],
        round=next_operation(stuck, cause.own)[1],
    )


def _seen(names: Names, stuck: Stuck, rows: Numbers) -> bool:
    return any(names.facts.of(int(stuck.history.layout.process[row])) is not None for row in rows)


def _extra(stuck: Stuck, cause: Cause, names: Names) -> Blame:
    counts = stuck.history.members.counts
    ahead, behind = stuck.rows_of(cause.own, stuck.waiting), stuck.rows_of(cause.own, stuck.awaited)
    operation, number = next_operation(stuck, cause.own)
    extra = more(counts[ahead[0]], counts[behind[0]])
    comm = comm_phrase(names.reference(cause.own))
    who = ranks_phrase(names.shown(ahead))
    left = bool(stuck.shape.left[behind].all())
    rest = f"the other {len(behind)} ranks, who {'have left' if left else 'wait for nobody'}"
    return Blame(
        kind="extra_op",
        rows=ahead,
        whys=(f"ahead by {extra} of {rest}: most likely a call that only this rank made",) * len(ahead),
        confidence=0.6,
        evidence=(
            f"On {comm} {who} {verb(len(ahead), 'is', 'are')} {extra} ahead of {rest}.",
            f"Those behind have launched {counted(counts[behind[0]])}; nothing has moved for"
            f" {format_duration(stuck.frozen_s(cause.own))}.",
        ),
        alternatives=(
            f"{ranks_phrase(names.shown(behind)).capitalize()} did not enter {operation or 'the collective'}"
            f" that {who} rightly called: look at what those behind do (their stacks).",
        ),
        not_decidable=("From counts alone: which of the two groups is wrong.",),
        operation=operation,
        round=number,
    )


def _behind(stuck: Stuck, cause: Cause, names: Names, rows: Numbers, kind: str) -> Blame:
    """Ranks that did not enter, left early or aborted."""
    layout, members, shape = stuck.history.layout, stuck.history.members, stuck.shape
    ahead = stuck.rows_of(cause.own, stuck.waiting)
    size = int(layout.size[cause.own])
    operation, number = next_operation(stuck, cause.own)
    what = operation or "the next collective"
    leader = ahead[np.argmin(shape.total[ahead])]
    comm = comm_phrase(names.reference(cause.own))
    deed = {
        "not_entered": f"has launched {{own}} and not the {what} in which {len(ahead)} of {size} ranks wait;"
        " it waits in no communicator itself",
        "exited_early": f"left the communicator after {{own}}, before the {what} in which {len(ahead)} of {size} ranks wait",
        "aborted": f"aborted the communicator after {{own}}, before the {what} in which {len(ahead)} of {size} ranks wait",
    }[kind]
    missed = stuck.rows_of(cause.own, stuck.awaited)
    victims = np.setdiff1d(layout.process[missed], layout.process[rows])
    lone = kind == "not_entered" and not _missed_elsewhere(stuck, cause, rows)
    confidence, alternatives, undecided = _sides(names, rows, ahead, size, what) if lone else (0.9, (), ())
    facts = [
        f"On {comm} {ranks_phrase(names.shown(ahead))} {verb(len(ahead), 'has', 'have')} launched"
        f" {counted(members.counts[leader])}; {ranks_phrase(names.shown(rows))}"
        f" {verb(len(rows), 'is', 'are')} behind by {more(members.counts[leader], members.counts[rows[0]])}.",
        f"No member of it has launched anything for {format_duration(stuck.frozen_s(cause.own))}, and those who wait"
        f" have launched nothing on any communicator for {format_duration(stuck.clock_s(cause.own))}.",
    ]
    if len(victims):
        facts.append(f"{len(victims)} more ranks did not enter it because they wait elsewhere themselves.")
    return Blame(
        kind=kind,
        rows=rows,
        whys=tuple(deed.format(own=counted(members.counts[row])) for row in rows),
        confidence=confidence,
        evidence=tuple(facts),
        alternatives=alternatives,
        not_decidable=undecided,
        since=float(members.away_since[rows].max()) if kind in ("exited_early", "aborted") else -np.inf,
        operation=operation,
        round=number,
    )


def _sides(
    names: Names, rows: Numbers, ahead: Numbers, size: int, what: str
) -> tuple[float, tuple[str, ...], tuple[str, ...]]:
    """Confidence, alternatives and what is open, by how a communicator splits that alone shows who is behind."""
    who, whose = ranks_phrase(names.shown(ahead)), ranks_phrase(names.shown(rows))
    other = f"{who.capitalize()} called {what} extra, and {whose} rightly did not."
    if len(rows) * 2 < size:
        return 0.9, (), ()
    even = len(rows) * 2 == size
    open_ = f"From counts alone: whether {whose} skipped {what}, or {who} called it extra; the stacks of {whose} tell."
    return (0.6 if even else 0.5), (other,), (open_,)


def _gone(stuck: Stuck, cause: Cause, names: Names, rows: Numbers, kind: str) -> Blame:
    """Ranks whose process is dead or does not answer, and ranks that report an error while others wait for them."""
    members, size = stuck.history.members, int(stuck.history.layout.size[cause.own])
    operation, number = next_operation(stuck, cause.own)
    comm = comm_phrase(names.reference(cause.own))
    since = float(members.away_since[rows].max())
    for_s = format_duration(stuck.now - since)
    waiting = stuck.rows_of(cause.own, stuck.waiting)
    if kind == "async_error":
        whys = tuple(f"NCCL reports on it: {error_text(stuck, int(row))}; others wait for it" for row in rows)
        since = float(members.error_since[rows].max())
    elif kind == "dead":
        whys = (
            f"its process is dead: no answer for {for_s}, and NCCL has given it up; {len(waiting)} ranks wait for it",
        ) * len(rows)
    else:
        whys = (f"its process has not answered for {for_s}; {len(waiting)} ranks wait for it",) * len(rows)
    behind = bool((stuck.shape.total[rows] < stuck.shape.highest[cause.own]).all())
    majority = len(rows) * 2 > size
    open_: tuple[str, ...] = ()
    if kind == "missing":
        open_ = ("From RAS alone: whether the process is dead, stopped or its node is cut off.",)
    elif kind == "dead":
        open_ = (
            "From RAS alone: whether it was killed, crashed, ended by itself, or has been stopped for over a minute.",
        )
    return Blame(
        kind=kind,
        rows=rows,
        whys=whys,
        confidence=0.5 if majority else 0.95 if behind else 0.8,
        evidence=(
            f"On {comm} {ranks_phrase(names.shown(rows))} {verb(len(rows), 'does', 'do')} not answer;"
            f" {ranks_phrase(names.shown(waiting))} {verb(len(waiting), 'has', 'have')} launched"
            f" {counted(members.counts[waiting[0]])} and nothing more for {format_duration(stuck.frozen_s(cause.own))}.",
        )
        if kind != "async_error"
        else (f"On {comm}: {whys[0]}.",),
        not_decidable=open_,
        since=since,
        operation=operation,
        round=number,
    )
