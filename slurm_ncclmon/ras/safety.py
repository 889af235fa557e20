"""What may be asked of which NCCL release. docs/ras.md has the reasons and what was measured."""

from __future__ import annotations

from dataclasses import dataclass

from slurm_ncclmon.ras.version import Version

FIRST_WITH_RAS = Version(2, 24, 3)
FIRST_WITH_MISSING_RANKS = Version(2, 26, 2)
"""Lists ranks that are missing, and from here on reads past its data in text answers that have any."""
FIRST_SAFE_DURING_INIT = Version(2, 27, 3)
FIRST_WITH_JSON = Version(2, 28, 7)
FIRST_WITH_SAFE_TEXT = Version(2, 29, 2)

STARTUP_S = 180.0
"""Most communicators are made in a job's first minutes; until then, releases that crash when asked at such a time are spared."""


@dataclass(frozen=True)
class Circumstances:
    """What is known of the step when a question is due."""

    age_s: float = 0.0
    """Since the youngest of its processes began."""
    all_present: bool = False
    """Every process of the step, on all its nodes, was there and running a moment ago."""


def refusal_of_text(version: Version | None, circumstances: Circumstances) -> str | None:
    """Why text must not be asked of a release without JSON, or None when it may."""
    if version is None:
        return "this NCCL is older than 2.28.7, and which release it is cannot be seen; asking could crash it"
    if version < FIRST_WITH_RAS:
        return f"NCCL {version} has no RAS (2.24.3 is the first)"
    if version >= FIRST_WITH_SAFE_TEXT:
        return None
    if version < FIRST_SAFE_DURING_INIT and circumstances.age_s < STARTUP_S:
        return (
            f"NCCL {version} can crash when asked while a communicator is being made; "
            f"it is not asked before the step is {STARTUP_S:g} s old"
        )
    if version >= FIRST_WITH_MISSING_RANKS and not circumstances.all_present:
        return (
            f"NCCL {version} has no JSON, and its text answer can crash it once a rank is missing; "
            "that none is cannot be seen from here, so only stacks and probes are used (2.28.7 or later can be asked safely)"
        )
    return None


def corrupts_text(version: Version | None) -> bool:
    """Whether a text answer with missing ranks was made by reading past the answer's data."""
    return version is None or FIRST_WITH_MISSING_RANKS <= version < FIRST_WITH_SAFE_TEXT
