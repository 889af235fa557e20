"""Frames of simulated jobs: where a ring's data stop, and what each rank's frame says of the operation it is at."""

from __future__ import annotations

import numpy as np
import pytest

from slurm_ncclmon.probe import layout
from slurm_ncclmon.probe.standing import ENQUEUED, STARTED, standing
from tests.lab.simulate.answer import Answers
from tests.lab.simulate.cases import build
from tests.lab.simulate.frames import CREDITS, STEPS, frames, ring


@pytest.mark.parametrize("dead", range(6))
def test_a_dead_link_starves_downstream_and_fills_up_upstream(dead: int):
    sent, got, taken = ring(np.ones(6, np.bool_), frozenset({dead}))
    after = (dead + 1) % 6
    assert got[after] == STEPS // 3
    assert sent[dead] - got[after] > 0
    others = [rank for rank in range(6) if rank != dead]
    assert all(sent[rank] == got[(rank + 1) % 6] for rank in others)
    assert sent[dead] - taken[after] <= CREDITS


def test_a_ring_that_is_whole_comes_to_its_end():
    sent, got, taken = ring(np.ones(9, np.bool_), frozenset())
    assert (sent == STEPS).all()
    assert (got == STEPS).all()
    assert (taken == STEPS).all()


def test_a_rank_that_did_not_begin_sends_nothing():
    entered = np.ones(5, np.bool_)
    entered[2] = False
    sent, got, _ = ring(entered, frozenset())
    assert sent[2] == 0
    assert got[3] == 0
    assert (sent[entered] > 0).all()


def test_a_dead_link_shows_at_its_ends():
    job = build(20126, "P15", ranks=32, tier="frames")
    (comm, links), time = next(iter(job.dead_links.items())), job.truth.since_s + 100.0
    seen = frames(job, time, range(32)).of(job.hashes[comm][0])
    ranks = job.mesh.comms[comm].ranks
    ends = {ranks[link] for link in links}
    if not job.truth.decidable["frames"]:
        pytest.skip("the communicator is within one node")
    stuck = {ranks[rank] for rank in seen.rank[(seen.send.wait == layout.WAIT_SEND_NETWORK).any(axis=1)]}
    assert stuck == ends


def test_a_kernel_that_spins_shows_as_enqueued_and_not_started():
    job = build(5, "P14", ranks=16, tier="frames")
    time = job.truth.since_s + 100.0
    seen = frames(job, time, range(16))
    late = set()
    for comm in np.unique(seen.communicator[seen.oldest.known]):
        stand = standing(seen, int(comm))
        assert stand is not None
        if (stand.stage == STARTED).any():
            late |= set(stand.frames.global_rank[stand.stage == ENQUEUED].tolist())
    assert job.truth.culprits <= late


def test_counts_in_frames_are_those_of_ras():
    job = build(8, "P1", ranks=16, tier="frames")
    time = job.truth.since_s + 50.0
    answer, seen = Answers(job).at(time), frames(job, time, range(16))
    ras = {
        (int(job.hashes[int(job.mesh.comm_of_slot()[slot])][0]), int(job.mesh.rank_of_slot()[slot])): counts.tolist()
        for slot, counts in zip(answer.slot, answer.counts)
    }
    for hash_, rank, counts in zip(seen.communicator.tolist(), seen.global_rank.tolist(), seen.counts.tolist()):
        assert ras[hash_, rank] == counts
