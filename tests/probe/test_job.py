"""A modelled job over a network with back-pressure: each fault leaves the frames that its diagnosis needs."""

from __future__ import annotations

import pytest

from slurm_ncclmon.probe.layout import (
    WAIT_RECV_GPU,
    WAIT_RECV_NETWORK,
    WAIT_SEND_GPU,
    WAIT_SEND_NETWORK,
    WAIT_SEND_PEER,
)
from slurm_ncclmon.probe.standing import (
    ENQUEUED,
    NOT_ENTERED,
    STARTED,
    Standing,
    operation_at,
    signature,
    standing,
    waits,
)

from .conftest import Probe

RINGS = ["ranks=4"]
TREE = ["tree=1", "ranks=7"]


def played(probe: Probe, *arguments: str) -> Standing:
    probe.run("job", "interface=5", "seconds=2", *arguments)
    frames = probe.frames()
    result = standing(frames, int(frames.communicator[0]))
    assert result is not None
    assert len(result.missing) == 0
    assert not result.frames.lost_steps.any()
    return result


def links(found: Standing, rank: int) -> set[tuple[bool, int, int]]:
    """(sends, peer, wait) of the links of one rank that have a step in flight."""
    return {(wait.sends, wait.peer, wait.wait) for wait in waits(found.frames) if wait.rank == rank}


@pytest.mark.parametrize("shape", [RINGS, TREE])
def test_without_a_fault_all_is_finished(probe: Probe, shape: list[str]) -> None:
    found = played(probe, *shape)
    assert found.frames.finished.tolist() == [20] * len(found.frames)
    assert found.frames.send_done.sum() == found.frames.receive_done.sum()
    assert not waits(found.frames)


def test_ring_rank_that_does_not_enter(probe: Probe) -> None:
    found = played(probe, "fault=not_entered", "rank=2", "at=7")
    assert found.round == 8
    assert found.stage.tolist() == [STARTED, STARTED, NOT_ENTERED, STARTED]
    assert links(found, 3) == {(False, 2, WAIT_RECV_NETWORK), (True, 0, WAIT_SEND_GPU)}
    assert (True, 2, WAIT_SEND_PEER) in links(found, 1)


@pytest.mark.parametrize("shape", [RINGS, TREE])
def test_rank_whose_gpu_starts_nothing(probe: Probe, shape: list[str]) -> None:
    found = played(probe, "fault=gpu_stall", "rank=2", *shape)
    assert [rank for rank, stage in enumerate(found.stage) if stage == ENQUEUED] == [2]
    assert set(found.stage.tolist()) == {STARTED, ENQUEUED}
    assert any(wait == WAIT_RECV_GPU for _, _, wait in links(found, 2))


def test_link_that_delivers_nothing(probe: Probe) -> None:
    found = played(probe, "fault=link_stop", "rank=1")
    assert set(found.stage.tolist()) == {STARTED}
    network = [wait for wait in waits(found.frames) if wait.wait == WAIT_SEND_NETWORK]
    assert {(wait.rank, wait.peer) for wait in network} == {(1, 2)}
    assert (False, 1, WAIT_RECV_NETWORK) in links(found, 2)
    frames = found.frames
    backlog = frames.send_done - frames.receive_done[[1, 2, 3, 0]]
    assert frames.receive_done.argmin() == 2
    assert backlog[1] == 0


def test_rank_with_another_size_is_seen_by_its_signature(probe: Probe) -> None:
    found = played(probe, "fault=other_count", "rank=3", "at=19")
    last = operation_at(found.frames, 20)
    signatures = [signature(last, row) for row in range(4)]
    assert [each.elements for each in signatures if each] == [1 << 20, 1 << 20, 1 << 20, 1 << 10]


def test_slow_gpu_is_no_hang(probe: Probe) -> None:
    found = played(probe, "fault=gpu_slow", "rank=1", "at=15")
    assert found.frames.finished.tolist() == [20] * 4


@pytest.mark.parametrize("fault", ["stopped", "killed"])
def test_frames_outlive_the_process(probe: Probe, fault: str) -> None:
    found = played(probe, f"fault={fault}", "rank=1", "at=5", "period_us=5000")
    assert found.frames.enqueued[1] == 5
    assert found.round <= 6 <= found.frames.collectives[0]


@pytest.mark.parametrize("interface", [4, 6])
def test_without_kernel_events_the_network_tells_what_ends(probe: Probe, interface: int) -> None:
    probe.run("job", f"interface={interface}", "seconds=2", NCCLMON_PROBE_MASK="0x1e")
    frames = probe.frames()
    assert not frames.kernel_events.any()
    assert frames.finished.tolist() == [20] * 4
