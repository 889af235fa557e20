"""Meshes without Slurm: every scenario comes to what it is about, on every NCCL release that is installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab import processes, query
from tests.lab.cluster import free_ports
from tests.lab.ras import LAYOUTS, PREFIX, Layout
from tests.lab.scenario import SCENARIOS, Scenario, live

INSTALLED = sorted(path.name for path in (PREFIX / "nccl").glob("*") if (LAYOUTS / f"{path.name}.layout").exists())
WITH_JSON = [version for version in INSTALLED if version not in ("2.26.2", "2.27.5")]


def all_reduces(scenario: Scenario) -> dict[int, int]:
    """Communicator rank -> AllReduce launches on the world."""
    report = query.status("127.0.0.1", scenario.port)
    world = query.counts(report, scenario.truth["communicators"]["world"]["hash"])
    return {rank: operations["AllReduce"] for rank, operations in world.items()}


@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_each_scenario_comes_to_its_point_and_leaves_no_process(name: str) -> None:
    with live(name, port=free_ports(1)[0], healthy_s=0.3) as scenario:
        assert scenario.reached.wait(20)
        assert bool(scenario.truth["culprit_ranks"]) <= scenario.truth["hang"]
    assert not any(processes.is_alive(pid) for mesh in scenario.meshes for pid in mesh.pids)


@pytest.mark.parametrize("version", WITH_JSON)
def test_one_rank_is_a_launch_behind_on_every_release(version: str) -> None:
    with live("missing_collective", version, free_ports(1)[0], healthy_s=0.3) as scenario:
        assert scenario.reached.wait(20)
        launches = all_reduces(scenario)
        assert len(launches) == 8
        assert {rank for rank in launches if launches[rank] < max(launches.values())} == {3}
        assert query.status("127.0.0.1", scenario.port)["nccl_version"] == version


def test_a_killed_process_is_missing() -> None:
    with live("process_killed", port=free_ports(1)[0], healthy_s=0.3) as scenario:
        assert scenario.reached.wait(20)
        report = query.status("127.0.0.1", scenario.port)
        missing = [
            rank["pid"] for comm in report["communicators"] if comm["size"] == 8 for rank in comm["missing_ranks"]
        ]
        assert missing == [scenario.truth["pids"][7]]


def test_a_communicator_under_construction_makes_reports_incoherent() -> None:
    with live("init_window", port=free_ports(1)[0], healthy_s=0.3) as scenario:
        assert scenario.reached.wait(20)
        assert "0x0" in [comm["hash"] for comm in query.status("127.0.0.1", scenario.port)["communicators"]]


def test_a_scenario_that_fails_raises() -> None:
    with pytest.raises(EOFError), live("healthy", version="2.0.0", port=free_ports(1)[0]):
        pass


def test_recording_from_the_command_line(tmp_path: Path) -> None:
    program = Path(__file__).with_name("scenario.py")
    arguments = ["healthy", "--port", str(free_ports(1)[0]), "--out", str(tmp_path), "--interval=0.3", "--duration=1.2"]
    subprocess.run([sys.executable, str(program), *arguments], check=True, timeout=30)
    assert len((tmp_path / "polls.jsonl").read_text().splitlines()) == 4
    assert len(list(tmp_path.glob("poll_*.json"))) == 4
    assert '"hang": false' in (tmp_path / "truth.json").read_text()


@pytest.mark.parametrize("path", sorted(LAYOUTS.glob("*.layout")), ids=lambda path: path.stem)
def test_each_layout_has_what_a_communicator_needs(path: Path) -> None:
    layout = Layout.of(path.stem)
    assert {"comm", "peer", "rri"} == set(layout.sizes)
    assert {"init", "fini", "addranks", "getversion"} <= set(layout.symbols)
    assert layout.fields["comm.seqNumber"][1] == 8 * 5
