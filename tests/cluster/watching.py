"""Training jobs under watch on the test cluster, and what their monitors left."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable

from tests.lab.cluster import PREFIX
from tests.lab.user import PYTHON, TRAIN, TrainRun, User, wait_until

NCCLMON = str(PREFIX / "venv" / "bin" / "ncclmon")
QUICK = "confirm=12s,interval=2s"
PATIENCE_S = 120.0
AT_ONCE = 4
"""Jobs side by side; each has 8 ranks, and this machine two cores."""


@dataclass(frozen=True)
class Watched:
    """One training job under watch, in the user's folder."""

    user: User
    job: int

    @property
    def folder(self) -> Path:
        """Where its monitor writes."""
        return self.user.folder / f"ncclmon-{self.job}.0"

    @property
    def output(self) -> str:
        """What the job's owner has read so far."""
        path = self.user.folder / f"job-{self.job}.out"
        return path.read_text(errors="replace") if path.exists() else ""

    @property
    def log(self) -> str:
        path = self.folder / "monitor.log"
        return path.read_text(errors="replace") if path.exists() else ""

    @property
    def report(self) -> str:
        return (self.folder / "report.txt").read_text()

    @property
    def document(self) -> dict[str, Any]:
        """verdict.json; nothing yet is an empty one."""
        path = self.folder / "verdict.json"
        content: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"incidents": []}
        return content

    def incidents(self, *states: str) -> list[dict[str, Any]]:
        return [incident for incident in self.document["incidents"] if not states or incident["state"] in states]

    def is_over(self) -> bool:
        return self.user.state(self.job) not in ("PENDING", "RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED")

    def wait_until_confirmed(self) -> dict[str, Any]:
        wait_until(lambda: self.incidents("confirmed") or self.is_over(), PATIENCE_S, f"{self.folder} confirms")
        (incident,) = self.incidents("confirmed")
        return incident

    def wait_for_end(self) -> None:
        wait_until(self.is_over, PATIENCE_S, f"job {self.job} is over")
        wait_until(lambda: not self.user.steps(self.job), 20.0, f"job {self.job} has no steps left")

    def cancel(self) -> None:
        self.user.run(["scancel", str(self.job)])
        self.wait_for_end()

    def ncclmon(self, *arguments: str) -> Any:
        return self.user.run([NCCLMON, *arguments])

    @property
    def run(self) -> TrainRun:
        return TrainRun(self.user.folder / f"train-{self.job}.0")


def start(
    user: User,
    fault: str = "none",
    option: str = f"observe,{QUICK}",
    train: str = "",
    sbatch: tuple[str, ...] = (),
    after: str = "",
) -> Watched:
    """Submit 8 ranks on 4 nodes; `train` are more arguments of train.py, `after` is what the batch script does next."""
    arguments = f"--tp 2 --fault {fault} --rank 3 --step 15 --duration 100 {train}"
    shape = ("-N4", "--ntasks-per-node=2")
    watch = (f"--nccl-hang-detect={option}",) if option else ()
    job = user.sbatch(f"srun {PYTHON} {TRAIN} {arguments}\n{after}", *shape, *watch, *sbatch)
    return Watched(user, job)


def side_by_side(starts: dict[str, Callable[[], Watched]]) -> dict[str, Watched]:
    """All jobs, a few at a time; each is cancelled as soon as its hang is confirmed."""
    waiting = list(starts)
    running: dict[str, Watched] = {}
    done: dict[str, Watched] = {}
    deadline = time.monotonic() + len(starts) / AT_ONCE * PATIENCE_S
    while waiting or running:
        assert time.monotonic() < deadline, f"still running: {sorted(running)}"
        while waiting and len(running) < AT_ONCE:
            name = waiting.pop(0)
            running[name] = starts[name]()
        for name, job in list(running.items()):
            if job.incidents("confirmed") or job.is_over():
                job.cancel()
                done[name] = running.pop(name)
        time.sleep(0.5)
    return done


def assert_replayed(job: Watched) -> None:
    """Replay of the job's recording gives the verdicts that were given live."""
    replayed = json.loads(job.ncclmon("replay", "--json", str(job.folder)).stdout)
    live = job.document
    assert replayed["polls"] == live["polls"]
    assert [_lasting(incident) for incident in replayed["incidents"]] == [_lasting(i) for i in live["incidents"]]


def _lasting(incident: dict[str, object]) -> dict[str, object]:
    names = ("state", "class", "kind", "communicator", "operation", "culprits", "edges", "victims")
    return {name: incident[name] for name in names}
