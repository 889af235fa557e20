"""A scripted RAS listener: for what real ones cannot be made to do at will (the real ones are in test_live.py)."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from slurm_ncclmon.ras.client import Address


@dataclass
class Script:
    """What the server does with each connection."""

    answer: bytes = b'{"nccl_version": "2.30.7"}\n'
    hello: bytes = b"SERVER PROTOCOL 2\n"
    json: bool = True
    silent_first: int = 0
    """Connections that are taken and never served, as by a stopped process."""
    delay_s: float = 0.0
    break_off: bool = False
    heard: list[list[str]] = field(default_factory=list)
    """Lines of each connection."""
    waited: list[bool] = field(default_factory=list)
    """Of each question, whether the client was still there when the answer was ready."""


@contextlib.contextmanager
def serve(script: Script, host: str = "127.0.0.1") -> Iterator[Address]:
    listener = socket.create_server((host, 0))
    listener.settimeout(0.05)
    stop = threading.Event()
    kept: list[socket.socket] = []

    def loop() -> None:
        while not stop.is_set():
            try:
                connection, _ = listener.accept()
            except socket.timeout:
                continue
            kept.append(connection)
            if len(kept) > script.silent_first:
                threading.Thread(target=_serve_one, args=(connection, script), daemon=True).start()

    thread = threading.Thread(target=loop, daemon=True)
    thread.start()
    try:
        yield Address(host, listener.getsockname()[1])
    finally:
        stop.set()
        thread.join()
        for sock in [listener, *kept]:
            sock.close()


def _serve_one(connection: socket.socket, script: Script) -> None:
    heard: list[str] = []
    script.heard.append(heard)
    with contextlib.suppress(OSError), connection.makefile("rwb", buffering=0) as stream:
        for line in stream:
            heard.append(line.decode().strip())
            word = heard[-1].split()[0]
            if word == "CLIENT":
                stream.write(script.hello)
            elif word in {"TIMEOUT", "SET"}:
                stream.write(
                    b"OK\n" if word == "TIMEOUT" or script.json else b"ERROR: Unknown command SET FORMAT json\n"
                )
            else:
                _answer(connection, script)
                return


def _answer(connection: socket.socket, script: Script) -> None:
    time.sleep(script.delay_s)
    connection.setblocking(False)
    try:
        script.waited.append(connection.recv(1) != b"")
    except BlockingIOError:
        script.waited.append(True)
    connection.setblocking(True)
    if script.break_off:
        connection.sendall(script.answer[:5])
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    else:
        connection.sendall(script.answer)
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
