"""A live RAS mesh of real NCCL code on loopback: processes (tests/ras/member.py) that a test kills, stops, starts and counts up.

`nodes` "nodes" are 127.0.0.1, 127.0.0.2 and so on, each with its share of the ranks and its own RAS listener at the same port.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from slurm_ncclmon.ras.client import Address
from tests.lab.ras import PREFIX

ROOT = Path(__file__).resolve().parents[2]
VERSIONS = ("2.26.2", "2.27.5", "2.28.9", "2.29.7", "2.30.7", "2.31.2", "2.32.3")
_ports = random.Random(os.getpid())


def available(version: str) -> bool:
    """Whether scripts/setup has fetched that release."""
    return (PREFIX / "nccl" / version / "lib" / "libnccl.so.2").exists()


def free_port() -> int:
    return _ports.randrange(28100, 32000)


@dataclass
class Process:
    """One rank."""

    popen: subprocess.Popen[str]
    address: str
    device: int

    @property
    def pid(self) -> int:
        return self.popen.pid

    @property
    def peer(self) -> list[object]:
        return [self.address, self.pid, self.device]

    def send(self, *command: object) -> None:
        assert self.popen.stdin is not None
        self.popen.stdin.write(json.dumps(command) + "\n")
        self.popen.stdin.flush()

    def wait(self) -> str:
        """What it replied to the oldest command."""
        assert self.popen.stdout is not None
        reply = self.popen.stdout.readline()
        assert reply.startswith("ok "), f"member {self.pid} died or failed: {reply!r}, exit {self.popen.poll()}"
        return reply[3:].strip()

    def resident_kb(self) -> int:
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * 4

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def ras_seconds(self) -> float:
        """CPU time of its RAS thread, which is the only one besides Python's own."""
        total = 0
        for task in Path(f"/proc/{self.pid}/task").iterdir():
            if task.name != str(self.pid):
                total += sum(map(int, (task / "schedstat").read_text().split()[:1]))
        return total / 1e9


class LiveMesh:
    """Use `with live_mesh(…)`."""

    def __init__(self, version: str, ranks: int, nodes: int, port: int, environment: dict[str, str]) -> None:
        self.version, self.port = version, port
        self.address = Address("127.0.0.1", port)
        share = ranks // nodes
        self.processes = [
            self._start(f"127.0.0.{1 + rank // share}", rank % share, environment) for rank in range(ranks)
        ]
        for process in self.processes:
            process.wait()
        self.comms: dict[str, list[int]] = {}
        self.absent: set[int] = set()
        self._random = random.Random(port)
        self._lock = threading.Lock()

    def _start(self, address: str, device: int, environment: dict[str, str]) -> Process:
        popen = subprocess.Popen(
            [sys.executable, "-m", "tests.ras.member", self.version, address, str(device)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={
                **os.environ,
                "NCCL_RAS_ADDR": f"{address}:{self.port}",
                "NCCL_DEBUG": "ERROR",
                "PYTHONPATH": str(ROOT),
                **environment,
            },
        )
        return Process(popen, address, device)

    def _each(self, ranks: Iterable[int], *command: object) -> None:
        """The same command to several ranks at once; those that are gone or stopped are left out."""
        there = [rank for rank in ranks if rank not in self.absent]
        with self._lock:
            for rank in there:
                self.processes[rank].send(*command)
            for rank in there:
                self.processes[rank].wait()

    def comm(self, name: str, ranks: Sequence[int], joins: bool = False, ready: bool = True) -> None:
        """A communicator over `ranks`; `joins` for one made from scratch, which brings its processes into one mesh."""
        comm_hash = self._random.getrandbits(60) | 1
        with self._lock:
            for rank, member in enumerate(ranks):
                self.processes[member].send("make", name, comm_hash, rank, len(ranks), joins)
            records = [self.processes[member].wait() for member in ranks]
        self.comms[name] = list(ranks)
        if joins:
            self._each(ranks, "join", records)
        if ready:
            self.ready(name)

    def _peers(self, name: str) -> list[list[object]]:
        return [self.processes[rank].peer for rank in self.comms[name]]

    def ready(self, name: str, ranks: Sequence[int] | None = None) -> None:
        self._each(self.comms[name] if ranks is None else ranks, "ready", name, self._peers(name))

    def destroy(self, name: str) -> None:
        self._each(self.comms.pop(name), "fini", name)

    def launch(self, name: str, operation: str = "AllReduce", launches: int = 1, without: Sequence[int] = ()) -> None:
        ranks = [rank for rank in self.comms[name] if rank not in without]
        self._each(ranks, "count", name, operation, launches)

    def set(self, rank: int, name: str, field: str, value: int) -> None:
        self._each([rank], "set", name, field, value)

    def fini(self, rank: int, name: str) -> None:
        self._each([rank], "fini", name)

    def parallel(self) -> None:
        """What most jobs have: all ranks, and two kinds of subgroups (8 ranks: 2 of 4, 4 of 2)."""
        ranks = range(len(self.processes))
        half = len(ranks) // 2
        self.comm("world", ranks, joins=True)
        self.comm("tp0", ranks[:half])
        self.comm("tp1", ranks[half:])
        for number in range(half):
            self.comm(f"dp{number}", [number, number + half])

    def step(self, without: Sequence[int] = ()) -> None:
        """One training step: some launches in every communicator."""
        for name in list(self.comms):
            self.launch(name, "AllGather" if name.startswith("tp") else "AllReduce", 1, without)

    def kill(self, rank: int) -> None:
        self.absent.add(rank)
        self.processes[rank].popen.kill()
        self.processes[rank].popen.wait()

    def stop(self, rank: int) -> None:
        self.absent.add(rank)
        os.kill(self.processes[rank].pid, signal.SIGSTOP)

    def resume(self, rank: int) -> None:
        os.kill(self.processes[rank].pid, signal.SIGCONT)
        self.absent.discard(rank)

    def dead(self) -> list[int]:
        """Ranks whose process is gone."""
        return [rank for rank, process in enumerate(self.processes) if process.popen.poll() is not None]

    def close(self) -> None:
        for process in self.processes:
            if process.popen.poll() is None:
                process.popen.kill()
        for process in self.processes:
            process.popen.wait()
            for pipe in (process.popen.stdin, process.popen.stdout):
                with contextlib.suppress(OSError):
                    pipe.close()  # type: ignore[union-attr]


@contextlib.contextmanager
def live_mesh(
    version: str, ranks: int = 8, nodes: int = 2, port: int | None = None, environment: dict[str, str] | None = None
) -> Iterator[LiveMesh]:
    """Processes of a job without communicators yet."""
    mesh = LiveMesh(version, ranks, nodes, port or free_port(), environment or {})
    try:
        yield mesh
    finally:
        mesh.close()
