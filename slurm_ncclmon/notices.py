"""What the job's owner is told while it runs: one line or few for each event, on the job's own stderr."""

from __future__ import annotations

from typing import Callable

from slurm_ncclmon.durations import format_duration
from slurm_ncclmon.events import Advised, Confirmed, Event, GatherEvidence, Recovered, Reminder, Suspected
from slurm_ncclmon.report.sentence import awaited_text, headline
from slurm_ncclmon.verdict import Verdict

_WILL = {
    "observe": "be reported",
    "cancel": "be reported and the step cancelled",
    "requeue": "be reported and the job requeued",
}
_MOST_COMMS = 8


def notice(event: Event, mode: str) -> str | None:
    """Text for the owner; None for what concerns only the monitor."""
    for kind, text in _TEXTS.items():
        if isinstance(event, kind):
            return text(event, mode)
    return None


def _suspected(event: Suspected | Reminder, mode: str) -> str:
    return "\n".join([headline(event.verdict) + ".", *_frozen(event.verdict), _outlook(event, mode)])


def _outlook(event: Suspected | Reminder, mode: str) -> str:
    if event.confirm_in_s is None:
        reasons = "; ".join(event.verdict.not_decidable) or "counts alone cannot tell it from a pause"
        return f"It will not be confirmed by what is known now: {reasons}."
    return f"If nothing moves, it will {_WILL.get(mode, 'be reported')} in {format_duration(event.confirm_in_s)}."


def _frozen(verdict: Verdict) -> list[str]:
    lines = [
        f"  frozen for {format_duration(comm.frozen_for_s)}: {comm.hash}"
        f" ({comm.role + ', ' if comm.role else ''}{comm.size} ranks)"
        + (f", {comm.operation}" if comm.operation else "")
        + (f", {awaited_text(comm)}" if comm.awaited else "")
        for comm in verdict.frozen[:_MOST_COMMS]
    ]
    rest = len(verdict.frozen) - _MOST_COMMS
    return [*lines, *([f"  and {rest} more communicators"] if rest > 0 else [])]


def _confirmed(event: Confirmed, mode: str) -> str:
    return headline(event.verdict) + "."


def _recovered(event: Recovered, mode: str) -> str:
    return headline(event.verdict) + ". No need to do anything."


def _advised(event: Advised, mode: str) -> str:
    return event.advisory.text


def _nothing(event: GatherEvidence, mode: str) -> None:
    return None


_TEXTS: dict[type, Callable[..., str | None]] = {
    Suspected: _suspected,
    Reminder: _suspected,
    Confirmed: _confirmed,
    Recovered: _recovered,
    Advised: _advised,
    GatherEvidence: _nothing,
}
