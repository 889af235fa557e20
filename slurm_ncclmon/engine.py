"""Observations in, events out: the whole judgement of a step, without looking at anything and without a clock of its own."""

from __future__ import annotations

from slurm_ncclmon.analyse.draft import Draft
from slurm_ncclmon.analyse.initialising import building_draft, silent_draft
from slurm_ncclmon.analyse.judge import Judge, Judgement, Sample
from slurm_ncclmon.analyse.ray import RayJudge
from slurm_ncclmon.config import Settings
from slurm_ncclmon.detect.blind import Blindness
from slurm_ncclmon.detect.clock import StepTime
from slurm_ncclmon.detect.history import History
from slurm_ncclmon.detect.outage import Sight
from slurm_ncclmon.detect.pauses import Pauses
from slurm_ncclmon.detect.probe import taken
from slurm_ncclmon.detect.watchdogs import late
from slurm_ncclmon.durations import format_duration
from slurm_ncclmon.events import Advised, Event, GatherEvidence
from slurm_ncclmon.incidents import QUIET, Incidents
from slurm_ncclmon.observation import Evidence, FramePoll, Observation, Poll, StepState
from slurm_ncclmon.ras.problems import NOT_SEEN, OTHER_MESHES
from slurm_ncclmon.ras.report import CommKey, Report
from slurm_ncclmon.verdict import Advisory, Verdict

MOST_ADVISORIES = 5
"""Communicators that one kind of advisory is said of; there may be thousands."""


