"""Whose socket answers: any user of a node may listen at a port that a step has not taken yet, and lie."""

from __future__ import annotations

import contextlib
import socket
import struct
from pathlib import Path

PROC = Path("/proc/net")


def owner_of_peer(sock: socket.socket, proc: Path = PROC) -> int | None:
    """User id that owns the other end of a connected and accepted TCP socket on this machine; None where that is not known,
    as for a peer elsewhere. What /proc says of a socket that nobody has accepted yet is not its owner: greet first."""
    if sock.family not in (socket.AF_INET, socket.AF_INET6):
        return None
    with contextlib.suppress(OSError, ValueError, IndexError):
        theirs, ours = (_place(sock.family, *end()[:2]) for end in (sock.getpeername, sock.getsockname))
        name = "tcp" if sock.family == socket.AF_INET else "tcp6"
        for line in (proc / name).read_text(encoding="ascii").splitlines()[1:]:
            words = line.split()
            if words[1] == theirs and words[2] == ours:
                return int(words[7])
    return None


def _place(family: int, host: str, port: int) -> str:
    """An address as /proc/net/tcp writes it: 32-bit words in the machine's order, then the port."""
    packed = socket.inet_pton(family, host)
    words = struct.unpack(f"={len(packed) // 4}I", packed)
    return "".join(f"{word:08X}" for word in words) + f":{port:04X}"
