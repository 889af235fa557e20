"""The reader against anybody's bytes: columns, or a typed error; never a crash, never a wait."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_ncclmon.errors import FrameError
from slurm_ncclmon.probe import layout
from slurm_ncclmon.probe.decode import columns, decode, empty, together
from slurm_ncclmon.probe.frame import Frames
from slurm_ncclmon.probe.image import Image, from_dict, to_dict
from slurm_ncclmon.probe.read import read_file, read_folder
from slurm_ncclmon.probe.standing import standing, waits

from .conftest import Probe


def content(frames: int = 3) -> bytearray:
    """A sound file's bytes with `frames` frames in use."""
    header = np.zeros(1, layout.HEADER)
    header["magic"], header["abi"], header["frame_bytes"] = layout.MAGIC, layout.ABI, layout.FRAME.itemsize
    header["used"], header["pid"] = frames, 4242
    frame = np.zeros(frames, layout.FRAME)
    frame["magic"], frame["state"], frame["size"] = layout.MAGIC & 0xFFFFFFFF, layout.FRAME_LIVE, 8
    frame["rank"], frame["communicator"] = np.arange(frames), 0xABC
    padding = bytes(layout.HEADER_BYTES - layout.HEADER.itemsize)
    return bytearray(header.tobytes() + padding + frame.tobytes())


def exercise(frames: Frames) -> None:
    """Everything that a diagnosis asks of frames."""
    for communicator in np.unique(frames.communicator)[:4]:
        found = standing(frames, int(communicator))
        assert found is not None
        for row in range(len(found.frames)):
            found.signature(row)
    for wait in waits(frames):
        assert str(wait)


@given(data=st.data())
@settings(max_examples=300, deadline=None)
def test_any_bytes_are_columns_or_a_typed_error(data: st.DataObject) -> None:
    whole = bytes(content())
    image = whole[: layout.HEADER.itemsize] + whole[layout.HEADER_BYTES :]
    changed = bytearray(image)
    for _ in range(data.draw(st.integers(0, 8))):
        at = data.draw(st.integers(0, len(changed) - 1))
        piece = data.draw(st.binary(min_size=1, max_size=64))
        changed[at : at + len(piece)] = piece
    cut = data.draw(st.integers(0, len(changed)))
    for candidate in (bytes(changed), bytes(changed[:cut]), data.draw(st.binary(max_size=5000))):
        try:
            frames = decode([Image("n", "f", 1.0, 2.0, candidate)])
        except FrameError:
            continue
        exercise(frames)


@given(seed=st.integers(0, 2**32))
@settings(max_examples=100, deadline=None)
def test_frames_of_noise_are_columns(seed: int) -> None:
    noise = np.random.default_rng(seed).bytes(5 * layout.FRAME.itemsize)
    frame = np.frombuffer(noise, layout.FRAME).copy()
    frame["size"] = 1 << 10
    frame["rank"] %= 1 << 10
    header = np.zeros(5, layout.HEADER)
    frames = columns(header, frame, np.full(5, "n"), np.ones((5, 2)))
    exercise(frames)
    assert len(together([frames, empty(), frames])) == 10


FIELDS = st.sampled_from(["host", "file", "read_s", "wall_offset_s", "data"])
VALUES = st.none() | st.text() | st.floats() | st.binary()


@given(values=st.recursive(VALUES, lambda inner: st.dictionaries(FIELDS, inner)))
@settings(max_examples=100, deadline=None)
def test_only_images_become_images(values: object) -> None:
    with contextlib.suppress(FrameError):
        from_dict(values)


def test_an_image_survives_its_way_through_json() -> None:
    image = Image("n1", "42.frames", 12.5, 1e9, bytes(content()))
    assert from_dict(to_dict(image)) == image


def test_a_packed_image_cannot_grow_without_limit() -> None:
    huge = to_dict(Image("n", "f", 0.0, 0.0, bytes(50_000_000)))
    assert len(from_dict(huge).data) < 2_000_000


def write(folder: Path, name: str, data: bytes) -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


def test_files_that_are_none_of_ours_are_named_and_left(tmp_path: Path) -> None:
    good = bytes(content())
    write(tmp_path, "1.frames", good)
    write(tmp_path, "2.frames", good[:100])
    write(tmp_path, "3.frames", bytes(len(good)))
    write(tmp_path, "4.frames", b"x" * 3_000_000)
    (tmp_path / "5.frames").symlink_to(tmp_path / "1.frames")
    os.mkfifo(tmp_path / "6.frames")
    (tmp_path / "7.frames").mkdir()
    write(tmp_path, "other.txt", good)
    reading = read_folder(tmp_path, os.getuid(), "n1")
    assert [image.file for image in reading.images] == ["1.frames"]
    assert len(reading.problems) == 6
    assert len(decode(reading.images)) == 3


def test_another_users_file_is_not_read(tmp_path: Path) -> None:
    with pytest.raises(FrameError, match="not a file of user"):
        read_file(write(tmp_path, "1.frames", bytes(content())), os.getuid() + 1, "n1")


def test_more_frames_claimed_than_there_are(tmp_path: Path) -> None:
    data = content()
    at = layout.HEADER.fields["used"][1]  # type: ignore[index]
    data[at : at + 4] = b"\xff\xff\xff\x7f"
    assert len(decode([read_file(write(tmp_path, "1.frames", bytes(data)), os.getuid(), "n1")])) == 3


def test_a_record_that_never_settles_is_not_believed(tmp_path: Path) -> None:
    data = content()
    frame = np.frombuffer(data, layout.FRAME, 3, layout.HEADER_BYTES)
    frame["enqueued"], frame["oldest"]["position"], frame["newest"]["position"] = 1, 1, 1
    frame["newest"]["version"] = 2
    frame["oldest"]["version"] = [2, 3, 2]
    frames = decode([read_file(write(tmp_path, "1.frames", bytes(data)), os.getuid(), "n1")])
    assert frames.whole.tolist() == [True, False, True]
    assert frames.oldest.known.tolist() == [True, False, True]


def test_no_folder_is_no_frames(tmp_path: Path) -> None:
    assert read_folder(tmp_path / "none", 0, "n1").images == ()


def test_reading_while_it_is_written_gives_whole_records(probe: Probe) -> None:
    """Frames of a running job: numbers only grow, and no record mixes two operations."""
    writer = threading.Thread(target=lambda: [probe.run("abuse", "million_steps") for _ in range(5)])
    writer.start()
    finished: dict[str, int] = {}
    while writer.is_alive():
        for image in probe.reading().images:
            frames = decode([image])
            now = int(frames.finished.max(initial=0))
            assert now >= finished.get(image.file, 0)
            finished[image.file] = now
            known = frames.recent.known
            assert (frames.recent.count[known] == 100).all()
            assert (frames.recent.round[known] == frames.recent.position[known]).all()
            assert (frames.recent.ended_s[known] >= frames.recent.started_s[known]).all()
    writer.join()
    assert len(finished) == 5
