"""What stacks and process states say of ranks, in sentences; and what they change in a verdict made from counts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from slurm_ncclmon.analyse.draft import Draft
from slurm_ncclmon.analyse.facts import Fact, Facts
from slurm_ncclmon.analyse.wording import ranks_phrase, verb
from slurm_ncclmon.config import Settings
from slurm_ncclmon.durations import format_duration
from slurm_ncclmon.evidence.model import Frame, ProcessReport
from slurm_ncclmon.evidence.phases import (
    CHECKPOINT,
    COMPILE,
    DATA,
    EVALUATION,
    LABELS,
    NO_STACK,
    STOPPED,
    TRACED,
    WAITING,
    main_thread,
)
from slurm_ncclmon.verdict import Culprit

LONG = frozenset({CHECKPOINT, EVALUATION, COMPILE})
"""What takes long without anything being wrong; loading data is among it only as long as it works (CPU, storage)."""
_MOST_TOLD = 4
_WORKS_CPU, _WORKS_BYTES = 0.05, 1.0
_DEAD_STATES = ("Z", "X")


def works(report: ProcessReport) -> bool:
    """Whether it used CPU or wrote to storage while it was looked at."""
    return (report.cpu_rate or 0.0) >= _WORKS_CPU or (report.write_rate or 0.0) >= _WORKS_BYTES


def busy(report: ProcessReport) -> bool:
    """Whether it does something that takes long without anything being wrong."""
    return report.phase in LONG or (report.phase == DATA and works(report))


def place(report: ProcessReport) -> str:
    """`save (train.py:120)`: the innermost Python frame of the main thread, else the innermost of all."""
    thread = main_thread(report.threads)
    if thread is None:
        return ""
    frames = [frame for frame in thread.frames if not frame.native] or list(thread.frames)
    return _where(frames[0]) if frames else ""


def _where(frame: Frame) -> str:
    return f"{frame.function} ({frame.file.rsplit('/', 1)[-1]}:{frame.line})"


def same_stack(one: ProcessReport, other: ProcessReport) -> bool:
    """Whether the main thread stood at the same place, all the way down, in both samples."""
    first, second = main_thread(one.threads), main_thread(other.threads)
    return first is not None and second is not None and first.frames == second.frames


def refined(draft: Draft, facts: Facts, before: Facts, settings: Settings) -> Draft:
    """`draft` with what evidence adds: whether a silent process is stopped or ended, what the culprits do instead, how sure that
    makes it, and whether it is held back. `before` is the evidence of the gathering before this one."""
    if facts.evidence is None:
        return replace(draft, held=_at_work(draft, settings))
    draft = _ended_or_stopped(draft, facts)
    told = {process: fact for process in draft.processes if (fact := facts.of(process)) is not None}
    lines = [*_stands(draft, told, before), *_victims(draft, facts), *_no_stacks(draft, facts)]
    draft = replace(draft, evidence=(*draft.evidence, *lines))
    nobody = _nobody_waits(draft, facts, settings)
    if draft.kind not in ("not_entered", "extra_op", "stalled_group"):
        return replace(draft, held=nobody)
    draft = replace(_surer(draft, told), witnessed=any(main_thread(fact.report.threads) for fact in told.values()))
    held = _held(draft, told.values(), settings) or _moving(draft, told, before, settings)
    return replace(draft, held=held or _at_work(draft, settings) or nobody)


def _nobody_waits(draft: Draft, facts: Facts, settings: Settings) -> str | None:
    """Those who would wait by counts are seen, and none of them waits: an end in disorder, or counts that do not mean it."""
    seen = [phase for phase in facts.phases(draft.waiting).values() if phase != NO_STACK]
    if not seen or any(phase in WAITING for phase in seen) or draft.clock_s >= settings.phase_limit:
        return None
    return (
        f"of those who would wait by counts, {len(seen)} are seen and none waits inside NCCL;"
        f" it will be confirmed after {format_duration(settings.phase_limit)} at the latest"
    )


def _ended_or_stopped(draft: Draft, facts: Facts) -> Draft:
    if draft.kind not in ("missing", "dead", "not_entered"):
        return draft
    told = [fact for process in draft.processes if (fact := facts.of(process)) is not None]
    stopped = [fact for fact in told if fact.report.phase in (STOPPED, TRACED)]
    if stopped and len(stopped) == len(draft.processes):
        who = "held by a debugger" if stopped[0].report.phase == TRACED else "stopped by a signal"
        why = f"its process is {who} (state {stopped[0].report.state}), so it neither answers nor goes on"
        return replace(draft, kind="stopped", culprits=_because(draft.culprits, why), not_decidable=(), confidence=0.97)
    if draft.kind == "not_entered":
        return draft
    zombies = sum(fact.report.state in _DEAD_STATES for fact in told)
    if zombies + sum(facts.absent(process) for process in draft.processes) == len(draft.processes):
        why = "its node answers and has no such process any more: it has ended"
        return replace(
            draft,
            kind="dead",
            culprits=_because(draft.culprits, why),
            not_decidable=(
                "Whether it was killed, crashed or ended by itself; see the job's own output and dmesg of its node.",
            ),
            confidence=0.97,
        )
    return draft


def _because(culprits: tuple[Culprit, ...], why: str) -> tuple[Culprit, ...]:
    return tuple(replace(culprit, why=f"{culprit.why}; {why}") for culprit in culprits)


def _stands(draft: Draft, told: dict[int, Fact], before: Facts) -> list[str]:
    """Where the culprits stand, and whether they stood there before."""
    lines = []
    for process, fact in sorted(told.items())[:_MOST_TOLD]:
        report = fact.report
        where = f" at {place(report)}" if place(report) else ""
        who = f"Rank {report.rank}" if report.rank is not None else f"Process {report.pid}"
        line = f"{who} on {fact.node}: {LABELS.get(report.phase, report.phase)}{where}, process state {report.state}"
        earlier = before.of(process)
        if earlier is not None and earlier.report is not report and before.evidence is not None:
            line += (
                ", at the same place as in the sample before"
                if same_stack(report, earlier.report)
                else (", elsewhere than in the sample before: it moves")
            )
        lines.append(line + ".")
    rest = len(told) - _MOST_TOLD
    return [*lines, f"And {rest} more of them are in the stacks."] if rest > 0 else lines


def _victims(draft: Draft, facts: Facts) -> list[str]:
    """How many of all others wait, as their stacks say."""
    phases = facts.phases(process for process in facts.known() if process not in draft.processes)
    known = [phase for phase in phases.values() if phase != NO_STACK]
    waiting = sum(phase in WAITING for phase in known)
    return [f"By their stacks {waiting} of {len(known)} other ranks wait for others."] if waiting else []


def _no_stacks(draft: Draft, facts: Facts) -> list[str]:
    """Ranks without a stack and why, each reason once."""
    reasons: dict[str, list[int]] = {}
    for process in facts.known():
        fact = facts.of(process)
        if fact is not None and fact.report.phase == NO_STACK:
            report = fact.report
            reason = next((attempt.error for attempt in reversed(report.attempts) if attempt.error), "not tried")
            reasons.setdefault(reason, []).append(report.rank if report.rank is not None else report.pid)
    return [f"No stack of {ranks_phrase(ranks)}: {reason}." for reason, ranks in reasons.items()]


def _surer(draft: Draft, told: dict[int, Fact]) -> Draft:
    """Culprits that are seen outside of any waiting settle which side is wrong; culprits that wait themselves raise a doubt."""
    if draft.kind != "not_entered" or not told:
        return draft
    phases = [fact.report.phase for fact in told.values() if fact.report.phase != NO_STACK]
    if not phases:
        return draft
    if not any(phase in WAITING for phase in phases):
        return replace(draft, confidence=max(draft.confidence, 0.95), alternatives=(), not_decidable=())
    waiting = sum(phase in WAITING for phase in phases)
    return replace(
        draft,
        confidence=min(draft.confidence, 0.6),
        alternatives=(
            *draft.alternatives,
            f"{waiting} of the named {verb(len(phases), 'rank', 'ranks')} by the stack {verb(waiting, 'waits', 'wait')}"
            " too, in something that"
            " NCCL's RAS does not count (send/recv, a CUDA graph, another library): the cause may lie behind that.",
        ),
    )


def _at_work(draft: Draft, settings: Settings) -> str | None:
    """Ranks that go on launching on other communicators are not stuck, and may come yet (a rollout, a long evaluation)."""
    if (
        draft.kind not in ("not_entered", "stalled_group")
        or draft.at_work_s >= settings.suspect
        or draft.clock_s >= settings.phase_limit
    ):
        return None
    return (
        "those waited for go on launching on other communicators and may come yet;"
        f" it will be confirmed after {format_duration(settings.phase_limit)} at the latest"
    )


def _moving(draft: Draft, told: dict[int, Fact], before: Facts, settings: Settings) -> str | None:
    """Culprits that compute: outside of any waiting, and at another place than a moment ago. They are late, and may come yet."""
    if draft.clock_s >= settings.phase_limit:
        return None
    moving = [
        fact for process, fact in told.items() if fact.report.phase not in WAITING and _moves(fact, before.of(process))
    ]
    if not moving:
        return None
    ranks = [fact.report.rank if fact.report.rank is not None else fact.report.pid for fact in moving]
    return (
        f"{ranks_phrase(ranks)} {verb(len(ranks), 'does', 'do')} something else and {verb(len(ranks), 'goes', 'go')} on with it"
        f" ({place(moving[0].report)}); it will be confirmed after {format_duration(settings.phase_limit)} at the latest"
    )


def _moves(fact: Fact, before: Fact | None) -> bool:
    """Whether its stack differed between the two looks of one gathering, or from the gathering before."""
    if fact.report.moved:
        return True
    known = before is not None and main_thread(before.report.threads) and main_thread(fact.report.threads)
    return bool(known) and before is not None and not same_stack(fact.report, before.report)


def _held(draft: Draft, told: Iterable[Fact], settings: Settings) -> str | None:
    """What holds confirmation back, up to the limit."""
    long = [fact for fact in told if busy(fact.report)]
    if not long or draft.clock_s >= settings.phase_limit:
        return None
    ranks = [fact.report.rank if fact.report.rank is not None else fact.report.pid for fact in long]
    label = LABELS[long[0].report.phase]
    idle = "" if any(works(fact.report) for fact in long) else ", although without using CPU or storage while looked at"
    return (
        f"{ranks_phrase(ranks)} {verb(len(ranks), 'is', 'are')} {label} ({place(long[0].report)}){idle};"
        f" it will be confirmed after {format_duration(settings.phase_limit)} at the latest"
    )
