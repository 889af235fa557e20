"""Asking NCCL's RAS over its own socket, in a way that cannot harm the job.

The answering thread lives in a training process, and several of NCCL's releases can be hurt by a careless client: an answer that
is not awaited leaves that thread spinning until the collective ends, timeout 0 leaks the answer for ever, and the text form can
crash it (see safety.py). So: JSON or nothing, one question at a time, a real timeout, and patience until the server's worst case.
"""

from __future__ import annotations

import os
import re
import socket
import threading
import time
from dataclasses import dataclass
from typing import Any

from slurm_ncclmon.errors import OptionError, RasProtocolError, RasUnreachableError, RasUnsafeError
from slurm_ncclmon.ras.owner import owner_of_peer

DEFAULT_PORT = 28028
MOST_BYTES = 400 << 20
"""An answer has about 540 bytes for each rank of each communicator: this is 750,000 of them."""
MOST_SECONDS = 120.0
"""For one answer, however it drips."""
_CHUNK = 1 << 20
_VERSION = re.compile(rb'"nccl_version": *"([^"]*)"|NCCL version ([0-9.]+)')


@dataclass(frozen=True)
class Address:
    """Where RAS listens; `host` may have several addresses."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Address:
        """From `host:port` or `[v6]:port`, as NCCL_RAS_ADDR has it. Raises OptionError."""
        match = re.fullmatch(r"(?:\[([^\[\]]+)\]|([^\[\]:]+)):([0-9]{1,5})", text.strip())
        if match is None or not 0 < int(match.group(3)) < 65536:
            raise OptionError(f"'{text}' is not an address (write host:port or [address]:port)")
        return cls(match.group(1) or match.group(2), int(match.group(3)))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


DEFAULT_ADDRESS = Address("localhost", DEFAULT_PORT)


@dataclass(frozen=True)
class Timeouts:
    """Seconds. `factor` is the job's NCCL_RAS_TIMEOUT_FACTOR, which stretches what the server allows itself."""

    handshake: float = 1.0
    """For one process to say that it is alive: a stopped one still accepts connections, so it is the kernel that we hear."""
    tries: int = 8
    """Each is a new connection, for which the kernel picks one of the node's processes anew."""
    collect: int = 5
    """What we allow RAS for silent peers; it gives up on them after this, and on everything `extra` later."""
    extra: float = 5.0
    slack: float = 2.0
    factor: float = 1.0

    def __post_init__(self) -> None:
        if self.collect < 1:
            raise ValueError("collect must be at least 1 s: with 0 RAS never frees its answer")

    @property
    def worst(self) -> float:
        """Longest silence of a server that is well."""
        return (self.collect + self.extra) * max(1.0, self.factor) + self.slack


USUAL = Timeouts()


@dataclass(frozen=True)
class Answer:
    """What one process said. `text` is as it came; `silent` counts the connections before that were taken and not served."""

    text: bytes
    format: str
    seconds: float
    address: Address
    silent: int = 0

    @property
    def version(self) -> str:
        """NCCL version that the answer names, empty when it names none."""
        match = _VERSION.search(self.text[:4096])
        return (match.group(1) or match.group(2)).decode(errors="replace") if match else ""


_in_flight = threading.Lock()


def ask(address: Address, *, timeouts: Timeouts = USUAL, text: bool = False) -> Answer:
    """The report of one process at `address`: JSON, or text where the version has no JSON and `text` says that it may be asked.

    Takes up to `timeouts.tries` times `handshake` to find a process that answers, then up to `timeouts.worst`.
    Raises RasUnreachableError (nobody listens, or all that do are stopped), RasProtocolError (not RAS, or broke off) and
    RasUnsafeError (no JSON before NCCL 2.28.7, and `text` is False).
    """
    began = time.monotonic()
    with _in_flight:
        connection, silent = _connect(address, timeouts)
        with connection:
            form = _prepare(connection, timeouts, text)
            answer = connection.finish("STATUS" if form == "json" else "VERBOSE STATUS", timeouts.worst)
    return Answer(answer, form, time.monotonic() - began, address, silent)


def _prepare(connection: _Connection, timeouts: Timeouts, text: bool) -> str:
    """Settle the format; nothing sent here makes RAS work, so nothing is lost if we leave."""
    reply = connection.command(f"TIMEOUT {timeouts.collect}")
    if reply != "OK":
        raise RasProtocolError(f"{connection.address}: TIMEOUT was answered with '{reply[:80]}'")
    if connection.command("SET FORMAT json") == "OK":
        return "json"
    if not text:
        raise RasUnsafeError(
            f"{connection.address}: NCCL older than 2.28.7 has no JSON, and asking for text can crash the answering process"
        )
    return "text"


