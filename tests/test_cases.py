"""Cases told in public issues, and those of Ray Train's own detector: what it says in the compatible setting, what we say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from slurm_ncclmon.analyse.ray import RayJudge
from slurm_ncclmon.config import Settings
from slurm_ncclmon.engine import Engine
from slurm_ncclmon.observation import Evidence, Poll
from slurm_ncclmon.ras.decode import Decoder
from slurm_ncclmon.ras.report import FINALIZED, MISSING, RESULT_IN_PROGRESS, UNRESPONSIVE
from slurm_ncclmon.verdict import Verdict
from tests.detect.made import Job, key, names, run, world

DATA = Path(__file__).parent / "data"
RAY = json.loads((DATA / "cases" / "ray.json").read_text())["cases"]
INTERVAL = 15.0
NAMES = ("A", "B")


def job_of(case: dict[str, Any]) -> Job:
    """All ranks that the case ever shows, by communicator."""
    members = {
        name: sorted({int(rank) for poll in case["polls"] if poll for rank in poll.get(name, {})})
        for name in NAMES
        if any(poll and name in poll for poll in case["polls"])
    }
    return Job({name: [100 * NAMES.index(name) + rank for rank in ranks] for name, ranks in members.items()})


def polls_of(case: dict[str, Any]) -> list[Poll]:
    """The case's polls, one each INTERVAL. Ranks of different communicators are different processes."""
    job, polls = job_of(case), []
    for name, ranks in case.get("status", {}).get("all", {}).items():
        for rank in ranks:
            job.flag(100 * NAMES.index(name) + int(rank), FINALIZED)
    for n, shown in enumerate(case["polls"]):
        if shown is None:
            polls.append(Poll(n, n * INTERVAL, 0.0, None, "no report"))
            continue
        job.absent = {name for name in job.members if name not in shown}
        for name, values in shown.items():
            job.put(name, {100 * NAMES.index(name) + int(rank): value for rank, value in values.items()})
        polls.append(job.poll(n * INTERVAL))
    return polls


@pytest.mark.parametrize("case", RAY, ids=lambda case: case["name"])
def test_ray_compatible(case: dict[str, Any]) -> None:
    """`confirm_polls` is `confirm / interval` there."""
    settings = Settings(interval=INTERVAL, confirm=case["confirm_polls"] * INTERVAL, ray_compatible=True).scaled()
    engine, judge = Engine(settings), RayJudge(settings)
    said = "none"
    for poll, (streaks, verdict) in zip(polls_of(case), case["ray"]):
        events = engine.observe(poll)
        judge.drafts(poll)
        assert {name: judge.streaks[key(name)] for name in NAMES if key(name) in judge.streaks} == streaks
        said = "confirm" if "Confirmed" in names(events) else said
        if verdict == "confirm":
            assert said == "confirm"
        elif streaks:
            assert said == "none"


def ours(name: str, repeat: int = 4) -> list[Verdict]:
    """What the default judgement is, the case's last poll repeated."""
    case = next(case for case in RAY if case["name"] == name)
    settings = Settings(interval=INTERVAL, confirm=case["confirm_polls"] * INTERVAL).scaled()
    engine = Engine(settings)
    polls = polls_of(case)
    for poll in polls:
        engine.observe(poll)
    for n in range(repeat):
        engine.observe(Poll(100 + n, polls[-1].t_s + INTERVAL * (n + 1), 0.0, polls[-1].report))
    return engine.verdicts()


def test_symmetric_hang_is_said_and_not_confirmed() -> None:
    (verdict,) = ours("x_symmetric_hang", repeat=20)
    assert (verdict.state, verdict.cls, verdict.kind) == ("suspected", None, "symmetric")


def test_one_rank_finalized() -> None:
    (verdict,) = ours("x_one_rank_finalized")
    assert (verdict.state, verdict.cls, verdict.kind) == ("confirmed", "H1", "exited_early")
    assert [culprit.rank for culprit in verdict.culprits] == [1]
    assert "2 AllReduce" in " ".join(verdict.evidence)


