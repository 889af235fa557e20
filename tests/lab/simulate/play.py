"""Drive the engine through a simulated job, as the monitor would: polls, the evidence that it asks for, what Slurm says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Callable

from slurm_ncclmon.config import Settings
from slurm_ncclmon.engine import Engine
from slurm_ncclmon.events import Confirmed, Event, GatherEvidence, Recovered, Reminder, Suspected
from slurm_ncclmon.observation import Evidence, FramePoll, Observation, Poll, StepState
from slurm_ncclmon.probe.decode import decode
from slurm_ncclmon.ras.decode import Decoder
from slurm_ncclmon.recording import poll_of
from slurm_ncclmon.verdict import Advisory, Verdict
from tests.lab.simulate.answer import Answers
from tests.lab.simulate.frames import images
from tests.lab.simulate.job import Job
from tests.lab.simulate.nodes import gather

STATE_EVERY_S = 30.0
REFUSED = "nobody listens at the address"


@dataclass
class Played:
    """What the engine said, and when."""

    events: list[Event] = field(default_factory=list)
    verdicts: tuple[Verdict, ...] = ()
    advisories: tuple[Advisory, ...] = ()
    polls: int = 0

    def confirmed(self) -> list[Confirmed]:
        """Confirmations, in order."""
        return [event for event in self.events if isinstance(event, Confirmed)]


def poll_times(job: Job) -> Iterator[float]:
    """When the monitor asks: every interval and a little, not while it stands still."""
    time = 0.0
    while time <= job.end:
        for begin, end in job.paused:
            if begin <= time < end:
                time = end + 0.5
        yield time
        time += job.interval * (1.0 + 0.02 * float(job.rng.random()))


class Senses:
    """The polls of a job. As text through the decoder where `text`, for a recording or a garbled answer; else as columns."""

    def __init__(self, job: Job, text: bool) -> None:
        self._job, self._text = job, text
        self._answers, self._decoder = Answers(job), Decoder()
        self.raw: Callable[[int, float, bytes | None, object], None] = lambda n, time, text, answer: None
        """Sees every answer: number, time, text if there is one, columns."""

    def poll(self, n: int, time: float) -> Poll:
        """One attempt to ask."""
        job = self._job
        trouble = self._trouble(time)
        if trouble:
            self.raw(n, time, None, None)
            return Poll(n, time, job.wall(time), None, trouble)
        answer = self._answers.at(time)
        garble = [change for begin, end, change in job.garble if begin <= time < end]
        if not (self._text or garble):
            self.raw(n, time, None, answer)
            return Poll(n, time, answer.wall, self._answers.report(answer))
        text = self._answers.text(answer)
        for change in garble:
            text = change(text)
        self.raw(n, time, text, answer)
        return poll_of(n, time, answer.wall, (text,), self._decoder)

    def _trouble(self, time: float) -> str:
        job = self._job
        if time < job.up or time >= job.down:
            return REFUSED
        for begin, end, said in job.blind:
            if begin <= time < end:
                return said
        return "no answer within 12 s" if job.lost and job.rng.random() < job.lost else ""


def settings_of(job: Job, settings: Settings | None = None) -> Settings:
    """The settings that a job is watched with."""
    return replace(settings or Settings(), interval=job.interval, stacks="off" if job.tier == "counts" else "on")


def frame_poll(job: Job, time: float, ranks: int) -> FramePoll:
    """The probe files of the first `ranks` ranks."""
    read = images(job, time, range(ranks))
    return FramePoll(time, decode(read), read)


def play(
    job: Job,
    settings: Settings | None = None,
    text: bool = False,
    record: Callable[[Observation], None] = lambda seen: None,
    senses: Senses | None = None,
) -> Played:
    """Everything that the engine says to a job until its end."""
    settings = settings_of(job, settings)
    engine, played, senses = Engine(settings), Played(), senses or Senses(job, text)
    open_, asked, ready = set(), -STATE_EVERY_S, None

    def take(observation: Observation) -> None:
        nonlocal ready
        record(observation)
        for event in engine.observe(observation):
            played.events.append(event)
            if isinstance(event, (Suspected, Reminder)):
                open_.add(event.verdict.incident)
            elif isinstance(event, Recovered):
                open_.discard(event.verdict.incident)
            elif isinstance(event, GatherEvidence) and job.tier != "counts" and ready is None:
                ready = (observation.t_s, event.reason)

    told = list(job.told)
    for n, time in enumerate(poll_times(job)):
        while told and told[0][0] <= time:
            take(StepState(*told.pop(0)))
        if ready and ready[0] + job.evidence_s <= time:
            began, reason = ready
            ready = None
            at = began + job.evidence_s
            if job.tier == "frames":
                take(frame_poll(job, at, job.layout.ranks))
            take(Evidence(at, job.wall(at), reason, gather(job, began + 1.0, reason)))
        take(senses.poll(n, time))
        if job.tier == "frames":
            take(frame_poll(job, time, min(job.layout.gpus_per_node, job.layout.ranks)))
        played.polls += 1
        if open_ and time - asked >= STATE_EVERY_S:
            asked = time
            take(StepState(time, job.state(time)))
    played.verdicts, played.advisories = tuple(engine.verdicts()), tuple(engine.advisories())
    return played
