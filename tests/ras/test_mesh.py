"""Whose answers are used, who is asked again, what is said of the rest. Answers are scripted; test_live.py has real ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from slurm_ncclmon.errors import RasUnreachableError, RasUnsafeError
from slurm_ncclmon.observation import Poll
from slurm_ncclmon.ras import problems as kind
from slurm_ncclmon.ras.client import Address, Answer
from slurm_ncclmon.ras.decode import Decoder
from slurm_ncclmon.ras.merge import poll_of
from slurm_ncclmon.ras.mesh import MOST_QUESTIONS, PATIENCE, Local, Mesh, Process
from slurm_ncclmon.ras.safety import Circumstances
from slurm_ncclmon.ras.version import Version
from tests.ras.samples import assert_same, sample

PORT = Address("localhost", 28028)
OTHER_PORT = Address("localhost", 28029)
SAFE = Circumstances(age_s=1000.0, all_present=True)


def answer_of(*pids: int, host: str = "10.0.0.1", size: int | None = None) -> bytes:
    """One communicator of these processes."""
    ranks = [
        {
            "rank": rank,
            "host": host,
            "pid": pid,
            "cuda_dev": rank,
            "nvml_dev": rank,
            "status": {
                "init_state": 0,
                "async_error": 0,
                "finalize_called": False,
                "destroy_flag": False,
                "abort_flag": False,
            },
            "collective_counts": {"Broadcast": 0, "Reduce": 0, "AllGather": 0, "ReduceScatter": 0, "AllReduce": 5},
        }
        for rank, pid in enumerate(pids)
    ]
    comm = {
        "hash": f"0x{pids[0]:x}",
        "secondary_hash": "0x1:0x2",
        "size": len(pids),
        "ranks_count": len(pids),
        "missing_ranks_count": 0,
        "ranks": ranks,
        "missing_ranks": [],
    }
    return json.dumps(
        {
            "nccl_version": "2.30.7",
            "timestamp": "2026-11-30 07:17:23",
            "communicators_count": 1,
            "communicators": [comm],
            "ras": {"collection_time_sec": 0.1, "timeouts_count": 0},
        }
    ).encode()


class Network:
    """Answers in turn at each address; the last one for ever."""

    def __init__(self, **answers: list[bytes | Exception]) -> None:
        self.answers = {PORT: answers.get("port", []), OTHER_PORT: answers.get("other", [])}
        self.asked: list[tuple[Address, bool]] = []
        self.silent = 0

    def __call__(self, address: Address, text: bool) -> Answer:
        self.asked.append((address, text))
        waiting = self.answers[address]
        result = waiting.pop(0) if len(waiting) > 1 else waiting[0]
        if isinstance(result, Exception):
            raise result
        return Answer(result, "text" if text else "json", 0.01, address, self.silent)


def local(*pids: int, other: tuple[int, ...] = (), circumstances: Circumstances = SAFE) -> Local:
    processes = [Process(pid, pid, PORT) for pid in pids] + [Process(pid, pid, OTHER_PORT) for pid in other]
    return Local(tuple(processes), frozenset({"10.0.0.1"}), circumstances)


def notes(poll: Poll) -> set[str]:
    return {note.kind for note in poll.notes}


def look(network: Callable[[Address, bool], Answer], step: Local, n: int = 0, mesh: Mesh | None = None) -> Poll:
    return (mesh or Mesh(network, lambda pid: Version(2, 27, 5), lambda pid: True)).poll(n, 1.0, 2.0, step)


def test_one_question_for_one_mesh() -> None:
    network = Network(port=[answer_of(11, 12)])
    poll = look(network, local(11, 12))
    assert len(network.asked) == 1
    assert poll.report is not None
    assert poll.report.coherent
    assert (poll.n, poll.t_s, poll.wall_s, poll.trouble, poll.notes) == (0, 1.0, 2.0, None, ())


def test_another_jobs_answer_is_never_ours() -> None:
    network = Network(port=[answer_of(21, 22), answer_of(21, 22), answer_of(11, 12)])
    poll = look(network, local(11, 12))
    assert poll.report is not None
    assert {gpu.pid for gpu in poll.report.gpus} == {11, 12}
    assert notes(poll) == {kind.FOREIGN_PROCESS}
    assert kind.FOREIGN_PROCESS in {problem.kind for problem in poll.report.problems}
    assert poll.report.coherent


def test_only_another_jobs_answers() -> None:
    network = Network(port=[answer_of(21, 22)])
    poll = look(network, local(11, 12))
    assert poll.report is None
    assert poll.answers == ()
    assert "another job" in str(poll.trouble)
    assert len(network.asked) == MOST_QUESTIONS


def test_meshes_at_one_port_are_all_seen() -> None:
    network = Network(port=[answer_of(11, 12), answer_of(11, 12), answer_of(13, 14)])
    poll = look(network, local(11, 12, 13, 14))
    assert poll.report is not None
    assert [comm.hash for comm in poll.report.comms] == ["0xb", "0xd"]
    assert len(poll.answers) == 2
    assert poll.notes == ()


def test_meshes_at_ports_of_their_own() -> None:
    network = Network(port=[answer_of(11, 12)], other=[answer_of(13, 14)])
    poll = look(network, local(11, 12, other=(13, 14)))
    assert [address for address, _ in network.asked] == [PORT, OTHER_PORT]
    assert poll.report is not None
    assert len(poll.report.comms) == 2


def test_one_mesh_seen_from_two_ports_is_counted_once() -> None:
    network = Network(port=[answer_of(11, 12)], other=[answer_of(11, 12)])
    poll = look(network, local(11, other=(12,)))
    assert len(poll.answers) == 1


def test_what_is_not_seen_is_said_and_not_asked_for_each_time() -> None:
    network = Network(port=[answer_of(11, 12)])
    mesh = Mesh(network)
    first = look(network, local(11, 12, 13), 0, mesh)
    assert notes(first) == {kind.NOT_SEEN}
    assert "13" in first.notes[0].text
    at_first = len(network.asked)
    assert at_first == MOST_QUESTIONS + 2 * 3
    for n in range(1, PATIENCE):
        assert notes(look(network, local(11, 12, 13), n, mesh)) == {kind.NOT_SEEN}
    assert len(network.asked) == at_first + PATIENCE - 1
    look(network, local(11, 12, 13), PATIENCE, mesh)
    assert len(network.asked) == 2 * at_first + PATIENCE - 1


def test_a_mesh_that_was_seen_is_looked_for_each_time() -> None:
    """Bad luck in one poll does not leave a mesh out of the next ones."""
    network = Network(port=[answer_of(11), answer_of(12)])
    mesh = Mesh(network)
    look(network, local(11, 12), 0, mesh)
    network.answers[PORT] = [answer_of(11)]
    assert notes(look(network, local(11, 12), 1, mesh)) == {kind.NOT_SEEN}
    network.answers[PORT] = [*[answer_of(11)] * (MOST_QUESTIONS + 3), answer_of(12)]
    assert notes(look(network, local(11, 12), 2, mesh)) == set()


def test_one_port_that_does_not_answer() -> None:
    network = Network(port=[RasUnreachableError("refused")], other=[answer_of(13, 14)])
    poll = look(network, local(11, 12, other=(13, 14)))
    assert poll.report is not None
    assert notes(poll) == {kind.NOT_SEEN}


def test_nobody_answers() -> None:
    poll = look(Network(port=[RasUnreachableError("localhost:28028: refused")]), local(11))
    assert (poll.report, poll.trouble) == (None, "localhost:28028: refused")


def test_without_processes_everything_is_ours() -> None:
    network = Network(port=[answer_of(11, 12)])
    assert look(network, Local()).report is not None


def test_stopped_process_is_noted() -> None:
    network = Network(port=[answer_of(11)])
    network.silent = 3
    assert notes(look(network, local(11))) == {kind.SILENT_PROCESS}


def test_what_cannot_be_read_is_kept_for_the_recording() -> None:
    poll = look(Network(port=[b"{nonsense"]), local(11))
    assert poll.report is None
    assert poll.answers == (b"{nonsense",)
    assert "not a RAS answer" in str(poll.trouble)


def test_replay_makes_the_same_observation() -> None:
    network = Network(port=[answer_of(21), answer_of(11, 12), answer_of(13, 14)])
    poll = look(network, local(11, 12, 13, 14, 15))
    again = poll_of(poll.n, poll.t_s, poll.wall_s, poll.answers, Decoder(), poll.notes, poll.trouble)
    assert poll.report is not None
    assert again.report is not None
    assert_same(again.report, poll.report)


class OldNetwork(Network):
    """A release without JSON."""

    def __call__(self, address: Address, text: bool) -> Answer:
        if not text:
            self.asked.append((address, text))
            raise RasUnsafeError("no JSON")
        return super().__call__(address, text)


def test_old_release_is_asked_for_text_only_when_nobody_can_be_missing() -> None:
    network = OldNetwork(port=[sample("not_entered-2.27.5.txt")])
    mesh = Mesh(network, lambda pid: Version(2, 27, 5), lambda pid: True)
    refused = look(network, local(11, circumstances=Circumstances(age_s=1000.0)), 0, mesh)
    assert refused.report is None
    assert "2.27.5" in str(refused.trouble)
    assert all(not text for _, text in network.asked)
    poll = look(network, local(11), 1, mesh)
    assert poll.report is not None
    assert poll.report.nccl_version == "2.27.5"


def test_old_release_is_not_asked_when_a_process_has_just_stopped() -> None:
    network = OldNetwork(port=[sample("not_entered-2.27.5.txt")])
    mesh = Mesh(network, lambda pid: Version(2, 27, 5), lambda pid: pid != 12)
    assert look(network, local(11, 12), 0, mesh).report is None
    assert all(not text for _, text in network.asked)


def test_another_jobs_old_release_is_not_asked_for_text() -> None:
    """The step has JSON; whoever at its port has not, is somebody else, whom a question for text could crash."""
    network = OldNetwork(port=[answer_of(21)])
    mesh = Mesh(network, lambda pid: Version(2, 30, 7))
    poll = look(network, local(11), 0, mesh)
    assert poll.report is None
    assert notes(poll) == {kind.FOREIGN_PROCESS}
    assert all(not text for _, text in network.asked)


@pytest.mark.parametrize("name", ["corrupt-2.28.9.txt", "corrupt_cut-2.27.3.txt", "init_half-2.28.9.txt"])
def test_off_switch(name: str) -> None:
    """After one sign of trouble such a release is not asked any more, not even to find out whether it got better."""
    network = OldNetwork(port=[sample(name)])
    mesh = Mesh(network, lambda pid: Version(2, 27, 3), lambda pid: True)
    assert look(network, local(11), 0, mesh).report is not None
    asked = len(network.asked)
    for n in range(1, 20):
        poll = look(network, local(11), n, mesh)
        assert poll.report is None
        assert "not asked any more" in str(poll.trouble)
    assert len(network.asked) == asked
    assert mesh.off is not None


def test_json_is_never_switched_off() -> None:
    network = Network(port=[sample("killed-2.28.9.json")])
    mesh = Mesh(network)
    step = Local((Process(2438, 2438, PORT),), frozenset({"127.0.0.1"}), SAFE)
    look(network, step, 0, mesh)
    assert mesh.off is None


def test_ranks_of_other_nodes_that_no_answer_tells_of_are_said_with_their_nodes() -> None:
    step = replace(local(11, 12), ranks=4, other_nodes=("n2",))
    poll = look(Network(port=[answer_of(11, 12)]), step)
    (note,) = poll.notes
    assert note.kind == kind.OTHER_MESHES
    assert "2 of the step's 4 ranks" in note.text
    assert "n2" in note.text


@pytest.mark.parametrize(("ranks", "nodes"), [(2, ("n2",)), (0, ("n2",)), (4, ())])
def test_nothing_is_said_where_all_are_seen_or_nothing_is_known(ranks: int, nodes: tuple[str, ...]) -> None:
    step = replace(local(11, 12), ranks=ranks, other_nodes=nodes)
    assert look(Network(port=[answer_of(11, 12)]), step).notes == ()
