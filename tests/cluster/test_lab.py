"""The laboratory itself: its mesh is real, and each fault stops exactly the ranks that it should."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator

import pytest

from tests.lab import processes, query
from tests.lab.cluster import Cluster, ClusterError, free_ports
from tests.lab.user import PYTHON, TRAIN, TrainRun, User, wait_until

pytestmark = pytest.mark.cluster

PACE = ["--rate=20", "--step=5", "--duration=40"]
EIGHT = ["-N4", "-n8", "--ntasks-per-node=2"]
EVERYONE = set(range(8))


class Running:
    """A training job in the background: its files, its srun and the port of its RAS listener."""

    def __init__(self, user: User, *args: str, tasks: list[str] = EIGHT) -> None:
        self.port = free_ports(1)[0]
        command = [*tasks, PYTHON, TRAIN, *PACE, *args]
        self.srun = user.start_srun(*command, env={"NCCL_RAS_ADDR": f"127.0.0.1:{self.port}"})
        self.user = user

    def ready(self) -> TrainRun:
        return TrainRun.find(self.user.folder)

    def counts(self, comm_hash: str) -> dict[int, dict[str, int]]:
        return query.counts(query.status("127.0.0.1", self.port), comm_hash)


def after_the_fault(run: TrainRun) -> set[int]:
    """Ranks that still finish steps well after the fault struck."""
    assert run.truth["hang"]
    time.sleep(0.5)
    return run.moving(within_s=0.5)


# ---- the mesh


def test_ras_answers_for_all_processes_and_their_counts_move(user: User) -> None:
    job = Running(user, "--tp=2")
    run = job.ready()
    report = query.status("127.0.0.1", job.port)
    assert {comm["size"] for comm in report["communicators"]} == {8, 4, 2}
    assert sum(comm["missing_ranks_count"] for comm in report["communicators"]) == 0
    world = next(comm for comm in report["communicators"] if comm["size"] == 8)
    assert world["hash"] == run.communicator("world")["hash"]
    assert [rank["pid"] for rank in world["ranks"]] == run.pids()
    assert {rank["host"] for rank in world["ranks"]} == {f"127.0.0.{i}" for i in range(1, 5)}
    before = job.counts(world["hash"])
    time.sleep(0.5)
    after = job.counts(world["hash"])
    assert all(after[rank]["AllReduce"] > before[rank]["AllReduce"] for rank in EVERYONE)


def test_ranks_are_the_processes_that_slurm_started(user: User) -> None:
    run = Running(user).ready()
    parents = {int(processes.stat_fields(pid)[1]) for pid in run.pids()}
    assert len(parents) == 4  # one slurmstepd a node
    assert all(processes.read_bytes(parent, "cmdline").startswith(b"slurmstepd") for parent in parents)


def test_pipelines_are_in_the_mesh_but_not_counted(user: User) -> None:
    job = Running(user, "--pp=4")
    run = job.ready()
    assert run.moving(within_s=0.5) == EVERYONE
    counted = job.counts(run.communicator("pp0")["hash"])
    assert len(counted) == 4
    assert not any(sum(operations.values()) for operations in counted.values())


def test_groups_without_a_world_are_meshes_of_their_own(user: User) -> None:
    job = Running(user, "--tp=2", "--groups=tp")
    run = job.ready()
    report = query.status("127.0.0.1", job.port)
    assert len(report["communicators"]) == 1
    assert run.moving(within_s=0.5) == EVERYONE


def test_a_healthy_job_ends_well(user: User) -> None:
    result = user.srun(*EIGHT, PYTHON, TRAIN, "--steps=12", "--rate=20", "--tp=2")
    assert result.returncode == 0, result.stderr
    run = TrainRun.find(user.folder)
    assert run.steps_done() == dict.fromkeys(EVERYONE, 12)
    assert run.truth["fault"] == "none"


def test_sixty_four_ranks_come_together_within_seconds(user: User) -> None:
    began = time.monotonic()
    job = Running(user, "--tp=4", "--pp=2", "--rate=2", tasks=["-N4", "-n64", "--ntasks-per-node=16"])
    run = job.ready()
    assert time.monotonic() - began < 15
    assert run.moving(within_s=2) == set(range(64))
    assert len(job.counts(run.communicator("world")["hash"])) == 64


def test_torchrun_workers_are_ranks(user: User) -> None:
    job = Running(user, "--torchrun=2", tasks=["-N4", "-n4", "--ntasks-per-node=1"])
    run = job.ready()
    assert run.moving(within_s=0.5) == EVERYONE
    agents = {int(processes.stat_fields(pid)[1]) for pid in run.pids()}
    assert len(agents) == 4
    assert all(b"--torchrun=2" in processes.read_bytes(agent, "cmdline") for agent in agents)
    environ = processes.read_bytes(run.pids()[5], "environ").split(b"\0")
    assert {b"RANK=5", b"LOCAL_RANK=1", b"WORLD_SIZE=8"} <= set(environ)


# ---- faults that hang


@pytest.mark.parametrize(
    "fault",
    ["not_entered", "exit", "swallowed", "killed", "stopped", "wrong_op", "wrong_size", "extra_op", "wrong_order",
     "destroyed", "aborted", "async_error", "symmetric"],
)  # fmt: skip
def test_a_fault_in_the_world_stops_everybody(user: User, fault: str) -> None:
    group = ["--tp=2", "--group=tp"] if fault == "wrong_order" else []
    run = Running(user, f"--fault={fault}", "--rank=3", *group).ready()
    assert after_the_fault(run) == set()
    struck = run.truth
    assert struck["step"] == 5
    expected = sorted(EVERYONE) if fault == "symmetric" else [3]
    assert [culprit["rank"] for culprit in struck["culprits"]] == expected
    assert [culprit["pid"] for culprit in struck["culprits"]] == [run.pids()[rank] for rank in expected]
    assert set(run.steps_done().values()) == {5}


@pytest.mark.parametrize("fault", ["not_entered", "killed", "stopped", "wrong_op"])
def test_a_fault_in_a_group_of_its_own_stops_that_group_only(user: User, fault: str) -> None:
    tasks = [*EIGHT, "--kill-on-bad-exit=0"]
    run = Running(user, "--tp=2", "--groups=tp", "--group=tp", f"--fault={fault}", "--rank=3", tasks=tasks).ready()
    assert after_the_fault(run) == EVERYONE - {2, 3}
    assert run.truth["communicator"] == {**run.communicator("tp1"), "ranks": [2, 3]}


def test_a_fault_in_a_pipeline_stops_everybody(user: User) -> None:
    run = Running(user, "--pp=4", "--fault=not_entered", "--group=pp", "--rank=4").ready()
    assert after_the_fault(run) == set()
    assert run.truth["operation"] == "Send"


def test_the_rank_that_did_not_enter_is_one_launch_behind(user: User) -> None:
    job = Running(user, "--fault=not_entered", "--rank=3", "--variant=lock")
    run = job.ready()
    assert after_the_fault(run) == set()
    launches = {rank: ops["AllReduce"] for rank, ops in job.counts(run.communicator("world")["hash"]).items()}
    assert launches == {rank: 5 if rank == 3 else 6 for rank in EVERYONE}


def test_with_run_ahead_the_others_launch_on(user: User) -> None:
    job = Running(user, "--tp=2", "--fault=not_entered", "--group=tp", "--rank=3", "--run-ahead=4")
    run = job.ready()
    assert after_the_fault(run) == set()
    tensor = job.counts(run.communicator("tp1")["hash"])
    assert tensor[0]["AllReduce"] > tensor[1]["AllReduce"]
    gradients = job.counts(run.communicator("dp0")["hash"])
    assert gradients[1]["ReduceScatter"] > 5  # rank 2 launched it, though its stream still stands before


def test_processes_of_faults_are_as_they_should(user: User) -> None:
    run = Running(user, "--fault=stopped", "--rank=3").ready()
    pid = run.truth["culprits"][0]["pid"]
    wait_until(lambda: processes.stat_fields(pid)[0] == "T", what="state of the stopped rank")
    os.kill(pid, signal.SIGCONT)
    assert wait_until(lambda: run.moving(within_s=0.5) == EVERYONE, what="everybody going on")


@pytest.mark.parametrize("group", ["world", "tp", "late"])
def test_a_communicator_that_one_rank_never_joins(user: User, group: str) -> None:
    job = Running(user, "--tp=2", "--fault=init_stall", f"--group={group}", "--rank=3")
    found = wait_until(lambda: list(user.folder.glob("train-*/truth.json")), what="truth.json")
    run = TrainRun(found[0].parent)
    assert [culprit["rank"] for culprit in run.truth["culprits"]] == [3]
    assert after_the_fault(run) == set()
    assert job.srun.poll() is None


# ---- what only looks like a hang


@pytest.mark.parametrize("fault", ["checkpoint", "compile", "data_stall"])
@pytest.mark.parametrize("rank", ["3", "all"])
def test_a_pause_passes(user: User, fault: str, rank: str) -> None:
    run = Running(user, f"--fault={fault}", f"--rank={rank}", "--pause=1.5").ready()
    assert not run.truth["hang"]
    assert wait_until(lambda: min(run.steps_done().values()) > 8, what="steps")
    for times in run.progress().values():
        gaps = [later - earlier for earlier, later in zip(times, times[1:8])]
        assert max(gaps) == pytest.approx(1.5, abs=0.5)


def test_a_slow_rank_slows_everybody(user: User) -> None:
    run = Running(user, "--fault=slow", "--rank=3", "--pause=0.3").ready()
    assert wait_until(lambda: min(run.steps_done().values()) > 9, what="steps")
    for times in run.progress().values():
        assert times[9] - times[5] > 1.0


def test_communicators_that_come_and_go(user: User) -> None:
    job = Running(user, "--fault=churn")
    run = job.ready()
    assert run.moving(within_s=2) == EVERYONE
    assert wait_until(lambda: min(run.steps_done().values()) > 30, what="more groups than there are places")


# ---- the end


@pytest.mark.parametrize(("fault", "status"), [("none", 0), ("not_entered", 3), ("stopped", 137)])
def test_it_ends_by_itself_and_leaves_no_process(user: User, fault: str, status: int) -> None:
    arguments = [f"--fault={fault}", "--rank=3", "--rate=20", "--step=3", "--duration=3"]
    job = user.srun(*EIGHT, "--kill-on-bad-exit=0", PYTHON, TRAIN, *arguments)
    assert job.returncode == status, job.stderr
    assert not any(processes.is_alive(pid) for pid in TrainRun.find(user.folder).pids())


@pytest.fixture
def other() -> Iterator[Cluster]:
    """A second cluster beside the session's."""
    cluster = Cluster(f"o{os.getpid()}").up(nodes=2)
    yield cluster
    cluster.down()


