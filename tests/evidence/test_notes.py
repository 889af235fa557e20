"""What nodes say of themselves."""

from __future__ import annotations

from slurm_ncclmon.evidence.model import GpuReport, NodeReport
from slurm_ncclmon.evidence.notes import notes
from tests.evidence.make import node


def test_equal_lines_of_several_nodes_are_one() -> None:
    nodes = [node(f"n{number}", problems=("no rank here",)) for number in range(1, 5)]
    silent = NodeReport("n9", answered=False, problems=("no answer",))
    assert notes([*nodes, silent]) == ["n[1-4]: no rank here"]


def test_odd_gpus() -> None:
    gpus = (
        GpuReport(0, "u", "H200", 100.0, 120.0, 700.0),
        GpuReport(1, "u", "H200", 100.0, 650.0, 700.0, throttle=("power cap",)),
        GpuReport(2, "u", "H200", throttle=("hardware slowdown", "power cap"), ecc_uncorrected=2),
        GpuReport(3, "", "", problem="GPU is lost"),
    )
    lines = notes([node("n1", gpus=gpus, events=("10 s ago: NVRM: Xid 79",))])
    assert lines == [
        "n1: 10 s ago: NVRM: Xid 79",
        "n1: GPU 0: fully busy at 120 of 700 W: it spins in a kernel, as in a collective that waits",
        "n1: GPU 2: 2 uncorrected memory errors",
        "n1: GPU 2: slowed down (hardware slowdown)",
        "n1: GPU 3: GPU is lost",
    ]


def test_not_too_many() -> None:
    lines = notes([node("n1", problems=tuple(str(number) for number in range(50)))], most=3)
    assert lines == ["n1: 0", "n1: 1", "n1: 2", "… 47 more such lines"]
