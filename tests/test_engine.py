"""The engine end to end, on jobs made by hand: what it says, when, and what it never says."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_ncclmon.config import Settings, parse_options
from slurm_ncclmon.engine import Engine
from slurm_ncclmon.events import Advised, Confirmed, GatherEvidence, Recovered, Reminder, Suspected
from slurm_ncclmon.observation import Evidence, Poll, StepState
from slurm_ncclmon.ras.problems import NOT_SEEN
from slurm_ncclmon.ras.report import DEAD, DESTROYED, FINALIZED, MISSING, UNRESPONSIVE, Problem
from slurm_ncclmon.verdict import Verdict
from tests.detect.made import Job, names, parallel, run, world

GONE = MISSING | UNRESPONSIVE


def healthy(engine: Engine, job: Job, until: float, every: float = 15.0) -> None:
    """Everybody moves at every poll."""
    assert run(engine, job, 0.0, until, every, lambda t_s: job.all_step(5)) == []


def confirmed(engine: Engine) -> list[Verdict]:
    """Confirmed incidents."""
    return [verdict for verdict in engine.verdicts() if verdict.state == "confirmed"]


def ranks(verdict: Verdict) -> list[int | None]:
    """Global ranks of its culprits."""
    return [culprit.global_rank for culprit in verdict.culprits]


def test_a_rank_that_never_enters_is_suspected_reminded_of_and_confirmed() -> None:
    engine, job = Engine(Settings()), Job(world(8))
    healthy(engine, job, 60.0)
    job.step("world", but=[3])
    events = run(engine, job, 75.0, 600.0)
    suspected = next(event for event in events if isinstance(event, Suspected))
    assert suspected.t_s == 135.0
    assert suspected.confirm_in_s == 240.0
    assert any(isinstance(event, Reminder) and event.verdict.frozen for event in events)
    done = next(event for event in events if isinstance(event, Confirmed))
    assert done.t_s == 375.0  # nobody has answered the first question for evidence, so nothing waits for the second
    verdict = done.verdict
    assert (verdict.cls, verdict.kind, ranks(verdict), verdict.victims) == ("H1", "not_entered", [3], 7)
    assert (verdict.operation, verdict.round) == ("AllReduce", 26)
    assert verdict.frozen_for_s == 300.0
    assert verdict.frozen[0].awaited == (3,)
    assert all(culprit.why for culprit in verdict.culprits)
    assert names(events).count("GatherEvidence") == 2


def test_confirm_15s_finds_it_after_15_seconds() -> None:
    fast = parse_options("confirm=15s,interval=2s", Settings()).scaled()
    engine, job = Engine(fast), Job(world(4))
    healthy(engine, job, 10.0, 2.0)
    job.step("world", but=[3])
    events = run(engine, job, 12.0, 40.0, 2.0, answer=lambda t_s: job.evidence(t_s, {3: "sleep"}))
    done = next(event for event in events if isinstance(event, Confirmed))
    assert 27.0 <= done.t_s <= 30.0
    assert ranks(done.verdict) == [3]
    assert done.verdict.confidence >= 0.95


@pytest.mark.parametrize("bits", [GONE, GONE | DEAD])
def test_a_rank_that_is_gone(bits: int) -> None:
    fast = Settings(confirm=15.0, interval=2.0).scaled()
    engine, job = Engine(fast), Job(world(8))
    healthy(engine, job, 10.0, 2.0)
    job.step("world", but=[5]).flag(5, bits)
    done = [e for e in run(engine, job, 12.0, 40.0, 2.0) if isinstance(e, Confirmed)]
    assert len(done) == 1
    assert 27.0 <= done[0].t_s <= 30.0
    assert (ranks(done[0].verdict), done[0].verdict.cls) == ([5], "H3")


def test_gone_is_confirmed_after_a_minute_by_default() -> None:
    engine, job = Engine(Settings()), Job(world(8))
    healthy(engine, job, 60.0)
    job.step("world", but=[5]).flag(5, GONE)
    done = next(e for e in run(engine, job, 75.0, 400.0) if isinstance(e, Confirmed))
    assert 135.0 <= done.t_s <= 165.0


def test_an_operation_that_differs() -> None:
    engine, job = Engine(Settings()), Job(world(8))
    healthy(engine, job, 60.0)
    job.step("world", but=[2]).step("world", but=[0, 1, 3, 4, 5, 6, 7], operation="AllGather")
    run(engine, job, 75.0, 200.0)
    (verdict,) = confirmed(engine)
    assert (verdict.cls, verdict.kind, ranks(verdict)) == ("H2", "inconsistent_op", [2])


def test_a_rank_that_left_early() -> None:
    engine, job = Engine(Settings()), Job(world(8))
    healthy(engine, job, 60.0)
    job.step("world", but=[1]).flag(1, FINALIZED | DESTROYED)
    events = run(engine, job, 75.0, 190.0)
    assert events == []  # teardown may be uneven for two minutes
    run(engine, job, 195.0, 300.0)
    (verdict,) = confirmed(engine)
    assert (verdict.cls, verdict.kind, ranks(verdict)) == ("H1", "exited_early", [1])


def test_recovery_is_told_and_the_next_pause_like_it_gets_more_time() -> None:
    engine, job = Engine(Settings()), Job(world(8))
    healthy(engine, job, 60.0)
    for round_ in range(2):
        begin = 75.0 + 400.0 * round_
        job.step("world", but=[0])
        events = run(engine, job, begin, begin + 270.0 + 60.0 * round_)
        assert "Confirmed" not in names(events)
        job.step("world", but=range(1, 8))
        events = run(engine, job, begin + 345.0, begin + 345.0)
        assert names(events) == ["Recovered"]
        run(engine, job, begin + 350.0, begin + 390.0, each=lambda t_s: job.all_step())
    assert [verdict.state for verdict in engine.verdicts()] == ["recovered", "recovered"]


def test_one_incident_for_a_cascade_and_its_root() -> None:
    engine, job = Engine(Settings()), Job(parallel(8, 2))
    healthy(engine, job, 60.0)
    job.step(
        "tp2", but=[5]
    )  # 4 waits for 5, its data-parallel peers for 4 and 5, all others in the world for all of these
    job.step("dp0", but=[4]).step("dp1", but=[5])
    job.step("world", but=[0, 1, 4, 5])
    run(engine, job, 75.0, 600.0)
    (verdict,) = engine.verdicts()
    assert ranks(verdict) == [5]
    assert verdict.victims == 7
    assert len(verdict.frozen) == 4
    assert verdict.frozen[0].size == 2


def test_two_independent_causes_are_two_incidents() -> None:
    engine, job = Engine(Settings()), Job(parallel(16, 4))
    healthy(engine, job, 60.0)
    job.step("tp0", but=[1]).step("tp3", but=[14])
    run(engine, job, 75.0, 600.0)
    assert sorted(ranks(verdict) for verdict in confirmed(engine)) == [[1], [14]]


def test_leaders_that_work_elsewhere_make_no_hang() -> None:
    engine, job = Engine(Settings()), Job(parallel(8, 4))
    healthy(engine, job, 60.0)
    job.step("world", but=[3])
    events = run(engine, job, 75.0, 900.0, each=lambda t_s: job.step("tp0").step("tp1"))
    assert names(events) == ["Advised"]
    assert engine.advisories()[0].kind == "stale_mismatch"


def test_skew_that_was_always_there_is_no_hang() -> None:
    engine, job = Engine(Settings()), Job(world(4)).put("world", {0: 1})
    run(engine, job, 0.0, 60.0, each=lambda t_s: job.all_step(5))
    run(engine, job, 75.0, 900.0)
    assert confirmed(engine) == []
    assert [advisory.kind for advisory in engine.advisories()] == ["steady_skew"]


def test_skew_that_was_always_there_is_one_when_stacks_say_so() -> None:
    engine, job = Engine(Settings()), Job(world(4)).put("world", {0: 1})
    run(engine, job, 0.0, 60.0, each=lambda t_s: job.all_step(5))
    stacks = dict.fromkeys((1, 2, 3), "sleep")
    run(engine, job, 75.0, 900.0, answer=lambda t_s: job.evidence(t_s, stacks))
    assert len(confirmed(engine)) == 1


def test_a_slow_rank_is_not_taken_for_skew_that_was_always_there() -> None:
    engine, job = Engine(Settings()), Job(world(4))
    run(engine, job, 0.0, 45.0, each=lambda t_s: job.all_step(5))
    for t_s in (60.0, 75.0, 90.0):  # seen behind by one each time, as a slow rank mostly is
        job.step("world", but=[2]) if t_s == 60.0 else job.all_step(5)
        assert engine.observe(job.poll(t_s)) == []
    run(engine, job, 105.0, 600.0)
    assert [ranks(verdict) for verdict in confirmed(engine)] == [[2]]


def test_a_checkpoint_holds_the_confirmation_back_and_says_so() -> None:
    engine, job = Engine(Settings()), Job(world(8))
    healthy(engine, job, 60.0)
    job.step("world", but=[0])
    events = run(engine, job, 75.0, 1500.0, answer=lambda t_s: job.evidence(t_s, {0: "checkpoint"}))
    assert "Confirmed" not in names(events)
    reminder = [event for event in events if isinstance(event, Reminder)][-1]
    assert any("checkpoint" in line and "Held back" in line for line in reminder.verdict.evidence)
    assert reminder.confirm_in_s is not None
    assert 300 < reminder.confirm_in_s < 1800
    events = run(engine, job, 1515.0, 2100.0, answer=lambda t_s: job.evidence(t_s, {0: "checkpoint"}))
    assert "Confirmed" in names(events)


def test_evidence_is_asked_for_one_at_a_time_and_waited_for() -> None:
    engine, job = Engine(Settings()), Job(world(8))
    healthy(engine, job, 60.0)
    job.step("world", but=[3])
    run(engine, job, 75.0, 135.0)
    engine.observe(job.evidence(140.0, {3: "sleep"}))
    events = run(engine, job, 150.0, 390.0)
    asked = [event for event in events if isinstance(event, GatherEvidence)]
    assert [event.reason for event in asked] == ["confirmation"]
    assert "Confirmed" not in names(events)
    answered = engine.observe(job.evidence(393.0, {3: "sleep"}, reason="confirmation"))
    assert names(answered) == ["Confirmed"]
    assert any("at the same place as in the sample before" in line for line in engine.verdicts()[0].evidence)


def test_without_an_answer_it_is_confirmed_after_the_grace() -> None:
    engine, job = Engine(Settings()), Job(world(8))
    healthy(engine, job, 60.0)
    job.step("world", but=[3])
    run(engine, job, 75.0, 135.0)
    engine.observe(job.evidence(140.0, {3: "sleep"}))
    done = next(event for event in run(engine, job, 150.0, 600.0) if isinstance(event, Confirmed))
    assert done.t_s == 405.0


def test_equal_counts_are_never_confirmed_alone() -> None:
    engine, job = Engine(Settings()), Job(world(8))
    healthy(engine, job, 60.0)
    events = run(engine, job, 75.0, 3600.0)
    assert "Confirmed" not in names(events)
    (verdict,) = engine.verdicts()
    assert (verdict.state, verdict.cls, verdict.kind, verdict.culprits) == ("suspected", None, "symmetric", ())
    assert verdict.not_decidable
    suspected = next(event for event in events if isinstance(event, Suspected))
    assert suspected.confirm_in_s is None


@pytest.mark.parametrize("phase", ["checkpoint", "evaluation", "compile", "python", "gpu"])
def test_equal_counts_with_stacks_of_a_pause_are_not_spoken_of(phase: str) -> None:
    engine, job = Engine(Settings()), Job(world(8))
    healthy(engine, job, 60.0)
    events = run(engine, job, 75.0, 3600.0, answer=lambda t_s: job.evidence(t_s, {}, phase))
    assert set(names(events)) <= {"GatherEvidence"}
    assert names(events).count("GatherEvidence") < 12
    assert engine.verdicts() == []


def test_equal_counts_with_all_stacks_in_a_collective_are_confirmed_without_a_culprit() -> None:
    engine, job = Engine(Settings()), Job(world(8))
    healthy(engine, job, 60.0)
    run(engine, job, 75.0, 600.0, answer=lambda t_s: job.evidence(t_s, {}))
    (verdict,) = confirmed(engine)
    assert (verdict.kind, verdict.culprits) == ("symmetric", ())
    assert verdict.confidence <= 0.5


def test_equal_counts_and_one_stack_elsewhere_name_that_rank() -> None:
    engine, job = Engine(Settings()), Job(world(8))
    healthy(engine, job, 60.0)
    run(engine, job, 75.0, 600.0, answer=lambda t_s: job.evidence(t_s, {6: "sleep"}, "p2p"))
    (verdict,) = confirmed(engine)
    assert (verdict.cls, ranks(verdict)) == ("H1", [6])


def test_the_first_collective_has_the_grace_of_initialisation() -> None:
    engine, job = Engine(Settings()), Job(world(8))
    run(engine, job, 0.0, 30.0)
    job.step("world", but=[3])
    assert run(engine, job, 45.0, 1740.0) == []
    assert "Suspected" in names(run(engine, job, 1755.0, 1900.0))


def test_a_step_that_is_suspended_or_ending_is_no_hang() -> None:
    engine, job = Engine(Settings()), Job(world(8))
    healthy(engine, job, 60.0)
    job.step("world", but=[3])
    engine.observe(job.poll(75.0))
    engine.observe(StepState(80.0, "suspended"))
    engine.observe(StepState(2000.0, "running"))
    job.flag(1, GONE)
    assert run(engine, job, 2001.0, 2020.0) == []
    job.flags.clear()
    engine.observe(StepState(2030.0, "ending"))
    assert run(engine, job, 2040.0, 4000.0) == []


def test_after_a_gap_nothing_is_suspected_until_the_stall_goes_on() -> None:
    engine, job = Engine(Settings()), Job(world(8))
    healthy(engine, job, 60.0)
    job.step("world", but=[3])
    engine.observe(job.poll(75.0))
    for n in range(40):
        engine.observe(Poll(n, 90.0 + 30 * n, 0.0, None, "refused"))
    assert names(run(engine, job, 1300.0, 1350.0)) == ["Advised"]  # it sees again
    events = run(engine, job, 1365.0, 1400.0)
    assert names(events)[0] == "Suspected"


def test_a_monitor_that_sees_nothing_says_so_once() -> None:
    engine, job = Engine(Settings()), Job(world(8))
    healthy(engine, job, 60.0)
    said = []
    for n in range(100):
        said += engine.observe(Poll(n, 75.0 + 15 * n, 0.0, None, "connection refused"))
    assert [name for name in names(said) if name != "GatherEvidence"] == ["Advised"]
    assert 1 <= names(said).count("GatherEvidence") < 10  # stacks are all that is left to see
    assert engine.advisories()[0].kind == "monitor_blind"
    assert "connection refused" in engine.advisories()[0].text
    assert engine.verdicts() == []
    job.all_step()
    engine.observe(job.poll(2000.0))
    assert [advisory.kind for advisory in engine.advisories()] == ["monitor_blind", "monitor_sees"]


def test_incoherent_answers_are_neither_evidence_nor_progress() -> None:
    engine, job = Engine(Settings()), Job(world(8))
    healthy(engine, job, 60.0)
    job.step("world", but=[3])
    run(engine, job, 75.0, 120.0)
    other = Job(world(8), coherent=False).put("world", dict.fromkeys(range(8), 7))
    assert engine.observe(other.poll(125.0)) == []
    events = run(engine, job, 135.0, 135.0)
    assert names(events) == ["Suspected", "GatherEvidence"]


def test_answers_with_timeouts_make_nobody_missing() -> None:
    engine, job = Engine(Settings()), Job(world(8))
    healthy(engine, job, 60.0)
    job.timeouts = 2
    for rank in range(4, 8):
        job.flag(rank, GONE)
    run(engine, job, 75.0, 400.0)
    assert confirmed(engine) == []


def test_an_abrupt_end_of_most_ranks_is_no_hang_of_the_rest() -> None:
    engine, job = Engine(Settings()), Job(world(8))
    healthy(engine, job, 60.0)
    for rank in range(1, 8):
        job.flag(rank, FINALIZED)
    assert run(engine, job, 75.0, 75.0) == []
    for rank in range(1, 8):
        job.flag(rank, GONE)
    run(engine, job, 90.0, 900.0)
    assert confirmed(engine) == []


def test_watchdogs_that_come_first_are_warned_of_once() -> None:
    engine, job = Engine(Settings()), Job(world(8))
    evidence = job.evidence(5.0, {}, reason="start")
    node = evidence.nodes[0]
    early = tuple(replace(p, environment={"TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "120"}) for p in node.processes)
    told = engine.observe(Evidence(5.0, 0.0, "start", (replace(node, processes=early),)))
    assert names(told) == ["Advised"]
    assert "120" in engine.advisories()[0].text
    assert engine.observe(Evidence(6.0, 0.0, "start", (replace(node, processes=early),))) == []


def test_time_that_runs_backwards_is_time_that_stands_still() -> None:
    engine, job = Engine(Settings()), Job(world(8))
    healthy(engine, job, 60.0)
    job.step("world", but=[3])
    engine.observe(job.poll(75.0))
    assert engine.observe(job.poll(-3600.0)) == []
    assert run(engine, job, 90.0, 120.0) == []
    assert "Suspected" in names(run(engine, job, 135.0, 135.0))


# -- whatever the order and the density


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10_000), culprit=st.integers(0, 15), every=st.floats(3.0, 55.0), tp=st.sampled_from([2, 4, 8])
)
def test_neither_order_nor_density_changes_the_verdict(seed: int, culprit: int, every: float, tp: int) -> None:
    job = Job(parallel(16, tp), shuffle=np.random.default_rng(seed))
    engine = Engine(Settings())
    run(engine, job, 0.0, 100.0, every, lambda t_s: job.all_step(3))
    group = culprit // tp
    mates = [rank for rank in range(group * tp, group * tp + tp) if rank != culprit]
    job.step(f"tp{group}", but=[culprit])
    for offset in range(tp):
        job.step(f"dp{offset}", but=[*mates, culprit])
    run(engine, job, 100.0 + every, 900.0, every)
    (verdict,) = confirmed(engine)
    assert ranks(verdict) == [culprit]
    assert verdict.kind == "not_entered"
    assert verdict.victims == 15


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 100_000))
def test_noise_never_accuses(seed: int) -> None:
    """Ranks move at random speeds, answers fail, repeat, show nonsense: as long as all move on, nobody is accused."""
    rng = np.random.default_rng(seed)
    job = Job(parallel(8, 2), shuffle=rng)
    engine = Engine(Settings())
    for n in range(80):
        for name, ranks_ in job.members.items():
            if rng.random() < 0.8:
                job.step(name, but=[rank for rank in ranks_ if rng.random() < 0.3], times=int(rng.integers(1, 5)))
        job.coherent = bool(rng.random() > 0.1)
        job.timeouts = int(rng.random() < 0.05)
        job.flags = {pair: GONE for pair in [("world", int(rng.integers(8)))] if rng.random() < 0.05}
        poll = job.poll(15.0 * n) if rng.random() > 0.1 else Poll(n, 15.0 * n, 0.0, None, "refused")
        engine.observe(poll)
    assert not [verdict for verdict in engine.verdicts() if verdict.state == "confirmed" or verdict.culprits]


def test_recovered_and_stuck_again_is_a_new_incident() -> None:
    engine, job = Engine(Settings()), Job(world(4))
    healthy(engine, job, 60.0)
    job.step("world", but=[3])
    run(engine, job, 75.0, 400.0)
    job.step("world", but=[0, 1, 2])
    assert [type(e) for e in run(engine, job, 415.0, 415.0)] == [Recovered]
    run(engine, job, 430.0, 445.0, each=lambda t_s: job.all_step())
    job.step("world", but=[1])
    run(engine, job, 460.0, 2600.0)
    assert [(verdict.state, ranks(verdict)) for verdict in engine.verdicts()] == [
        ("recovered", [3]),
        ("confirmed", [1]),
    ]


def test_ranks_that_no_answer_tells_of_are_advised_of_once_and_not_at_the_start() -> None:
    engine, job = Engine(Settings()), Job(world(4))
    note = Problem(NOT_SEEN, "NCCL RAS tells of 4 of the step's 8 ranks.")
    advised = []
    for number in range(10):
        job.all_step(5)
        poll = job.poll(15.0 * number)
        assert poll.report is not None
        events = engine.observe(replace(poll, report=replace(poll.report, problems=(note,))))
        advised += [(number, event.advisory.kind) for event in events if isinstance(event, Advised)]
    assert advised == [(4, "part_unseen")]
    assert "4 of the step's 8" in engine.advisories()[0].text


def moving(evidence: Evidence, rank: int) -> Evidence:
    """The same, but `rank` was at another place at the second look."""
    nodes = tuple(
        replace(node, processes=tuple(replace(p, moved=True) if p.rank == rank else p for p in node.processes))
        for node in evidence.nodes
    )
    return replace(evidence, nodes=nodes)


def test_a_rank_that_is_seen_to_go_on_is_late_and_not_stuck() -> None:
    fast = parse_options("cancel,confirm=15s,interval=2s", Settings()).scaled()
    engine, job = Engine(fast), Job(world(4))
    healthy(engine, job, 40.0, 2.0)
    job.step("world", but=[3])
    answer = lambda t_s: moving(job.evidence(t_s, {3: "python"}), 3)  # noqa: E731
    events = run(engine, job, 42.0, 100.0, 2.0, answer=answer)
    assert not any(isinstance(event, Confirmed) for event in events)
    assert any("goes on with it" in line for verdict in engine.verdicts() for line in verdict.evidence)
    events = run(engine, job, 102.0, 42.0 + fast.phase_limit + 40.0, 2.0, answer=answer)
    assert any(isinstance(event, Confirmed) for event in events)


@pytest.mark.parametrize("mode", ["cancel", "requeue"])
def test_nothing_is_ended_by_counts_alone_before_a_checkpoint_could_be_over(mode: str) -> None:
    fast = parse_options(f"{mode},confirm=15s,interval=2s", Settings()).scaled()
    engine, job = Engine(fast), Job(world(4))
    healthy(engine, job, 40.0, 2.0)
    job.step("world", but=[3])
    events = run(engine, job, 42.0, 42.0 + fast.phase_limit - 5.0, 2.0)
    assert not any(isinstance(event, Confirmed) for event in events)
    assert any("no stack shows" in line for verdict in engine.verdicts() for line in verdict.evidence)
    assert any(isinstance(event, Confirmed) for event in run(engine, job, 42.0 + fast.phase_limit, 150.0, 2.0))


def test_after_a_gap_confirmation_gives_notice() -> None:
    engine, job = Engine(Settings()), Job(world(4))
    healthy(engine, job, 60.0)
    job.step("world", but=[3])
    engine.observe(job.poll(75.0))
    events = run(engine, job, 400.0, 900.0)
    suspected = next(event.t_s for event in events if isinstance(event, Suspected))
    confirmed_at = next(event.t_s for event in events if isinstance(event, Confirmed))
    assert confirmed_at - suspected >= 120.0
