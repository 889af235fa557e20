"""Texts packed and unpacked, byte for byte."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_ncclmon.packing import MOST_TEMPLATES, Packer, Unpacker
from tests.ras.samples import ALL_SAMPLES, sample

FRAGMENTS = [
    b'"AllReduce": ',
    b"12,\n",
    b" 0\n",
    b" 007,\n",
    b" 99999999999999999999,\n",
    b'"timestamp": "',
    b'07:12:58"',
    b"\x00",
    b"\x01",
    b" -5,\n",
    b'"collection_time_sec": 0.001',
]


def round_trip(texts: list[bytes]) -> list[dict[str, object]]:
    packer, unpacker = Packer(), Unpacker()
    packed = [packer.pack(text) for text in texts]
    assert [unpacker.unpack(value) for value in packed] == texts
    return packed


def test_samples() -> None:
    texts = [sample(name) for name in ALL_SAMPLES]
    packed = round_trip(texts + texts)
    assert all("text" in value for value in packed[: len(texts)])


def test_equal_answer_is_a_reference() -> None:
    text = sample("healthy-2.28.9.json")
    later = text.replace(b"07:17:23", b"07:17:38")
    assert [set(value) for value in round_trip([text, text, later])[1:]] == [{"on", "clocks", "crc"}] * 2


def test_templates_are_forgotten_by_both_sides() -> None:
    texts = [b'{"name%d": 5,\n}' % (n % (MOST_TEMPLATES + 1)) for n in range(40)]
    round_trip(texts)


@given(st.lists(st.lists(st.sampled_from(FRAGMENTS) | st.binary(max_size=4), max_size=8).map(b"".join), max_size=12))
@settings(max_examples=300, deadline=None)
def test_anything(texts: list[bytes]) -> None:
    round_trip(texts + texts)


@pytest.mark.parametrize(
    "packed",
    [
        None,
        {},
        {"on": 3},
        {"text": 5},
        {"text": "!"},
        {"text": "", "is": 0},
        {"on": 0, "clocks": [], "crc": 1},
        {"on": 0, "clocks": 3, "crc": 1},
        {"on": 0, "clocks": [], "crc": 1, "grew": "", "width": "<i8"},
        {"on": 0, "clocks": [], "crc": 1, "grew": "00", "width": "O"},
    ],
)
def test_what_nobody_packed(packed: object) -> None:
    unpacker = Unpacker()
    unpacker.unpack(Packer().pack(sample("healthy-2.28.9.json")))
    with pytest.raises((ValueError, KeyError, TypeError)):
        unpacker.unpack(packed)
