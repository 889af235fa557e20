"""Probe frames of all nodes on a real cluster: hangs that counts call healthy, and what the probe leaves behind (nothing)."""

from __future__ import annotations

import functools
import json
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from slurm_ncclmon import recording
from slurm_ncclmon.observation import Evidence, FramePoll
from slurm_ncclmon.probe import layout
from tests.cluster.watching import QUICK, Watched, assert_replayed, side_by_side, start
from tests.lab.cluster import Cluster
from tests.lab.user import User, wait_until

pytestmark = pytest.mark.cluster

FOREIGN = "/lib/x86_64-linux-gnu/libm.so.6"
"""A library that is no profiler plugin: as NCCL does, a rank loads it, finds nothing to call, and goes on."""
NODES = {"n1", "n2", "n3", "n4"}


@dataclass(frozen=True)
class Job:
    """One training job: its fault, more arguments of it, the watch's own, and of sbatch."""

    fault: str
    train: str = ""
    option: str = f"observe,{QUICK}"
    sbatch: tuple[str, ...] = ()


OWN_PLUGIN = ("--export=ALL,NCCL_PROFILER_PLUGIN=" + FOREIGN,)
JOBS = {
    "stall": Job("device_stall", "--rank 5 --run-ahead 4"),
    "stall_beside": Job("device_stall", "--rank 2"),
    "stall_dp": Job("device_stall", "--rank 6 --group dp"),
    "wrong_size": Job("wrong_size", "--rank 6"),
    "torn": Job("torn_link", "--rank 3"),
    "torn_dp": Job("torn_link", "--rank 2 --group dp"),
    "torn_nvlink": Job("torn_link", "--rank 2"),
    "healthy": Job("none", "--steps 60"),
    "off": Job("device_stall", "--rank 5", f"observe,{QUICK},probe=off"),
    "own": Job("device_stall", "--rank 5", sbatch=OWN_PLUGIN),
}
"""Ranks 0 and 1 are on n1, 2 and 3 on n2 and so on, so a ring over the world leaves its node after each odd rank."""


@pytest.fixture(scope="module")
def watched(cluster: Cluster) -> dict[str, Watched]:
    """All jobs, a few at a time; each is cancelled as soon as its hang is confirmed."""

    def submit(name: str) -> Watched:
        job = JOBS[name]
        user = User(cluster, cluster.home / f"probe-{name}")
        return start(user, job.fault, job.option, job.train, job.sbatch)

    return side_by_side({name: functools.partial(submit, name) for name in JOBS})


def named(incident: dict[str, object]) -> set[tuple[int, str]]:
    """Global ranks and nodes of the culprits."""
    culprits: list[dict[str, object]] = incident["culprits"]  # type: ignore[assignment]
    return {(int(str(culprit["global_rank"])), str(culprit["host"])) for culprit in culprits}


@pytest.mark.parametrize(
    ("name", "rank", "node", "group", "operation"),
    [
        ("stall", 5, "n3", "world", "AllReduce"),
        ("stall_beside", 2, "n2", "world", "AllReduce"),
        ("stall_dp", 6, "n4", "dp0", "ReduceScatter"),
    ],
)
def test_device_that_starts_nothing_is_found_though_all_have_launched(
    watched: dict[str, Watched], name: str, rank: int, node: str, group: str, operation: str
) -> None:
    job = watched[name]
    (incident,) = job.incidents("confirmed")
    assert (incident["class"], incident["kind"]) == ("H1", "device_not_started")
    assert named(incident) == {(rank, node)}
    assert incident["communicator"]["hash"] == job.run.communicator(group)["hash"]
    assert incident["operation"] == operation
    assert f"rank {rank} on {node}" in job.report
    assert "its GPU never started it" in job.report
    for line in job.output.splitlines():
        if "SUSPECTED HANG" in line:
            assert rank in map(int, re.findall(r"rank (\d+) on", line)), "by counts alone its group, by frames it"


def test_another_size_is_found_though_all_have_launched(watched: dict[str, Watched]) -> None:
    (incident,) = watched["wrong_size"].incidents("confirmed")
    assert (incident["class"], incident["kind"]) == ("H2", "inconsistent_op")
    assert named(incident) == {(6, "n4")}
    assert "calls AllReduce of 131072 ncclFloat32" in watched["wrong_size"].report


@pytest.mark.parametrize(
    ("name", "edge", "ends"),
    [("torn", (3, 4), {(3, "n2"), (4, "n3")}), ("torn_dp", (1, 2), {(2, "n2"), (4, "n3")})],
)
def test_torn_link_between_nodes_is_an_edge(
    watched: dict[str, Watched], name: str, edge: tuple[int, int], ends: set[tuple[int, str]]
) -> None:
    (incident,) = watched[name].incidents("confirmed")
    assert (incident["class"], incident["kind"]) == ("H3", "in_collective")
    assert [(found["source"], found["target"]) for found in incident["edges"]] == [edge]
    assert named(incident) == ends
    assert incident["not_decidable"]
    assert "does not arrive in" in watched[name].report


