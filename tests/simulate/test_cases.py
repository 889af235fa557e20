"""Every case makes jobs, the same for the same seed, whose truth fits what happens in them."""

from __future__ import annotations

import numpy as np
import pytest

from slurm_ncclmon.evidence.phases import WAITING as WAITING_PHASES
from slurm_ncclmon.evidence.phases import classify_frames
from tests.lab.simulate.cases import CASES, build
from tests.lab.simulate.nodes import gather
from tests.lab.simulate.scene import final_counts
from tests.lab.simulate.stacks import WAITING, stack


@pytest.mark.parametrize("case", CASES)
def test_a_seed_gives_the_same_job(case: str):
    one, two = build(4, case, most=32), build(4, case, most=32)
    assert one.truth == two.truth
    assert one.layout == two.layout
    assert np.array_equal(final_counts(one), final_counts(two))


@pytest.mark.parametrize("case", [name for name, case in CASES.items() if case.hang])
def test_a_hang_has_a_culprit_and_a_time(case: str):
    for seed in range(3):
        truth = build(seed, case, most=64).truth
        assert truth.hang
        assert truth.culprits
        assert truth.cls in ("H1", "H2", "H3")
        assert truth.since_s > 0


@pytest.mark.parametrize("case", [name for name, case in CASES.items() if not case.hang])
def test_a_silent_job_ends(case: str):
    job = build(1, case, most=64)
    assert not job.truth.hang
    assert 0 < job.end < 5000


@pytest.mark.parametrize("seed", range(4))
def test_only_the_culprit_is_elsewhere(seed: int):
    job = build(seed, "P1", most=64, tier="node")
    processes = [process for node in gather(job, job.truth.since_s + 100.0) for process in node.processes]
    assert {process.rank for process in processes if process.phase not in WAITING_PHASES} == set(job.truth.culprits)


def test_waiting_stacks_are_known_as_such():
    for label in WAITING - {"collective"}:
        assert classify_frames(stack(label)) in WAITING_PHASES, label
    for operation in range(-1, 5):
        assert classify_frames(stack("collective", operation)) in WAITING_PHASES
