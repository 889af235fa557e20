"""Text answers: what they tell, what follows from it, and what must not be believed."""

from __future__ import annotations

import pytest

from slurm_ncclmon.errors import ReportError
from slurm_ncclmon.ras import problems as kind
from slurm_ncclmon.ras.decode import Decoder
from slurm_ncclmon.ras.report import (
    ABORTED,
    DEAD,
    FINALIZED,
    MISSING,
    OPERATIONS,
    RESULT_IN_PROGRESS,
    UNRESPONSIVE,
    CommKey,
    Gpu,
    Report,
)
from tests.ras.samples import assert_sound, kinds, sample


def decode(name: str) -> Report:
    report = Decoder().decode(sample(name))
    assert_sound(report)
    return report


def text(body: str, status: str = "RUNNING", size: int = 4, version: str = "2.28.3") -> Report:
    """An answer with one communicator of which `body` is told."""
    return Decoder().decode(
        f"""NCCL version {version} compiled with CUDA 12.9

Communicators... (0.25s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         1         4         {size}         4   {status}  MISMATCH

Errors
======

Warnings
========

#0-0 (00000000000000ab) MISMATCH
{body}
""".encode()
    )


ON_NODE = "GPU 0 managed by process 7 on node 10.0.0.1"


def counts(report: Report, operation: str) -> list[int]:
    return report.counts[:, OPERATIONS.index(operation)].tolist()


def test_those_named_are_ahead() -> None:
    report = decode("two_leaders-2.26.2.txt")
    assert report.comms == (CommKey("0xfa93daea854b060b", ""),)
    assert report.size.tolist() == [32]
    assert [rank for rank, count in enumerate(counts(report, "AllGather")) if count == 641] == [12, 13]
    assert set(counts(report, "AllGather")) == {640, 641}
    assert report.gpus[report.gpu[12]] == Gpu("10.0.0.2", 323032, 4, 4)
    assert report.gpus[report.gpu[0]].pid == -1
    assert kinds(report) == {kind.TEXT_ONLY}
    assert report.coherent


def test_one_behind() -> None:
    report = decode("not_entered-2.27.5.txt")
    assert report.nccl_version == "2.27.5"
    assert counts(report, "AllReduce") == [31, 31, 31, 30, 31, 31, 31, 31]
    assert report.gpus[report.gpu[3]] == Gpu("127.0.0.1", 6073, 3, 3)


def test_both_named_in_the_singular() -> None:
    report = decode("two_ranks-2.28.9.txt")
    assert counts(report, "AllGather") == [288685, 288686]
    assert [report.gpus[g].pid for g in report.gpu] == [407, 411]


def test_asynchronous_error_and_mismatch_of_one_communicator() -> None:
    report = decode("async_error-2.28.9.txt")
    assert report.async_error.tolist() == [0, 0, 0, 0, 6, 0, 0, 0]
    assert counts(report, "AllReduce")[4] == 30


def test_destroyed_communicator() -> None:
    report = decode("finalized-2.30.7.txt")
    assert report.flags.tolist() == [0, MISSING, 0, 0, 0, 0, 0, 0]


def test_garbage_is_recognised_and_left_out() -> None:
    report = decode("corrupt-2.28.9.txt")
    assert kind.CORRUPT in kinds(report)
    assert not report.coherent
    assert {comm.hash for comm in report.comms} == {"0x48dbac252265b1f5", "0x813e268c386bbc5", "0x30973b4ba6cecc1b"}
    assert report.flags[7] == MISSING | UNRESPONSIVE
    assert report.gpus[report.gpu[7]].pid == 2455


def test_garbage_with_a_launchers_line_and_cut_off() -> None:
    report = decode("corrupt_cut-2.27.3.txt")
    assert kind.TRUNCATED in kinds(report)
    assert not report.coherent
    assert [comm.hash for comm in report.comms] == ["0xb3398875b8b2a063"]
    assert report.flags.tolist() == [0, MISSING | UNRESPONSIVE]
    assert report.gpus[report.gpu[1]] == Gpu("10.0.0.1", 60004, 0, 0)


def test_impossible_rank_is_corrupt() -> None:
    report = text(
        "  Communicator ranks have different AllReduce operation counts\n"
        "  Rank 1057455228 has launched up to operation 3 -- [process information not found]"
    )
    assert kind.CORRUPT in kinds(report)
    assert not report.comms


