"""What frame.h defines, for numpy. Made from probe/frame.h: change that, then `make -C probe layout`."""

from __future__ import annotations

import numpy as np

MAGIC = 3550328824200056142
ABI = 1
HEADER_BYTES = 4096
RECENT = 4
CHANNELS = 32

FUNCTIONS = (
    "other",
    "Broadcast",
    "Reduce",
    "AllGather",
    "ReduceScatter",
    "AllReduce",
    "Send",
    "Recv",
    "AlltoAll",
    "Gather",
    "Scatter",
)

ALGORITHMS = (
    "other",
    "TREE",
    "RING",
    "COLLNET_DIRECT",
    "COLLNET_CHAIN",
    "NVLS",
    "NVLS_TREE",
    "PAT",
)

PROTOCOLS = (
    "other",
    "LL",
    "LL128",
    "SIMPLE",
)

DATATYPES = (
    "other",
    "ncclInt8",
    "ncclUint8",
    "ncclInt32",
    "ncclUint32",
    "ncclInt64",
    "ncclUint64",
    "ncclFloat16",
    "ncclFloat32",
    "ncclFloat64",
    "ncclBfloat16",
    "ncclFloat8e4m3",
    "ncclFloat8e5m2",
)

FRAME_FREE = 0
FRAME_LIVE = 1
FRAME_FINALISED = 2
FRAME_SHARED = 3

FLAG_KERNEL_EVENTS = 1
FLAG_KERNEL_SEEN = 2
FLAG_FOLDED = 4
FLAG_STEPS_SEEN = 8

OP_INFERRED = 1
OP_SEND = 2
OP_RECV = 4

WAIT_NONE = 0
WAIT_SEND_GPU = 1
WAIT_SEND_PEER = 2
WAIT_SEND_NETWORK = 3
WAIT_RECV_NETWORK = 4
WAIT_RECV_FLUSH = 5
WAIT_RECV_GPU = 6

OP = np.dtype(
    [
        ("version", "<u4"),
        ("function", "<u1"),
        ("algorithm", "<u1"),
        ("protocol", "<u1"),
        ("datatype", "<u1"),
        ("position", "<u4"),
        ("round", "<u4"),
        ("count", "<u8"),
        ("enqueued_ns", "<u8"),
        ("started_ns", "<u8"),
        ("ended_ns", "<u8"),
        ("device_64ns", "<u4"),
        ("peer", "<i4"),
        ("sequence", "<u4"),
        ("channels", "<u1"),
        ("started", "<u1"),
        ("stopped", "<u1"),
        ("flags", "<u1"),
    ],
    align=True,
)

CHANNEL = np.dtype(
    [
        ("send", "<u8"),
        ("recv", "<u8"),
    ],
    align=True,
)

FLOW = np.dtype(
    [
        ("moved", "<u8"),
        ("done", "<u8"),
        ("bytes", "<u8"),
        ("last_ns", "<u8"),
    ],
    align=True,
)

FRAME = np.dtype(
    [
        ("magic", "<u4"),
        ("state", "<u1"),
        ("flags", "<u1"),
        ("generation", "<u2"),
        ("communicator", "<u8"),
        ("rank", "<u4"),
        ("size", "<u4"),
        ("nodes", "<u4"),
        ("lost_operations", "<u4"),
        ("init_ns", "<u8"),
        ("name", "S16"),
        ("lost_steps", "<u4"),
        ("skipped", "<u4"),
        ("enqueued", "<u8"),
        ("calls", "<u8"),
        ("called_ns", "<u8"),
        ("sends", "<u8"),
        ("receives", "<u8"),
        ("sequence", "<u4", (5,)),
        ("launches", "<u4"),
        ("finished", "<u8"),
        ("finished_bytes", "<u8"),
        ("started_channels", "<u8"),
        ("stopped_channels", "<u8"),
        ("busy_ns", "<u8"),
        ("idle_ns", "<u8"),
        ("busy_since_ns", "<u8"),
        ("kernel_ns", "<u8"),
        ("send", FLOW),
        ("recv", FLOW),
        ("newest", OP),
        ("oldest", OP),
        ("recent", OP, (4,)),
        ("channel", CHANNEL, (32,)),
    ],
    align=True,
)

HEADER = np.dtype(
    [
        ("magic", "<u8"),
        ("abi", "<u2"),
        ("header_bytes", "<u2"),
        ("frame_bytes", "<u2"),
        ("frames", "<u2"),
        ("pid", "<u4"),
        ("uid", "<u4"),
        ("start_ticks", "<u8"),
        ("pid_namespace", "<u8"),
        ("monotonic_ns", "<u8"),
        ("realtime_ns", "<u8"),
        ("job", "<i4"),
        ("step", "<i4"),
        ("task", "<i4"),
        ("local_task", "<i4"),
        ("rank", "<i4"),
        ("nccl_version", "<u4"),
        ("interface", "<u4"),
        ("mask", "<u4"),
        ("host", "S64"),
        ("devices", "S64"),
        ("used", "<u4"),
        ("shared", "<u4"),
        ("foreign", "<u8"),
        ("bad_handles", "<u8"),
    ],
    align=True,
)
