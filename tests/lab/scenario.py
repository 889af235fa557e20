#!/usr/bin/python3
"""Situations in a RAS mesh without Slurm, live on a port or recorded into a folder.

    scenario.py missing_collective --version 2.32.3 --port 28100              # stays up; ask 127.0.0.1:28100
    scenario.py missing_collective --out DIR --interval 1                     # poll_NNN.json, polls.jsonl, truth.json

In a test: `with live("missing_collective", "2.28.9", port) as running: ...`. Eight processes on two nodes train with world,
tensor and data groups for `--healthy` seconds before anything happens.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
import time
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Callable

if __name__ == "__main__":  # started as a program: the package is the folder that this file lies in
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    __package__ = Path(__file__).resolve().parent.name
    __import__(__package__)

from . import query
from .mesh import Mesh

EVERYONE = range(8)
TENSOR_OPERATIONS = (
    "AllReduce",
    "AllGather",
    "AllReduce",
    "ReduceScatter",
    "AllReduce",
    "AllGather",
    "ReduceScatter",
    "AllReduce",
)


class Ended(Exception):
    """The scenario was told to end."""


class Scenario:
    """What a scenario has at hand: its meshes, its clock and the truth about it."""

    def __init__(self, version: str, port: int, healthy_s: float = 3.0, rate: float = 5.0) -> None:
        self.version, self.port, self.healthy_s, self.rate = version, port, healthy_s, rate
        self.meshes: list[Mesh] = []
        self.truth: dict[str, Any] = {"hang": False, "culprit_ranks": [], "events": []}
        self.reached = threading.Event()  # set once what the scenario is about has happened
        self.ready = threading.Event()  # set once the mesh stands
        self.stop = threading.Event()
        self._start = time.monotonic()

    def mesh(self, **options: Any) -> Mesh:
        made = Mesh(self.version, self.port, **options)
        self.meshes.append(made)
        return made

    def training_mesh(self) -> Mesh:
        """World of eight, two tensor groups of four, four data groups of two."""
        mesh = self.mesh()
        mesh.create("world", EVERYONE, joins_mesh=True)
        for group in range(2):
            mesh.create(f"tp{group}", range(4 * group, 4 * group + 4))
        for first in range(4):
            mesh.create(f"dp{first}", [first, first + 4])
        self._know(mesh)
        return mesh

    def _know(self, mesh: Mesh) -> None:
        groups = mesh.communicators.values()
        self.truth["communicators"] = {group.name: {"hash": hex(group.hash), "ranks": group.ranks} for group in groups}
        self.truth["pids"] = mesh.pids
        self.ready.set()

    def sleep(self, seconds: float) -> None:
        if self.stop.wait(max(0.0, seconds)):
            raise Ended

    def train(self, mesh: Mesh, seconds: float, operations: Callable[[Mesh], None] | None = None) -> None:
        """Trains for so long, at the scenario's rate."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            (operations or training_step)(mesh)
            self.sleep(1 / self.rate)

    def happened(self, what: str, **facts: Any) -> None:
        """Writes down that something happened just now, and what is therefore true."""
        self.truth["events"].append({"t": round(time.monotonic() - self._start, 3), "event": what})
        self.truth.update(facts)
        self.reached.set()

    def forever(self) -> None:
        while True:
            self.sleep(60)


def training_step(mesh: Mesh, skip: Collection[int] = ()) -> None:
    """One step: tensor operations, gradients over the data groups, the norm over the world."""
    before_the_norm(mesh, skip)
    mesh.launch("world", "AllReduce", skip=skip)


def before_the_norm(mesh: Mesh, skip: Collection[int] = ()) -> None:
    for operation in TENSOR_OPERATIONS:
        for group in ("tp0", "tp1"):
            mesh.launch(group, operation, skip=skip)
    for first in range(4):
        mesh.launch(f"dp{first}", "ReduceScatter", skip=skip)
        mesh.launch(f"dp{first}", "AllGather", skip=skip)