def test_torn_link_inside_a_node_accuses_nobody_and_says_why(watched: dict[str, Watched]) -> None:
    (incident,) = watched["torn_nvlink"].incidents()
    assert incident["class"] in (None, "H3")
    assert not incident["culprits"]
    assert not incident["edges"]
    assert incident["not_decidable"]


@pytest.mark.parametrize("name", ["off", "own"])
def test_without_frames_nobody_is_named(watched: dict[str, Watched], name: str) -> None:
    (incident,) = watched[name].incidents()
    assert not incident["culprits"]
    assert not polls_of_frames(watched[name])


def test_own_plugin_is_left_alone_and_the_report_says_what_that_costs(watched: dict[str, Watched]) -> None:
    job = watched["own"]
    text = " ".join(job.report.split())
    assert (
        f"There are no probe frames: the job has a profiler plugin of its own (NCCL_PROFILER_PLUGIN={FOREIGN})" in text
    )
    assert "There are no probe frames" in job.output
    environment = json.loads((job.folder / "nodes" / "n1.json").read_text())["processes"][0]["environment"]
    assert environment["NCCL_PROFILER_PLUGIN"] == FOREIGN
    assert "There are no probe frames" not in watched["off"].report


def test_healthy_job_with_the_probe_is_left_in_peace(watched: dict[str, Watched]) -> None:
    job = watched["healthy"]
    assert job.user.state(job.job) == "COMPLETED"
    assert job.incidents() == []
    assert "probe frames" not in " ".join((job.report + job.output).split())
    assert set(job.run.steps_done().values()) == {60}
    assert polls_of_frames(job)


def polls_of_frames(job: Watched) -> list[FramePoll]:
    return [seen for seen in recording.read(job.folder) if isinstance(seen, FramePoll)]


@pytest.mark.parametrize("name", [name for name in JOBS if name not in ("off", "own")])
def test_frames_are_the_first_nodes_each_poll_and_all_nodes_with_the_evidence(
    watched: dict[str, Watched], name: str
) -> None:
    job = watched[name]
    seen = list(recording.read(job.folder))
    gathered = [n for n, one in enumerate(seen) if isinstance(one, Evidence) and one.reason != "start"]
    for n, one in enumerate(seen):
        if isinstance(one, FramePoll):
            assert set(one.frames.host.tolist()) == (NODES if n + 1 in gathered else {"n1"})
    assert all(isinstance(seen[n - 1], FramePoll) for n in gathered)
    assert all('"frames": []' in path.read_text() for path in (job.folder / "nodes").glob("*.json"))


@pytest.mark.parametrize("name", [name for name in JOBS if name not in ("off", "own")])
def test_jobs_side_by_side_do_not_mix(watched: dict[str, Watched], name: str) -> None:
    job = watched[name]
    communicators = {int(one["hash"], 16) for one in job.run.ranks["communicators"]}
    for poll in polls_of_frames(job):
        headers = [np.frombuffer(image.data, layout.HEADER, 1)[0] for image in poll.images]
        assert {(int(header["job"]), int(header["step"])) for header in headers} == {(job.job, 0)}
        assert set(poll.frames.communicator.tolist()) <= communicators


@pytest.mark.parametrize("name", JOBS)
def test_nothing_is_left_in_memory(watched: dict[str, Watched], name: str) -> None:
    job = watched[name]
    wait_until(lambda: not folders(job), 10.0, f"frames of job {job.job} are gone")


def folders(job: Watched) -> list[Path]:
    return list(Path("/dev/shm").glob(f"ncclmon-*-{job.job}.0"))


@pytest.mark.parametrize("name", JOBS)
def test_replay_gives_the_live_verdict(watched: dict[str, Watched], name: str) -> None:
    assert_replayed(watched[name])


def test_folder_is_the_users_and_closed_to_others_while_the_step_runs(user: User) -> None:
    job = start(user, "none", train="--steps 40")
    (folder,) = wait_until(lambda: folders(job), 20.0, "frames")
    status = folder.stat()
    assert stat.S_IMODE(status.st_mode) == 0o700
    assert status.st_uid != os.getuid()
    wait_until(lambda: len(list(folder.glob("*.frames"))) == 8, 20.0, "a file for each rank")
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.glob("*.frames")} == {0o600}
    assert sum(path.stat().st_size for path in folder.glob("*.frames")) < 8 * 200_000
    job.wait_for_end()
    wait_until(lambda: not folder.exists(), 10.0, "the folder is gone")


def test_probe_off_makes_no_folder(user: User) -> None:
    job = start(user, "none", f"observe,{QUICK},probe=off", "--steps 30")
    wait_until((job.run.folder / "ranks.json").exists, 20.0, "the job runs")
    wait_until(lambda: job.run.steps_done().get(7, 0) > 5, 20.0, "it does steps")
    assert not folders(job)
    job.wait_for_end()
    assert set(job.run.steps_done().values()) == {30}
