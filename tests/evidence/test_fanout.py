"""The job's side of a fan-out, against a stand-in for srun (tests/cluster has the real one)."""

from __future__ import annotations

import time
import zlib
from pathlib import Path

import pytest

from slurm_ncclmon.evidence import fanout
from slurm_ncclmon.evidence.environment import stripped
from slurm_ncclmon.evidence.fanout import Wish, gather, srun_command
from slurm_ncclmon.evidence.model import NodeReport
from slurm_ncclmon.evidence.wire import FLIGHT, REPORT, lines, pack
from slurm_ncclmon.slurm.client import StepPart
from slurm_ncclmon.slurm.step import StepId
from tests.evidence.make import node, process

STEP = StepId(12, 0)


class FakeSrun:
    """A stand-in for srun on PATH: prints what a test gives it, then does what its last lines say."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def says(self, *output: str, then: str = "", error: str = "") -> None:
        (self.folder / "out").write_text("".join(f"{line}\n" for line in output))
        (self.folder / "err").write_text(error)
        self.runs(f"cat {self.folder}/out; cat {self.folder}/err >&2; {then}")

    def runs(self, body: str) -> None:
        path = self.folder / "srun"
        path.write_text(f'#!/bin/bash\necho "$@" >> {self.folder}/args\nenv > {self.folder}/env\n{body}\n')
        path.chmod(0o755)

    @property
    def launches(self) -> list[str]:
        return (self.folder / "args").read_text().splitlines()


@pytest.fixture
def srun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSrun:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(fanout, "_SILENCE_S", 0.3)
    monkeypatch.setattr(fanout, "_SLOWEST", 1.0)
    return FakeSrun(tmp_path)


def both(name: str, report: NodeReport) -> list[str]:
    """An early and a last message."""
    early = NodeReport(name, True)
    return [*lines(name, 0, REPORT, pack(early)), *lines(name, 1, REPORT, pack(report))]


def test_all_answer(srun: FakeSrun) -> None:
    reports = {name: node(name, process(number)) for number, name in enumerate(("n1", "n2"))}
    mixed = [line for pair in zip(*(both(name, report) for name, report in reports.items())) for line in pair]
    srun.says("a line of somebody's profile", *mixed, then="sleep 30")
    seen: list[str] = []
    begun = time.monotonic()
    assert gather(STEP, ("n1", "n2"), 9.0, on_report=lambda report: seen.append(report.node)) == tuple(reports.values())
    assert time.monotonic() - begun < 3, "it does not wait for srun once all is there"
    assert sorted(seen) == ["n1", "n1", "n2", "n2"]


def test_a_silent_node(srun: FakeSrun) -> None:
    srun.says(*both("n1", node("n1", process(0))), then="sleep 30")
    begun = time.monotonic()
    first, second = gather(STEP, ("n1", "n2"), 4.0)
    assert time.monotonic() - begun < 4
    assert first.processes
    assert not second.answered
    assert "no answer in time" in second.problems[0]


def test_partial_results_are_kept_at_the_deadline(srun: FakeSrun) -> None:
    srun.says(*both("n1", node("n1", process(0)))[:1], then="sleep 30")
    begun = time.monotonic()
    (report,) = gather(STEP, ("n1",), 3.5)
    assert time.monotonic() - begun < 5
    assert report.answered
    assert "only its first answer" in report.problems[0]


def test_nodes_that_slurm_complains_of_are_left_out_of_the_next_launch(srun: FakeSrun) -> None:
    answers = srun.folder / "answers"
    answers.write_text("".join(f"{line}\n" for line in both("n1", node("n1", process(0)))))
    srun.runs(
        f'if [[ "$*" == *"n[1-2]"* ]]; then echo "srun: error: Task launch for StepId=12.3 failed on node n2: Down" >&2; exit 1; '
        f"fi; cat {answers}"
    )
    first, second = gather(STEP, ("n1", "n2"), 9.0)
    assert first.processes
    assert not second.answered
    assert "failed on node n2" in second.problems[0]
    assert len(srun.launches) == 2


def test_no_srun_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (report,) = gather(STEP, ("n1",), 4.0)
    assert not report.answered
    assert "srun" in report.problems[0]


def test_flight_records_are_written(srun: FakeSrun, tmp_path: Path) -> None:

    report = node("n1", process(0), flight_records={"0": "/tmp/dump_0", "1": "/tmp/dump_1"})
    early, *last = both("n1", report)
    srun.says(early, *lines("n1", 7, f"{FLIGHT}0", zlib.compress(b"dump")), *last)
    (got,) = gather(STEP, ("n1",), 9.0, wish=Wish(flight=True), flight_folder=tmp_path / "flight")
    assert got.flight_records == {"0": str(tmp_path / "flight" / "rank_0"), "1": "/tmp/dump_1"}
    assert (tmp_path / "flight" / "rank_0").read_bytes() == b"dump"
    assert "--flight" in srun.launches[0]


def test_the_environment_is_stripped(srun: FakeSrun, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_NTASKS", "SLURM_MEM_PER_CPU", "LD_PRELOAD", "PYTHONPATH", "SLURM_NCCL_HANG_DETECT"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("SLURM_CONF", "/some/slurm.conf")
    srun.says(*both("n1", node("n1")))
    gather(STEP, ("n1",), 9.0)
    names = {line.partition("=")[0] for line in (srun.folder / "env").read_text().splitlines()}
    assert {"NCCLMON_IS_MONITOR", "SLURM_CONF", "PATH"} <= names
    assert not names & {"SLURM_NTASKS", "SLURM_MEM_PER_CPU", "LD_PRELOAD", "PYTHONPATH", "SLURM_NCCL_HANG_DETECT"}
    assert "PATH" in stripped({})


def test_one_step_whatever_the_number_of_nodes() -> None:
    names = tuple(f"n{number}" for number in range(1, 4097))
    argv = srun_command(STEP, [StepPart(None, names)], ["ncclmon", "node"])
    assert "--nodelist=n[1-4096]" in argv
    assert "--nodes=4096" in argv
    assert sum(map(len, argv)) < 1000


def test_heterogeneous_jobs_are_one_step_too() -> None:
    argv = srun_command(STEP, [StepPart(0, ("n1",)), StepPart(1, ("n2", "n3"))], ["ncclmon", "node"])
    first, second = argv[: argv.index(":")], argv[argv.index(":") :]
    assert "--het-group=0" in first
    assert "--nodelist=n1" in first
    assert "--het-group=1" in second
    assert "--nodelist=n[2-3]" in second
    assert "ncclmon" in first
    assert "ncclmon" in second