# ---- nothing is wrong


def healthy(s: Scenario) -> None:
    """All ranks advance."""
    mesh = s.training_mesh()
    s.reached.set()
    while True:
        s.train(mesh, 60)


def transient_skew(s: Scenario) -> None:
    """Rank 5 is late three times, by 2, 4 and 6 s; the others launch ahead and wait, then it catches up."""
    mesh = s.training_mesh()
    s.train(mesh, s.healthy_s)
    for seconds in (2, 4, 6):
        training_step(mesh, skip=(5,))
        s.happened(f"rank 5 is {seconds} s late")
        s.sleep(seconds)
        training_step(mesh, skip=[rank for rank in EVERYONE if rank != 5])
        s.train(mesh, 3)
    while True:
        s.train(mesh, 60)


def checkpoint_pause(s: Scenario) -> None:
    """Every rank pauses 10 s with all counts equal, then goes on."""
    mesh = s.training_mesh()
    s.train(mesh, s.healthy_s)
    s.happened("pause")
    s.sleep(10)
    s.happened("resume")
    while True:
        s.train(mesh, 60)


def rank0_checkpoint(s: Scenario) -> None:
    """Rank 0 writes a checkpoint for 10 s while the others wait in the world's AllReduce; then all goes on."""
    mesh = s.training_mesh()
    s.train(mesh, s.healthy_s)
    mesh.launch("world", "AllReduce", skip=(0,))
    s.happened("pause of rank 0")
    s.sleep(10)
    mesh.launch("world", "AllReduce", skip=range(1, 8))
    s.happened("resume")
    while True:
        s.train(mesh, 60)


def graph_captured(s: Scenario) -> None:
    """Training runs inside CUDA graphs, which are not counted: counts freeze though the job is fine."""
    mesh = s.training_mesh()
    s.train(mesh, s.healthy_s)
    s.happened("graph replay begins")
    s.forever()


def init_window(s: Scenario) -> None:
    """A communicator is under construction for 10 s, on ranks 0 to 3 longer than on the others."""
    mesh = s.training_mesh()
    s.train(mesh, s.healthy_s)
    mesh.create("new", EVERYONE, ready=False)
    s.happened("construction begins")
    s.train(mesh, 5)
    mesh.ready("new", range(4, 8))
    s.happened("ready on ranks 4 to 7")
    s.train(mesh, 5)
    mesh.ready("new", range(4))
    s.happened("ready")
    while True:
        s.train(mesh, 60)


def comm_churn(s: Scenario) -> None:
    """Communicators are made, used and destroyed all the time."""
    mesh = s.training_mesh()
    s.reached.set()
    while True:
        mesh.create("fresh", EVERYONE)
        mesh.launch("fresh", "AllReduce")
        training_step(mesh)
        for index in EVERYONE:
            mesh.fini(index, "fresh")
        s.sleep(1 / s.rate)


# ---- hangs


def missing_collective(s: Scenario) -> None:
    """Rank 3 never launches the world's AllReduce; the others launched it and are stuck."""
    mesh = s.training_mesh()
    s.train(mesh, s.healthy_s)
    before_the_norm(mesh)
    mesh.launch("world", "AllReduce", skip=(3,))
    s.happened("hang", hang=True, culprit_ranks=[3], communicator="world", operation="AllReduce")
    s.forever()


def mismatched_op(s: Scenario) -> None:
    """Rank 2 launches AllGather where the others launch AllReduce on the world."""
    mesh = s.training_mesh()
    s.train(mesh, s.healthy_s)
    before_the_norm(mesh)
    mesh.launch("world", "AllReduce", skip=(2,))
    mesh.launch("world", "AllGather", skip=[rank for rank in EVERYONE if rank != 2])
    s.happened("hang", hang=True, culprit_ranks=[2], communicator="world", operation="AllReduce")
    s.forever()


