"""An ordinary user at a cluster: submits jobs in a folder of their own and asks Slurm about them."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Callable, TypeVar

from .cluster import PREFIX, Cluster

PYTHON = "/usr/bin/python3"
TRAIN = str(PREFIX / "lab" / "train.py")
FINISHED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "DEADLINE"}
Value = TypeVar("Value")


class SlurmError(RuntimeError):
    """A command of Slurm failed; the text is its standard error."""


def wait_until(ask: Callable[[], Value], timeout_s: float = 20.0, what: str = "") -> Value:
    """Asks until the answer is true and returns it; TimeoutError after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not (answer := ask()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what or ask} is still {answer!r} after {timeout_s} s")
        time.sleep(0.05)
    return answer


class User:
    """The test user in one folder of its home."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder
        self.run(["mkdir", "-p", str(folder)], cwd=cluster.home)

    def run(self, command: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
        """Runs a command to its end, whatever its status; options as of Cluster.run."""
        return self.cluster.run(command, **{"cwd": self.folder, **options})

    def check(self, command: Sequence[str], **options: Any) -> str:
        """Runs a command and returns its standard output; SlurmError if it fails."""
        result = self.run(command, **options)
        if result.returncode:
            raise SlurmError(f"{' '.join(command)}: {result.stderr.strip()}")
        return result.stdout

    def srun(self, *args: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """`srun ARGS` to its end."""
        return self.run(["srun", *args], **options)

    def start_srun(self, *args: str, **options: Any) -> subprocess.Popen[str]:
        """`srun ARGS` in the background; its output goes to srun.out and srun.err in the folder."""
        streams = {f"std{name}": (self.folder / f"srun.{name}").open("w") for name in ("out", "err")}
        try:
            return self.cluster.popen(
                ["srun", *args], stdin=subprocess.DEVNULL, text=True, **{"cwd": self.folder, **streams, **options}
            )
        finally:
            for stream in streams.values():
                stream.close()

    def sbatch(self, script: str, *args: str, **options: Any) -> int:
        """Submits the text of a script and returns the job's number; its output goes to job-NUMBER.out."""
        text = script if script.startswith("#!") else f"#!/bin/bash\n{script}\n"
        command = ["sbatch", "--parsable", "--output=job-%j.out", *args]
        return int(self.check(command, stdin=text, **options).split(";")[0])

    def show(self, job: int) -> dict[str, str]:
        """Fields of `scontrol show job`."""
        words = self.check(["scontrol", "show", "job", "-o", str(job)]).strip()
        fields = [word.partition("=") for word in words.split(" ")]
        shown: dict[str, str] = {}
        for key, equals, value in fields:
            if equals and key[:1].isupper():
                last, shown[key] = key, value
            else:  # a value with blanks in it, such as a comment
                shown[last] += f" {key}{equals}{value}"
        return shown

    def state(self, job: int) -> str:
        """The job's state as Slurm names it: PENDING, RUNNING, COMPLETED, ..."""
        return self.show(job)["JobState"]

    def wait_for_state(self, job: int, *states: str, timeout_s: float = 30.0) -> str:
        """Waits until the job has one of the states, by default any in which it is over."""
        wanted = set(states) or FINISHED

        def reached() -> str:
            state = self.state(job)
            if state in FINISHED - wanted:
                raise SlurmError(f"job {job} is {state}, and will never be {' or '.join(sorted(wanted))}")
            return state if state in wanted else ""

        return wait_until(reached, timeout_s, f"state of job {job} ({', '.join(sorted(wanted))})")

    def steps(self, job: int) -> dict[str, str]:
        """Step -> name of the job's running steps, batch and extern left out."""
        lines = self.check(["squeue", "--steps", f"--jobs={job}", "-h", "-o", "%i %j"]).splitlines()
        steps = dict(line.split(maxsplit=1) for line in lines)
        return {step: name for step, name in steps.items() if step.rpartition(".")[2].isdigit()}

    def cancel_all(self) -> None:
        """Cancels all jobs of the user and waits until they are gone."""
        self.run(["scancel", "--user=ncclmon"])
        wait_until(lambda: not self.run(["squeue", "-h"]).stdout, 30.0, "no jobs left")


class TrainRun:
    """What a training job wrote into its folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def find(cls, folder: Path, timeout_s: float = 20.0) -> TrainRun:
        """The run below `folder` whose ranks have all come together."""
        found = wait_until(lambda: list(folder.glob("train-*/ranks.json")), timeout_s, f"ranks.json below {folder}")
        return cls(found[0].parent)

    @property
    def ranks(self) -> dict[str, Any]:
        """Who runs where, and all communicators."""
        return _read_json(self.folder / "ranks.json")

    @property
    def truth(self) -> dict[str, Any]:
        """What is wrong; waits until it is."""
        wait_until((self.folder / "truth.json").exists, 20.0, "truth.json")
        return _read_json(self.folder / "truth.json")

    def communicator(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = next(comm for comm in self.ranks["communicators"] if comm["name"] == name)
        return found

    def pids(self) -> list[int]:
        return [rank["pid"] for rank in self.ranks["ranks"]]

    def progress(self) -> dict[int, list[float]]:
        """Rank -> times at which it finished its steps, in order."""
        lines = {int(path.name): path.read_text().splitlines() for path in (self.folder / "progress").iterdir()}
        return {rank: [float(line.split()[1]) for line in lines[rank]] for rank in sorted(lines)}

    def steps_done(self) -> dict[int, int]:
        return {rank: len(times) for rank, times in self.progress().items()}

    def moving(self, within_s: float) -> set[int]:
        """Ranks that finish a step within that time."""
        before = self.steps_done()
        time.sleep(within_s)
        after = self.steps_done()
        return {rank for rank in after if after[rank] > before.get(rank, 0)}


def _read_json(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text())
    return content
