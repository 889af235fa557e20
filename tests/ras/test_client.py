"""The client's manners, against a scripted server."""

from __future__ import annotations

import socket
import threading
import time

import pytest

from slurm_ncclmon.errors import OptionError, RasProtocolError, RasUnreachableError, RasUnsafeError
from slurm_ncclmon.ras import client
from slurm_ncclmon.ras.client import Address, Timeouts, ask
from tests.ras.fake_server import Script, serve

FAST = Timeouts(handshake=0.2, tries=3, collect=1, extra=0.5, slack=0.5)


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [("node7:28028", "node7", 28028), ("[fe80::1%eth0]:99", "fe80::1%eth0", 99), (" 10.0.0.1:1 ", "10.0.0.1", 1)],
)
def test_addresses(text: str, host: str, port: int) -> None:
    address = Address.parse(text)
    assert (address.host, address.port) == (host, port)
    assert Address.parse(str(address)) == address


@pytest.mark.parametrize("text", ["", "node", "node:", ":99", "node:99999", "node:0", "fe80::1:99", "[]:99", "a:b:1"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(OptionError, match="host:port"):
        Address.parse(text)


def test_what_is_said() -> None:
    script = Script()
    with serve(script) as address:
        answer = ask(address, timeouts=FAST)
    assert answer.text == script.answer
    assert answer.format == "json"
    assert answer.version == "2.30.7"
    assert answer.silent == 0
    assert script.heard == [["CLIENT PROTOCOL 2", "TIMEOUT 1", "SET FORMAT json", "STATUS"]]


def test_timeout_is_never_nought() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Timeouts(collect=0)


def test_old_release_is_not_asked_for_text() -> None:
    script = Script(json=False)
    with serve(script) as address, pytest.raises(RasUnsafeError, match=r"2\.28\.7"):
        ask(address, timeouts=FAST)
    assert script.heard[0][-1] == "SET FORMAT json"


def test_text_where_it_is_allowed() -> None:
    script = Script(json=False, answer=b"NCCL version 2.25.1 compiled with CUDA 12.6\n")
    with serve(script) as address:
        answer = ask(address, timeouts=FAST, text=True)
    assert (answer.format, answer.version) == ("text", "2.25.1")
    assert script.heard[0][-1] == "VERBOSE STATUS"


def test_stopped_process_is_passed_over() -> None:
    script = Script(silent_first=2)
    with serve(script) as address:
        answer = ask(address, timeouts=FAST)
    assert answer.silent == 2
    assert 0.4 <= answer.seconds < 1.5


def test_all_stopped() -> None:
    with serve(Script(silent_first=99)) as address, pytest.raises(RasUnreachableError, match="stopped or stuck"):
        ask(address, timeouts=FAST)


def test_nobody_listens() -> None:
    began = time.monotonic()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(RasUnreachableError, match="refused"):
        ask(Address("127.0.0.1", port), timeouts=FAST)
    assert time.monotonic() - began < 0.5


def test_name_that_does_not_exist() -> None:
    with pytest.raises(RasUnreachableError, match="no-such-host"):
        ask(Address("no-such-host.invalid", 1), timeouts=FAST)


def test_all_addresses_of_a_name_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """localhost is ::1 first on many hosts, and RAS listens at one of its addresses only."""
    with serve(Script()) as address, socket.create_server(("127.0.0.1", 0)) as server:
        nobody = ("127.0.0.1", server.getsockname()[1])
        server.close()
        stream = (socket.AF_INET, socket.SOCK_STREAM, 6, "")
        monkeypatch.setattr(
            client.socket, "getaddrinfo", lambda *a, **k: [(*stream, nobody), (*stream, (address.host, address.port))]
        )
        assert ask(Address("localhost", 1), timeouts=FAST).text


def test_somebody_else() -> None:
    with (
        serve(Script(hello=b"HTTP/1.1 400 Bad Request\r\n")) as address,
        pytest.raises(RasProtocolError, match="not RAS"),
    ):
        ask(address, timeouts=FAST)


def test_slow_answer_is_awaited() -> None:
    script = Script(delay_s=1.0)
    with serve(script) as address:
        assert ask(address, timeouts=FAST).text == script.answer
    assert script.waited == [True]


def test_answer_that_breaks_off() -> None:
    with serve(Script(break_off=True)) as address, pytest.raises(RasProtocolError, match="reset"):
        ask(address, timeouts=FAST)


def test_server_that_dies_of_the_question() -> None:
    with serve(Script(delay_s=9.0)) as address, pytest.raises(RasProtocolError, match="nothing for 2 s"):
        ask(address, timeouts=FAST)


def test_patience_grows_with_the_jobs_own() -> None:
    assert Timeouts(factor=4).worst == 42
    assert Timeouts().worst == 12


def test_endless_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "MOST_BYTES", 1 << 20)
    with serve(Script(answer=b" " * (2 << 20))) as address, pytest.raises(RasProtocolError, match="no report"):
        ask(address, timeouts=FAST)


def test_one_question_at_a_time() -> None:
    script = Script(delay_s=0.3)
    with serve(script) as address:
        threads = [threading.Thread(target=ask, args=(address,), kwargs={"timeouts": FAST}) for _ in range(3)]
        began = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert time.monotonic() - began >= 0.9