def test_down_leaves_nothing_though_a_job_runs(cluster: Cluster, other: Cluster) -> None:
    assert set(other.node_states()) == {"n1", "n2"}
    assert not set(other.plan.ports) & set(cluster.plan.ports)
    user = User(other, other.home / "job")
    job = user.sbatch("srun sleep 1000", "-N2", "--ntasks-per-node=2")
    user.wait_for_state(job, "RUNNING")
    wait_until(lambda: user.steps(job), what="the job's step")
    members = processes.belonging_to(other.folder)
    other.down()
    assert not any(processes.is_alive(pid) for pid in members)
    assert not other.folder.exists()
    assert set(cluster.node_states().values()) == {"idle"}


def test_a_start_that_fails_says_why_and_leaves_nothing() -> None:
    cluster = Cluster(f"f{os.getpid()}")
    with pytest.raises(ClusterError, match="Can't find plugin for select/nonsense"):
        cluster.up(extra_conf=["SelectType=select/nonsense"])
    assert not cluster.folder.exists()
    assert not processes.belonging_to(cluster.folder)


def test_accounting_keeps_the_comment(accounting_user: User) -> None:
    job = accounting_user.sbatch("exit 5", "--comment=of the user")
    assert accounting_user.wait_for_state(job) == "FAILED"
    asked = ["sacct", "-X", "-n", "-P", "-j", str(job), "-o", "state,exitcode,comment"]
    assert wait_until(lambda: accounting_user.check(asked).strip() == "FAILED|5:0|of the user", what="sacct's record")


def test_a_paused_node_does_not_answer_until_it_goes_on(cluster: Cluster, user: User) -> None:
    cluster.pause("n2")
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            user.srun("-w", "n2", "true", timeout_s=1)
    finally:
        cluster.resume("n2")
    user.cancel_all()
    assert user.srun("-w", "n2", "true", timeout_s=20).returncode == 0
