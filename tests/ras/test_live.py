"""Real RAS meshes of shipped NCCL releases. bench/ras_soak.py has the same with hundreds of polls."""

from __future__ import annotations

import time

import pytest

from bench.ras_soak import FAULTS, VERSIONS, local, soak
from slurm_ncclmon.errors import RasUnsafeError
from slurm_ncclmon.ras import problems as kind
from slurm_ncclmon.ras.client import Address, ask
from slurm_ncclmon.ras.mesh import Local, Mesh, Process
from slurm_ncclmon.ras.version import loaded_version
from tests.ras.live import LiveMesh, available, live_mesh

THOROUGH = ("2.28.9", "2.32.3")
CASES = [
    (version, fault)
    for version in VERSIONS
    for fault in FAULTS
    if version in THOROUGH or fault in ("dead_rank", "under_construction")
]


def needs(version: str) -> None:
    if not available(version):
        pytest.skip(f"scripts/setup --nccl {version} has not been run")


@pytest.mark.parametrize(("version", "fault"), CASES)
def test_polled_while_things_go_wrong(version: str, fault: str) -> None:
    """No process dies, no RAS thread goes on spinning, and every answer is classed rightly."""
    needs(version)
    log: list[str] = []
    result = soak(version, fault, 12, log.append)
    assert not result.wrong, log
    assert not result.died
    assert result.idle_s < 0.3
    assert result.descriptors <= 2


@pytest.mark.parametrize("version", ["2.26.2", "2.27.5"])
def test_releases_without_json(version: str) -> None:
    needs(version)
    with live_mesh(version) as mesh:
        mesh.parallel()
        mesh.launch("world", without=[3])
        time.sleep(0.5)
        with pytest.raises(RasUnsafeError):
            ask(mesh.address)
        poll = Mesh().poll(0, 0.0, 0.0, local(mesh))
        assert poll.report is not None
        assert poll.report.nccl_version == version
        assert poll.report.counts[:, 4].tolist() == [1, 1, 1, 0, 1, 1, 1, 1]
        assert str(loaded_version(mesh.processes[0].pid)) == version


def on_one_node(mesh: LiveMesh) -> Local:
    processes = tuple(Process(p.pid, p.pid, Address(p.address, mesh.port)) for p in mesh.processes)
    return Local(processes, frozenset({"127.0.0.1"}))


def test_communicators_that_share_no_process_are_all_seen() -> None:
    """Four ranks at one port, as torchrun's workers are, in two meshes: the kernel picks who answers."""
    needs("2.30.7")
    with live_mesh("2.30.7", ranks=4, nodes=1) as mesh:
        mesh.comm("left", [0, 1], joins=True)
        mesh.comm("right", [2, 3], joins=True)
        mesh.step()
        time.sleep(0.5)
        watcher, seen = Mesh(), []
        for n in range(20):
            poll = watcher.poll(n, 0.0, 0.0, on_one_node(mesh))
            assert poll.report is not None
            seen.append(len(poll.report.comms))
            assert (seen[-1] == 2) == (kind.NOT_SEEN not in {note.kind for note in poll.notes})
        assert seen.count(2) >= 15


def test_two_jobs_at_one_port_are_told_apart() -> None:
    needs("2.30.7")
    with live_mesh("2.30.7", ranks=4, nodes=1) as ours, live_mesh("2.30.7", ranks=4, nodes=1, port=ours.port) as theirs:
        for mesh in (ours, theirs):
            mesh.comm("world", range(4), joins=True)
            mesh.step()
        time.sleep(0.5)
        watcher, foreign = Mesh(), 0
        for n in range(20):
            poll = watcher.poll(n, 0.0, 0.0, on_one_node(ours))
            foreign += kind.FOREIGN_PROCESS in {note.kind for note in poll.notes}
            if poll.report is not None:
                assert {gpu.pid for gpu in poll.report.gpus} == {process.pid for process in ours.processes}
        assert foreign


def test_answer_is_given_back_by_the_job() -> None:
    """Many answers in a row leave nothing behind: RAS frees each after its timeout."""
    needs("2.28.9")
    with live_mesh("2.28.9") as mesh:
        mesh.parallel()
        for number in range(40):
            mesh.comm(f"more{number}", range(8))
        time.sleep(0.5)
        for _ in range(30):
            ask(mesh.address)
        time.sleep(6.0)
        before = [process.resident_kb() for process in mesh.processes]
        for _ in range(30):
            ask(mesh.address)
        time.sleep(6.0)
        grown = [process.resident_kb() - first for process, first in zip(mesh.processes, before)]
        assert max(grown) < 600, grown
