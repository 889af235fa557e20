"""Real sockets; another user's is made by a child that gives up its rights."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading

import pytest

from slurm_ncclmon.errors import RasUnreachableError
from slurm_ncclmon.ras.client import Address, Timeouts, ask
from slurm_ncclmon.ras.owner import owner_of_peer

LISTEN = """
import os, socket, sys
s = socket.create_server(("127.0.0.1", 0))
print(s.getsockname()[1], flush=True)
while True:
    c, _ = s.accept()
    c.recv(100); c.sendall(b"SERVER PROTOCOL 2\\n"); c.recv(100)
"""


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_our_own_socket_is_ours(host: str) -> None:
    server = socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    accepted: list[socket.socket] = []
    thread = threading.Thread(target=lambda: accepted.append(server.accept()[0]))
    thread.start()
    with socket.create_connection(server.getsockname()[:2]) as client:
        thread.join()
        assert owner_of_peer(client) == os.getuid()
    accepted[0].close()
    server.close()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
def test_another_users_answer_is_not_taken() -> None:
    process = subprocess.Popen([sys.executable, "-c", LISTEN], stdout=subprocess.PIPE, text=True, user=65534)
    try:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        with pytest.raises(RasUnreachableError, match="user 65534"):
            ask(Address("127.0.0.1", port), timeouts=Timeouts(tries=1))
    finally:
        process.kill()
        process.wait()
