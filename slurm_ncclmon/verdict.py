"""Verdicts: one per incident, plain data, the same live, in replay and in verdict.json (docs/verdict.md)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

SCHEMA = 1

SUSPECTED = "suspected"
CONFIRMED = "confirmed"
RECOVERED = "recovered"


@dataclass(frozen=True)
class CommunicatorRef:
    """The communicator that an incident is about. `role` is a guess: world, tp, dp, pp or None."""

    hash: str
    secondary_hash: str
    size: int
    role: str | None = None


@dataclass(frozen=True)
class Culprit:
    """A rank that the evidence names, never without the rule that named it (`why`).

    `rank` is the rank in the incident's communicator, `global_rank` the job's rank where known. `host` is the Slurm node where
    known, else the address that RAS knows the process by.
    """

    rank: int | None
    global_rank: int | None
    host: str
    pid: int
    cuda_dev: int | None
    why: str


@dataclass(frozen=True)
class Edge:
    """A link at fault, between two ranks of the incident's communicator."""

    source: int
    target: int
    why: str


@dataclass(frozen=True)
class Verdict:
    """What is known of one incident.

    `cls` is H1 (not entered), H2 (inconsistent), H3 (hardware or in the collective), S1 to S3 (slow) or None where the evidence
    cannot tell; `kind` says it finer (see docs/verdict.md). `round` is the number of the collective on that communicator that
    did not complete, counted from 1 over all operations. `victims` counts the ranks that only wait.
    """

    incident: str
    state: str
    cls: str | None
    kind: str
    communicator: CommunicatorRef | None
    operation: str | None
    round: int | None
    culprits: tuple[Culprit, ...]
    confidence: float
    frozen_for_s: float
    evidence: tuple[str, ...] = ()
    alternatives: tuple[str, ...] = ()
    not_decidable: tuple[str, ...] = ()
    victims: int = 0
    edges: tuple[Edge, ...] = ()
    frozen: tuple[FrozenComm, ...] = ()
    """Every communicator that is frozen because of this incident, its own first."""

    def is_finding(self) -> bool:
        """Whether a program should take notice: it hangs, or is suspected to for a reason that is more than standing still."""
        return self.state == CONFIRMED or (self.state == SUSPECTED and self.cls is not None)

    def to_json(self) -> dict[str, Any]:
        """The documented JSON object (`cls` is called `class` there)."""
        return {
            "schema": SCHEMA,
            "incident": self.incident,
            "state": self.state,
            "class": self.cls,
            "kind": self.kind,
            "communicator": vars(self.communicator) if self.communicator else None,
            "operation": self.operation,
            "round": self.round,
            "culprits": [vars(culprit) for culprit in self.culprits],
            "edges": [vars(edge) for edge in self.edges],
            "confidence": round(self.confidence, 3),
            "frozen_for_s": round(self.frozen_for_s, 3),
            "evidence": list(self.evidence),
            "alternatives": list(self.alternatives),
            "not_decidable": list(self.not_decidable),
            "victims": self.victims,
            "frozen": [
                {**vars(comm), "waiting": list(comm.waiting), "awaited": list(comm.awaited)} for comm in self.frozen
            ],
        }


@dataclass(frozen=True)
class FrozenComm:
    """One frozen communicator of an incident: who waits in it and for whom (ranks of that communicator)."""

    hash: str
    size: int
    role: str | None
    operation: str | None
    frozen_for_s: float
    waiting: tuple[int, ...] = field(default=())
    awaited: tuple[int, ...] = field(default=())


@dataclass(frozen=True)
class Advisory:
    """Something worth saying that is no hang: a stale mismatch, a blind monitor, a version that cannot be asked."""

    kind: str
    text: str
    t_s: float

    def to_json(self) -> dict[str, Any]:
        """The JSON object of `ncclmon replay --json`'s `advisories`."""
        return {"kind": self.kind, "text": self.text, "t_s": round(self.t_s, 3)}
