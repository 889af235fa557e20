"""Communicators that do not come to be: initialisation that never ends is no hang of a collective, but one all the same."""

from __future__ import annotations

from typing import Callable

import numpy as np

from slurm_ncclmon.analyse.draft import Draft
from slurm_ncclmon.analyse.names import Names
from slurm_ncclmon.analyse.wording import comm_phrase, ranks_phrase, verb
from slurm_ncclmon.detect.blind import Blindness
from slurm_ncclmon.detect.history import History
from slurm_ncclmon.durations import format_duration
from slurm_ncclmon.evidence.model import ProcessReport
from slurm_ncclmon.evidence.phases import LABELS, NO_STACK, WAITING
from slurm_ncclmon.observation import Evidence
from slurm_ncclmon.ras.report import MISSING, RESULT_IN_PROGRESS, Report
from slurm_ncclmon.verdict import Culprit


def initialising_drafts(history: History, all_names: Callable[[], Names], now: float, at_least: float) -> list[Draft]:
    """A draft for the longest initialisation that has lasted `at_least` seconds, naming who has not come where that shows."""
    layout, members = history.layout, history.members
    waiting = members.known & (members.init_state == RESULT_IN_PROGRESS) & ((members.flags & MISSING) == 0)
    if not waiting.any():
        return []
    comms = np.unique(layout.comm_of[waiting])
    started = [float(members.init_since[_rows(history, comm)][waiting[_rows(history, comm)]].min()) for comm in comms]
    since = min(started)
    if now - since < at_least:
        return []
    names = all_names()
    comm = int(comms[started.index(since)])
    rows = _rows(history, comm)
    inside = np.flatnonzero(waiting[rows]) + rows.start
    absent = np.flatnonzero((members.flags[rows] & MISSING) != 0) + rows.start
    told = format_duration(now - since)
    why = f"has not joined the communicator, whose other members have been initialising for {told}"
    return [
        Draft(
            kind="init_stall",
            comm=names.reference(comm),
            operation=None,
            round=None,
            culprits=tuple(names.culprit(int(row), why) for row in absent),
            confidence=0.7 if len(absent) else 0.4,
            frozen_s=now - since,
            clock_s=now - since,
            evidence=(
                f"{ranks_phrase(names.shown(inside)).capitalize()} {verb(len(inside), 'has', 'have')} been initialising"
                f" {comm_phrase(names.reference(comm))} for {told}; {len(absent)} of its ranks do not show it at all.",
            ),
            keys=frozenset({layout.comms[comm]}),
            processes=frozenset(layout.process[absent].tolist()),
            not_decidable=() if len(absent) else ("Which rank holds the initialisation up: all have begun it.",),
            victims=len(inside),
        )
    ]


def _rows(history: History, comm: int) -> slice:
    return history.layout.rows(int(comm))


def building_draft(blindness: Blindness, evidence: Evidence | None, now: float, at_least: float) -> Draft | None:
    """A draft when for `at_least` seconds all answers have shown communicators under construction. RAS does not tell who is not
    there; stacks do: most ranks are seen initialising, and the others are elsewhere."""
    since, report = blindness.building_since, blindness.report
    if since is None or report is None or now - since < at_least:
        return None
    told = format_duration(now - since)
    elsewhere, inside = _elsewhere(evidence)
    culprits = tuple(
        _outside(node, process, f"while {inside} ranks set up communicators") for node, process in elsewhere
    )
    return Draft(
        kind="init_stall",
        comm=None,
        operation=None,
        round=None,
        culprits=culprits,
        confidence=0.8 if culprits else 0.5,
        frozen_s=now - since,
        clock_s=now - since,
        evidence=(
            f"For {told} every answer of RAS has shown communicators that are being made and do not get ready;"
            f" {_reached(report)}.",
        ),
        keys=frozenset(),
        processes=frozenset(),
        not_decidable=()
        if culprits
        else ("Which rank holds the initialisation up: RAS tells it only of finished communicators. Its stack does.",),
        victims=inside,
        pause=("initialising",),
    )


def silent_draft(blindness: Blindness, evidence: Evidence | None, now: float, at_least: float) -> Draft | None:
    """A draft when RAS, which had answered, has not for `at_least` seconds: what stacks alone say. Never confirmed."""
    if not blindness.ever_saw or blindness.since is None or now - blindness.since < at_least:
        return None
    elsewhere, inside = _elsewhere(evidence)
    told = format_duration(now - blindness.since)
    found = bool(elsewhere) and inside >= 1
    return Draft(
        kind="not_entered" if found else "symmetric",
        comm=None,
        operation=None,
        round=None,
        culprits=tuple(_outside(node, process, f"while {inside} ranks wait for others") for node, process in elsewhere)
        if found
        else (),
        confidence=0.4 if found else 0.1,
        frozen_s=now - blindness.since,
        clock_s=now - blindness.since,
        evidence=(
            f"NCCL RAS has given no usable answer for {told} ({blindness.trouble}); by their stacks {inside} ranks wait for"
            " others and"
            f" {len(elsewhere)} do not.",
        ),
        keys=frozenset(),
        processes=frozenset(),
        not_decidable=(
            "Whether anything hangs: without RAS there are no counts, and one look at the stacks is a moment.",
        ),
        victims=inside,
        pause=("silent",),
        confirmable=False,
        excused=not found,
    )


def _outside(node: str, process: ProcessReport, rest: str) -> Culprit:
    label = LABELS.get(process.phase, process.phase)
    return Culprit(None, process.rank, node, process.ns_pid, None, f"by its stack {label}, {rest}")


def _elsewhere(evidence: Evidence | None) -> tuple[list[tuple[str, ProcessReport]], int]:
    """Ranks outside of NCCL's initialisation while most are in it, and how many are in it."""
    if evidence is None:
        return [], 0
    ranks = [(node.node, process) for node in evidence.nodes for process in node.processes if process.role == "rank"]
    inside = sum(process.phase in WAITING for _, process in ranks)
    outside = [(node, process) for node, process in ranks if process.phase not in WAITING and process.phase != NO_STACK]
    return (outside, inside) if inside >= len(outside) else ([], inside)


def _reached(report: Report) -> str:
    present = np.unique(report.gpu[(report.flags & MISSING) == 0])
    return f"RAS reaches {len(present)} of {len(report.gpus)} processes that it knows"