class _Connection:
    """One connection to a process that has already said which protocol it speaks."""

    def __init__(self, sock: socket.socket, address: Address, seconds: float) -> None:
        self._sock = sock
        self.address = address
        self._seconds = seconds
        self._rest = b""

    def __enter__(self) -> _Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self._sock.close()

    def command(self, line: str) -> str:
        """The one-line reply. Raises RasUnreachableError when it does not come in time."""
        deadline = time.monotonic() + self._seconds
        try:
            self._sock.settimeout(self._seconds)
            self._sock.sendall(line.encode() + b"\n")
            while b"\n" not in self._rest and len(self._rest) < 4096:
                self._sock.settimeout(max(0.001, deadline - time.monotonic()))
                chunk = self._sock.recv(4096)
                if not chunk:
                    raise RasProtocolError(f"{self.address}: connection closed after '{line}'")
                self._rest += chunk
        except socket.timeout:
            raise RasUnreachableError(f"{self.address}: no reply to '{line}' in {self._seconds:g} s") from None
        except OSError as error:
            raise RasProtocolError(f"{self.address}: {error.strerror or error} after '{line}'") from None
        reply, _, self._rest = self._rest.partition(b"\n")
        return reply.decode(errors="replace").strip()

    def finish(self, question: str, silence: float) -> bytes:
        """Send the one question that RAS takes on a connection and read to its end; at most `silence` seconds without a byte."""
        parts = [self._rest]
        size = len(self._rest)
        try:
            self._sock.settimeout(silence)
            self._sock.sendall(question.encode() + b"\n")
            until = time.monotonic() + MOST_SECONDS
            while chunk := self._sock.recv(_CHUNK):
                parts.append(chunk)
                size += len(chunk)
                if time.monotonic() > until:
                    raise RasProtocolError(f"{self.address}: not done after {MOST_SECONDS:g} s; that is no report")
                if size > MOST_BYTES:
                    raise RasProtocolError(f"{self.address}: more than {MOST_BYTES >> 20} MiB; that is no report")
        except socket.timeout:
            raise RasProtocolError(f"{self.address}: nothing for {silence:g} s after {question}") from None
        except OSError as error:
            raise RasProtocolError(f"{self.address}: {error.strerror or error} after {size} bytes") from None
        return b"".join(parts)


def _connect(address: Address, timeouts: Timeouts) -> tuple[_Connection, int]:
    """A connection to a process that is alive, and how many others took one and did not answer."""
    places = _resolve(address)
    silent = 0
    refusal = ""
    for _ in range(timeouts.tries):
        for place in list(places):
            try:
                return _greet(place, address, timeouts.handshake), silent
            except socket.timeout:
                silent += 1
            except OSError as error:
                refusal = error.strerror or str(error)
                places.remove(place)
        if not places:
            raise RasUnreachableError(f"{address}: {refusal}")
        if silent >= timeouts.tries:
            break
    raise RasUnreachableError(
        f"{address}: {silent} connections were taken, none was answered: its processes are stopped or stuck"
    )


Place = tuple[int, int, int, str, Any]


def _refuse_strangers(sock: socket.socket, address: Address) -> None:
    """Another user's answer, were it believed, could have our step ended. Raises RasUnreachableError."""
    owner = owner_of_peer(sock)
    if owner not in (None, os.getuid()):
        raise RasUnreachableError(
            f"{address}: a process of user {owner} listens there, none of ours; it is not believed"
        )


def _resolve(address: Address) -> list[Place]:
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise RasUnreachableError(f"{address}: {error}") from None
    return list(dict.fromkeys(found))


def _greet(place: Place, address: Address, seconds: float) -> _Connection:
    """Connect and say hello. Raises socket.timeout, OSError, or RasProtocolError when it is somebody else."""
    family, kind, protocol, _, target = place
    sock = socket.socket(family, kind, protocol)
    try:
        sock.settimeout(seconds)
        sock.connect(target)
        connection = _Connection(sock, address, seconds)
        try:
            hello = connection.command("CLIENT PROTOCOL 2")
        except RasUnreachableError as error:
            raise socket.timeout(str(error)) from None
        if not hello.startswith("SERVER PROTOCOL"):
            raise RasProtocolError(f"{address}: not RAS; it said '{hello[:80]}'")
        _refuse_strangers(sock, address)
    except BaseException:
        sock.close()
        raise
    return connection
