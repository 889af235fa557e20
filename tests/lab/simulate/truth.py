"""What really happened in a simulated job, and what of it which evidence can decide."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

COUNTS, NODE, FRAMES = "counts", "node", "frames"
"""Evidence tiers: RAS alone; and stacks, process states and node facts; and probe frames."""


@dataclass
class Truth:
    """The answer that a detector is held to.

    `classes` and `kinds` are those that count as right, the best first. `culprits` are global ranks; `also` are other sets that
    count as exact (an order deadlock may name its minority or everybody in the cycle). `decidable` says by tier whether the
    culprit set can be told. `advisory` True: the right answer on a silent case is an advisory or nothing.
    """

    case: str
    hang: bool
    what: str
    cls: str = ""
    """The class that it truly is; `classes` are those that the evidence allows to say."""
    since_s: float = 0.0
    """When the fault struck."""
    classes: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    culprits: frozenset[int] = frozenset()
    also: tuple[frozenset[int], ...] = ()
    incidents: tuple[int, ...] = (1,)
    """Numbers of incidents that are right."""
    visible: dict[str, bool] = field(default_factory=dict)
    """By tier: can it be told from a pause at all?"""
    decidable: dict[str, bool] = field(default_factory=dict)
    suspicion: bool = True
    """A silent case: whether a suspicion that recovers is tolerable."""
    settle_s: float = 0.0
    """Seconds beyond the confirm time that the case's own rule may take (a grace for initialisation, for teardown)."""

    def to_json(self) -> dict[str, Any]:
        """For printing and for truth.json."""
        return {
            "case": self.case,
            "hang": self.hang,
            "what": self.what,
            "class": self.cls,
            "since_s": round(self.since_s, 3),
            "classes": list(self.classes),
            "kinds": list(self.kinds),
            "culprit_ranks": sorted(self.culprits),
            "also": [sorted(ranks) for ranks in self.also],
            "visible": self.visible,
            "decidable": self.decidable,
        }
