"""What the engine answers to an observation: the monitor carries these out, replay prints them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Union

from slurm_ncclmon.verdict import Advisory, Verdict


@dataclass(frozen=True)
class Suspected:
    """An incident is open for the `suspect` time; it will be confirmed in `confirm_in_s` if nothing moves (None: never, by
    what is known now, and the verdict's `not_decidable` says why)."""

    t_s: float
    verdict: Verdict
    confirm_in_s: float | None


@dataclass(frozen=True)
class Reminder:
    """The same incident, still open, each `remind` seconds."""

    t_s: float
    verdict: Verdict
    confirm_in_s: float | None


@dataclass(frozen=True)
class GatherEvidence:
    """The engine wants stacks and node facts from all nodes now; answer with an Evidence observation."""

    t_s: float
    incident: str
    reason: str


@dataclass(frozen=True)
class Confirmed:
    """The incident has lasted for the confirm time; act on it."""

    t_s: float
    verdict: Verdict


@dataclass(frozen=True)
class Recovered:
    """What was suspected (or even confirmed) moves again after `verdict.frozen_for_s`."""

    t_s: float
    verdict: Verdict


@dataclass(frozen=True)
class Advised:
    """An advisory, said once."""

    t_s: float
    advisory: Advisory


Event = Union[Suspected, Reminder, GatherEvidence, Confirmed, Recovered, Advised]
