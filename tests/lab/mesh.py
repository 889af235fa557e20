"""A job without Slurm: processes in a real RAS mesh on loopback whose counters and flags the caller writes."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

WORKER = Path(__file__).resolve().parent / "worker.py"


@dataclass
class Communicator:
    """One communicator: its hash and its processes in the order of its ranks."""

    name: str
    hash: int
    ranks: list[int]


class Process:
    """One worker; commands can be sent to many before their answers are read."""

    def __init__(self, version: str, node: int, device: int, environment: dict[str, str]) -> None:
        self.address, self.device, self.alive = f"127.0.0.{1 + node}", device, True
        command = [sys.executable, str(WORKER), version, self.address, str(device)]
        self._popen = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment}
        )
        self.pid = self._popen.pid

    def send(self, command: str, *arguments: Any) -> None:
        assert self._popen.stdin is not None
        self._popen.stdin.write(json.dumps([command, arguments]) + "\n")
        self._popen.stdin.flush()

    def answer(self) -> Any:
        """The next answer; EOFError if the worker died instead."""
        assert self._popen.stdout is not None
        line = self._popen.stdout.readline()
        if not line:
            raise EOFError(f"worker {self.pid} ended with status {self._popen.wait()}")
        return json.loads(line)

    def call(self, command: str, *arguments: Any) -> Any:
        self.send(command, *arguments)
        return self.answer()

    def signal(self, signum: signal.Signals) -> None:
        os.kill(self.pid, signum)

    def end(self) -> None:
        """Kills it, stopped or not, and takes up its exit."""
        self.alive = False
        self._popen.kill()
        self._popen.communicate()

    def leave(self) -> None:
        """Lets it exit with status 0."""
        self.alive = False
        self.send("leave")
        self._popen.wait(timeout=10)


class Mesh:
    """`processes` workers spread evenly over `nodes` (127.0.0.1, 127.0.0.2, ...), to be used in a `with` statement.

    Every process listens on `port`: on its own node's address, or all on 127.0.0.1 if `one_address`.
    """

    def __init__(
        self,
        version: str = "2.28.9",
        port: int = 28028,
        processes: int = 8,
        nodes: int = 2,
        seed: int = 1,
        one_address: bool = False,
    ) -> None:
        self.version, self.port, self._random = version, port, random.Random(seed)
        self.communicators: dict[str, Communicator] = {}
        per_node = processes // nodes
        self.processes = [
            Process(version, i // per_node, i % per_node, self._environment(0 if one_address else i // per_node))
            for i in range(processes)
        ]
        try:
            for process in self.processes:
                process.answer()  # says that the library is loaded
        except BaseException:
            self.close()
            raise

    def _environment(self, node: int) -> dict[str, str]:
        return {
            "NCCL_RAS_ADDR": f"127.0.0.{1 + node}:{self.port}",
            "NCCL_DEBUG": "WARN",
            "NCCL_DEBUG_SUBSYS": "RAS,INIT",
        }

    def __enter__(self) -> Mesh:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends all processes."""
        for process in self.processes:
            process.end()

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self.processes]

    # ---- communicators

    def create(self, name: str, ranks: Sequence[int], joins_mesh: bool = False, ready: bool = True) -> Communicator:
        """Makes a communicator over these processes; without `ready` it stays under construction."""
        made = Communicator(name, self._random.getrandbits(62) | 1, list(ranks))
        self.communicators[name] = made
        for rank, index in enumerate(made.ranks):
            self.processes[index].send("create", name, made.hash, rank, len(made.ranks), joins_mesh)
        records = [self.processes[index].answer() for index in made.ranks]
        if joins_mesh:
            self._to_each(made.ranks, "add_ranks", records)
        if ready:
            self.ready(name, made.ranks)
        return made

    def ready(self, name: str, ranks: Sequence[int]) -> None:
        """Ends the initialisation of a communicator on these processes."""
        members = [self.processes[index] for index in self.communicators[name].ranks]
        peers = [[member.address, member.pid, member.device] for member in members]
        self._to_each(ranks, "ready", name, peers)

    def launch(self, name: str, operation: str, launches: int = 1, skip: Collection[int] = ()) -> None:
        """Counts launches on every living member but those in `skip`."""
        members = [
            index for index in self.communicators[name].ranks if index not in skip and self.processes[index].alive
        ]
        self._to_each(members, "count", name, operation, launches)

    def set(self, index: int, name: str, field: str, value: int) -> None:
        """Writes a field of one member's communicator, as ras.Communicator.set does."""
        self.processes[index].call("set", name, field, value)

    def fini(self, index: int, name: str) -> None:
        """Takes the communicator out of RAS on one member."""
        self.processes[index].call("fini", name)

    def _to_each(self, indexes: Sequence[int], command: str, *arguments: Any) -> None:
        for index in indexes:
            self.processes[index].send(command, *arguments)
        for index in indexes:
            self.processes[index].answer()

    # ---- processes

    def kill(self, index: int) -> None:
        self.processes[index].end()

    def leave(self, index: int) -> None:
        self.processes[index].leave()

    def stop(self, index: int) -> None:
        self.processes[index].alive = False
        self.processes[index].signal(signal.SIGSTOP)

    def resume(self, index: int) -> None:
        self.processes[index].signal(signal.SIGCONT)
        self.processes[index].alive = True
