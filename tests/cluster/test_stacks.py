"""`ncclmon stacks` on a real cluster, as an ordinary user: what it shows of odd ranks, and that the job goes on unharmed."""

from __future__ import annotations

import glob
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab.cluster import PREFIX, Cluster

pytestmark = pytest.mark.cluster

JOBS = Path(__file__).parent / "jobs"
NCCLMON = str(PREFIX / "venv" / "bin" / "ncclmon")
PYTHONS = os.environ.get("NCCLMON_TEST_PYTHONS", ":".join(sorted(glob.glob("/usr/bin/python3.[0-9]*[0-9]")))).split(":")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    cluster = Cluster(f"stacks{os.getpid()}")
    cluster.up(nodes=4, plugin=False)
    yield cluster
    cluster.down()


class Job:
    """A running step of stand.py in a folder of its own."""

    def __init__(
        self, cluster: Cluster, ranks: int = 8, odd: str = "", rank: int = 3, python: str = "/usr/bin/python3"
    ) -> None:
        self.cluster = cluster
        self.ranks = ranks
        self.folder = cluster.home / f"job-{time.monotonic_ns()}"
        made = cluster.run(["mkdir", "-p", str(self.folder / "progress")])
        assert made.returncode == 0, made.stderr
        for path in JOBS.glob("*.py"):
            shutil.copy(path, self.folder)
        cluster.run(["mkfifo", "pipe"], cwd=self.folder)
        what = [python, str(self.folder / "stand.py"), *(["--odd", odd, "--rank", str(rank)] if odd else [])]
        self.process = cluster.popen(
            [
                "srun",
                "--nodes=4",
                f"--ntasks={ranks}",
                f"--ntasks-per-node={ranks // 4}",
                "--overcommit",
                "--mem=64",
                *what,
            ],
            cwd=self.folder,
            env={
                "LD_LIBRARY_PATH": str(Path(python).parents[1] / "lib"),  # of an interpreter that was moved
                "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
                "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": "told_",
                "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "dump_",
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.id = ""

    def wait_until_it_runs(self) -> None:
        self._wait_for(lambda: all(self.ticks(number) for number in range(self.ranks)), "all ranks tick")
        time.sleep(0.5)  # the odd one has become odd
        self.id = self.cluster.run(["squeue", "--noheader", "--format=%A", "--sort=-i"]).stdout.split()[0]

    def ticks(self, rank: int) -> list[float]:
        path = self.folder / "progress" / str(rank)
        return [float(line) for line in path.read_text().split("\n")[:-1]] if path.exists() else []

    def _wait_for(self, condition: Any, what: str, seconds: float = 30.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert self.process.poll() is None, self.process.stderr and self.process.stderr.read()
            assert time.monotonic() < deadline, f"waited in vain until {what}"
            time.sleep(0.05)

    def stacks(self, *options: str) -> tuple[str, float]:
        begun = time.monotonic()
        result = self.cluster.run([NCCLMON, "stacks", self.id, *options])
        assert result.returncode == 0, result.stderr
        return result.stdout, time.monotonic() - begun

    def groups(self, *options: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        text, seconds = self.stacks("--json", *options)
        assert seconds < 10
        answer = json.loads(text)
        return answer["groups"], answer

    def goes_on(self, but: tuple[int, ...] = ()) -> float:
        """All ranks tick again; the longest time that one of them was held up, in seconds."""
        now = time.time()
        others = [rank for rank in range(self.ranks) if rank not in but]
        self._wait_for(lambda: all(self.ticks(rank)[-1] > now for rank in others), "all ranks tick on", 10)
        assert self.cluster.run(["squeue", "--noheader", "--steps", f"--jobs={self.id}", "--format=%j"]).returncode == 0
        gaps = [later - sooner for rank in others for sooner, later in zip(self.ticks(rank), self.ticks(rank)[1:])]
        return max(gaps)

    def end(self) -> None:
        self.process.kill()
        self.process.wait(10)
        if self.process.stderr:
            self.process.stderr.close()
        if self.id:
            self.cluster.run(["scancel", self.id])
            self.cluster.run(["scancel", "--signal=KILL", self.id])


@pytest.fixture
def start(cluster: Cluster) -> Iterator[Any]:
    jobs: list[Job] = []

    def begin(*arguments: Any, **named: Any) -> Job:
        jobs.append(Job(cluster, *arguments, **named))
        jobs[-1].wait_until_it_runs()
        return jobs[-1]

    yield begin
    for job in jobs:
        job.end()


@pytest.mark.parametrize("ranks", [8, 64])
def test_the_stuck_rank_stands_first(start: Any, ranks: int) -> None:
    job = start(ranks, "lost", rank=ranks - 2)
    text, seconds = job.stacks()
    assert seconds < 10
    heads = re.findall(r"^\[\d+\] .*", text, re.MULTILINE)
    assert heads[0].startswith(f"[1] rank {ranks - 2} on n4: "), text
    assert heads[-1].startswith(f"[2] {ranks - 1} ranks 0-"), text
    assert "in a collective" in heads[-1]
    assert "wait_for_worker (" in text
    assert "parts from the majority in main (" in text
    assert job.goes_on() < 2


def test_tree_of_all_ranks(start: Any) -> None:
    text, _ = start(8, "lost").stacks("--tree")
    assert "8:[0-7] all ranks" in text
    assert re.search(r"1:\[3\] main \(\S+/stand.py:\d+\)\n.* lost ", text)
    assert re.search(r"7:\[0-2,4-7\] main \(\S+/stand.py:\d+\)\n.* all_reduce ", text)


def test_two_looks_tell_a_slow_rank_from_a_stuck_one(start: Any) -> None:
    groups, _ = start(8, "lost").groups("--again", "1s")
    assert all(group["looked_twice"] == group["size"] for group in groups)


@pytest.mark.parametrize(
    ("odd", "phase", "state"),
    [
        ("stopped", "stopped", "T"),
        ("asleep_in_kernel", "kernel", "D"),
        ("main_thread_gone", "exited", "Z"),
        ("no_python", "no_stack", "S"),
        ("traced", "lock", "S"),
        ("many_threads", "sleep", "S"),
        ("hidden", "no_stack", "S"),
        ("zombie_child", "sleep", "S"),
    ],
)
def test_odd_rank_stands_first_and_the_job_goes_on(start: Any, odd: str, phase: str, state: str) -> None:
    job = start(8, odd)
    for _ in range(4):  # the others tick now and then: a look may meet one of them in its tick
        groups, answer = job.groups()
        first, last = groups[0], groups[-1]
        if last["ranks"] == "0-2,4-7":
            break
    assert (first["ranks"], first["size"], first["phase"]) == ("3", 1, phase), answer
    assert first["representative"]["state"] in (state, "R"), first
    assert (last["ranks"], last["phase"]) == ("0-2,4-7", "collective"), answer
    held_up = job.goes_on(but=(3,) if odd in ("stopped", "asleep_in_kernel") else ())
    print(f"{odd}: longest pause of a rank {held_up:.2f} s")
    assert held_up < 2
    _as_before(job, odd, first["representative"])


def _as_before(job: Job, odd: str, process: dict[str, Any]) -> None:
    """What was odd is still so, and can still be undone."""
    state = Path(f"/proc/{process['pid']}/stat").read_text().rpartition(")")[2].split()[0]
    if odd == "stopped":
        assert state == "T", "a stopped process must stay stopped"
        os.kill(process["pid"], 18)
        job.goes_on()
    elif odd == "asleep_in_kernel":
        assert state == "D"
        assert process["source"] == "nonblocking"
        with (job.folder / "pipe").open("w"):
            time.sleep(0.3)
        state = Path(f"/proc/{process['pid']}/stat").read_text().rpartition(")")[2].split()[0]
        assert state in "SR", f"it must run on when it wakes, not stand in state {state}"
        job.goes_on()
    elif odd == "main_thread_gone":
        assert state == "Z"
        os.kill(
            process["pid"], 9
        )  # proctrack/linuxproc does not see what lives on in a zombie, and the job would never end
    elif odd == "traced":
        assert process["source"] == "nonblocking"
        assert process["tracer_pid"] > 0
    elif odd == "hidden":
        assert "not permitted" in process["note"]


def test_a_rank_that_may_not_be_read_is_explained_with_the_remedy(start: Any) -> None:
    text, _ = start(8, "hidden").stacks("--once")
    assert "rank 3: it is not dumpable" in text
    assert "setcap cap_sys_ptrace+ep" in text


def test_flight_recorder_dumps_come_along_from_where_they_are_armed(start: Any) -> None:
    job = start(8, "armed")
    job.stacks("--once", "--flight", str(job.folder / "flight"))
    assert [path.name for path in (job.folder / "flight").iterdir()] == ["rank_3"]
    assert (job.folder / "flight" / "rank_3").read_text() == "dump of rank 3"
    assert job.goes_on() < 2


def test_exited_rank_has_no_process(start: Any) -> None:
    job = start(8, "exited")
    groups, answer = job.groups()
    assert (groups[0]["ranks"], groups[0]["phase"]) == ("3", "exited"), answer
    assert groups[0]["nodes"] == "n2"
    job.goes_on(but=(3,))


def test_silent_node_is_a_finding(start: Any, cluster: Cluster) -> None:
    job = start(8, "lost")
    cluster.pause("n3")
    try:
        groups, answer = job.groups()
    finally:
        cluster.resume("n3")
    assert [silent["node"] for silent in answer["silent_nodes"]] == ["n3"]
    assert answer["silent_nodes"][0]["tasks"] == [4, 5]
    assert groups[0]["ranks"] == "3"
    assert groups[-1]["ranks"] == "0-2,6-7"
    job.goes_on()


def test_processes_of_other_steps_are_left_alone(start: Any) -> None:
    job, other = start(8, "lost"), start(8, "lost", rank=5)
    groups, _ = job.groups("--once")
    assert [group["ranks"] for group in groups] == ["3", "0-2,4-7"]
    groups, _ = other.groups("--once")
    assert [group["ranks"] for group in groups] == ["5", "0-4,6-7"]


@pytest.mark.parametrize("python", PYTHONS)
def test_other_pythons(start: Any, python: str) -> None:
    job = start(8, "lost", python=python)
    groups, answer = job.groups("--once")
    assert [group["ranks"] for group in groups] == ["3", "0-2,4-7"], answer
    assert groups[0]["representative"]["source"] == "native", answer
    assert job.goes_on() < 2


HET = """#!/bin/bash
#SBATCH --nodes=1 --ntasks=2 --overcommit --mem=64
#SBATCH hetjob
#SBATCH --nodes=2 --ntasks=2 --overcommit --mem=64
srun --het-group=0,1 /usr/bin/python3 stand.py --odd lost
"""

BATCH = """#!/bin/bash
#SBATCH --nodes=1 --ntasks=1 --mem=64
/usr/bin/python3 stand.py
"""


@pytest.mark.parametrize(("script", "step", "ranks"), [(HET, 0, 4), (BATCH, "batch", 1)])
def test_other_kinds_of_jobs(cluster: Cluster, script: str, step: object, ranks: int) -> None:
    """A heterogeneous job, and a batch script that starts its rank without srun."""
    folder = cluster.home / f"script-{ranks}"
    cluster.run(["mkdir", "-p", str(folder / "progress")])
    for path in JOBS.glob("*.py"):
        shutil.copy(path, folder)
    submitted = cluster.run(["sbatch", "--parsable", "--output=out"], cwd=folder, stdin=script)
    number = submitted.stdout.strip()
    try:
        deadline = time.monotonic() + 30
        while len(list((folder / "progress").iterdir())) < ranks:
            assert time.monotonic() < deadline, submitted.stderr
            time.sleep(0.1)
        time.sleep(0.5)
        result = cluster.run([NCCLMON, "stacks", number])
        assert result.stdout.startswith(f"step {number}.{step}, "), result.stderr
        assert f"{ranks} rank{'s' * (ranks > 1)} on {3 if ranks > 1 else 1} node" in result.stdout
        assert ranks == 1 or "[1] rank 3 on n3: " in result.stdout
    finally:
        cluster.run(["scancel", number])


def test_workers_of_an_agent_are_the_ranks(cluster: Cluster) -> None:
    """As under torchrun: Slurm knows one task a node, which starts the ranks."""
    train = [
        "/usr/bin/python3",
        str(PREFIX / "lab" / "train.py"),
        "--torchrun",
        "2",
        "--fault",
        "not_entered",
        "--rank",
        "5",
    ]
    shape = ["srun", "--nodes=4", "--ntasks=4", "--overcommit", "--mem=64"]
    job = cluster.popen([*shape, *train, "--step", "3", "--duration", "60"], stdout=subprocess.PIPE, text=True)
    try:
        assert job.stdout
        assert any("truth" in line for line in job.stdout), "the fault did not strike"
        time.sleep(1)
        number = cluster.run(["squeue", "--noheader", "--format=%A", "--sort=-i"]).stdout.split()[0]
        groups = json.loads(cluster.run([NCCLMON, "stacks", number, "--json"]).stdout)["groups"]
        assert [(group["ranks"], group["phase"]) for group in groups] == [("5", "data"), ("0-4,6-7", "collective")]
    finally:
        job.kill()
        job.wait(10)
        job.stdout and job.stdout.close()
        cluster.run(["scancel", "--user=ncclmon"])


def test_another_users_job_is_refused(cluster: Cluster) -> None:
    job = cluster.popen(["srun", "--nodes=1", "--ntasks=1", "sleep", "30"], root=True, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 20
        while not (
            number := cluster.run(
                ["squeue", "--noheader", "--user=root", "--states=running", "--format=%A"]
            ).stdout.strip()
        ):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        result = cluster.run([NCCLMON, "stacks", number])
        assert result.returncode == 4
        assert "Access/permission denied" in result.stderr
    finally:
        job.kill()
        job.wait(10)
        cluster.run(["scancel", "--user=root"], root=True)


def test_a_job_that_does_not_exist(cluster: Cluster) -> None:
    result = cluster.run([NCCLMON, "stacks", "99999"])
    assert result.returncode == 4
    assert "99999" in result.stderr