def test_counts_at_zero_for_a_moment() -> None:
    (verdict,) = ours("x_counts_drop_to_zero_snapshot", repeat=0)
    assert (verdict.state, [culprit.rank for culprit in verdict.culprits]) == ("confirmed", [1])
    assert verdict.frozen_for_s == 5 * INTERVAL  # the snapshot neither ended nor shortened it


def test_permanent_skew() -> None:
    assert [v for v in ours("x_permanent_constant_skew_then_idle") if v.state == "confirmed"] == []


def test_operations_that_differ_name_no_straggler() -> None:
    (verdict,) = ours("x_cross_op_mismatch_H2")
    assert (verdict.state, verdict.cls, verdict.kind) == ("confirmed", "H2", "inconsistent_op")
    assert [culprit.rank for culprit in verdict.culprits] == [0, 1]
    assert verdict.confidence == 0.5
    assert "behind" not in " ".join(culprit.why for culprit in verdict.culprits)


# -- public issues


def stall(
    job: Job, *, start: int = 600, settings: Settings | None = None, until: float = 900.0, **stacks: str
) -> Engine:
    """A job that has come to `start` on all its communicators before the counts set in `job` were reached."""
    engine = Engine(settings or Settings())
    phases = {int(rank[1:]): phase for rank, phase in stacks.items()}

    def answer(t_s: float) -> Evidence:
        return job.evidence(t_s, phases)

    run(engine, job, 0.0, until, answer=answer if stacks else None)
    return engine


def test_two_leaders_of_32_are_told_as_ahead() -> None:
    """NVIDIA/nccl#1911, from RAS's text: the minority that it lists is ahead, and who is behind is not at fault for sure."""
    answer = (DATA / "ras" / "two_leaders-2.26.2.txt").read_bytes()
    engine = Engine(Settings())
    for n in range(2, 40):
        report = Decoder().decode(answer)
        engine.observe(Poll(n, 15.0 * n, 0.0, report))
    (verdict,) = engine.verdicts()
    assert (verdict.state, verdict.cls, verdict.kind) == ("confirmed", "H2", "extra_op")
    assert [(culprit.rank, culprit.host) for culprit in verdict.culprits] == [(12, "10.0.0.2"), (13, "10.0.0.2")]
    assert verdict.confidence <= 0.6
    assert "1 AllGather ahead of the other 30 ranks" in verdict.evidence[0]
    assert "0-11,14-31" in verdict.alternatives[0]
    assert verdict.not_decidable


def test_one_sample_is_no_verdict() -> None:
    engine = Engine(Settings())
    engine.observe(Poll(0, 0.0, 0.0, Decoder().decode((DATA / "ras" / "two_leaders-2.26.2.txt").read_bytes())))
    assert engine.verdicts() == []


def test_four_nodes_one_rank_behind() -> None:
    """Ray Train's A10G recording: rank 1 stops."""
    engine = Engine(Settings())
    for n in range(40):
        engine.observe(Poll(n, 15.0 * n, 0.0, Decoder().decode((DATA / "ras" / "four_nodes-2.28.9.json").read_bytes())))
    (verdict,) = engine.verdicts()
    assert (verdict.cls, verdict.kind, verdict.operation, verdict.round) == ("H1", "not_entered", "AllReduce", 101)
    assert [(culprit.rank, culprit.pid) for culprit in verdict.culprits] == [(1, 6247)]


def test_leaders_that_still_move_are_no_hang() -> None:
    job = Job(world(4)).put("world", {0: 101, 1: 100, 2: 101, 3: 101})
    engine = Engine(Settings())
    assert "Confirmed" not in names(run(engine, job, 0.0, 600.0, each=lambda t_s: job.step("world", but=[1])))


def test_two_ranks_and_a_compilation() -> None:
    """A kernel compiled in the middle of serving, on one of two ranks: held back, and the rank behind is named."""
    job = Job(world(2)).put("world", {0: {"AllGather": 288685}, 1: {"AllGather": 288686}})
    (verdict,) = stall(job, r0="compile").verdicts()
    assert (verdict.state, [culprit.rank for culprit in verdict.culprits]) == ("suspected", [0])
    assert any("compiling" in line for line in verdict.evidence)
    (verdict,) = stall(job, r0="compile", until=2200.0).verdicts()
    assert verdict.state == "confirmed"


