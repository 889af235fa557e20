"""NCCL's own client. The wheels that scripts/setup fetches do not have it: these stand-ins have its output and exit codes."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from slurm_ncclmon.errors import RasError, RasProtocolError, RasUnreachableError, RasUnsafeError
from slurm_ncclmon.ras import ncclras
from slurm_ncclmon.ras.client import Address, Timeouts
from tests.ras.samples import DATA

ADDRESS = Address("node7", 28028)
FAST = Timeouts(handshake=0.1, tries=2, collect=1, extra=0.2, slack=0.2)


def program(folder: Path, body: str) -> Path:
    path = folder / "ncclras"
    path.write_text(
        f"#!{sys.executable}\nimport sys, time\nsays = lambda text: print(text, file=sys.stderr, flush=True)\n{body}\n"
    )
    path.chmod(0o755)
    return path


def test_answer(tmp_path: Path) -> None:
    binary = program(
        tmp_path,
        f"assert sys.argv[1:] == ['-h', 'node7', '-p', '28028', '-t', '1', '-f', 'json'], sys.argv\n"
        f"sys.stdout.write(open({str(DATA / 'healthy-2.28.9.json')!r}).read())",
    )
    answer = ncclras.ask(binary, ADDRESS, timeouts=FAST)
    assert (answer.format, answer.version) == ("json", "2.28.9")
    assert answer.text == (DATA / "healthy-2.28.9.json").read_bytes()


def test_text(tmp_path: Path) -> None:
    binary = program(tmp_path, "assert sys.argv[-1] == '-v'; print('NCCL version 2.25.1 compiled with CUDA 12.6')")
    assert ncclras.ask(binary, ADDRESS, timeouts=FAST, text=True).version == "2.25.1"


@pytest.mark.parametrize(
    ("says", "error"),
    [
        (
            "Connecting to 127.0.0.1:28028: Connection refused\\nFailed to connect to the NCCL RAS service!",
            RasUnreachableError,
        ),
        ("Unexpected response from NCCL: ERROR: Unknown command SET FORMAT json", RasUnsafeError),
        ("ncclras: invalid option -- 'f'", RasProtocolError),
        ("NCCL unexpectedly closed the connection", RasProtocolError),
        ("read socket: Connection reset by peer", RasProtocolError),
    ],
)
def test_complaints(tmp_path: Path, says: str, error: type[RasError]) -> None:
    with pytest.raises(error):
        ncclras.ask(program(tmp_path, f"says({says!r}.replace('\\\\n', chr(10))); sys.exit(1)"), ADDRESS, timeouts=FAST)


def test_endless_retries_are_ended(tmp_path: Path) -> None:
    binary = program(tmp_path, "while True: time.sleep(0.1); says('Connection timed out; retrying...')")
    began = time.monotonic()
    with pytest.raises(RasUnreachableError, match="retrying"):
        ncclras.ask(binary, ADDRESS, timeouts=FAST)
    assert time.monotonic() - began < 2


def test_a_slow_answer_is_not_ended(tmp_path: Path) -> None:
    binary = program(tmp_path, "says('Connection timed out; retrying...'); time.sleep(1.2); print('{}')")
    answer = ncclras.ask(binary, ADDRESS, timeouts=FAST)
    assert (answer.text, answer.silent) == (b"{}\n", 1)


def test_no_program(tmp_path: Path) -> None:
    with pytest.raises(RasProtocolError, match="No such file"):
        ncclras.ask(tmp_path / "none", ADDRESS, timeouts=FAST)