class Engine:
    """One step's judgement. Give it every observation in order; carry out the events that it answers.

    Times are taken from `settings` as they are: `Settings.scaled()` makes them consistent.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._time = StepTime()
        self._history = History()
        self._judge = Judge(settings, self._history)
        self._sight = Sight(settings)
        self._blind = Blindness()
        self._pauses = Pauses()
        self._incidents = Incidents(settings, self._pauses)
        self._ray = RayJudge(settings) if settings.ray_compatible else None
        self._advisories: list[Advisory] = []
        self._advised: dict[str, set[CommKey]] = {}
        self._ending = False
        self._part_unseen_since: float | None = None
        self._part_told = False
        self._environment_read = False

    def observe(self, observation: Observation) -> list[Event]:
        """What follows from one observation."""
        now = self._time.advance(observation.t_s)
        if isinstance(observation, StepState):
            return self._step_state(observation, now)
        if isinstance(observation, Evidence):
            return self._take_evidence(observation, now)
        if self._ending or self._time.suspended:
            return []
        if isinstance(observation, FramePoll):
            self._judge.inside.take(observation.frames, now)
            return []
        if self._ray is not None:
            return self._incidents.follow(self._ray.drafts(observation), observation.t_s, settled=True)
        return self._poll(observation, now)

    @property
    def suspicious(self) -> bool:
        """Whether an incident is open and has been spoken of."""
        return any(incident.open and incident.state != QUIET for incident in self._incidents.all)

    def verdicts(self) -> list[Verdict]:
        """All incidents that were spoken of, in the order in which they began."""
        return [incident.verdict() for incident in self._incidents.all if incident.state != QUIET]

    def advisories(self) -> list[Advisory]:
        """All advisories so far."""
        return list(self._advisories)

    # -- observations

    def _poll(self, poll: Poll, now: float) -> list[Event]:
        if poll.report is None or not poll.report.coherent:
            return self._unseen(poll, now)
        events = self._unseen_part(poll.report, now, poll.t_s)
        if self._blind.saw():
            events += self._advise("monitor_sees", "NCCL RAS answers again; the watch goes on.", poll.t_s)
        self._sight.saw(now)
        self._history.update(poll.report, now)
        return events + self._judged(poll.t_s)

    def _unseen_part(self, report: Report, now: float, t_s: float) -> list[Event]:
        """Ranks that no answer tells of, for longer than a start takes: said once, for a hang among them would be missed."""
        texts = [problem.text for problem in report.problems if problem.kind in (NOT_SEEN, OTHER_MESHES)]
        if not texts:
            self._part_unseen_since = None
            return []
        if self._part_unseen_since is None:
            self._part_unseen_since = now
        if self._part_told or now - self._part_unseen_since < self._settings.suspect:
            return []
        self._part_told = True
        return self._advise("part_unseen", "; ".join(texts), t_s)

    def _unseen(self, poll: Poll, now: float) -> list[Event]:
        """A poll without a usable answer is neither evidence nor progress; only the blindness itself is worth a word."""
        self._blind.missed(poll, now)
        unseen = self._without_counts(now)
        if unseen is not None:
            events = self._incidents.follow([*self._open_drafts(), unseen], poll.t_s, settled=True)
        else:
            events = self._incidents.tick(poll.t_s, self._sight.settled())
        limit = self._settings.confirm if self._blind.ever_saw else self._settings.init
        if self._blind.lasting(now, limit) and self._blind.tell():
            text = (
                f"NCCL RAS has given no usable answer for {format_duration(limit)} ({self._blind.trouble}):"
                " a hang would not be seen by counts now. This says nothing about the job's health."
            )
            events += self._advise("monitor_blind", text, poll.t_s)
        return events

    def _without_counts(self, now: float) -> Draft | None:
        """What can be said while no answer is usable: communicators that do not get ready, or what stacks show."""
        fresh = [
            s.evidence for s in self._judge.samples if self._blind.since is not None and s.now >= self._blind.since
        ]
        evidence = fresh[-1] if fresh else None
        building = building_draft(self._blind, evidence, now, self._settings.init)
        return building or silent_draft(self._blind, evidence, now, self._settings.confirm)

    def _open_drafts(self) -> list[Draft]:
        """Open incidents by counts stay as they are while nothing is seen."""
        return [incident.draft for incident in self._incidents.all if incident.open and incident.draft.keys]

    def _take_evidence(self, evidence: Evidence, now: float) -> list[Event]:
        events = self._read_environment(evidence)
        if evidence.reason.startswith("start"):
            return events
        self._judge.samples = [*self._judge.samples[-1:], Sample(now, evidence)]
        self._incidents.gathering.answer()
        if self._ending or self._time.suspended or self._ray is not None:
            return events
        unseen = self._without_counts(now)
        if unseen is not None:
            return events + self._incidents.follow([*self._open_drafts(), unseen], evidence.t_s, settled=True)
        if self._sight.last is None:
            return events + self._incidents.tick(evidence.t_s, settled=False)
        return events + self._judged(evidence.t_s)

    def _step_state(self, state: StepState, now: float) -> list[Event]:
        if state.state == "suspended":
            self._time.suspend()
        elif state.state == "ending":
            self._ending = True
            self._incidents.end()
        elif self._time.suspended:
            self._time.resume()
            self._history.forget_missing(now)
        return []

    # -- judgement

    def _judged(self, t_s: float) -> list[Event]:
        """What the rules say as of the last usable report."""
        assert self._sight.last is not None
        judgement = self._judge.judge(self._sight.last)
        events = self._incidents.follow(judgement.drafts, t_s, self._sight.settled())
        return events + self._usual(judgement, t_s)

    def _usual(self, judgement: Judgement, t_s: float) -> list[Event]:
        """Advisories on communicators that are uneven without anybody waiting."""
        stuck, comms = judgement.stuck, self._history.layout.comms
        events: list[Event] = []
        for comm in stuck.stale.tolist():
            if stuck.frozen_s(comm) >= self._settings.suspect and self._new("stale_mismatch", comms[comm]):
                text = (
                    f"Communicator {comms[comm]} has stood still unevenly for {format_duration(stuck.frozen_s(comm))}, but those"
                    " ahead work elsewhere: it is abandoned or rests, and is no hang."
                )
                events += self._advise("stale_mismatch", text, t_s)
        for comm in judgement.steady.nonzero()[0].tolist():
            if stuck.frozen_s(comm) >= self._settings.suspect and self._new("steady_skew", comms[comm]):
                text = (
                    f"On communicator {comms[comm]} some ranks are always the same number of operations ahead; it stands"
                    " still with just"
                    " that, which counts as level: by counts alone it can not be told from a pause."
                )
                events += self._advise("steady_skew", text, t_s)
                if self._incidents.gathering.ask(t_s):  # stacks may contradict: Judge then takes it for what it is
                    events.append(GatherEvidence(t_s, "steady_skew", "suspicion"))
        return events

    def _new(self, kind: str, comm: CommKey) -> bool:
        said = self._advised.setdefault(kind, set())
        if comm in said or len(said) >= MOST_ADVISORIES:
            return False
        said.add(comm)
        return True

    def _read_environment(self, evidence: Evidence) -> list[Event]:
        """Once, from the first evidence with any process: does the job's own watchdog come before us, is there a probe?"""
        processes = [process for node in evidence.nodes for process in node.processes]
        if self._environment_read or not processes:
            return []
        self._environment_read = True
        found = {"watchdog_first": late(processes, self._settings), "probe_taken": taken(processes, self._settings)}
        return [
            event
            for kind, text in found.items()
            if text is not None
            for event in self._advise(kind, text, evidence.t_s)
        ]

    def _advise(self, kind: str, text: str, t_s: float) -> list[Event]:
        advisory = Advisory(kind, text, t_s)
        self._advisories.append(advisory)
        return [Advised(t_s, advisory)]
