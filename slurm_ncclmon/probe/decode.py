"""Bytes of probe files to columns. Pure; whatever the bytes are, the result is columns or a FrameError."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import numpy as np

from slurm_ncclmon.errors import FrameError
from slurm_ncclmon.probe import layout
from slurm_ncclmon.probe.frame import Frames, Links, Operations, joined

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from slurm_ncclmon.probe.image import Image

NO_PEER = 0xFFFFF
MOST_RANKS = 1 << 20
"""What a link word can name; a frame that claims more is nonsense."""
NANOSECONDS = 1e-9
HEADER_SIZE, FRAME_SIZE = layout.HEADER.itemsize, layout.FRAME.itemsize


def decode(images: Iterable[Image]) -> Frames:
    """One row for each communicator frame in the images. Raises FrameError if an image is no probe file of this version."""
    headers, frames, counts, hosts, clocks = [], [], [], [], []
    for image in images:
        check(image.data)
        count = (len(image.data) - HEADER_SIZE) // FRAME_SIZE
        headers.append(image.data[:HEADER_SIZE])
        frames.append(image.data[HEADER_SIZE : HEADER_SIZE + count * FRAME_SIZE])
        counts.append(count)
        hosts.append(image.host)
        clocks.append((image.read_s, image.wall_offset_s))
    frame = np.frombuffer(b"".join(frames), layout.FRAME)
    kept = sound(frame)
    frame = lumps(frame)[kept].view(layout.FRAME)
    file = np.repeat(np.arange(len(counts)), counts)[kept]
    header = np.frombuffer(b"".join(headers), layout.HEADER)
    return columns(header[file], frame, np.array(hosts, np.str_)[file], np.array(clocks).reshape(-1, 2)[file])


def check(data: bytes) -> None:
    """Raises FrameError unless `data` begins as a probe file of this version."""
    if len(data) < HEADER_SIZE:
        raise FrameError(f"too short for a probe file: {len(data)} bytes")
    magic, abi, _, frame_bytes = struct.unpack_from("<QHHH", data)
    if magic != layout.MAGIC:
        raise FrameError("not a probe file")
    if abi != layout.ABI or frame_bytes != FRAME_SIZE:
        raise FrameError(f"a probe file of another version: ABI {abi}, this reader knows {layout.ABI}")


def sound(frame: NDArray[Any]) -> NDArray[np.bool_]:
    """Which frames are of one communicator and make sense."""
    marked = frame["magic"] == layout.MAGIC & 0xFFFFFFFF
    used = (frame["state"] == layout.FRAME_LIVE) | (frame["state"] == layout.FRAME_FINALISED)
    return np.asarray(marked & used & (frame["rank"] < frame["size"]) & (frame["size"] <= MOST_RANKS))


def empty() -> Frames:
    """No rows."""
    return columns(np.zeros(0, layout.HEADER), np.zeros(0, layout.FRAME), np.zeros(0, np.str_), np.zeros((0, 2)))


def together(parts: Iterable[Frames]) -> Frames:
    """The rows of all parts, for example of all nodes, in order."""
    return joined([empty(), *parts])


def columns(header: NDArray[Any], frame: NDArray[Any], host: NDArray[np.str_], clock: NDArray[np.float64]) -> Frames:
    """Columns of n frames; `header` is that of each frame's file, `clock` (n, 2) its reading time and wall offset in seconds."""
    finished = frame["finished"]
    at = finished.astype(np.uint32) + np.uint32(1)
    newest, oldest = frame["newest"], frame["oldest"]
    oldest = np.where(oldest["position"] == at, lumps(oldest), lumps(newest)).view(layout.OP)
    unfinished = (frame["enqueued"] & np.uint64(0xFFFFFFFF)) > finished
    expected = finished[:, None].astype(np.int64) - np.arange(layout.RECENT)
    recent = lumps(frame["recent"])[np.arange(len(frame))[:, None], expected % layout.RECENT].view(layout.OP)
    records = np.concatenate([newest["version"][:, None], oldest["version"][:, None], recent["version"]], axis=1)
    return Frames(
        host=host,
        read_s=clock[:, 0],
        wall_offset_s=clock[:, 1],
        pid=header["pid"].astype(np.int64),
        start_ticks=header["start_ticks"],
        task=header["task"],
        global_rank=header["rank"],
        communicator=frame["communicator"],
        name=np.array([name.decode("utf-8", "replace") for name in frame["name"].tolist()], np.str_),
        rank=frame["rank"].astype(np.int32),
        size=frame["size"].astype(np.int32),
        nodes=frame["nodes"].astype(np.int32),
        init_s=seconds(frame["init_ns"]),
        finalised=frame["state"] == layout.FRAME_FINALISED,
        kernel_events=flag(frame, layout.FLAG_KERNEL_EVENTS),
        kernel_seen=flag(frame, layout.FLAG_KERNEL_SEEN),
        steps_seen=flag(frame, layout.FLAG_STEPS_SEEN),
        folded=flag(frame, layout.FLAG_FOLDED),
        whole=(records & 1 == 0).all(axis=1),
        lost_operations=frame["lost_operations"],
        lost_steps=frame["lost_steps"],
        enqueued=frame["enqueued"] & np.uint64(0xFFFFFFFF),
        collectives=frame["enqueued"] >> np.uint64(32),
        calls=frame["calls"],
        called_s=seconds(frame["called_ns"]),
        sends=frame["sends"],
        receives=frame["receives"],
        launches=frame["launches"],
        counts=frame["sequence"],
        finished=finished,
        finished_bytes=frame["finished_bytes"],
        busy_s=frame["busy_ns"] * NANOSECONDS,
        idle_s=frame["idle_ns"] * NANOSECONDS,
        busy_since_s=seconds(frame["busy_since_ns"]),
        kernel_s=seconds(frame["kernel_ns"]),
        steps_sent=frame["send"]["moved"],
        send_done=frame["send"]["done"],
        send_bytes=frame["send"]["bytes"],
        steps_arrived=frame["recv"]["moved"],
        receive_done=frame["recv"]["done"],
        receive_bytes=frame["recv"]["bytes"],
        send_s=seconds(frame["send"]["last_ns"]),
        receive_s=seconds(frame["recv"]["last_ns"]),
        started_channels=frame["started_channels"],
        stopped_channels=frame["stopped_channels"],
        newest=operations(newest, newest["position"] > 0),
        oldest=operations(oldest, (oldest["position"] == at) & unfinished),
        recent=operations(recent, (recent["position"] == expected) & (expected > 0)),
        send=links(frame["channel"]["send"]),
        receive=links(frame["channel"]["recv"]),
    )


