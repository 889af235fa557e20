"""How long something must last, by kind, before it is said and before it is acted on. The one place where times are chosen."""

from __future__ import annotations

from slurm_ncclmon.config import Settings

YOUNG_LAUNCHES = 8
"""A communicator is new until its slowest member was seen to move on, or has launched so many already when first seen."""
PAUSE_FACTOR = 3.0
"""A pause that was benign once may last so many times as long the next time."""
EVIDENCE_GRACE_S = 30.0
OUTAGE_INTERVALS = 4.0

_GONE = frozenset({"dead", "missing"})
_OWN_PACE = frozenset({"not_entered", "extra_op", "symmetric", "stalled_group"})
"""Kinds that look like a pause of the program: their time grows with the pauses seen, and with the first collective's grace."""


def confirm_after(
    kind: str, settings: Settings, pause_s: float = 0.0, young: bool = False, teardown: bool = False
) -> float:
    """Seconds that `kind` must last to be confirmed; `pause_s` is the longest benign pause of this shape so far."""
    if teardown and kind in _GONE:
        kind = "exited_early"
    if kind in _OWN_PACE:
        learned = min(max(settings.confirm, PAUSE_FACTOR * pause_s), max(settings.phase_limit, settings.confirm))
        return max(learned, settings.init) if young else learned
    return {
        "inconsistent_op": min(settings.dead, settings.confirm),
        "dead": min(settings.dead, settings.confirm),
        "missing": min(settings.dead, settings.confirm),
        "exited_early": min(settings.exited, settings.confirm),
        "aborted": min(settings.exited, settings.confirm),
        "async_error": 0.0,
        "init_stall": settings.init,
    }.get(kind, settings.confirm)


def suspect_after(kind: str, settings: Settings, young: bool = False, teardown: bool = False) -> float:
    """Seconds after which `kind` is a suspicion. Ranks may leave one after another, and start one after another."""
    if teardown and kind in _GONE:
        kind = "exited_early"
    if kind in _OWN_PACE:
        return settings.init if young else settings.suspect
    if kind in ("exited_early", "aborted", "init_stall"):
        return confirm_after(kind, settings)
    return min(settings.suspect, confirm_after(kind, settings))


def least_notice(kind: str, settings: Settings, young: bool = False, teardown: bool = False) -> float:
    """Seconds that an incident must have been open before it is confirmed, however long it had lasted unseen: half of what passes
    between suspicion and confirmation where every poll is seen. After a gap the job may be about to go on."""
    usual = confirm_after(kind, settings, 0.0, young, teardown) - suspect_after(kind, settings, young, teardown)
    return max(0.0, usual / 2)


def needs_witness(kind: str, settings: Settings) -> bool:
    """Whether nothing may be ended before a stack says what the blamed do: by counts a checkpoint is the same as a hang."""
    return settings.mode in ("cancel", "requeue") and kind in _OWN_PACE


def gate(settings: Settings) -> float:
    """Seconds after which a communicator counts as standing still when causes are looked for: sooner than a suspicion, so that
    the cause is among them even where it stopped last."""
    return min(settings.suspect / 2, 10.0)


def evidence_grace(settings: Settings, answered_before: bool) -> float:
    """Seconds that a confirmation waits for the evidence it asked for; less where nobody has ever answered."""
    return EVIDENCE_GRACE_S if answered_before else min(EVIDENCE_GRACE_S, settings.confirm / 2)
