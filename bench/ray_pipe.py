"""The other end of ray_detector.py: starts it in Ray's environment and feeds it the polls of simulated jobs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from slurm_ncclmon.ras.report import ABORTED, DESTROYED, FINALIZED, MISSING
from tests.lab.simulate.answer import Answer
from tests.lab.simulate.job import Job

PREFIX = Path(os.environ.get("NCCLMON_PREFIX", "/opt/slurm-ncclmon"))
PACKAGE = "ray[train]==2.60.0"


def environment() -> Path:
    """Where Ray is installed."""
    return PREFIX / "ray-venv"


def install() -> str | None:
    """Make Ray's environment if there is none; what went wrong, None if nothing did."""
    python = environment() / "bin" / "python"
    check = [str(python), "-c", "from ray.train.v2._internal.callbacks.nccl_ras import NCCLRASCallback"]
    if python.exists() and subprocess.run(check, capture_output=True, timeout=120, check=False).returncode == 0:
        return None
    print(f"installing {PACKAGE} into {environment()} (once)", file=sys.stderr, flush=True)
    for command in (
        ["/usr/bin/python3", "-m", "venv", str(environment())],
        [str(python), "-m", "pip", "install", "-q", PACKAGE],
        check,
    ):
        done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
        if done.returncode:
            return f"{' '.join(command[:4])}: {done.stderr.strip().splitlines()[-1:]}"
    return None


class Ray:
    """One process that judges job after job."""

    def __init__(self) -> None:
        script = Path(__file__).with_name("ray_detector.py")
        self._process = subprocess.Popen(
            [str(environment() / "bin" / "python"), "-u", str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def send(self, line: dict[str, Any]) -> None:
        """One line in."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(line, separators=(",", ":")) + "\n")

    def answer(self) -> dict[str, Any]:
        """The line out at a job's end."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write('{"end":true}\n')
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)


class Feed:
    """Turns one job's polls into lines; communicators that did not change are only named."""

    def __init__(self, ray: Ray, job: Job) -> None:
        self._ray, self._job = ray, job
        self._before: dict[str, bytes] = {}
        self._comm, self._base = job.mesh.comm_of_slot(), np.asarray(job.mesh.base)
        self.times: list[float] = []
        ray.send({"job": job.seed, "interval": job.interval})

    def take(self, _n: int, time: float, text: bytes | None, answer: object) -> None:
        """See Senses.raw."""
        self.times.append(time)
        if text is not None:
            self._ray.send({"text": text.decode(errors="replace")})
        elif isinstance(answer, Answer):
            self._ray.send(self._columns(answer))
        else:
            self._ray.send({"none": True})

    def _columns(self, answer: Answer) -> dict[str, Any]:
        comms: dict[str, Any] = {}
        same: list[str] = []
        before, self._before = self._before, {}
        comm = self._comm[answer.slot]
        starts = np.flatnonzero(np.r_[True, comm[1:] != comm[:-1], True]) if len(comm) else np.zeros(1, int)
        for first, last in zip(starts, starts[1:]):
            name = f"0x{self._job.hashes[int(comm[first])][0]:x}"
            state = b"".join(column[first:last].tobytes() for column in (answer.counts, answer.flags, answer.init))
            self._before[name] = state
            if before.get(name) == state:
                same.append(name)
            else:
                comms[name] = self._rows(answer, slice(first, last), int(comm[first]))
        if answer.nameless:
            comms["0x0"] = []
        return {"comms": comms, "same": same}

    def _rows(self, answer: Answer, rows: slice, comm: int) -> list[list[Any]]:
        made = []
        for slot, flags, init, counts in zip(
            answer.slot[rows].tolist(),
            answer.flags[rows].tolist(),
            answer.init[rows].tolist(),
            answer.counts[rows].tolist(),
        ):
            if not flags & MISSING:
                made.append([slot - int(self._base[comm]), _status(flags, init), counts])
        return made


def _status(flags: int, init: int) -> str:
    """As Ray's RASReport.rank_status says it."""
    if flags & ABORTED:
        return "ABORT"
    if flags & (FINALIZED | DESTROYED):
        return "FINALIZE"
    return "RUNNING" if init == 0 else "INIT"
