"""One process of a RAS mesh, told what to do by lines of JSON on its standard input.

python -m tests.ras.member VERSION ADDRESS DEVICE
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys

from tests.lab.ras import Communicator, Library, Peer

PR_SET_PDEATHSIG = 1


class Member:
    """What the commands do; each is a method's name and its arguments."""

    def __init__(self, version: str, address: str, device: int) -> None:
        self.library = Library(version)
        self.own = Peer.on(address, os.getpid(), device)
        self.comms: dict[str, Communicator] = {}

    def make(self, name: str, comm_hash: int, rank: int, members: int, joins: bool) -> str:
        self.comms[name] = Communicator(self.library, comm_hash, rank, members, self.own, joins)
        return self.comms[name].record.hex()

    def join(self, records: list[str]) -> None:
        self.library.add_ranks([bytes.fromhex(record) for record in records])

    def ready(self, name: str, peers: list[list[object]]) -> None:
        self.comms[name].ready([Peer.on(*peer) for peer in peers])  # type: ignore[arg-type]

    def count(self, name: str, operation: str, launches: int) -> None:
        self.comms[name].count(operation, launches)

    def set(self, name: str, field: str, value: int) -> None:
        self.comms[name].set(field, value)

    def fini(self, name: str) -> None:
        self.comms.pop(name).fini()

    def leave(self) -> None:
        print("ok ", flush=True)
        sys.exit(0)


def main() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    member = Member(sys.argv[1], sys.argv[2], int(sys.argv[3]))
    print("ok ", flush=True)
    for line in sys.stdin:
        command, *arguments = json.loads(line)
        print("ok", getattr(member, command)(*arguments) or "", flush=True)


if __name__ == "__main__":
    main()
