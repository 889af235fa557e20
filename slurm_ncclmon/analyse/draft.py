"""A verdict in the making: what the rules say now, before it has a name, a state and a duration to act on."""

from __future__ import annotations

from dataclasses import dataclass

from slurm_ncclmon.ras.report import CommKey
from slurm_ncclmon.verdict import CommunicatorRef, Culprit, Edge, FrozenComm, Verdict

CLASSES = {
    "not_entered": "H1",
    "exited_early": "H1",
    "aborted": "H1",
    "stopped": "H1",
    "init_stall": "H1",
    "device_not_started": "H1",
    "dead": "H3",
    "missing": "H3",
    "async_error": "H3",
    "in_collective": "H3",
    "hardware": "H3",
    "inconsistent_op": "H2",
    "extra_op": "H2",
    "wrong_order": "H2",
    "p2p_unmatched": "H2",
    "symmetric": None,
    "stalled_group": None,
    "count_mismatch": None,
}
"""Kind -> class. A symmetric stall and a stalled group have none: they may be inconsistent arguments (H2), hardware (H3) or
all late together (H1)."""


@dataclass(frozen=True)
class Draft:
    """What `Verdict` will say, and what the engine needs to follow it over time."""

    kind: str
    comm: CommunicatorRef | None
    operation: str | None
    round: int | None
    culprits: tuple[Culprit, ...]
    confidence: float
    frozen_s: float
    clock_s: float
    """Seconds that count towards confirmation; less than `frozen_s` where somebody worked elsewhere meanwhile."""
    evidence: tuple[str, ...]
    keys: frozenset[CommKey]
    """The communicators that it holds up."""
    processes: frozenset[int]
    """The processes that it blames."""
    alternatives: tuple[str, ...] = ()
    not_decidable: tuple[str, ...] = ()
    victims: int = 0
    edges: tuple[Edge, ...] = ()
    frozen: tuple[FrozenComm, ...] = ()
    pause: tuple[object, ...] = ()
    """What identifies a pause of this shape, to learn how long such a one may last."""
    confirmable: bool = True
    """False: by what is known now it will never be confirmed, and `not_decidable` says why."""
    held: str | None = None
    """Why confirmation is held back although its time has come, for people."""
    at_work_s: float = float("inf")
    """Seconds since every one of the blamed processes has launched something, on whatever communicator."""
    teardown: bool = False
    """Some members have left in order: the step may be ending, and whoever is gone may have ended as well."""
    waiting: frozenset[int] = frozenset()
    """Processes that wait in its own communicator, as counts have it."""
    young: bool = False
    """Its communicator has only begun: compiling and loading may take long."""
    witnessed: bool = False
    """A stack shows what at least one of the blamed does instead."""
    excused: bool = False
    """Evidence speaks for a pause: not worth a word."""

    @property
    def cls(self) -> str | None:
        """H1, H2, H3 or None."""
        return CLASSES[self.kind]

    def verdict(self, incident: str, state: str) -> Verdict:
        """The verdict under the incident's name."""
        held = (f"Held back: {self.held}.",) if self.held else ()
        return Verdict(
            incident=incident,
            state=state,
            cls=self.cls,
            kind=self.kind,
            communicator=self.comm,
            operation=self.operation,
            round=self.round,
            culprits=self.culprits,
            confidence=self.confidence,
            frozen_for_s=self.frozen_s,
            evidence=(*self.evidence, *held),
            alternatives=self.alternatives,
            not_decidable=self.not_decidable,
            victims=self.victims,
            edges=self.edges,
            frozen=self.frozen,
        )
