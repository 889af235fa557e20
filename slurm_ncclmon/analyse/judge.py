"""All rules together: from the history of counts, the evidence and the probe's frames to verdicts in the making."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from slurm_ncclmon.analyse.blame import draft as draft_of
from slurm_ncclmon.analyse.causes import Cause, find_causes
from slurm_ncclmon.analyse.draft import Draft
from slurm_ncclmon.analyse.facts import Facts
from slurm_ncclmon.analyse.hardware import with_failed_gpus
from slurm_ncclmon.analyse.initialising import initialising_drafts
from slurm_ncclmon.analyse.inside import Inside
from slurm_ncclmon.analyse.names import Names
from slurm_ncclmon.analyse.settle import settled
from slurm_ncclmon.analyse.stacks import refined
from slurm_ncclmon.analyse.symmetric import symmetric_draft
from slurm_ncclmon.config import Settings
from slurm_ncclmon.detect.history import History
from slurm_ncclmon.detect.limits import YOUNG_LAUNCHES, gate
from slurm_ncclmon.detect.shape import Mask, Shape, shape_of
from slurm_ncclmon.detect.skew import Skew
from slurm_ncclmon.detect.stuck import Stuck, find_stuck
from slurm_ncclmon.evidence.phases import NO_STACK, WAITING
from slurm_ncclmon.observation import Evidence

_NOT_ELSEWHERE = WAITING | {NO_STACK}


@dataclass(frozen=True)
class Sample:
    """One gathering and the step's time at which it came."""

    now: float
    evidence: Evidence | None = None


@dataclass(frozen=True)
class Judgement:
    """What the rules say as of the last usable report."""

    drafts: list[Draft]
    stuck: Stuck
    steady: Mask
    """(C,) communicators whose unevenness is their usual one."""


class Judge:
    """Applies the rules; between two calls it remembers only what is usual for this step."""

    def __init__(self, settings: Settings, history: History) -> None:
        self._settings = settings
        self._history = history
        self._skew = Skew()
        self._shape: tuple[int, Shape] | None = None
        self.inside = Inside()
        self.samples: list[Sample] = []
        """The last two gatherings, the newest last."""

    def judge(self, now: float) -> Judgement:
        """Everything that stands still at the step's time `now`, that of the last usable report."""
        shape = self._current_shape()
        steady = self._skew.steady(self._history, shape)
        steady = steady & ~self._contradicted(shape, steady, now)
        stuck = find_stuck(self._history, shape, steady, now, gate(self._settings))
        causes = settled(stuck, find_causes(stuck), lambda since: self._facts(since)[0])
        drafts = [self._of_cause(stuck, cause) for cause in causes]
        drafts += initialising_drafts(self._history, self._names, now, self._settings.init)
        if not drafts:
            drafts = self._symmetric(shape, now)
        elif all(draft.kind == "stalled_group" for draft in drafts):
            drafts = self._located(now) or drafts
        return Judgement(drafts, stuck, steady)

    def _current_shape(self) -> Shape:
        if self._shape is None or self._shape[0] != self._history.version:
            self._shape = (self._history.version, shape_of(self._history))
        return self._shape[1]

    def _of_cause(self, stuck: Stuck, cause: Cause) -> Draft:
        since = float(stuck.clock_since[cause.own])
        facts, before = self._facts(since)
        names = Names(self._history.layout, facts)
        draft = replace(draft_of(stuck, cause, names), young=self._young(cause.own))
        if draft.kind in ("not_entered", "stalled_group"):
            draft = with_failed_gpus(draft, names) or draft
        return refined(draft, facts, before, self._settings)

    def _symmetric(self, shape: Shape, now: float) -> list[Draft]:
        since = self._last_launch(now)
        now = self._all_seen(shape, now)
        if now - since < gate(self._settings):
            return []
        located = self._located(now)
        if located:
            return located
        facts, before = self._facts(since)
        names = Names(self._history.layout, facts)
        draft = symmetric_draft(self._history, shape, names, before, now, self._settings, self.inside.moved_at)
        return [] if draft is None else [draft]

    def _all_seen(self, shape: Shape, now: float) -> float:
        """As of when everything is known: communicators may be shown by turns. What has not been shown for very long is no
        more."""
        seen = self._history.comms.seen[
            (shape.highest > 0) & (self._history.comms.seen >= now - self._settings.phase_limit)
        ]
        return float(seen.min()) if len(seen) else now

    def _located(self, now: float) -> list[Draft]:
        """What the probe's frames tell where counts do not."""
        facts, before = self._facts(self._last_launch(now))
        located = self.inside.drafts(self._history, Names(self._history.layout, facts), now)
        return [refined(draft, facts, before, self._settings) for draft in located]

    def _last_launch(self, now: float) -> float:
        """When anybody was last seen to move."""
        known = self._history.members.since[self._history.members.known]
        return max(float(known.max()) if len(known) else now, self.inside.moved_at)

    def _contradicted(self, shape: Shape, steady: Mask, now: float) -> Mask:
        """(C,) communicators that are as uneven as ever, but whose stacks show that this time those behind are elsewhere while
        those ahead wait inside NCCL."""
        layout, members = self._history.layout, self._history.members
        result = np.zeros(len(layout.comms), np.bool_)
        for comm in np.flatnonzero(steady).tolist() if self.samples else ():
            rows = np.arange(layout.start[comm], layout.start[comm + 1])
            facts, _ = self._facts(float(members.since[rows].max()))
            behind, ahead = (
                [facts.phase(int(process)) for process in layout.process[rows[side[rows]]]]
                for side in (shape.awaited, shape.waiting)
            )
            elsewhere = bool(behind) and all(phase is not None and phase not in _NOT_ELSEWHERE for phase in behind)
            result[comm] = elsewhere and sum(phase in WAITING for phase in ahead) * 2 > len(ahead)
        return result

    def _names(self) -> Names:
        return Names(self._history.layout, self._facts(-np.inf)[0])

    def _facts(self, since: float) -> tuple[Facts, Facts]:
        """The newest and the second newest evidence of a stall that began at `since`."""
        valid = [sample for sample in self.samples if sample.now >= since]
        processes = self._history.layout.processes
        newest = Facts(valid[-1].evidence if valid else None, processes)
        return newest, Facts(valid[-2].evidence if len(valid) > 1 else None, processes)

    def _young(self, comm: int) -> bool:
        comms = self._history.comms
        return bool(comms.advances[comm] == 0 and comms.lowest[comm] < YOUNG_LAUNCHES)
