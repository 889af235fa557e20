"""The detector's parts one by one: time, history, shape, skew, gaps, limits, watchdogs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_ncclmon.config import Settings
from slurm_ncclmon.detect.clock import StepTime
from slurm_ncclmon.detect.history import History
from slurm_ncclmon.detect.limits import confirm_after, suspect_after
from slurm_ncclmon.detect.outage import Sight
from slurm_ncclmon.detect.shape import diverged, shape_of
from slurm_ncclmon.detect.stuck import find_stuck
from slurm_ncclmon.detect.watchdogs import limits
from slurm_ncclmon.ras.report import DEAD, FINALIZED, MISSING, UNRESPONSIVE, Gpu
from tests.detect.made import Job, parallel, world

GONE = MISSING | UNRESPONSIVE


def test_step_time_stands_still_and_never_runs_back() -> None:
    time = StepTime()
    assert [time.advance(t_s) for t_s in (10.0, 20.0, 5.0, 25.0)] == [10.0, 20.0, 20.0, 25.0]
    time.suspend()
    assert time.advance(100.0) == 25.0
    time.resume()
    assert time.advance(103.0) == 28.0


# -- history


def test_since_is_the_first_report_with_these_counts() -> None:
    history, job = History(), Job(world(3))
    for t_s in (0.0, 10.0, 20.0):
        history.update(job.all_step().report(), t_s)
    job.step("world", but=[1])
    for t_s in (30.0, 40.0, 50.0):
        history.update(job.report(), t_s)
    assert history.members.since.tolist() == [30.0, 20.0, 30.0]
    assert history.comms.advances.tolist() == [2]


def test_a_missing_rank_keeps_what_it_had() -> None:
    history, job = History(), Job(world(3))
    history.update(job.all_step(5).report(), 0.0)
    history.update(job.flag(1, GONE).report(), 10.0)
    history.update(job.flag(1, GONE | DEAD).report(), 70.0)
    assert history.members.counts[:, 4].tolist() == [5, 5, 5]
    assert history.members.away_since[1] == 10.0
    assert shape_of(history).gone.tolist() == [False, True, False]


def test_a_rank_that_said_goodbye_is_not_gone() -> None:
    history, job = History(), Job(world(3))
    history.update(job.all_step(5).report(), 0.0)
    history.update(job.flag(1, FINALIZED).report(), 10.0)
    history.update(job.flag(1, GONE).report(), 20.0)
    shape = shape_of(history)
    assert (shape.gone.any(), shape.left.tolist()) == (False, [False, True, False])


def test_counts_that_fall_are_a_new_communicator() -> None:
    history, job = History(), Job(world(2))
    history.update(job.all_step(50).report(), 0.0)
    job.counts["world"][:] = 3
    history.update(job.report(), 10.0)
    assert history.members.since.tolist() == [10.0, 10.0]
    assert history.comms.first_seen.tolist() == [10.0]


def test_a_snapshot_of_zeros_tells_nothing_until_it_lasts() -> None:
    history, job = History(), Job(world(2))
    history.update(job.all_step(50).report(), 0.0)
    zeros = Job(world(2)).report()
    history.update(zeros, 10.0)
    assert history.members.counts[:, 4].tolist() == [50, 50]
    for t_s in (20.0, 30.0, 40.0):
        history.update(replace(zeros, counts=zeros.counts.copy()), t_s)
    assert history.members.counts[:, 4].tolist() == [0, 0]


def test_another_pid_is_another_communicator() -> None:
    history, job = History(), Job(world(2))
    history.update(job.all_step(50).report(), 0.0)
    job.pid_base = 5000
    history.update(job.report(), 10.0)
    assert history.members.since.tolist() == [10.0, 10.0]


def test_a_mesh_that_is_not_asked_this_time_is_kept() -> None:
    history = History()
    one, other = Job({"a": [0, 1]}), Job({"b": [2, 3]})
    history.update(one.all_step(5).report(), 0.0)
    history.update(other.all_step(7).report(), 1.0)
    history.update(one.report(), 2.0)
    assert len(history.layout.comms) == 2
    assert history.members.since.tolist() == [0.0, 0.0, 1.0, 1.0]


def test_a_communicator_that_is_destroyed_is_forgotten() -> None:
    history, job = History(), Job(parallel(4, 2))
    history.update(job.all_step(5).report(), 0.0)
    job.absent = {"tp0"}
    history.update(job.report(), 1.0)
    assert len(history.layout.comms) == 4


def test_a_communicator_that_is_told_in_part_tells_nothing() -> None:
    history, job = History(), Job(world(3))
    history.update(job.all_step(5).report(), 0.0)
    report = job.all_step(5).report()
    cut = replace(
        report,
        start=np.array([0, 2]),
        **{name: getattr(report, name)[:2] for name in ("rank", "gpu", "counts", "flags", "init_state", "async_error")},
    )
    history.update(cut, 10.0)
    assert history.members.counts[:, 4].tolist() == [5, 5, 5]
    assert history.members.since.tolist() == [0.0, 0.0, 0.0]


def test_processes_that_ras_does_not_know_are_each_their_own() -> None:
    report = Job(world(3)).all_step(5).report()
    lost = replace(report, gpus=tuple(Gpu("unknown", -1, -1, -1) for _ in range(3)))
    history = History()
    history.update(lost, 0.0)
    assert len(set(history.layout.process.tolist())) == 3


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_the_order_in_which_ras_tells_does_not_matter(seed: int) -> None:
    job = Job(parallel(8, 2), shuffle=np.random.default_rng(seed))
    history = History()
    for t_s in range(5):
        history.update(job.all_step().report(), float(t_s))
    job.step("tp1", but=[2])
    history.update(job.report(), 5.0)
    history.update(job.report(), 6.0)
    layout = history.layout
    since = {(str(layout.comms[c]), int(r)): s for c, r, s in zip(layout.comm_of, layout.rank, history.members.since)}
    assert sorted(since.values()) == [4.0] * 23 + [5.0]


# -- shape


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 100_000), ranks=st.integers(2, 8))
def test_prefixes_of_one_sequence_never_diverge(seed: int, ranks: int) -> None:
    rng = np.random.default_rng(seed)
    sequence = rng.integers(0, 5, 30)
    job = Job(world(ranks))
    for row in range(ranks):
        job.counts["world"][row] = np.bincount(sequence[: rng.integers(1, 30)], minlength=5)
    history = History()
    history.update(job.report(), 0.0)
    assert not diverged(history.layout, history.members.counts, shape_of(history), np.array([0])).any()


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 100_000), ranks=st.integers(2, 8))
def test_a_different_operation_diverges(seed: int, ranks: int) -> None:
    rng = np.random.default_rng(seed)
    sequence = rng.integers(0, 5, 30)
    odd = int(rng.integers(ranks))
    job = Job(world(ranks))
    for row in range(ranks):
        job.counts["world"][row] = np.bincount(sequence, minlength=5)
    job.counts["world"][odd, sequence[-1]] -= np.uint64(1)
    job.counts["world"][odd, (sequence[-1] + 1) % 5] += np.uint64(1)
    history = History()
    history.update(job.report(), 0.0)
    assert diverged(history.layout, history.members.counts, shape_of(history), np.array([0])).all()


def test_communicators_that_count_nothing_are_never_stuck() -> None:
    history, job = History(), Job({"pp": [0, 1], "world": [0, 1]})
    history.update(job.step("world").report(), 0.0)
    history.update(job.flag(1, GONE, ["pp"]).report(), 100.0)
    shape = shape_of(history)
    stuck = find_stuck(history, shape, np.zeros(2, np.bool_), 500.0, 10.0)
    assert stuck.comms.tolist() == []


# -- gaps, limits, watchdogs


def test_sight_settles_after_a_gap() -> None:
    sight = Sight(Settings())
    for t_s in range(0, 300, 15):
        sight.saw(float(t_s))
    assert sight.settled()
    sight.saw(1000.0)
    assert not sight.settled()
    for t_s in range(1015, 1070, 15):
        sight.saw(float(t_s))
    assert sight.settled()


def test_polls_that_are_always_far_apart_are_no_gaps() -> None:
    sight = Sight(Settings())
    for t_s in range(0, 6000, 100):
        sight.saw(float(t_s))
    assert sight.settled()


@pytest.mark.parametrize("confirm", [1.0, 15.0, 60.0, 300.0, 3600.0])
def test_no_limit_contradicts_another(confirm: float) -> None:
    scaled = Settings(confirm=confirm).scaled()
    for kind in (
        "not_entered",
        "dead",
        "missing",
        "exited_early",
        "inconsistent_op",
        "async_error",
        "symmetric",
        "stopped",
    ):
        assert suspect_after(kind, scaled) <= confirm_after(kind, scaled) <= confirm
    assert confirm_after("not_entered", scaled, pause_s=1e6) <= max(scaled.phase_limit, confirm)


def test_watchdogs_in_the_environment() -> None:
    assert limits({}) == []
    assert [limit.seconds for limit in limits({"TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "120"})] == [120.0, 600.0]
    assert [limit.seconds for limit in limits({"TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "no"})] == [600.0]
    off = {"TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "120", "TORCH_NCCL_ENABLE_MONITORING": "0"}
    assert [limit.seconds for limit in limits(off)] == [600.0]
    assert limits({"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0", "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "5"}) == []


def test_a_communicator_that_is_not_shown_does_not_stand_still_meanwhile() -> None:
    """Replicas with meshes of their own are shown by turns: what is known of one is as of its own last report."""
    history = History()
    one, other = Job({"a": [0, 1]}), Job({"b": [2, 3]})
    history.update(one.all_step(100).report(), 0.0)
    history.update(one.step("a", but=[1]).report(), 10.0)
    for t_s in range(20, 500, 10):
        history.update(other.all_step().report(), float(t_s))
    shape = shape_of(history)
    no = np.zeros(2, np.bool_)
    assert find_stuck(history, shape, no, 490.0, 5.0).comms.tolist() == []
    history.update(one.report(), 500.0)
    stuck = find_stuck(history, shape_of(history), no, 500.0, 5.0)
    assert [stuck.frozen_s(int(comm)) for comm in stuck.comms] == [490.0]