def operations(record: NDArray[Any], there: NDArray[np.bool_]) -> Operations:
    """Columns of operation records of any shape; where `there` is False or a record is torn, nothing is known."""
    known = there & (record["version"] & 1 == 0)
    clean = np.where(known, lumps(record), lumps(np.zeros((), layout.OP))).view(layout.OP)
    return Operations(
        known=known,
        function=code(clean["function"], layout.FUNCTIONS),
        algorithm=code(clean["algorithm"], layout.ALGORITHMS),
        protocol=code(clean["protocol"], layout.PROTOCOLS),
        datatype=code(clean["datatype"], layout.DATATYPES),
        position=clean["position"],
        round=clean["round"],
        sequence=clean["sequence"],
        count=clean["count"],
        peer=clean["peer"],
        channels=clean["channels"],
        started=clean["started"],
        stopped=clean["stopped"],
        flags=clean["flags"],
        enqueued_s=seconds(clean["enqueued_ns"]),
        started_s=seconds(clean["started_ns"]),
        ended_s=seconds(clean["ended_ns"]),
        device_s=seconds(clean["device_64ns"].astype(np.uint64) * np.uint64(64)),
    )


def links(word: NDArray[np.uint64]) -> Links:
    """Columns of link words of any shape."""
    peer = (word >> np.uint64(32) & np.uint64(NO_PEER)).astype(np.int32)
    wait = (word >> np.uint64(52) & np.uint64(15)).astype(np.uint8)
    return Links(
        done=word.astype(np.uint32),
        peer=np.where(peer == NO_PEER, np.int32(-1), peer),
        wait=np.where(wait > layout.WAIT_RECV_GPU, np.uint8(layout.WAIT_NONE), wait),
        posted=(word >> np.uint64(56) & np.uint64(15)).astype(np.uint8),
        moved=(word >> np.uint64(60)).astype(np.uint8),
    )


def lumps(record: NDArray[Any]) -> NDArray[Any]:
    """The same records as bytes in one piece each, which numpy copies much faster than field by field."""
    return record.view(f"V{record.dtype.itemsize}")


def code(value: NDArray[np.uint8], names: tuple[str, ...]) -> NDArray[np.uint8]:
    """`value` where it is an index into `names`, else 0 ("other")."""
    return np.where(value < len(names), value, np.uint8(0))


def flag(frame: NDArray[Any], bit: int) -> NDArray[np.bool_]:
    """Whether the frame has the flag."""
    return np.asarray((frame["flags"] & np.uint8(bit)) != 0)


def seconds(nanoseconds: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Nanoseconds to seconds, 0 to NaN."""
    result = np.asarray(nanoseconds * NANOSECONDS, np.float64)
    result[nanoseconds == 0] = np.nan
    return result
