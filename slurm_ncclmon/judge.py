"""What the monitor and the reports need of the engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from slurm_ncclmon.events import Event
from slurm_ncclmon.observation import Observation
from slurm_ncclmon.verdict import Advisory, Verdict


class Judge(Protocol):
    """See engine.Engine."""

    @property
    def suspicious(self) -> bool:
        """Whether anything is being looked into."""

    def observe(self, observation: Observation) -> list[Event]:
        """What follows from one more observation."""

    def verdicts(self) -> Sequence[Verdict]:
        """One an incident, as of now."""

    def advisories(self) -> Sequence[Advisory]:
        """All that were given."""
