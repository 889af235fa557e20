"""What may be asked, how often, of which release; and several reports made one."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest

from slurm_ncclmon.ras import problems as kind
from slurm_ncclmon.ras.decode import Decoder
from slurm_ncclmon.ras.merge import merge
from slurm_ncclmon.ras.pace import interval
from slurm_ncclmon.ras.report import Problem
from slurm_ncclmon.ras.safety import Circumstances, corrupts_text, refusal_of_text
from slurm_ncclmon.ras.version import Version, _of_library, is_running, loaded_version
from tests.lab.ras import library_path
from tests.ras.live import VERSIONS, available
from tests.ras.samples import assert_same, assert_sound, sample

YOUNG, OLD, WHOLE = Circumstances(10, True), Circumstances(1000, False), Circumstances(1000, True)


@pytest.mark.parametrize(
    ("version", "circumstances", "refused"),
    [
        (None, WHOLE, True),
        ("2.23.4", WHOLE, True),
        ("2.24.3", YOUNG, True),
        ("2.24.3", OLD, False),
        ("2.25.1", OLD, False),
        ("2.26.2", OLD, True),
        ("2.26.2", YOUNG, True),
        ("2.26.2", WHOLE, False),
        ("2.27.5", YOUNG, False),
        ("2.27.5", OLD, True),
        ("2.28.3", WHOLE, False),
        ("2.29.1", OLD, True),
        ("2.29.2", Circumstances(), False),
    ],
)
def test_what_may_be_asked_for_text(version: str | None, circumstances: Circumstances, refused: bool) -> None:
    reason = refusal_of_text(Version.parse(version) if version else None, circumstances)
    assert (reason is not None) == refused


@pytest.mark.parametrize(
    ("version", "corrupts"), [("2.25.1", False), ("2.26.2", True), ("2.29.1", True), ("2.29.2", False)]
)
def test_whose_text_cannot_be_believed(version: str, corrupts: bool) -> None:
    assert corrupts_text(Version.parse(version)) == corrupts


def test_pace() -> None:
    assert interval(15, 8, 0.002) == 15
    assert interval(2, 8, 0.002) == 2
    assert interval(15, 1024, 0.15) == 30
    assert interval(15, 98304, 0.5) == pytest.approx(227.5, abs=0.1)
    assert interval(15, 98304, 0.5, suspicious=True) == 60
    assert interval(15, 64, 1.0, suspicious=True) == pytest.approx(50)
    assert interval(15, 8, 0.0, troubles=2) == 60
    assert interval(15, 8, 0.0, troubles=99) == 240


def test_version_words() -> None:
    assert Version.parse("2.28.9+cuda12.9") == (2, 28, 9)
    assert str(Version(2, 28, 9)) == "2.28.9"
    assert Version.parse("2.28") is None
    assert Version(2, 9, 9) < Version(2, 28, 0)


@pytest.mark.parametrize("version", VERSIONS)
def test_version_of_a_library(version: str) -> None:
    if not available(version):
        pytest.skip(f"scripts/setup --nccl {version} has not been run")
    assert str(_of_library(library_path(version))) == version


def test_process_without_nccl() -> None:
    assert loaded_version(os.getpid()) is None
    assert loaded_version(2**22 + 1) is None


def test_whether_a_process_runs() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        assert is_running(process.pid)
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        assert not is_running(process.pid)
        process.kill()
    assert not is_running(process.pid)


def test_merged_reports() -> None:
    a, b = (Decoder().decode(sample(f"two_jobs_{name}-2.28.9.json")) for name in "ab")
    merged = merge([a, b])
    assert_sound(merged)
    assert merged.comms == a.comms + b.comms
    assert [merged.gpus[g] for g in merged.gpu] == [r.gpus[g] for r in (a, b) for g in r.gpu]


def test_same_communicator_from_two_answers() -> None:
    whole = Decoder().decode(sample("four_nodes-2.28.9.json"))
    less = Decoder().decode(sample("four_nodes-2.28.9.json").replace(b'"pid": 6247', b'"pid": null'))
    assert_same(merge([less, whole]), whole)
    assert_same(merge([whole, less]), whole)


def test_notes_are_problems() -> None:
    report = Decoder().decode(sample("four_nodes-2.28.9.json"))
    noted = merge([report], [Problem(kind.NOT_SEEN, "5")])
    assert noted.problems == (Problem(kind.NOT_SEEN, "5"),)
    assert noted.coherent
    assert merge([report]) is report
