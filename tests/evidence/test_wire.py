"""Reports on their way: what goes in comes out, whatever srun does to the lines in between."""

from __future__ import annotations

import random
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_ncclmon.errors import EvidenceError
from slurm_ncclmon.evidence.model import Attempt, Frame, GpuReport, NodeReport
from slurm_ncclmon.evidence.wire import FLIGHT, REPORT, Assembler, Message, Unpacker, lines, pack, unpack_flight
from tests.evidence.make import IN_LOADER, job, node, process

REPORTS = [
    NodeReport("n1", True),
    node(
        "n2",
        process(3, IN_LOADER, attempts=(Attempt("native", None, 1.5, "no answer"),), environment={"RANK": "3"}),
        process(4, (), moved=None, note="ünïcode ✓"),
        gpus=(GpuReport(0, "GPU-1", "H200", 100.0, 300.5, throttle=("power cap",), pids=(1, 2)),),
        counters={"mlx5_0/1/port_xmit_data": 1 << 63},
        exited=(7,),
        problems=("a problem",),
        flight_records={"3": "/tmp/x3"},
    ),
    *job(16, {3: process(3, IN_LOADER)}),
]


@pytest.mark.parametrize("report", REPORTS)
def test_there_and_back(report: NodeReport) -> None:
    assert Unpacker().unpack(pack(report)) == report


def test_lines_are_short_enough_for_slurm() -> None:
    noise = "".join(random.Random(1).choices("abcdefghijklmnop0123456789", k=200_000))
    for line in lines("a-rather-long-node-name-123456", 3, REPORT, pack(NodeReport("n1", True, problems=(noise,)))):
        assert len(line) < 1000


@settings(max_examples=50, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 8))
def test_lines_of_many_nodes_in_any_order(shuffle: random.Random, nodes: int) -> None:
    payloads = {f"n{number}": shuffle.randbytes(shuffle.randrange(0, 4000)) for number in range(nodes)}
    mixed = [line for name, payload in payloads.items() for line in lines(name, 0, REPORT, payload)]
    shuffle.shuffle(mixed)
    assembler = Assembler()
    messages = [message for message in map(assembler.feed, mixed) if message]
    assert {message.node: message.payload for message in messages} == payloads


@given(st.text(max_size=200))
def test_foreign_lines_are_kept_aside(text: str) -> None:
    assembler = Assembler()
    assert assembler.feed(text) is None


def test_equal_stacks_of_different_nodes_are_one_object() -> None:
    unpacker = Unpacker()
    first, second = (unpacker.unpack(pack(report)) for report in job(16, {}))
    assert first.processes[0].threads[0].frames is second.processes[7].threads[0].frames


@pytest.mark.parametrize(
    "payload", [b"", b"junk", zlib.compress(b"{}"), zlib.compress(b'{"report":1}'), pack(REPORTS[1])[:-9]]
)
def test_what_is_no_report(payload: bytes) -> None:
    with pytest.raises(EvidenceError, match="not a node report"):
        Unpacker().unpack(payload)


def test_a_bomb_is_not_unpacked() -> None:
    with pytest.raises(EvidenceError, match="too large"):
        Unpacker().unpack(zlib.compress(b" " * (65 << 20)))


def test_flight_records() -> None:
    assert unpack_flight(Message("n1", f"{FLIGHT}12", zlib.compress(b"dump"))) == (12, b"dump")
    assert unpack_flight(Message("n1", f"{FLIGHT}../x", zlib.compress(b"dump"))) is None
    assert unpack_flight(Message("n1", REPORT, b"")) is None


def test_frames_keep_their_kind() -> None:
    report = node("n1", process(0, (Frame("f", "libx.so", 0, True), Frame("g", "y.py", 3))))
    assert Unpacker().unpack(pack(report)).processes[0].threads[0].frames[0].native
