"""Every fault of the laboratory's training job on a real cluster: the right report, or silence."""

from __future__ import annotations

import functools

import pytest

from tests.cluster.watching import Watched, assert_replayed, side_by_side, start
from tests.lab.cluster import Cluster
from tests.lab.user import User

pytestmark = pytest.mark.cluster

HANGS = {
    "not_entered": ("H1", {"not_entered"}),
    "swallowed": ("H1", {"not_entered"}),
    "exit": ("H3", {"dead"}),
    "killed": ("H3", {"dead"}),
    "stopped": ("H1", {"stopped"}),
    "wrong_op": ("H2", {"inconsistent_op"}),
    "wrong_size": ("H2", {"inconsistent_op"}),
    "extra_op": ("H2", {"extra_op", "inconsistent_op"}),
    "destroyed": ("H1", {"exited_early"}),
    "aborted": ("H1", {"aborted"}),
    "device_stall": ("H1", {"device_not_started"}),
    "async_error": ("H3", {"async_error", "aborted"}),
}
"""Fault -> class and kinds that are right. The culprit is rank 3 on n2 in each."""
NAMELESS = {"symmetric": "", "wrong_order": "--rank 2,3"}
"""Faults in which it shows that it hangs, and not who is guilty."""
SILENT = {
    "none": "--steps 60",
    "checkpoint": "--steps 60 --pause 3",
    "compile": "--steps 60 --pause 3 --step 0",
    "data_stall": "--steps 60 --pause 3",
    "churn": "--steps 40",
    "slow": "--steps 22 --pause 1.5",
}


@pytest.fixture(scope="module")
def watched(cluster: Cluster) -> dict[str, Watched]:
    """All faults, a few at a time; each job is cancelled as soon as its hang is confirmed."""
    faults = {**dict.fromkeys(HANGS, ""), **NAMELESS, **SILENT}

    def submit(fault: str) -> Watched:
        return start(User(cluster, cluster.home / f"fault-{fault}"), fault, train=faults[fault])

    return side_by_side({fault: functools.partial(submit, fault) for fault in faults})


@pytest.mark.parametrize("fault", HANGS)
def test_hang_is_reported_with_its_culprit(watched: dict[str, Watched], fault: str) -> None:
    job = watched[fault]
    assert len(job.incidents()) == 1, job.log
    (incident,) = job.incidents("confirmed")
    cls, kinds = HANGS[fault]
    (culprit,) = incident["culprits"]
    truth = job.run.truth
    assert (culprit["global_rank"], culprit["host"], culprit["pid"]) == (3, "n2", truth["culprits"][0]["pid"])
    assert incident["communicator"]["hash"] == truth["communicator"]["hash"]
    assert incident["operation"] == "AllReduce"
    assert (incident["class"], incident["kind"]) in {(cls, kind) for kind in kinds}
    assert incident["victims"] == 7


@pytest.mark.parametrize("fault", NAMELESS)
def test_hang_without_a_guilty_rank_accuses_nobody_falsely(watched: dict[str, Watched], fault: str) -> None:
    (incident,) = watched[fault].incidents("confirmed")
    guilty = {culprit["rank"] for culprit in watched[fault].run.truth["culprits"]}
    named = {culprit["global_rank"] for culprit in incident["culprits"]}
    assert not named or guilty <= named
    assert incident["not_decidable"] or named == guilty


@pytest.mark.parametrize("fault", SILENT)
def test_healthy_job_ends_without_a_confirmed_hang(watched: dict[str, Watched], fault: str) -> None:
    job = watched[fault]
    assert job.user.state(job.job) == "COMPLETED"
    assert job.incidents("confirmed", "suspected") == []
    assert job.document["polls"] > job.document["unusable_polls"]
    assert all(steps == max(job.run.steps_done().values()) for steps in job.run.steps_done().values())


@pytest.mark.parametrize("fault", [*HANGS, *NAMELESS, *SILENT])
def test_replay_gives_the_live_verdict(watched: dict[str, Watched], fault: str) -> None:
    assert_replayed(watched[fault])


def test_suspicion_comes_before_confirmation_in_the_job_output(watched: dict[str, Watched]) -> None:
    output = watched["not_entered"].output
    suspected, confirmed = output.index("SUSPECTED HANG"), output.index(": HANG H1")
    assert suspected < confirmed
    assert "If nothing moves, it will be reported in" in output