def process_killed(s: Scenario) -> None:
    """Rank 7 is killed; the others launch what they can and freeze."""
    mesh = s.training_mesh()
    s.train(mesh, s.healthy_s)
    mesh.kill(7)
    training_step(mesh, skip=(7,))
    s.happened("killed", hang=True, culprit_ranks=[7], communicator="world")
    s.forever()


def process_stopped(s: Scenario) -> None:
    """Rank 5, on the other node, is stopped."""
    _stop(s, 5)


def process_stopped_local(s: Scenario) -> None:
    """Rank 1, on the node that is asked, is stopped: every fourth connection or so is taken by it and never served."""
    _stop(s, 1)


def _stop(s: Scenario, rank: int) -> None:
    mesh = s.training_mesh()
    s.train(mesh, s.healthy_s)
    mesh.stop(rank)
    training_step(mesh, skip=(rank,))
    s.happened("stopped", hang=True, culprit_ranks=[rank], communicator="world")
    s.forever()


def finalized_early(s: Scenario) -> None:
    """Rank 1 destroys the world: flags first, 5 s later it is gone from RAS; the others wait in a collective."""
    mesh = s.training_mesh()
    s.train(mesh, s.healthy_s)
    for flag in ("finalizeCalled", "destroyFlag"):
        mesh.set(1, "world", flag, 1)
    mesh.launch("world", "AllReduce", skip=(1,))
    s.happened("finalised", hang=True, culprit_ranks=[1], communicator="world")
    s.sleep(5)
    mesh.fini(1, "world")
    s.happened("gone")
    s.forever()


def rank_exit_early(s: Scenario) -> None:
    """Rank 6 exits with status 0; the others hang in the world's next AllReduce."""
    mesh = s.training_mesh()
    s.train(mesh, s.healthy_s)
    mesh.leave(6)
    training_step(mesh, skip=(6,))
    s.happened("exit", hang=True, culprit_ranks=[6], communicator="world")
    s.forever()


def symmetric_stall(s: Scenario) -> None:
    """Every rank launched the same and nothing moves any more: all counts equal, no error."""
    mesh = s.training_mesh()
    s.train(mesh, s.healthy_s)
    s.happened("hang", hang=True)
    s.forever()


def async_error(s: Scenario) -> None:
    """Rank 4 has a remote error, 5 s later it aborts; the others are frozen."""
    mesh = s.training_mesh()
    s.train(mesh, s.healthy_s)
    mesh.set(4, "world", "asyncResult", 6)
    mesh.launch("world", "AllReduce", skip=(4,))
    s.happened("error", hang=True, culprit_ranks=[4], communicator="world")
    s.sleep(5)
    mesh.set(4, "world", "abortFlag", 1)
    s.happened("abort")
    s.forever()


def pp_p2p_only(s: Scenario) -> None:
    """Two pipelines that only send and receive, which is not counted, and a world; then all is frozen and equal."""
    mesh = s.mesh()
    mesh.create("world", EVERYONE, joins_mesh=True)
    mesh.create("pp0", [0, 2, 4, 6])
    mesh.create("pp1", [1, 3, 5, 7])
    s._know(mesh)
    s.train(mesh, s.healthy_s, lambda m: m.launch("world", "AllReduce"))
    s.happened("hang", hang=True, culprit_ranks=[4], communicator="pp0", operation="Recv")
    s.forever()


def two_jobs_same_port(s: Scenario) -> None:
    """Two jobs of four ranks on one node and one port: each question is answered by one of both. The second job hangs."""
    jobs = [s.mesh(processes=4, nodes=1, seed=seed, one_address=True) for seed in (1, 2)]
    for job in jobs:
        job.create("world", range(4), joins_mesh=True)
    s.truth["jobs"] = [{"pids": job.pids, "hash": hex(job.communicators["world"].hash)} for job in jobs]
    s.ready.set()
    end = time.monotonic() + s.healthy_s
    while not s.reached.is_set():
        for job in jobs:
            job.launch("world", "AllReduce")
        if time.monotonic() > end:
            jobs[1].launch("world", "AllReduce", skip=(1,))
            s.happened("the second job hangs", hang=True, culprit_ranks=[1], communicator="world")
        s.sleep(1 / s.rate)
    while True:
        s.train(jobs[0], 60, lambda m: m.launch("world", "AllReduce"))


