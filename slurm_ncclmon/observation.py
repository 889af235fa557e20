"""What the monitor saw, in the order it saw it: the only input of detector and analyser, live and in replay.

All `t_s` are seconds on the monitor's monotonic clock; `wall_s` (seconds since 1970) is for people and never computed with.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Union

if TYPE_CHECKING:
    from slurm_ncclmon.evidence.model import NodeReport
    from slurm_ncclmon.probe.frame import Frames
    from slurm_ncclmon.probe.image import Image
    from slurm_ncclmon.ras.report import Problem, Report


@dataclass(frozen=True)
class Poll:
    """One attempt to ask RAS. `report` is None when it gave nothing usable, and `trouble` then says why."""

    n: int
    t_s: float
    wall_s: float
    report: Report | None
    trouble: str | None = None
    answers: tuple[bytes, ...] = field(default=(), repr=False, compare=False)
    """What `report` was made of, one answer a mesh: a recording keeps these, and replay decodes them again."""
    notes: tuple[Problem, ...] = ()
    """What the asking showed besides (processes that no answer covers, another job's answers); in `report.problems` as well."""


@dataclass(frozen=True)
class FramePoll:
    """Probe frames as read from the first node (each poll) or from all nodes (with evidence)."""

    t_s: float
    frames: Frames
    images: tuple[Image, ...] = field(default=(), repr=False, compare=False)
    """What `frames` was decoded from, for the recording."""


@dataclass(frozen=True)
class Evidence:
    """One fan-out over the step's nodes; a node that did not answer is in `nodes` all the same, with `answered` False."""

    t_s: float
    wall_s: float
    reason: str
    nodes: tuple[NodeReport, ...]


@dataclass(frozen=True)
class StepState:
    """What Slurm says of the step and its tasks.

    `state` is `running`, `suspended` or `ending` (cancelled, out of time, completing: whatever freezes now is no hang).
    """

    t_s: float
    state: str


Observation = Union[Poll, FramePoll, Evidence, StepState]
