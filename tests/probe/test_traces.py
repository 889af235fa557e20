"""Event sequences recorded from NCCL, replayed into the plugin: what the frames tell where RAS says RUNNING, OK."""

from __future__ import annotations

import numpy as np
import pytest

from slurm_ncclmon.probe.layout import FUNCTIONS, WAIT_NONE, WAIT_RECV_NETWORK, WAIT_SEND_GPU
from slurm_ncclmon.probe.standing import ENQUEUED, FINISHED, NOT_ENTERED, Standing, standing, waits

from .conftest import TRACES, Probe


def replayed(probe: Probe, name: str, interface: int = 5) -> Standing:
    """Where both ranks stand at the end of a recorded sequence."""
    for rank in (0, 1):
        probe.run("replay", str(TRACES / f"{name}.{rank}"), str(interface), SLURM_PROCID=str(rank))
    frames = probe.frames()
    result = standing(frames, int(frames.communicator[0]))
    assert result is not None
    assert result.frames.rank.tolist() == [0, 1]
    return result


@pytest.mark.parametrize("name", ["ok", "rank1_slow_gpu", "rank1_late_1500ms"])
@pytest.mark.parametrize("interface", [4, 5])
def test_a_job_that_goes_on_leaves_nothing_unfinished(probe: Probe, name: str, interface: int) -> None:
    frames = replayed(probe, name, interface).frames
    assert frames.enqueued.tolist() == frames.finished.tolist() == [3, 3]
    assert not frames.oldest.known.any()
    assert frames.counts[:, FUNCTIONS.index("AllReduce") - 1].tolist() == [3, 3]
    assert frames.send_done.tolist() == frames.receive_done.tolist() == [24, 24]
    assert frames.send_bytes.tolist() == [24 * 65536] * 2
    assert frames.send.done[:, :2].tolist() == [[12, 12], [12, 12]]
    assert waits(frames) == []
    assert frames.calls.tolist() == ([3, 3] if interface == 5 else [0, 0])


def test_a_gpu_that_starts_nothing_is_told_from_its_waiting_peer(probe: Probe) -> None:
    found = replayed(probe, "rank1_gpu_stall_after_1")
    assert found.round == 2
    assert found.stage.tolist() == [
        FINISHED,
        ENQUEUED,
    ]  # the recorded stand-in for a GPU does not wait for what it receives
    assert found.frames.enqueued.tolist() == [3, 3]
    assert found.frames.oldest.started[1] == 0
    waiting = {(wait.rank, wait.peer, wait.sends, wait.wait, wait.posted) for wait in waits(found.frames)}
    assert waiting == {(0, 1, False, WAIT_RECV_NETWORK, 4), (1, 0, True, WAIT_SEND_GPU, 4)}


def test_a_rank_that_skips_a_call_has_not_entered(probe: Probe) -> None:
    found = replayed(probe, "rank1_skips_op1")
    assert found.round == 3
    assert found.stage.tolist() == [FINISHED, NOT_ENTERED]
    assert found.frames.collectives.tolist() == [3, 2]
    assert (found.frames.send.wait[1] == WAIT_NONE).all()


def test_the_operation_is_described_as_nccl_did(probe: Probe) -> None:
    found = replayed(probe, "ok", 6)
    frames = found.frames
    newest = frames.newest
    assert newest.known.all()
    assert newest.count.tolist() == [1_000_000] * 2
    assert newest.sequence.tolist() == [2, 2]
    assert newest.channels.tolist() == [2, 2]
    assert frames.recent.position.tolist() == [[3, 2, 1, 0]] * 2
    assert frames.recent.known.tolist() == [[True, True, True, False]] * 2
    assert np.all(frames.recent.ended_s[:, 0] >= frames.recent.started_s[:, 0])


def test_the_sixth_interface_asks_for_kernels_only_where_the_release_is_known(probe: Probe) -> None:
    assert not replayed(probe, "ok", 6).frames.kernel_events.any()