def no_job(s: Scenario) -> None:
    """Nobody listens."""
    s.ready.set()
    s.reached.set()
    s.forever()


SCENARIOS = {
    function.__name__: function
    for function in (
        healthy, transient_skew, checkpoint_pause, rank0_checkpoint, graph_captured, init_window, comm_churn,
        missing_collective, mismatched_op, process_killed, process_stopped, process_stopped_local, finalized_early,
        rank_exit_early, symmetric_stall, async_error, pp_p2p_only, two_jobs_same_port, no_job,
    )
}  # fmt: skip


@contextmanager
def live(
    name: str, version: str = "2.28.9", port: int = 28028, healthy_s: float = 3.0, rate: float = 5.0
) -> Iterator[Scenario]:
    """A scenario that runs beside the caller until the `with` statement ends; entered once its mesh stands.

    `Scenario.reached.wait(timeout)` waits for what it is about; `Scenario.truth` says what is true.
    """
    scenario = Scenario(version, port, healthy_s, rate)

    def run() -> None:
        with suppress(Ended):
            SCENARIOS[name](scenario)

    try:
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix=name) as pool:
            ending = pool.submit(run)
            try:
                while not scenario.ready.wait(0.05):
                    if ending.done():
                        ending.result()  # raises what kept the mesh from standing
                yield scenario
            finally:
                scenario.stop.set()
            ending.result()
    finally:
        for mesh in scenario.meshes:
            mesh.close()


# ---- as a program


def record(scenario: Scenario, folder: Path, interval_s: float, duration_s: float) -> None:
    """Asks each `interval_s` seconds and writes the answers down."""
    folder.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    with (folder / "polls.jsonl").open("w") as log:
        for n in range(int(duration_s / interval_s)):
            if scenario.stop.wait(max(0.0, start + n * interval_s - time.monotonic())):
                break
            t, error = time.monotonic() - start, ""
            try:
                (folder / f"poll_{n:03d}.json").write_text(query.answer("127.0.0.1", scenario.port))
            except (OSError, ValueError) as problem:
                error = str(problem)
            line = {
                "n": n,
                "fmt": "json",
                "t": round(t, 3),
                "dur": round(time.monotonic() - start - t, 3),
                "error": error,
            }
            print(json.dumps(line), file=log, flush=True)
    (folder / "truth.json").write_text(json.dumps(scenario.truth, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("name", nargs="?", choices=sorted(SCENARIOS), help="without a name: the list of all")
    add("--version", default="2.28.9", help="NCCL release, as scripts/setup --nccl installed it")
    add("--port", type=int, default=28028)
    add("--healthy", type=float, default=3.0, help="seconds before anything happens")
    add("--rate", type=float, default=5.0, help="training steps a second")
    add("--duration", type=float, default=600.0, help="seconds after which it ends")
    add("--out", type=Path, help="record answers into this folder")
    add("--interval", type=float, default=1.0, help="seconds between recorded answers")
    args = parser.parse_args()
    if not args.name:
        for name, function in SCENARIOS.items():
            print(f"{name:22s} {(function.__doc__ or '').strip()}")
        return
    with live(args.name, args.version, args.port, args.healthy, args.rate) as scenario:
        for signum in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, lambda *_: scenario.stop.set())
        print(f"{args.name}: NCCL {args.version}, RAS at 127.0.0.1:{args.port}", flush=True)
        if args.out:
            record(scenario, args.out, args.interval, args.duration)
        else:
            scenario.stop.wait(args.duration)


if __name__ == "__main__":
    main()
