"""Which probe files of a node are taken along, with files as the plugin writes them."""

from __future__ import annotations

import base64
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from slurm_ncclmon.evidence.frames import probe_folders, read_frames
from slurm_ncclmon.evidence.model import NodeReport
from slurm_ncclmon.evidence.wire import Unpacker, pack
from slurm_ncclmon.probe import layout
from slurm_ncclmon.probe.decode import decode
from slurm_ncclmon.slurm.step import StepId

STEP = StepId(12, 0)


def write(folder: Path, pid: int, node: str = "n1", job: int = 12, step: int = 0, frames: int = 2) -> None:
    """A probe file with that many frames of communicators."""
    header = np.zeros(1, layout.HEADER)
    for name, value in {"magic": layout.MAGIC, "abi": layout.ABI, "frame_bytes": layout.FRAME.itemsize}.items():
        header[name] = value
    for name, value in {"pid": pid, "job": job, "step": step, "used": frames, "frames": frames}.items():
        header[name] = value
    header["host"] = node.encode()
    frame = np.zeros(frames, layout.FRAME)
    frame["magic"], frame["state"], frame["size"] = layout.MAGIC & 0xFFFFFFFF, layout.FRAME_LIVE, 8
    frame["communicator"] = np.arange(1, frames + 1)
    data = header.tobytes().ljust(layout.HEADER_BYTES, b"\0") + frame.tobytes()
    (folder / f"{pid}.frames").write_bytes(data)


def pids(folder: Path, node: str = "n1", **options: int) -> list[int]:
    images = read_frames([str(folder)], STEP, node, **options).images
    return sorted({int(np.frombuffer(image.data, layout.HEADER, 1)[0]["pid"]) for image in images})


def test_folders_are_those_of_the_ranks_each_once() -> None:
    environments = [{"NCCLMON_PROBE_DIR": folder} for folder in ("/b", "/a", "/b", "relative", "")]
    assert probe_folders([*environments, {}]) == ("/a", "/b")


def test_only_the_steps_own_files_count(tmp_path: Path) -> None:
    write(tmp_path, 1)
    write(tmp_path, 2, job=13)
    write(tmp_path, 3, step=1)
    write(tmp_path, 4, job=-1, step=-1)  # a writer that was not told
    (tmp_path / "5.frames").write_bytes(b"nothing of the kind")
    (tmp_path / "6.frames").symlink_to(tmp_path / "1.frames")
    assert pids(tmp_path) == [1, 4]
    assert len(read_frames([str(tmp_path)], STEP, "n1").problems) == 2


def test_nodes_that_share_memory_are_told_apart(tmp_path: Path) -> None:
    write(tmp_path, 1, "n1")
    write(tmp_path, 2, "n2")
    assert (pids(tmp_path, "n1"), pids(tmp_path, "n2")) == ([1], [2])
    assert pids(tmp_path, "n3") == [1, 2], "names that nobody knows: those of containers"


def test_no_folder_is_no_frames_and_no_problem(tmp_path: Path) -> None:
    reading = read_frames([str(tmp_path / "none")], STEP, "n1")
    assert (reading.images, reading.problems) == ((), ())


def test_what_is_too_much_stays_behind_and_is_said(tmp_path: Path) -> None:
    for pid in range(1, 5):
        write(tmp_path, pid, frames=8)
    one = layout.HEADER.itemsize + 8 * layout.FRAME.itemsize
    assert pids(tmp_path, most_bytes=2 * one + 1) == [1, 2]
    (problem,) = read_frames([str(tmp_path)], STEP, "n1", 2 * one).problems
    assert "2 processes left out" in problem


@pytest.mark.parametrize("communicators", [3, 40])
def test_frames_travel_with_the_report_in_a_fraction_of_their_size(tmp_path: Path, communicators: int) -> None:
    for pid in range(1, 9):
        write(tmp_path, pid, frames=communicators)
    images = read_frames([str(tmp_path)], STEP, "n1").images
    report = NodeReport("n1", True, frames=images, wall_s=time.time())
    packed = pack(report)
    assert len(base64.b64encode(packed)) < 8 * communicators * layout.FRAME.itemsize / 5
    back = Unpacker().unpack(packed)
    assert back == report
    assert len(decode(back.frames)) == 8 * communicators
    assert replace(back, frames=()).frames == ()
