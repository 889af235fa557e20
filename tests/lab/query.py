"""One question to RAS over TCP, as small as can be: the laboratory's own eyes, apart from the code under test."""

from __future__ import annotations

import json
import re
import socket
from typing import Any


def answer(address: str, port: int, timeout_s: float = 15.0) -> str:
    """The report as RAS sends it; OSError if nobody listens, ValueError if what comes is no report."""
    with socket.create_connection((address, port), timeout=timeout_s) as client:
        client.sendall(b"CLIENT PROTOCOL 2\nSET FORMAT json\nSTATUS\n")
        text = b"".join(iter(lambda: client.recv(65536), b"")).decode()
    return text[text.index("{") :]


def status(address: str, port: int, timeout_s: float = 15.0) -> dict[str, Any]:
    """The JSON report of the mesh that answers at address:port; OSError and ValueError as of `answer`."""
    # 2.28.7 and 2.28.9 leave out a comma where ranks are missing
    repaired = re.sub(r'("nvml_dev": -?\d+)(\s*\n\s*"status")', r"\1,\2", answer(address, port, timeout_s))
    report: dict[str, Any] = json.loads(repaired)
    return report


def counts(report: dict[str, Any], comm_hash: str) -> dict[int, dict[str, int]]:
    """Communicator rank -> operation -> launches of one communicator; empty if the report does not have it."""
    found = [comm for comm in report["communicators"] if comm["hash"] == comm_hash]
    return {rank["rank"]: rank["collective_counts"] for comm in found for rank in comm["ranks"]}
