"""report.txt: what a person reads at 3 a.m., the one sentence first."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Callable

from slurm_ncclmon.durations import format_duration
from slurm_ncclmon.evidence.model import NodeReport
from slurm_ncclmon.evidence.notes import notes
from slurm_ncclmon.plain import plain
from slurm_ncclmon.report.sentence import (
    culprit_processes,
    culprits_text,
    headline,
    shown_rank,
    stands_text,
)
from slurm_ncclmon.slurm.hostlist import fold_numbers
from slurm_ncclmon.verdict import RECOVERED, Advisory, Verdict

WIDTH = 110
MOST_COMMS = 12


@dataclass(frozen=True)
class Case:
    """All that a report is made of; `wall_s` is the time of its last observation."""

    step: str
    mode: str
    wall_s: float
    polls: int
    unusable_polls: int
    verdicts: tuple[Verdict, ...]
    advisories: tuple[Advisory, ...] = ()
    nodes: tuple[NodeReport, ...] = ()
    action: str = ""
    """What was done about it, one sentence."""
    folder: str = ""
    trouble: str = ""
    """Why the last unusable poll was one."""


def render_report(case: Case, render_stacks: Callable[[Sequence[NodeReport], Sequence[Verdict]], str]) -> str:
    """The whole report. `render_stacks` draws the merged stacks of all ranks, the odd ones first."""
    lines = [f"ncclmon report for step {case.step}, {_clock(case.wall_s)}", ""]
    for verdict in case.verdicts:
        lines += _incident(verdict, case.nodes)
    if not case.verdicts:
        lines += _clean(case)
    if case.action:
        lines += _section("WHAT WAS DONE", [case.action])
    stacks = render_stacks(case.nodes, case.verdicts) if case.nodes else ""
    if stacks:
        lines += ["STACKS", stacks.rstrip(), ""]
    lines += _section("NOTES", [advisory.text for advisory in case.advisories] + notes(case.nodes))
    lines += _footer(case)
    return plain("\n".join(lines).rstrip()) + "\n"


def _incident(verdict: Verdict, nodes: Sequence[NodeReport]) -> list[str]:
    lines = [*_wrap(headline(verdict) + f" (confidence {verdict.confidence:.0%}).", ""), ""]
    if verdict.state == RECOVERED:
        return lines + _section("WHY IT WAS SUSPECTED", [*(_named(verdict)), *verdict.evidence])
    for node, process in culprit_processes(verdict, nodes)[:4]:
        rank = "a process" if process.rank is None else f"rank {process.rank}"
        lines += [*_wrap(f"{rank} on {node.node} stands in {stands_text(process)}", "  "), ""]
    lines += _section("WHY", [*(_named(verdict)), *verdict.evidence])
    lines += _section("WHO WAITS", _waiting(verdict))
    lines += _section("IT COULD ALSO BE", verdict.alternatives)
    lines += _section("NOT DECIDABLE FROM THIS EVIDENCE", verdict.not_decidable)
    return lines


def _named(verdict: Verdict) -> list[str]:
    """Why each culprit is named; ranks with the same reason share a line."""
    reasons: dict[str, list[int]] = {}
    for culprit in verdict.culprits:
        rank = shown_rank(culprit)
        reasons.setdefault(culprit.why, []).extend([] if rank is None else [rank])
    return [
        f"{'rank' if len(ranks) == 1 else 'ranks'} {fold_numbers(ranks)}: {why}" if ranks else why
        for why, ranks in reasons.items()
    ]


def _waiting(verdict: Verdict) -> list[str]:
    waited_in = [comm for comm in verdict.frozen if comm.waiting]
    lines = [
        f"{comm.hash} ({comm.role + ', ' if comm.role else ''}{comm.size} ranks): "
        f"{_ranks(comm.waiting)} {'waits' if len(comm.waiting) == 1 else 'wait'}"
        f"{' in ' + comm.operation if comm.operation else ''}"
        f"{' for ' + _ranks(comm.awaited) if comm.awaited else ''}"
        f", since {format_duration(comm.frozen_for_s)}"
        for comm in waited_in[:MOST_COMMS]
    ]
    rest = len(waited_in) - MOST_COMMS
    return [*lines, *([f"and in {rest} more communicators (verdict.json has all)"] if rest > 0 else [])]


def _ranks(ranks: Sequence[int]) -> str:
    return f"its rank {ranks[0]}" if len(ranks) == 1 else f"its ranks {fold_numbers(ranks) or 'none'}"


def _clean(case: Case) -> list[str]:
    usable = case.polls - case.unusable_polls
    if usable == 0:
        text = f"BLIND: none of {case.polls} polls of NCCL RAS gave an answer, so nothing can be said of this step."
        return [*_wrap(text, ""), *(_wrap(f"The last time: {case.trouble}.", "") if case.trouble else []), ""]
    return [f"No hang found in {usable} usable of {case.polls} polls.", ""]


def _section(title: str, lines: Sequence[str]) -> list[str]:
    if not lines:
        return []
    return [title, *(part for line in lines for part in _wrap(line, "  - ")), ""]


def _wrap(text: str, indent: str) -> list[str]:
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=indent,
        subsequent_indent=" " * len(indent),
        break_long_words=False,
        break_on_hyphens=False,
    )


def _footer(case: Case) -> list[str]:
    lines = [
        f"{case.polls} poll{'' if case.polls == 1 else 's'}, {case.unusable_polls} of them unusable; mode {case.mode}."
    ]
    if case.folder:
        lines.append(f"Evidence: {case.folder}  (ncclmon replay {case.folder} repeats this verdict offline)")
    return lines


def _clock(wall_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(wall_s))


def comment_text(verdict: Verdict, report_path: str) -> str:
    """What stands in the job's Comment: class, culprit and report, on one line of at most 300 characters."""
    cls = verdict.cls or verdict.kind
    text = f"ncclmon: {cls} {verdict.kind}: {culprits_text(verdict)}"
    operation = f" in {verdict.operation}" if verdict.operation else ""
    return f"{text}{operation}"[: 300 - len(report_path) - 10] + f"; report {report_path}"
