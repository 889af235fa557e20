"""Observations in, verdicts out, offline: what the live monitor does without looking at anything but a recording."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Callable

from slurm_ncclmon.config import Settings
from slurm_ncclmon.engine import Engine
from slurm_ncclmon.events import Event
from slurm_ncclmon.evidence.model import NodeReport
from slurm_ncclmon.judge import Judge
from slurm_ncclmon.observation import Evidence, Observation, Poll
from slurm_ncclmon.report.text import Case


@dataclass
class Tally:
    """What a report says of the observations themselves."""

    polls: int = 0
    unusable: int = 0
    wall_s: float = 0.0
    nodes: tuple[NodeReport, ...] = ()
    trouble: str = ""

    def count(self, observation: Observation) -> None:
        """Take one observation into account."""
        if isinstance(observation, Poll):
            self.polls += 1
            self.unusable += observation.report is None or not observation.report.coherent
            self.wall_s = observation.wall_s
            self.trouble = observation.trouble or self.trouble
        elif isinstance(observation, Evidence) and observation.reason != "start":
            self.nodes = observation.nodes
            self.wall_s = observation.wall_s

    def case(self, step: str, mode: str, engine: Judge, action: str = "", folder: str = "") -> Case:
        """The report's material as of now."""
        return Case(
            step=step,
            mode=mode,
            wall_s=self.wall_s,
            polls=self.polls,
            unusable_polls=self.unusable,
            verdicts=tuple(engine.verdicts()),
            advisories=tuple(engine.advisories()),
            nodes=self.nodes,
            action=action,
            folder=folder,
            trouble=self.trouble,
        )


def replay(
    observations: Iterable[Observation],
    settings: Settings,
    step: str,
    on_event: Callable[[Event], None] = lambda event: None,
) -> Case:
    """Feed all observations to a fresh engine; `on_event` sees what the live monitor would have carried out."""
    engine = Engine(settings)
    tally = Tally()
    for observation in observations:
        tally.count(observation)
        for event in engine.observe(observation):
            on_event(event)
    return tally.case(step, settings.mode, engine)
