"""The monitor's loop: look, let the engine judge, carry out what it answers, until the watched step ends."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

from slurm_ncclmon.config import Settings
from slurm_ncclmon.events import Confirmed, Event, GatherEvidence, Recovered, Reminder, Suspected
from slurm_ncclmon.judge import Judge
from slurm_ncclmon.notices import notice
from slurm_ncclmon.observation import Evidence, FramePoll, Observation, Poll, StepState
from slurm_ncclmon.verdict import Verdict

log = logging.getLogger(__name__)

EXIT_FINE = 0
EXIT_CANCELLED = 86
"""Exit code of a monitor that ended its step: Slurm shows it as the job's DerivedExitCode."""

STATE_EVERY_S = 30.0
"""Between two questions to Slurm about the step: each is work for the controller, so only while something is suspected."""
PAUSE_SLACK_S = 5.0


class Clock(Protocol):
    """See clock.StepClock."""

    def now(self) -> float: ...
    def wall(self) -> float: ...
    def ended(self) -> bool: ...
    def wake(self) -> None: ...
    def wait(self, seconds: float) -> None: ...


class Senses(Protocol):
    """Where observations come from. No method raises for what can go wrong outside: it is in the observation."""

    def poll(self) -> Poll: ...
    def step_state(self) -> StepState: ...
    def gather(self, reason: str) -> Sequence[Observation]:
        """What all nodes tell, in the order in which the engine shall see it; evidence comes last."""
        ...

    def frames(self) -> FramePoll | None: ...
    def beginning(self) -> Evidence | None:
        """What the ranks looked like when they were first seen, once."""
        ...

    def pause_after(self, suspicious: bool) -> float:
        """Seconds until the next poll."""
        ...


class Hands(Protocol):
    """What the monitor does to the world."""

    def record(self, observation: Observation) -> None: ...
    def say(self, text: str) -> None: ...
    def report(self, engine: Judge) -> object: ...
    def conclude(self, engine: Judge, verdict: Verdict) -> bool:
        """Report, comment on the job and, if asked for, end the step; True when it was ended."""
        ...

    def finish(self, engine: Judge) -> None: ...


class Monitor:
    """One step's watch. `run` returns the exit code of the process."""

    def __init__(self, settings: Settings, engine: Judge, senses: Senses, hands: Hands, clock: Clock) -> None:
        self._settings = settings
        self._senses = senses
        self._hands = hands
        self._clock = clock
        self._engine = engine
        self._gathering: Future[Sequence[Observation]] | None = None
        self._told: set[str] = set()
        self._state_at = -STATE_EVERY_S
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="gather")

    def run(self) -> int:
        """Watch until the step ends (0) or is ended because it hangs (EXIT_CANCELLED)."""
        while not self._clock.ended():
            if self._round():
                return EXIT_CANCELLED
        self._take(StepState(self._clock.now(), "ending"))
        self._hands.finish(self._engine)
        self._pool.shutdown(wait=False)
        return EXIT_FINE

    def _round(self) -> bool:
        """One poll and what follows from it; True when the step was ended."""
        poll = self._senses.poll()
        if self._clock.ended():
            return False
        events = self._begin() + self._take(poll) + self._ask_slurm()
        if self._carry_out(events):
            return True
        return self._rest(self._senses.pause_after(self._engine.suspicious))

    def _begin(self) -> list[Event]:
        """What comes before a poll's own answer: the first look at the ranks, and the probe's frames."""
        events: list[Event] = []
        beginning = self._senses.beginning()
        if beginning is not None:
            for problem in (problem for node in beginning.nodes for problem in node.problems):
                self._hands.say(problem)
            events += self._take(beginning)
        frames = self._senses.frames()
        return events + (self._take(frames) if frames is not None else [])

    def _rest(self, seconds: float) -> bool:
        """Wait for the next poll, but take evidence as soon as it is there; True when that ended the step."""
        until = self._clock.now() + seconds
        while not self._clock.ended():
            if self._gathering is not None and self._gathering.done():
                gathered = self._gathering.result()
                self._gathering = None
                if self._carry_out([event for seen in gathered for event in self._take(seen)]):
                    return True
            left = until - self._clock.now()
            if left <= 0:
                return False
            started = self._clock.now()
            self._clock.wait(left)
            self._notice_pause(started, left)
        return False

    def _notice_pause(self, started: float, wanted: float) -> None:
        """A wait far longer than asked for: we were stopped (suspended job, debugger), and most likely the ranks as well."""
        now = self._clock.now()
        if now - started > wanted + PAUSE_SLACK_S:
            log.warning(
                "this monitor stood still for %.0f s; the clocks of all suspicions stop for that time", now - started
            )
            self._take(StepState(started, "suspended"))
            self._take(StepState(now, "running"))

    def _take(self, observation: Observation) -> list[Event]:
        self._hands.record(observation)
        return self._engine.observe(observation)

    def _ask_slurm(self) -> list[Event]:
        now = self._clock.now()
        if not self._engine.suspicious or now - self._state_at < min(STATE_EVERY_S, self._settings.confirm / 3):
            return []
        self._state_at = now
        return self._take(self._senses.step_state())

    def _carry_out(self, events: Sequence[Event]) -> bool:
        """True when the step was ended."""
        for event in events:
            self._tell(event)
            if isinstance(event, Recovered):
                self._hands.report(self._engine)
            elif isinstance(event, GatherEvidence):
                self._start_gathering(event)
            elif isinstance(event, Confirmed) and self._hands.conclude(self._engine, event.verdict):
                return True
        return False

    def _tell(self, event: Event) -> None:
        """What may become a verdict is told to the owner; a pause that counts cannot tell from a hang is only logged, and so is
        its end: a job that checkpoints for ten minutes shall not be warned of ten times a day."""
        text = notice(event, self._settings.mode)
        if text is None:
            return
        if isinstance(event, (Suspected, Reminder, Recovered)):
            incident = event.verdict.incident
            if isinstance(event, (Suspected, Reminder)) and event.confirm_in_s is not None:
                self._told.add(incident)
            if incident not in self._told:
                log.info("not told to the owner: %s", text)
                return
        self._hands.say(text)

    def _start_gathering(self, event: GatherEvidence) -> None:
        if self._settings.stacks == "off" or self._gathering is not None:
            return
        log.info("gathering evidence from all nodes: %s", event.reason)
        self._gathering = self._pool.submit(self._senses.gather, event.reason)
        self._gathering.add_done_callback(lambda _: self._clock.wake())
