"""The client by commands, against stand-ins on PATH that print what Slurm 22.05 prints (the cluster tests ask the real one)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from slurm_ncclmon.errors import SlurmError, UsageError
from slurm_ncclmon.slurm.client import ENDING, RUNNING, SUSPENDED, StepPart
from slurm_ncclmon.slurm.commands import CommandClient, run_command
from slurm_ncclmon.slurm.step import BATCH, StepId

STEPS = """\
StepId=7.batch UserId=1001 StartTime=2026-11-30T08:47:15 TimeLimit=UNLIMITED
   State=RUNNING Partition=main NodeList=n1
   Nodes=1 CPUs=0 Tasks=1 Name=batch Network=(null)

StepId=7.0 UserId=1001 StartTime=2026-11-30T08:47:15 TimeLimit=UNLIMITED
   State=RUNNING Partition=main NodeList=n[1-4]
   Nodes=4 CPUs=8 Tasks=8 Name=python3 Network=(null)
   SrunHost:Pid=vm:11915

StepId=7.1 UserId=1001 StartTime=2026-11-30T08:47:16 TimeLimit=UNLIMITED
   State=RUNNING Partition=main NodeList=n1
   Nodes=1 CPUs=1 Tasks=1 Name=ncclmon Network=(null)

StepId=7.TBD UserId=1001 StartTime=Unknown TimeLimit=UNLIMITED
   State=PENDING Partition=main NodeList=(null)
   Nodes=1 CPUs=1 Tasks=1 Name=later Network=(null)
"""

LAYOUT = """\
Job step layout:
\t8 tasks, 4 nodes (n[1-4])

\tNode 0 (n1), 5 task(s): 0 1 2 3 4 
\tNode 1 (n2), 1 task(s): 5 
\tNode 2 (n3), 1 task(s): 6 
\tNode 3 (n4), 1 task(s): 7 
"""  # noqa: W291  # sattach ends lines with a blank

HET = """\
JobId=20 HetJobId=20 HetJobOffset=0 JobName=x
   JobState=RUNNING

JobId=21 HetJobId=20 HetJobOffset=1 JobName=x
   JobState=RUNNING
"""

Program = Callable[..., None]


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    """Puts a stand-in on PATH: prints a text, keeps its arguments in NAME.args."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    def write(name: str, output: str = "", rc: int = 0, error: str = "", script: str = "") -> None:
        (tmp_path / f"{name}.out").write_text(output)
        (tmp_path / f"{name}.err").write_text(error)
        body = script or f'cat "{tmp_path}/{name}.out"; cat "{tmp_path}/{name}.err" >&2; exit {rc}'
        path = tmp_path / name
        path.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >> "{tmp_path}/{name}.args"\n{body}\n')
        path.chmod(0o755)

    return write


def arguments(tmp_path: Path, name: str) -> list[str]:
    return (tmp_path / f"{name}.args").read_text().splitlines()


def test_steps_and_the_one_that_is_meant(program: Program) -> None:
    program("scontrol", STEPS)
    client = CommandClient()
    assert [str(info.step) for info in client.steps(7)] == ["7.0", "7.1", "7.batch"]
    assert client.last_step(7) == StepId(7, 0), "our own step is not meant"
    assert client.find_step("7") == StepId(7, 0)
    assert client.find_step("7.1") == StepId(7, 1)
    assert client.find_step("7.batch") == StepId(7, BATCH)
    with pytest.raises(UsageError, match="neither a job nor a job step"):
        client.find_step("seven")


def test_array_task(program: Program) -> None:
    program("squeue", "7\n")
    program("scontrol", STEPS)
    assert CommandClient().find_step("5_2") == StepId(7, 0)


def test_nodes_of_a_step(program: Program) -> None:
    program("scontrol", script=f"case $2 in job) echo 'JobId=7 JobName=x';; *) cat <<'E'\n{STEPS}E\n;; esac")
    assert CommandClient().step_nodes(StepId(7, 0)) == ("n1", "n2", "n3", "n4")
    with pytest.raises(SlurmError, match="not running"):
        CommandClient().step_nodes(StepId(7, 5))


