"""A process without a program of its own: a member of a RAS mesh that does what is written to its standard input.

One JSON object a line in, one a line out. It dies with whoever started it.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # started as a program: the package is the folder that this file lies in
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    __package__ = Path(__file__).resolve().parent.name
    __import__(__package__)

from . import ras

_PR_SET_PDEATHSIG = 1


class Worker:
    """The communicators of this process; each public method is a command."""

    def __init__(self, version: str, address: str, device: int) -> None:
        self.library = ras.Library(version)
        self.own = ras.Peer.on(address, os.getpid(), device)
        self.communicators: dict[str, ras.Communicator] = {}

    def create(self, name: str, comm_hash: int, rank: int, members: int, joins_mesh: bool) -> str:
        """Registers a communicator; returns this process's record in hexadecimal, if it joins the mesh."""
        made = ras.Communicator(self.library, comm_hash, rank, members, self.own, joins_mesh)
        self.communicators[name] = made
        return made.record.hex()

    def add_ranks(self, records: list[str]) -> None:
        self.library.add_ranks([bytes.fromhex(record) for record in records])

    def ready(self, name: str, peers: list[list[Any]]) -> None:
        """Ends a communicator's initialisation; a peer is [address, pid, device]."""
        self.communicators[name].ready([ras.Peer.on(*peer) for peer in peers])

    def count(self, name: str, operation: str, launches: int) -> None:
        self.communicators[name].count(operation, launches)

    def set(self, name: str, field: str, value: int) -> None:
        self.communicators[name].set(field, value)

    def fini(self, name: str) -> None:
        self.communicators.pop(name).fini()

    def leave(self) -> None:
        """Exits with status 0, the way a program that is done does."""
        sys.exit(0)


def main(version: str, address: str, device: str) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    worker = Worker(version, address, int(device))
    print("null", flush=True)
    for line in sys.stdin:
        command, arguments = json.loads(line)
        print(json.dumps(getattr(worker, command)(*arguments)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
