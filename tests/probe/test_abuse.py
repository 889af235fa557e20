"""What NCCL must not do but has done, and what a job may do to a plugin: it survives, and its numbers stay believable."""

from __future__ import annotations

import os
import subprocess

import numpy as np
import pytest

from slurm_ncclmon.probe import layout
from slurm_ncclmon.probe.frame import Frames
from slurm_ncclmon.probe.layout import WAIT_NONE

from .conftest import Probe


def after(probe: Probe, case: str, **environment: str) -> Frames:
    probe.run("abuse", case, **environment)
    return probe.frames()


def header(probe: Probe) -> np.void:
    return np.frombuffer(probe.reading().images[0].data, layout.HEADER, 1)[0]


def test_events_told_twice_count_once(probe: Probe) -> None:
    frames = after(probe, "twice")
    assert frames.finished.tolist() == [1]
    assert frames.send_done.tolist() == [1]
    assert frames.send_bytes.tolist() == [10]


def test_an_operation_that_ends_closes_its_steps(probe: Probe) -> None:
    frames = after(probe, "missing_stops")
    assert frames.whole.all()
    assert frames.send_done[0] == 1500 * 15  # as many as can be in flight
    assert frames.lost_operations[0] == 3000 - 1024


def test_steps_that_end_out_of_order_are_done_in_order(probe: Probe) -> None:
    frames = after(probe, "out_of_order")
    assert frames.send_done.tolist() == [8]
    assert frames.send.done[0, 0] == 8
    assert frames.send.wait[0, 0] == WAIT_NONE


def test_other_processes_pointers_are_not_touched(probe: Probe) -> None:
    after(probe, "foreign")
    assert header(probe)["foreign"] == 1
    assert header(probe)["bad_handles"] == 2


def test_invented_handles_change_nothing_that_matters(probe: Probe) -> None:
    assert len(after(probe, "invented")) == 1


def test_more_communicators_than_frames_share_one(probe: Probe) -> None:
    frames = after(probe, "communicators", NCCLMON_PROBE_COMMS="64")
    assert len(frames) == 63
    assert frames.finished.tolist() == [0] + [1] * 62  # the first is not used
    assert frames.finalised.tolist() == [False] + [True] * 62
    assert header(probe)["shared"] == 1002 - 63


def test_a_million_steps_are_counted(probe: Probe) -> None:
    frames = after(probe, "million_steps")
    assert frames.send_done.tolist() == [1_000_000]
    assert frames.send_bytes.tolist() == [10_000_000]
    assert frames.finished.tolist() == [1000]


def test_a_host_far_ahead_of_its_gpu_keeps_the_oldest_operation(probe: Probe) -> None:
    frames = after(probe, "far_ahead")
    assert frames.enqueued.tolist() == [5001]
    assert frames.finished.tolist() == [1]
    assert frames.oldest.position.tolist() == [2]
    assert frames.newest.position.tolist() == [1025]
    assert frames.lost_operations.tolist() == [5001 - 1025]


def test_more_peers_than_places_are_counted_together(probe: Probe) -> None:
    frames = after(probe, "many_peers")
    assert frames.lost_steps[0] > 0
    assert frames.send_done.tolist() == [64]


def test_a_plugin_that_is_loaded_again_goes_on(probe: Probe) -> None:
    frames = after(probe, "reload")
    assert len(frames) == 21
    assert frames.finished.tolist() == [1] * 21


def test_a_forked_child_is_ignored_until_it_has_communicators(probe: Probe) -> None:
    frames = after(probe, "forked")
    assert sorted(frames.communicator.tolist()) == [99, 0xABC]
    parent = frames.of(0xABC)
    assert parent.finished.tolist() == [1]
    assert parent.send_done.tolist() == [0]
    assert frames.of(99).send_done.tolist() == [10]


def test_threads_that_meet_lose_nothing_that_is_counted_together(probe: Probe) -> None:
    frames = after(probe, "threads", NCCLMON_PROBE_COMMS="16").of(0xABC)
    assert frames.enqueued.tolist() == [42_000]


def test_no_system_call_is_made_after_init(probe: Probe) -> None:
    assert probe.run("abuse", "no_system_call") == "no system call\n"


def test_without_a_folder_there_are_no_frames_and_no_harm(probe: Probe) -> None:
    probe.run("abuse", "nothing", NCCLMON_PROBE_DIR="")
    probe.run("abuse", "nothing", NCCLMON_PROBE_DIR="relative")
    probe.run("abuse", "nothing", NCCLMON_PROBE_DIR=str(probe.folder / "no" / "such"))
    assert not probe.folder.exists()


def test_a_folder_that_others_may_write_is_not_used(probe: Probe) -> None:
    probe.folder.mkdir()
    probe.folder.chmod(0o777)
    probe.run("abuse", "nothing")
    assert list(probe.folder.iterdir()) == []


def test_a_link_in_place_of_the_folder_is_not_followed(probe: Probe) -> None:
    elsewhere = probe.folder.parent / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    probe.folder.symlink_to(elsewhere)
    probe.run("abuse", "nothing")
    assert list(elsewhere.iterdir()) == []


@pytest.mark.parametrize("limit", ["ulimit -f 10", "ulimit -v 100000"])
def test_limits_of_the_job_leave_it_without_frames(probe: Probe, limit: str) -> None:
    command = f'{limit}; exec "$0" "$@"'
    arguments = ["bash", "-c", command, str(probe.programs / "abuse"), str(probe.plugin), "nothing"]
    environment = {**os.environ, "NCCLMON_PROBE_DIR": str(probe.folder), "NCCLMON_PROBE_COMMS": "1024"}
    assert subprocess.run(arguments, env=environment, timeout=60, check=False).returncode == 0
    assert probe.reading().images == ()


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_a_full_file_system_leaves_the_job_without_frames(probe: Probe) -> None:
    probe.folder.mkdir(mode=0o700)
    script = f'mount -t tmpfs -o size=64k,mode=700 none "{probe.folder}" && "$0" "$@" && ls "{probe.folder}"'
    arguments = ["unshare", "-m", "bash", "-c", script, str(probe.programs / "abuse"), str(probe.plugin), "nothing"]
    environment = {**os.environ, "NCCLMON_PROBE_DIR": str(probe.folder)}
    done = subprocess.run(arguments, env=environment, timeout=60, check=False, stdout=subprocess.PIPE, text=True)
    assert (done.returncode, done.stdout) == (0, "")
