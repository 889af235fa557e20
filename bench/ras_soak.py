"""Polls live RAS meshes of shipped NCCL releases while things go wrong in them.

python -m bench.ras_soak [--polls N] [--fault NAME] [VERSION ...]

For each fault and release: how many polls, how they were classed, whether a process died that was not killed on purpose, how much
CPU time the RAS threads took beyond that of an idle mesh, and how memory and descriptors of the processes grew. Needs what
`scripts/setup --nccl VERSION,…` fetches; everything is on loopback.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Callable

import numpy as np

from slurm_ncclmon.observation import Poll
from slurm_ncclmon.ras.client import Address
from slurm_ncclmon.ras.mesh import Local, Mesh, Process
from slurm_ncclmon.ras.report import DEAD, MISSING, UNRESPONSIVE, CommKey
from slurm_ncclmon.ras.safety import Circumstances
from tests.ras.live import LiveMesh, available, live_mesh

VERSIONS = ("2.27.5", "2.28.9", "2.29.7", "2.30.7", "2.31.2", "2.32.3")
FROZEN_S = 0.02
"""Between two polls: far less than the monitor's interval, so that many fit into a test."""
SETTLE_S = 0.5
"""How long a mesh takes to find itself."""


@dataclass
class Result:
    """What a series of polls showed."""

    polls: int = 0
    classes: Counter[str] = field(default_factory=Counter)
    wrong: Counter[str] = field(default_factory=Counter)
    died: list[int] = field(default_factory=list)
    ras_s: float = 0.0
    """CPU seconds of the busiest RAS thread."""
    idle_s: float = 0.0
    """The same, over as long a time without polls."""
    seconds: float = 0.0
    resident_kb: int = 0
    """Growth of the process that grew most, over the second half of the polls."""
    descriptors: int = 0


def local(mesh: LiveMesh, node: str = "127.0.0.1") -> Local:
    """What a monitor on that node knows. It vouches for all ranks only while none is stopped or gone."""
    here = [p for rank, p in enumerate(mesh.processes) if p.address == node and p.popen.poll() is None]
    processes = tuple(Process(p.pid, p.pid, Address(p.address, mesh.port)) for p in here)
    return Local(processes, frozenset({node}), Circumstances(age_s=1e6, all_present=not mesh.absent))


def class_of(poll: Poll) -> str:
    """In a word: what the detector may conclude from this poll."""
    report = poll.report
    if report is None:
        return "blind"
    if not report.coherent:
        return "incoherent"
    if (report.flags & DEAD).any():
        return "dead"
    if (report.flags & UNRESPONSIVE).any():
        return "unresponsive"
    if (report.flags & MISSING).any():
        return "destroyed"
    if any(_differ(report.counts[report.rows(c)]) for c in range(len(report.comms))):
        return "skewed"
    return "even"


def wronged(poll: Poll, whole: frozenset[CommKey]) -> bool:
    """Whether a coherent answer says of one of the communicators `whole` that it is gone, or that a rank of it is."""
    report = poll.report
    if report is None or not report.coherent or not whole:
        return False
    missing = (report.flags & MISSING) != 0
    return not whole <= set(report.comms) or any(
        missing[report.rows(c)].any() for c, key in enumerate(report.comms) if key in whole
    )


def _differ(counts: np.ndarray) -> bool:
    return bool((counts != counts[0]).any())


# Faults: each prepares the mesh and yields the classes that are right while it lasts.

Right = set[str]
HEALTHY = {"even", "skewed"}


