"""The loop's own duties, with scripted senses and a clock that does not wait: what the engine judges is tested elsewhere."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace

import pytest

from slurm_ncclmon.config import Settings
from slurm_ncclmon.events import Confirmed, Event, GatherEvidence, Recovered, Reminder, Suspected
from slurm_ncclmon.evidence.model import NodeReport
from slurm_ncclmon.monitor import EXIT_CANCELLED, EXIT_FINE, Monitor
from slurm_ncclmon.observation import Evidence, Observation, Poll, StepState
from slurm_ncclmon.verdict import Advisory, Verdict
from tests.report.cases import NOT_ENTERED


class FakeClock:
    """Time that passes only by waiting; the step ends at `end_s`."""

    def __init__(self, end_s: float) -> None:
        self.time = 0.0
        self.end_s = end_s
        self.jumps: list[float] = []
        self.woken = threading.Event()

    def now(self) -> float:
        return self.time

    def wall(self) -> float:
        return 1e9 + self.time

    def ended(self) -> bool:
        return self.time >= self.end_s

    def wake(self) -> None:
        self.woken.set()

    def wait(self, seconds: float) -> None:
        if self.woken.is_set():
            self.woken.clear()
            return
        self.time += seconds + (self.jumps.pop() if self.jumps else 0.0)


class FakeSenses:
    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.polls = 0
        self.states = 0
        self.gathered: list[str] = []

    def poll(self) -> Poll:
        self.polls += 1
        return Poll(self.polls, self.clock.now(), self.clock.wall(), None, "none")

    def step_state(self) -> StepState:
        self.states += 1
        return StepState(self.clock.now(), "running")

    def gather(self, reason: str) -> tuple[Evidence, ...]:
        self.gathered.append(reason)
        return (Evidence(self.clock.now(), self.clock.wall(), reason, ()),)

    def frames(self) -> None:
        return None

    def beginning(self) -> Evidence | None:
        node = NodeReport("n1", True, problems=("no stacks: ptrace_scope is 3",))
        return Evidence(self.clock.now(), self.clock.wall(), "start", (node,)) if self.polls == 1 else None

    def pause_after(self, suspicious: bool) -> float:
        return 10.0


class FakeHands:
    def __init__(self, ends: bool) -> None:
        self.ends = ends
        self.recorded: list[Observation] = []
        self.said: list[str] = []
        self.reports = 0
        self.concluded: list[Verdict] = []
        self.finished = 0

    def record(self, observation: Observation) -> None:
        self.recorded.append(observation)

    def say(self, text: str) -> None:
        self.said.append(text)

    def report(self, engine: object) -> None:
        self.reports += 1

    def conclude(self, engine: object, verdict: Verdict) -> bool:
        self.concluded.append(verdict)
        return self.ends

    def finish(self, engine: object) -> None:
        self.finished += 1


class ScriptedEngine:
    """Answers the n-th poll with the script's n-th events, and evidence with `on_evidence`."""

    def __init__(self, script: Sequence[Sequence[Event]], on_evidence: Sequence[Event] = ()) -> None:
        self.script = list(script)
        self.on_evidence = on_evidence
        self.seen: list[Observation] = []
        self.suspicious = False

    def observe(self, observation: Observation) -> list[Event]:
        self.seen.append(observation)
        if isinstance(observation, Poll) and self.script:
            events = list(self.script.pop(0))
            for event in events:
                if isinstance(event, (Suspected, Recovered)):
                    self.suspicious = isinstance(event, Suspected)
            return events
        answers = isinstance(observation, Evidence) and observation.reason != "start"
        return list(self.on_evidence) if answers else []

    def verdicts(self) -> Sequence[Verdict]:
        return ()

    def advisories(self) -> Sequence[Advisory]:
        return ()