def test_ras_silent_but_stacks_told() -> None:
    job = Job(world(2))
    engine = Engine(Settings())
    run(engine, job, 0.0, 60.0, each=lambda t_s: job.all_step())
    for n in range(60):
        engine.observe(Poll(n, 75.0 + 15 * n, 0.0, None, "an empty answer"))
        if n == 30:
            engine.observe(job.evidence(75.0 + 15 * n + 5, {0: "compile"}))
    assert [advisory.kind for advisory in engine.advisories()] == ["monitor_blind"]
    (verdict,) = engine.verdicts()
    assert (verdict.state, verdict.kind, [culprit.global_rank for culprit in verdict.culprits]) == (
        "suspected",
        "not_entered",
        [0],
    )
    assert verdict.confidence < 0.5
    assert engine.suspicious


def test_another_collective_on_one_of_four() -> None:
    """ROCm/rccl#429 as RAS would count it: totals are equal, operations are not."""
    job = Job(world(4)).put("world", {0: 654, 1: 654, 2: {"AllReduce": 652, "AllGather": 2}, 3: 654})
    (verdict,) = stall(job).verdicts()
    assert (verdict.cls, verdict.kind, [culprit.rank for culprit in verdict.culprits]) == ("H2", "inconsistent_op", [2])
    assert verdict.round == 653


def test_a_collective_on_rank_0_alone() -> None:
    """A checkpoint's barrier inside of `if rank == 0`: the others are done, and not stragglers."""
    job = Job(world(8)).put("world", {rank: 5000 + (rank == 0) for rank in range(8)})
    (verdict,) = stall(job, **{f"r{rank}": "python" for rank in range(1, 8)}).verdicts()
    assert (verdict.cls, verdict.kind, [culprit.rank for culprit in verdict.culprits]) == ("H2", "extra_op", [0])
    assert verdict.operation == "AllReduce"
    for rank in range(1, 8):
        job.flag(rank, FINALIZED)
    (verdict,) = stall(job).verdicts()
    assert (verdict.state, verdict.kind, [culprit.rank for culprit in verdict.culprits]) == (
        "confirmed",
        "extra_op",
        [0],
    )
    for rank in range(1, 8):
        job.flag(rank, MISSING | UNRESPONSIVE)
    assert stall(job).verdicts()[0].state == "confirmed"


def test_a_majority_that_did_not_enter_is_named_with_doubt() -> None:
    job = Job(world(8)).put("world", {rank: 31117 + (rank < 3) for rank in range(8)})
    (verdict,) = stall(job).verdicts()
    assert (verdict.cls, verdict.kind) == ("H1", "not_entered")
    assert [culprit.rank for culprit in verdict.culprits] == [3, 4, 5, 6, 7]
    assert verdict.confidence <= 0.5
    assert "0-2" in verdict.alternatives[0]
    assert "stacks of ranks 3-7" in verdict.not_decidable[0]


def test_initialisation_that_never_ends() -> None:
    """NVIDIA/nccl#2385: 15 ranks on two nodes, none gets out of ncclCommInitRank."""
    job = Job(world(15))
    for rank in range(15):
        job.init["world", rank] = RESULT_IN_PROGRESS
        if rank >= 8:
            job.flag(rank, MISSING)
    engine = stall(job, until=1700.0)
    assert engine.verdicts() == []
    engine = stall(job, until=2400.0)
    (verdict,) = engine.verdicts()
    assert (verdict.cls, verdict.kind) == ("H1", "init_stall")
    assert [culprit.rank for culprit in verdict.culprits] == list(range(8, 15))


def test_stacks_that_are_not_to_be_had_are_said_once() -> None:
    job = Job(world(8)).put("world", {rank: 5000 + (rank != 3) for rank in range(8)})
    (verdict,) = stall(job, **{f"r{rank}": "no_stack" for rank in range(8)}).verdicts()
    assert (verdict.state, [culprit.rank for culprit in verdict.culprits]) == ("confirmed", [3])
    assert [line for line in verdict.evidence if "No stack" in line] == ["No stack of ranks 0-7: not tried."]