@contextmanager
def in_background(work: Callable[[], None]) -> Iterator[None]:
    """`work` over and over meanwhile."""
    stop = threading.Event()

    def loop() -> None:
        while not stop.is_set():
            work()

    thread = threading.Thread(target=loop, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@contextmanager
def healthy(mesh: LiveMesh) -> Iterator[Right]:
    def work() -> None:
        mesh.step()
        time.sleep(0.01)

    with in_background(work):
        yield HEALTHY


@contextmanager
def dead_rank(mesh: LiveMesh) -> Iterator[Right]:
    mesh.kill(7)
    mesh.launch("world")
    yield {"unresponsive", "dead"}


@contextmanager
def stopped_remote(mesh: LiveMesh) -> Iterator[Right]:
    mesh.stop(5)
    mesh.launch("world")
    yield {"unresponsive", "dead"}


@contextmanager
def stopped_local(mesh: LiveMesh) -> Iterator[Right]:
    mesh.stop(1)
    mesh.launch("world")
    yield {"unresponsive", "dead"}


@contextmanager
def under_construction(mesh: LiveMesh) -> Iterator[Right]:
    mesh.comm("new", range(8), ready=False)
    mesh.ready("new", range(4, 8))
    yield {"incoherent"}


@contextmanager
def churn(mesh: LiveMesh) -> Iterator[Right]:
    """Communicators come and go, rank by rank; nobody is ever out of reach."""
    names = iter(f"extra{number}" for number in range(10**6))

    def work() -> None:
        name = next(names)
        mesh.comm(name, range(8), ready=False)
        time.sleep(0.005)
        mesh.ready(name, range(3))
        mesh.ready(name)
        mesh.step()
        for rank in range(8):
            mesh.fini(rank, name)
        del mesh.comms[name]
        time.sleep(0.005)

    with in_background(work):
        yield {*HEALTHY, "incoherent", "destroyed"}


@contextmanager
def suspended(mesh: LiveMesh) -> Iterator[Right]:
    """All processes stopped, now briefly, now for long, again and again. RAS may call ranks unresponsive just after."""
    lengths = itertools.cycle((2.0, 12.0))

    def work() -> None:
        for rank in range(8):
            mesh.stop(rank)
        time.sleep(next(lengths))
        for rank in range(8):
            mesh.resume(rank)
        time.sleep(2.0)

    with in_background(work):
        yield {*HEALTHY, "unresponsive", "blind"}


HARMLESS = ("healthy", "under_construction", "churn")
"""Faults that leave alone the communicators that were there before."""
FAULTS = {
    "healthy": healthy,
    "dead_rank": dead_rank,
    "stopped_remote": stopped_remote,
    "stopped_local": stopped_local,
    "under_construction": under_construction,
    "churn": churn,
    "suspended": suspended,
}


def soak(version: str, fault: str, polls: int, log: Callable[[str], None] = lambda line: None) -> Result:
    """Poll `polls` times. JSON must be classed rightly; where text is all there is, being blind is right as well."""
    result = Result(polls)
    with live_mesh(version) as mesh:
        mesh.parallel()
        mesh.step()
        time.sleep(SETTLE_S)
        watcher = Mesh()
        first = watcher.poll(0, 0.0, 0.0, local(mesh)).report
        whole = frozenset(first.comms if first and fault in HARMLESS else ())
        with FAULTS[fault](mesh) as classes:
            right = classes | {"blind", "incoherent", *HEALTHY} if version < "2.28" else classes
            before = _ras_seconds(mesh)
            began = time.monotonic()
            half: list[tuple[int, int]] = []
            for n in range(polls):
                if n == polls // 2:
                    half = _sizes(mesh)
                poll = watcher.poll(n, time.monotonic(), time.time(), local(mesh))
                word = "wronged" if wronged(poll, whole) else class_of(poll)
                result.classes[word] += 1
                if word not in right:
                    result.wrong[word] += 1
                    log(f"{version} {fault} poll {n}: {word}: {poll.trouble} {poll.report and poll.report.problems}")
                time.sleep(FROZEN_S)
            result.seconds = time.monotonic() - began
            result.ras_s = max(after - first for after, first in zip(_ras_seconds(mesh), before))
            after = _sizes(mesh)
        result.resident_kb = max((now[0] - then[0] for now, then in zip(after, half)), default=0)
        result.descriptors = max((now[1] - then[1] for now, then in zip(after, half)), default=0)
        result.died = sorted(set(mesh.dead()) - mesh.absent)
        result.idle_s = _idle(mesh)
    return result


def _there(mesh: LiveMesh) -> list[int]:
    return [rank for rank, process in enumerate(mesh.processes) if process.popen.poll() is None]


def _ras_seconds(mesh: LiveMesh) -> list[float]:
    return [mesh.processes[rank].ras_seconds() for rank in _there(mesh)]


def _sizes(mesh: LiveMesh) -> list[tuple[int, int]]:
    return [(mesh.processes[rank].resident_kb(), mesh.processes[rank].descriptors()) for rank in _there(mesh)]


def _idle(mesh: LiveMesh, seconds: float = 2.0) -> float:
    """CPU seconds of the busiest RAS thread in a second without polls: a thread that spins shows about 1."""
    before = _ras_seconds(mesh)
    time.sleep(seconds)
    return max(after - first for after, first in zip(_ras_seconds(mesh), before)) / seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("versions", nargs="*", default=VERSIONS)
    parser.add_argument("--polls", type=int, default=500)
    parser.add_argument("--fault", action="append", choices=FAULTS)
    options = parser.parse_args()
    print(
        "NCCL | fault | polls | s | classes | wrong | died | RAS thread, ms a poll | idle after, % | MB grown | fds grown"
    )
    bad = False
    for version in options.versions:
        if not available(version):
            print(f"{version}: not there; run scripts/setup --nccl {version}")
            continue
        for fault in options.fault or FAULTS:
            result = soak(version, fault, options.polls, lambda line: print(line, file=sys.stderr))
            bad |= bool(result.wrong or result.died)
            classes = " ".join(f"{word}:{count}" for word, count in sorted(result.classes.items()))
            cells = [
                version,
                fault,
                result.polls,
                f"{result.seconds:.0f}",
                classes,
                sum(result.wrong.values()),
                len(result.died),
                f"{1000 * result.ras_s / result.polls:.2f}",
                f"{100 * result.idle_s:.1f}",
                f"{result.resident_kb / 1024:.1f}",
                result.descriptors,
            ]
            print(" | ".join(map(str, cells)), flush=True)
    return bad


if __name__ == "__main__":
    sys.exit(main())
