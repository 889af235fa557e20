"""Frames that the probe's own plugin wrote for a modelled network, and what is said of them when all counts are the same."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from slurm_ncclmon.config import Settings
from slurm_ncclmon.engine import Engine
from slurm_ncclmon.observation import FramePoll, Poll
from slurm_ncclmon.probe.frame import Frames
from slurm_ncclmon.ras.report import CommKey, Gpu, Report
from slurm_ncclmon.verdict import Verdict
from tests.probe.conftest import Probe, probe, programs  # noqa: F401  (fixtures)


def report_of(frames: Frames, count: int) -> Report:
    """RAS's view of the communicator: all ranks have launched the same."""
    own = frames.of(int(frames.communicator[0]))
    size = int(own.size[0])
    pids = dict(zip(own.rank.tolist(), own.pid.tolist()))
    counts = np.zeros((size, 5), np.uint64)
    counts[:, 4] = count
    return Report(
        nccl_version="2.30.7",
        taken_at="",
        collection_s=0.0,
        timeouts=0,
        comms=(CommKey(hex(int(own.communicator[0])), "0x1:0x2"),),
        size=np.array([size], np.int32),
        start=np.array([0, size]),
        rank=np.arange(size, dtype=np.int32),
        gpu=np.arange(size, dtype=np.int32),
        counts=counts,
        init_state=np.zeros(size, np.int16),
        async_error=np.zeros(size, np.int16),
        flags=np.zeros(size, np.uint8),
        gpus=tuple(Gpu("127.0.0.1", pids.get(rank, 99_000 + rank), 0, 0) for rank in range(size)),
    )


def judged(frames: Frames, confirm: float = 300.0) -> list[Verdict]:
    """A job that moved for a minute and has shown these frames since."""
    engine = Engine(Settings(confirm=confirm).scaled())
    for n in range(60):
        t_s = 15.0 * n
        engine.observe(Poll(n, t_s, 0.0, report_of(frames, 100 + min(n, 4))))
        if n > 5:
            engine.observe(FramePoll(t_s + 1.0, frames))
    return engine.verdicts()


def played(probe: Probe, *arguments: str) -> Frames:  # noqa: F811
    """Frames of one modelled job."""
    probe.run("job", "interface=5", "seconds=2", *arguments)
    return probe.frames()


@pytest.mark.parametrize("shape", [["ranks=4"], ["tree=1", "ranks=7"]])
def test_a_gpu_that_does_not_start(probe: Probe, shape: list[str]) -> None:  # noqa: F811
    (verdict,) = judged(played(probe, "fault=gpu_stall", "rank=2", *shape))
    assert (verdict.state, verdict.cls, verdict.kind) == ("confirmed", "H1", "device_not_started")
    assert [culprit.rank for culprit in verdict.culprits] == [2]


def test_a_link_that_delivers_nothing(probe: Probe) -> None:  # noqa: F811
    (verdict,) = judged(played(probe, "fault=link_stop", "rank=1"))
    assert (verdict.state, verdict.cls, verdict.kind) == ("confirmed", "H3", "in_collective")
    assert [(edge.source, edge.target) for edge in verdict.edges] == [(1, 2)]
    assert [culprit.rank for culprit in verdict.culprits] == [1, 2]


def test_another_size(probe: Probe) -> None:  # noqa: F811
    frames = played(probe, "fault=other_count", "rank=3", "at=19")
    unfinished = replace(frames, oldest=frames.newest, finished=frames.enqueued - np.uint64(1))
    (verdict,) = judged(unfinished)
    assert (verdict.cls, verdict.kind) == ("H2", "inconsistent_op")
    assert [culprit.rank for culprit in verdict.culprits] == [3]
    assert "1024" in verdict.culprits[0].why


def test_a_rank_that_did_not_call_it(probe: Probe) -> None:  # noqa: F811
    (verdict,) = judged(played(probe, "fault=not_entered", "rank=2", "at=7"))
    assert (verdict.cls, verdict.kind, [culprit.rank for culprit in verdict.culprits]) == ("H1", "not_entered", [2])


def test_frames_with_nothing_unfinished_say_nothing(probe: Probe) -> None:  # noqa: F811
    (verdict,) = judged(played(probe, "ranks=4"))
    assert (verdict.state, verdict.kind, verdict.culprits) == ("suspected", "symmetric", ())


def test_frames_that_move_are_progress(probe: Probe) -> None:  # noqa: F811
    frames = played(probe, "fault=gpu_stall", "rank=2")
    engine = Engine(Settings())
    for n in range(80):
        engine.observe(Poll(n, 15.0 * n, 0.0, report_of(frames, 100 + min(n, 4))))
        moved = replace(frames, finished=frames.finished + np.uint64(n))
        assert engine.observe(FramePoll(15.0 * n + 1.0, moved)) == []
    assert engine.verdicts() == []


def test_frames_of_an_earlier_stall_accuse_nobody(probe: Probe) -> None:  # noqa: F811
    frames = played(probe, "fault=not_entered", "rank=2", "at=7")
    hosts = replace(frames, host=np.array(["n1", "n1", "n2", "n2"])[frames.rank])
    old, new = hosts.take(hosts.rank >= 2), hosts.take(hosts.rank < 2)
    engine = Engine(Settings(confirm=300.0).scaled())
    engine.observe(FramePoll(0.0, old))
    for n in range(60):
        engine.observe(Poll(n, 15.0 * n, 0.0, report_of(frames, 100 + min(n, 4))))
        engine.observe(FramePoll(15.0 * n + 1.0, new))
    assert all(not verdict.culprits for verdict in engine.verdicts())


@pytest.mark.parametrize("seen", [[0], [0, 1], [3], [0, 3]])
def test_one_nodes_frames_alone_accuse_nobody(probe: Probe, seen: list[int]) -> None:  # noqa: F811
    frames = played(probe, "fault=gpu_stall", "rank=2", "ranks=4")
    for verdict in judged(frames.take(np.isin(frames.rank, seen))):
        assert not verdict.edges
        assert not verdict.culprits


def test_only_some_of_the_ranks_have_frames(probe: Probe) -> None:  # noqa: F811
    frames = played(probe, "fault=link_stop", "rank=1")
    for verdict in judged(frames.take(frames.rank != 2)):
        assert not verdict.edges
        assert verdict.confidence <= 0.6