def test_nodes_of_a_heterogeneous_step(program: Program) -> None:
    script = f"""case "$2 $3" in
      "job 20") cat <<'E'\n{HET}E\n;;
      "step 20.0") echo 'StepId=20.0 State=RUNNING NodeList=n1 Name=a';;
      "step 21.0") echo 'StepId=21.0 State=RUNNING NodeList=n[2-3] Name=a';;
    esac"""
    program("scontrol", script=script)
    assert CommandClient().step_parts(StepId(20, 0)) == (StepPart(0, ("n1",)), StepPart(1, ("n2", "n3")))


def test_task_layout(program: Program) -> None:
    program("sattach", LAYOUT)
    assert CommandClient().task_layout(StepId(7, 0)) == {"n1": (0, 1, 2, 3, 4), "n2": (5,), "n3": (6,), "n4": (7,)}


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        ("RUNNING\n", RUNNING),
        ("SUSPENDED\n", SUSPENDED),
        ("COMPLETING\n", ENDING),
        ("", ENDING),
        ("CANCELLED\n", ENDING),
    ],
)
def test_state_of_a_step(program: Program, job: str, expected: str) -> None:
    program("squeue", job)
    program("scontrol", STEPS)
    assert CommandClient().step_state(StepId(7, 0)) == expected


def test_a_step_that_slurm_forgot_is_ending(program: Program) -> None:
    program("squeue", "RUNNING\n")
    program("scontrol", rc=1, error="Job step 7.3 not found\n")
    assert CommandClient().step_state(StepId(7, 3)) == ENDING


def test_a_controller_that_does_not_answer_is_no_end(program: Program) -> None:
    program("squeue", rc=1, error="slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n")
    with pytest.raises(SlurmError, match="Unable to contact"):
        CommandClient().step_state(StepId(7, 0))


def test_comment_is_extended(program: Program, tmp_path: Path) -> None:
    program("squeue", "mine: with 'quotes' and = signs\n")
    program("scontrol")
    CommandClient().set_comment(7, "H1 rank 3")
    assert arguments(tmp_path, "scontrol") == [
        "update",
        "JobId=7",
        "Comment=ncclmon: H1 rank 3 || mine: with 'quotes' and = signs",
    ]


def test_signals_and_requeue(program: Program, tmp_path: Path) -> None:
    program("scancel")
    program("scontrol")
    CommandClient().cancel_step(StepId(7, 0), "TERM")
    CommandClient().cancel_step(StepId(7, 0))
    CommandClient().requeue(7)
    CommandClient().notify(7, "two words")
    assert arguments(tmp_path, "scancel") == ["--signal=TERM", "7.0", "7.0"]
    assert arguments(tmp_path, "scontrol") == ["requeue", "7", "notify", "7", "two words"]


def test_fields_of_a_job(program: Program) -> None:
    program(
        "scontrol",
        "JobId=7 JobName=x\n   Requeue=1 Restarts=2 BatchFlag=1\n   WorkDir=/home/some one/run 1\n   StdIn=x\n",
    )
    assert CommandClient().work_dir(7) == "/home/some one/run 1"
    assert CommandClient().restarts(7) == 2


def test_node_states_and_version(program: Program) -> None:
    program("sinfo", "n1 mixed\nn2 down*\n")
    program("scontrol", "slurm-wlm 22.05.8\n")
    assert CommandClient().node_states(("n1", "n2")) == {"n1": "mixed", "n2": "down*"}
    assert CommandClient().version() == (22, 5)


def test_errors_say_the_command_and_what_it_printed(program: Program) -> None:
    program("scontrol", rc=1, error="slurm_load_jobs error:\nInvalid job id specified\n")
    with pytest.raises(SlurmError, match=r"scontrol requeue 9: slurm_load_jobs error:; Invalid job id specified"):
        CommandClient().requeue(9)


def test_a_command_that_hangs(program: Program) -> None:
    program("scontrol", script="sleep 60")
    with pytest.raises(SlurmError, match=r"scontrol ping: no answer in 0.2 s"):
        run_command(("scontrol", "ping"), 0.2)


def test_no_slurm_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SlurmError, match="scontrol is not on PATH"):
        CommandClient().version()