@pytest.mark.parametrize("size", [10**6, 10**9, 10**30])
def test_impossible_size_is_corrupt(size: int) -> None:
    report = text(
        "  Communicator ranks have different AllReduce operation counts\n  3 ranks have launched up to operation 3",
        size=size,
    )
    assert not report.comms


@pytest.mark.parametrize("digits", [19, 25, 5000])
def test_impossible_count(digits: int) -> None:
    report = text(
        "  Communicator ranks have different AllReduce operation counts\n  3 ranks have launched up to operation 3\n"
        f"  Rank 0 has launched up to operation {'9' * digits} -- {ON_NODE}"
    )
    assert_sound(report)


def test_communicators_under_construction() -> None:
    report = decode("init_half-2.28.9.txt")
    assert kind.EMPTY_COMMUNICATOR in kinds(report)
    assert not report.coherent


def test_whom_two_unnamed_groups_are_is_not_guessed() -> None:
    report = text(
        "  Communicator ranks have different AllReduce operation counts\n  2 ranks have launched up to operation 3\n"
        "  2 ranks have launched up to operation 4"
    )
    assert report.members == 0
    assert kind.BAD_ENTRY in kinds(report)


def test_none_launched_and_two_operations() -> None:
    report = text(
        "  Communicator ranks have different AllReduce operation counts\n  3 ranks have launched up to operation 5\n"
        "  Rank 2 has not launched any operations -- GPU 2 (NVML 6) managed by process 9 on node 10.0.0.1\n"
        "  Communicator ranks have different Broadcast operation counts\n  2 ranks have launched up to operation 1\n"
        "  Rank 0 -- GPU 0 managed by process 7 on node 10.0.0.1\n  Rank 1 -- GPU 1 managed by process 8 on node 10.0.0.1\n"
        "  2 ranks have not launched any operations"
    )
    assert counts(report, "AllReduce") == [5, 5, 0, 5]
    assert counts(report, "Broadcast") == [1, 1, 0, 0]
    assert report.gpus[report.gpu[2]] == Gpu("10.0.0.1", 9, 2, 6)
    assert report.collection_s == 0.25


def test_one_count_for_all_operations() -> None:
    report = text(
        "  Communicator ranks have different collective operation counts\n  3 ranks have launched up to operation 5\n"
        "  Rank 2 has launched up to operation 4 -- GPU 2 managed by process 9 on node 10.0.0.1",
        version="2.25.1",
    )
    assert kind.MERGED_COUNTS in kinds(report)
    assert counts(report, "AllReduce") == [5, 5, 4, 5]


@pytest.mark.parametrize(("status", "flags"), [("ABORT", ABORTED), ("FINALIZE", FINALIZED), ("NOCOMM", MISSING)])
def test_status(status: str, flags: int) -> None:
    report = text(
        "  Communicator ranks have different status\n  3 ranks have status RUNNING\n"
        f"  Rank 0 has status {status} -- {ON_NODE}"
    )
    assert report.flags.tolist() == [flags, 0, 0, 0]


def test_status_of_initialisation() -> None:
    report = text(
        "  Communicator ranks have different status\n  3 ranks have status RUNNING\n"
        f"  Rank 0 has status INIT -- {ON_NODE}"
    )
    assert report.init_state.tolist() == [RESULT_IN_PROGRESS, 0, 0, 0]


def test_dead_process() -> None:
    report = Decoder().decode(
        sample("corrupt-2.28.9.txt").replace(
            b"#0-0 (",
            b"DEAD\n  1 job process is considered dead (unreachable via the RAS network)\n"
            b"  Process 2455 on node 127.0.0.2 managing GPU 3\n\n#0-0 (",
            1,
        )
    )
    assert report.flags[7] == MISSING | UNRESPONSIVE | DEAD


def test_nothing_odd() -> None:
    report = Decoder().decode(
        b"NCCL version 2.30.7 compiled with CUDA 12.9\n\nErrors\n======\n\nWarnings\n========\n\n"
    )
    assert report.coherent
    assert not report.comms


def test_no_version() -> None:
    with pytest.raises(ReportError):
        Decoder().decode(b"NCCL version unknown")
