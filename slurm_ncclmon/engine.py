"""Observations in, events out: the whole judgement of a step, without looking at anything and without a clock of its own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from slurm_ncclmon.analyse.blame import draft as draft_of
from slurm_ncclmon.analyse.causes import find_causes
from slurm_ncclmon.analyse.draft import Draft
from slurm_ncclmon.analyse.facts import Facts
from slurm_ncclmon.analyse.names import Names
from slurm_ncclmon.config import Settings
from slurm_ncclmon.detect.clock import StepTime
from slurm_ncclmon.detect.history import History
from slurm_ncclmon.detect.limits import YOUNG_LAUNCHES, gate
from slurm_ncclmon.detect.outage import Sight
from slurm_ncclmon.detect.pauses import Pauses
from slurm_ncclmon.detect.shape import Shape, shape_of
from slurm_ncclmon.detect.stuck import find_stuck
from slurm_ncclmon.events import Advised, Event
from slurm_ncclmon.incidents import QUIET, Incidents
from slurm_ncclmon.observation import Evidence, Observation, Poll, StepState
from slurm_ncclmon.verdict import Advisory, Verdict


class Engine:
    """One step's judgement. Give it every observation in order; carry out the events that it answers."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings.scaled()
        self._time = StepTime()
        self._history = History()
        self._shape: tuple[int, Shape] | None = None
        self._sight = Sight(self._settings)
        self._pauses = Pauses()
        self._incidents = Incidents(self._settings, self._pauses)
        self._evidence: Evidence | None = None
        self._advisories: list[Advisory] = []
        self._ending = False

    def observe(self, observation: Observation) -> list[Event]:
        """What follows from one observation."""
        now = self._time.advance(observation.t_s)
        if isinstance(observation, Poll):
            return self._poll(observation, now)
        if isinstance(observation, Evidence):
            return self._take_evidence(observation)
        if isinstance(observation, StepState):
            self._step_state(observation, now)
        return []

    def verdicts(self) -> list[Verdict]:
        """All incidents that were spoken of, in the order in which they began."""
        return [incident.verdict() for incident in self._incidents.all if incident.state != QUIET]

    def advisories(self) -> list[Advisory]:
        """All advisories so far."""
        return list(self._advisories)

    # -- observations

    def _poll(self, poll: Poll, now: float) -> list[Event]:
        if self._ending or self._time.suspended:
            return []
        if poll.report is None or not poll.report.coherent:
            return self._incidents.tick(poll.t_s, self._sight.settled())
        self._sight.saw(now)
        self._history.update(poll.report, now)
        return self._judge(poll.t_s)

    def _take_evidence(self, evidence: Evidence) -> list[Event]:
        self._evidence = evidence
        self._incidents.gathering.answer()
        if self._ending or self._sight.last is None:
            return []
        return self._judge(evidence.t_s)

    def _step_state(self, state: StepState, now: float) -> None:
        if state.state == "suspended":
            self._time.suspend()
        elif state.state == "ending":
            self._ending = True
            self._incidents.end()
        elif self._time.suspended:
            self._time.resume()
            self._history.forget_missing(now)

    # -- judgement

    def _judge(self, t_s: float) -> list[Event]:
        return self._incidents.follow(self._drafts(), t_s, self._sight.settled())

    def _drafts(self) -> list[Draft]:
        """Everything that stands still, as of the last usable report."""
        now = self._sight.last
        assert now is not None
        if self._shape is None or self._shape[0] != self._history.version:
            self._shape = (self._history.version, shape_of(self._history))
        shape, layout = self._shape[1], self._history.layout
        steady = np.zeros(len(layout.comms), np.bool_)
        stuck = find_stuck(self._history, shape, steady, now, gate(self._settings))
        causes = find_causes(stuck)
        if not causes:
            return []
        names = Names(layout, Facts(self._evidence, layout.processes))
        return [replace(draft_of(stuck, cause, names), young=self._young(cause.own)) for cause in causes]

    def _young(self, comm: int) -> bool:
        comms = self._history.comms
        return bool(comms.advances[comm] == 0 and comms.lowest[comm] < YOUNG_LAUNCHES)

    def _advise(self, kind: str, text: str, t_s: float) -> list[Event]:
        advisory = Advisory(kind, text, t_s)
        self._advisories.append(advisory)
        return [Advised(t_s, advisory)]
