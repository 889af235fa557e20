"""Asking with NCCL's own client instead of ours; the answers are the same."""

from __future__ import annotations

import subprocess
import threading
import time
from pathlib import Path
from typing import IO

from slurm_ncclmon.errors import RasProtocolError, RasUnreachableError, RasUnsafeError
from slurm_ncclmon.ras.client import MOST_BYTES, USUAL, Address, Answer, Timeouts

_OLD_SERVER = "Unknown command SET FORMAT"
_OLD_CLIENT = ("invalid option", "unrecognized option")
_RETRYING = "retrying"


def ask(binary: Path, address: Address, *, timeouts: Timeouts = USUAL, text: bool = False) -> Answer:
    """As client.ask, by running `binary`; `text` asks for text at once, for a job whose NCCL has no JSON.

    ncclras tries for ever to reach a process that is stopped. It is ended then, and only then: until it has been greeted it has
    asked for nothing. Raises as client.ask does, and RasProtocolError when `binary` cannot be run or is too old for JSON.
    """
    began = time.monotonic()
    form = "text" if text else "json"
    command = [str(binary), "-h", address.host, "-p", str(address.port), "-t", str(timeouts.collect)]
    output, complaint, code, retries = _run([*command, "-v"] if text else [*command, "-f", "json"], timeouts)
    if code == 0 and output:
        return Answer(output, form, time.monotonic() - began, address, retries)
    if _OLD_SERVER in complaint:
        raise RasUnsafeError(
            f"{address}: NCCL older than 2.28.7 has no JSON, and asking for text can crash the answering process"
        )
    if any(words in complaint for words in _OLD_CLIENT):
        raise RasProtocolError(f"{binary} does not know -f json; use that of NCCL 2.28.7 or later")
    if "Failed to connect" in complaint or "refused" in complaint or retries:
        raise RasUnreachableError(f"{address}: {_last_line(complaint)}")
    raise RasProtocolError(f"{binary} ended with {code}: {_last_line(complaint) or f'{len(output)} bytes of output'}")


def _run(command: list[str], timeouts: Timeouts) -> tuple[bytes, str, int, int]:
    """Output, complaints, exit status and number of retries of one run."""
    try:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    except OSError as error:
        raise RasProtocolError(f"{command[0]}: {error.strerror}") from None
    with process:
        complaints: list[str] = []
        listener = threading.Thread(target=_listen, args=(process, complaints, timeouts.tries), daemon=True)
        listener.start()
        watch = threading.Timer(timeouts.tries * (timeouts.handshake + 1) + 2 * timeouts.worst, process.kill)
        watch.start()
        assert process.stdout is not None
        output = process.stdout.read(MOST_BYTES)
        code = process.wait()
        watch.cancel()
        listener.join(1.0)
    return output, "\n".join(complaints), code, sum(_RETRYING in line for line in complaints)


def _listen(process: subprocess.Popen[bytes], complaints: list[str], tries: int) -> None:
    """Collect complaints; end the program when it has tried often enough to be greeted."""
    stream: IO[bytes] | None = process.stderr
    assert stream is not None
    retries = 0
    for line in stream:
        complaints.append(line.decode(errors="replace").strip())
        retries += _RETRYING in complaints[-1]
        if retries >= tries:
            process.kill()


def _last_line(text: str) -> str:
    return text.splitlines()[-1][:200] if text else ""