def watch(
    script: Sequence[Sequence[Event]],
    on_evidence: Sequence[Event] = (),
    ends: bool = False,
    end_s: float = 100.0,
    **changes: str,
) -> tuple[int, FakeSenses, FakeHands, ScriptedEngine]:
    clock = FakeClock(end_s)
    senses, hands, engine = FakeSenses(clock), FakeHands(ends), ScriptedEngine(script, on_evidence)
    code = Monitor(Settings(**changes), engine, senses, hands, clock).run()
    return code, senses, hands, engine


SUSPECTED = Suspected(0, NOT_ENTERED, 240.0)
GATHER = GatherEvidence(0, "1", "suspected")


def test_polls_by_time_until_the_step_ends_then_finishes_once() -> None:
    code, senses, hands, engine = watch([])
    assert (code, senses.polls, hands.finished) == (EXIT_FINE, 10, 1)
    assert engine.seen[-1] == StepState(100.0, "ending")
    assert hands.recorded == engine.seen


def test_asks_slurm_about_the_step_only_while_something_is_suspected() -> None:
    assert watch([])[1].states == 0
    assert watch([[SUSPECTED]])[1].states > 0
    recovered = [[SUSPECTED], [Recovered(0, NOT_ENTERED)]]
    assert watch(recovered, end_s=1000.0)[1].states <= 2


def test_suspicion_is_told_with_what_will_happen_when() -> None:
    said = watch([[SUSPECTED]], mode="cancel")[2].said
    assert said[0] == "no stacks: ptrace_scope is 3"
    assert "did not enter AllReduce" in said[1]
    assert "0x1f0e" in said[1]
    assert "step cancelled in 4 min" in said[1]


def test_evidence_goes_to_the_engine_as_soon_as_it_is_there() -> None:
    _, senses, hands, engine = watch([[GATHER]], [Confirmed(0, NOT_ENTERED)])
    assert senses.gathered == ["suspected"]
    assert [seen.reason for seen in engine.seen if isinstance(seen, Evidence)] == ["start", "suspected"]
    assert hands.concluded == [NOT_ENTERED]


def test_no_evidence_is_gathered_where_stacks_are_off() -> None:
    assert watch([[GATHER]], stacks="off")[1].gathered == []


@pytest.mark.parametrize("through_evidence", [False, True])
def test_a_step_that_was_ended_ends_the_watch_with_the_documented_code(through_evidence: bool) -> None:
    confirmed = [Confirmed(0, NOT_ENTERED)]
    script = [[GATHER]] if through_evidence else [confirmed]
    code, senses, hands, _ = watch(script, confirmed, ends=True)
    assert code == EXIT_CANCELLED == 86
    assert senses.polls == 1
    assert hands.finished == 0


def test_observing_goes_on_after_a_confirmation() -> None:
    code, senses, hands, _ = watch([[Confirmed(0, NOT_ENTERED)]])
    assert (code, senses.polls, len(hands.concluded)) == (EXIT_FINE, 10, 1)


def test_recovery_is_said_and_reported() -> None:
    _, _, hands, _ = watch([[SUSPECTED], [Recovered(0, NOT_ENTERED)]])
    assert hands.said[-1].endswith("No need to do anything.")
    assert hands.reports == 1


def test_a_pause_that_will_never_be_confirmed_is_not_told_and_neither_is_its_end() -> None:
    pause = replace(NOT_ENTERED, cls=None, kind="symmetric", culprits=())
    _, _, hands, _ = watch([[Suspected(0, pause, None)], [Reminder(0, pause, None)], [Recovered(0, pause)]])
    assert hands.said == ["no stacks: ptrace_scope is 3"]


def test_a_monitor_that_stood_still_stops_the_clocks_for_that_time() -> None:
    clock = FakeClock(400.0)
    clock.jumps = [300.0]
    senses, hands, engine = FakeSenses(clock), FakeHands(False), ScriptedEngine([])
    Monitor(Settings(), engine, senses, hands, clock).run()
    states = [seen for seen in engine.seen if isinstance(seen, StepState)]
    assert states[:2] == [StepState(0.0, "suspended"), StepState(310.0, "running")]
