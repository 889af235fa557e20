"""Whose processes they are, and who is who among them."""

from __future__ import annotations

from typing import Any

import pytest

from slurm_ncclmon.evidence.membership import MONITOR_MARK, Candidate, in_cgroup, select
from slurm_ncclmon.evidence.procfs import EMPTY, Look, Memory, Stat
from slurm_ncclmon.evidence.roles import is_launcher, roles
from slurm_ncclmon.slurm.step import StepId

STEP = StepId(12, 0)
OURS = {"SLURM_JOB_ID": "12", "SLURM_STEP_ID": "0", "SLURMD_NODENAME": "n1"}


def candidate(
    pid: int,
    ppid: int = 999,
    environment: dict[str, str] | None = None,
    command: str = "python train.py",
    nccl: bool = False,
    **fields: Any,
) -> Candidate:
    stat = Stat("x", fields.pop("state", "S"), ppid, 1, 0.0, 100)
    look = Look(pid, stat, pid, 0, "", fields.pop("cgroup", ""), **fields)
    python = command.startswith("python")
    memory = EMPTY if environment is None else Memory(environment, tuple(command.split()), nccl, python)
    return Candidate(look, memory)


def chosen(*candidates: Candidate, listed: dict[int, int | None] | None = None, cluster: str = "") -> list[int]:
    return list(select({one.pid: one for one in candidates}, STEP, "n1", listed or {}, cluster))


def test_the_environment_decides() -> None:
    assert chosen(
        candidate(1, environment=OURS),
        candidate(2, environment={**OURS, "SLURM_STEP_ID": "1"}),
        candidate(3, environment={**OURS, "SLURM_JOB_ID": "13"}),
        candidate(4, environment={**OURS, "SLURMD_NODENAME": "n2"}),
        candidate(5, environment={**OURS, MONITOR_MARK: "1"}),
        candidate(6, environment={"HOME": "/"}),
        candidate(7, environment={"SLURM_JOB_ID": "12"}),
    ) == [1]


def test_other_clusters_on_the_same_machine() -> None:
    there = {**OURS, "SLURM_CLUSTER_NAME": "other"}
    here = {**OURS, "SLURM_WORKING_CLUSTER": "Big:10.0.0.1:6817"}
    assert chosen(candidate(1, environment=there), candidate(2, environment=here), cluster="big") == [2]


def test_a_cleared_environment_is_made_up_for() -> None:
    silent = {"HOME": "/"}
    assert chosen(
        candidate(1, environment=OURS),
        candidate(2, ppid=1, environment=silent),
        candidate(3, ppid=2, environment=silent),
        candidate(4, environment=silent),
        candidate(5, environment=silent, cgroup="0::/system.slice/slurmstepd.scope/job_12/step_0/user/task_0\n"),
        candidate(6, environment=silent),
        candidate(7, ppid=1, environment={**OURS, "SLURM_STEP_ID": "4"}),
        candidate(8, ppid=1, state="Z"),
        listed={4: 3},
    ) == [1, 2, 3, 4, 5, 8]


def test_processes_of_a_batch_script() -> None:
    batch = {"SLURM_JOB_ID": "12", "SLURMD_NODENAME": "n1"}
    candidates = {1: candidate(1, environment=batch), 2: candidate(2, environment=OURS)}
    assert list(select(candidates, StepId.parse("12.batch"), "n1", {})) == [1]


@pytest.mark.parametrize(
    ("cgroup", "inside"),
    [
        ("4:memory:/slurm/uid_1000/job_12/step_0/task_0", True),
        ("4:memory:/slurm_n1/uid_1000/job_12/step_0", True),
        ("4:memory:/slurm_n2/uid_1000/job_12/step_0", False),
        ("0::/system.slice/slurmstepd.scope/job_12/step_0/user", True),
        ("0::/system.slice/n2_slurmstepd.scope/job_12/step_0/user", False),
        ("0::/system.slice/slurmstepd.scope/job_12/step_01/user", False),
        ("0::/system.slice/slurmstepd.scope/job_120/step_0/user", False),
        ("0::/", False),
    ],
)
def test_cgroups(cgroup: str, inside: bool) -> None:
    assert in_cgroup(f"1:cpu:/\n{cgroup}\n", STEP, "n1") is inside


def kinds(*candidates: Candidate, listed: dict[int, int | None] | None = None) -> dict[int, tuple[str, int | None]]:
    found = roles({one.pid: one for one in candidates}, listed or {})
    return {pid: (role.kind, role.rank) for pid, role in found.items()}


def task(number: int, **more: str) -> dict[str, str]:
    return {**OURS, "SLURM_PROCID": str(number), "SLURM_LOCALID": str(number), **more}


def test_ranks_started_by_srun() -> None:
    assert kinds(candidate(10, environment=task(0)), candidate(11, environment=task(1))) == {
        10: ("rank", 0),
        11: ("rank", 1),
    }


def test_a_shell_around_a_rank_and_workers_below_it() -> None:
    assert kinds(
        candidate(10, environment=task(3), command="bash run.sh"),
        candidate(11, 10, task(3), "python train.py", nccl=True),
        candidate(12, 11, task(3), "python train.py", nccl=True),
        candidate(13, 11, task(3), "python -c from_multiprocessing"),
    ) == {10: ("launcher", None), 11: ("rank", 3), 12: ("child", 3), 13: ("child", 3)}


def test_torchrun() -> None:
    def worker(rank: int) -> dict[str, str]:
        return task(0, RANK=str(rank), LOCAL_RANK=str(rank % 2))

    assert kinds(
        candidate(10, environment=task(0), command="python /usr/bin/torchrun --nproc-per-node 2 train.py"),
        candidate(11, 10, worker(0), nccl=True),
        candidate(12, 10, worker(1), nccl=True),
        candidate(13, 12, worker(1), nccl=True),
    ) == {10: ("launcher", None), 11: ("rank", 0), 12: ("rank", 1), 13: ("child", 1)}


def test_a_shell_script_without_python_is_the_rank_itself() -> None:
    assert kinds(
        candidate(10, environment=task(0), command="bash loop.sh"),
        candidate(11, 10, task(0), "sleep 0.1", age_s=0.05),
    ) == {10: ("rank", 0), 11: ("child", 0)}


def test_forked_ranks_without_numbers() -> None:
    assert kinds(
        candidate(10, environment=task(0), command="python spawn.py"),
        candidate(11, 10, task(0), "python -c spawn_main", nccl=True),
        candidate(12, 10, task(0), "python -c spawn_main", nccl=True),
    ) == {10: ("launcher", None), 11: ("rank", None), 12: ("rank", None)}


def test_slurm_knows_the_task_where_the_environment_does_not() -> None:
    assert kinds(candidate(10, environment={}), listed={10: 5}) == {10: ("rank", 5)}


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("bash -c x", True),
        ("/usr/bin/env python x", True),
        ("python -m torch.distributed.run x.py", True),
        ("python3.11 /venv/bin/torchrun x.py", True),
        ("python train.py", False),
        ("python -m mytrainer", False),
        ("/opt/app/solver", False),
        ("", False),
    ],
)
def test_launchers(command: str, expected: bool) -> None:
    assert is_launcher(tuple(command.split())) is expected
