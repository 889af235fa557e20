"""Answers that were cut, mixed up, exchanged, enlarged or made up: a sound report or a ReportError, and nobody accused."""

from __future__ import annotations

import json
import random
import time
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_ncclmon.errors import ReportError
from slurm_ncclmon.ras import repair
from slurm_ncclmon.ras.decode import Decoder
from slurm_ncclmon.ras.report import Report
from tests.ras.samples import ALL_SAMPLES, JSON_SAMPLES, assert_same, assert_sound, sample

TEXTS = {name: sample(name) for name in ALL_SAMPLES}
SPECIAL = [
    None,
    True,
    False,
    -1,
    0,
    1,
    2**31,
    2**63,
    2**64,
    10**400,
    1.5,
    -0.0,
    "",
    "0x0",
    "12",
    "x" * 5000,
    [],
    {},
    [[]],
    {"rank": 1},
]
DECODER = Decoder()
"""Used throughout: what one answer was like must not matter to the next."""


def report_or_none(text: bytes) -> Report | None:
    try:
        report = DECODER.decode(text)
    except ReportError:
        return None
    assert_sound(report)
    return report


def lines_mixed(text: bytes, seed: int, how: str) -> bytes:
    lines = text.split(b"\n")
    chance = random.Random(seed)
    at, other = chance.randrange(len(lines)), chance.randrange(len(lines))
    if how == "double":
        lines.insert(other, lines[at])
    elif how == "remove":
        del lines[min(at, other) : min(at, other) + chance.randrange(1, 30)]
    elif how == "swap":
        lines[at], lines[other] = lines[other], lines[at]
    else:
        chance.shuffle(lines)
    return b"\n".join(lines)


@given(name=st.sampled_from(ALL_SAMPLES), at=st.floats(0, 1))
@settings(max_examples=150, deadline=None)
def test_cut(name: str, at: float) -> None:
    text = TEXTS[name]
    size = int(len(text.rstrip()) * at)
    report = report_or_none(text[:size])
    if report is not None and size < len(text.rstrip()) - 2 and name in JSON_SAMPLES:
        assert not report.coherent


@given(
    name=st.sampled_from(ALL_SAMPLES),
    seed=st.integers(0, 10**9),
    how=st.sampled_from(["double", "remove", "swap", "shuffle"]),
)
@settings(max_examples=200, deadline=None)
def test_lines_doubled_removed_and_exchanged(name: str, seed: int, how: str) -> None:
    report_or_none(lines_mixed(TEXTS[name], seed, how))


@given(name=st.sampled_from(ALL_SAMPLES), data=st.data())
@settings(max_examples=200, deadline=None)
def test_bytes_changed(name: str, data: st.DataObject) -> None:
    text = bytearray(TEXTS[name])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text) - 1))
        text[at : at + data.draw(st.integers(0, 20))] = data.draw(st.binary(max_size=20))
    report_or_none(bytes(text))


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths to everything in a JSON value."""
    found = [path] if path else []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        found += places(item, (*path, key))
    return found


@given(name=st.sampled_from(["healthy-2.28.9.json", "finalized-2.30.7.json"]), data=st.data())
@settings(max_examples=300, deadline=None)
def test_types_exchanged(name: str, data: st.DataObject) -> None:
    """What is wrong costs what it touches: all other members are read as before."""
    answer = json.loads(TEXTS[name])
    before = Decoder().decode(TEXTS[name])
    path = data.draw(st.sampled_from(places(answer)))
    owner = answer
    for key in path[:-1]:
        owner = owner[key]
    owner[path[-1]] = data.draw(st.sampled_from(SPECIAL))
    report = report_or_none(json.dumps(answer, indent=2).encode())
    if report is None or len(path) < 2:
        return
    touched = path[1] if path[0] == "communicators" else None
    for c, key in enumerate(before.comms):
        if c == touched:
            continue
        found = report.comms.index(key)
        assert np.array_equal(report.counts[report.rows(found)], before.counts[before.rows(c)])


@given(st.binary(max_size=400))
@settings(max_examples=200, deadline=None)
def test_anything(text: bytes) -> None:
    report_or_none(text)
    report_or_none(b"{" + text)
    report_or_none(b"NCCL version 2.28.9 " + text)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(
                st.sampled_from(["communicators", "ranks", "hash", "status", "size", "rank", "ras", "missing_ranks"]),
                inner,
                max_size=6,
            )
        ),
        max_leaves=30,
    )
)
@settings(max_examples=200, deadline=None)
def test_any_json(value: Any) -> None:
    report_or_none(json.dumps({"communicators": value}).encode())
    report_or_none(json.dumps({"nccl_version": "2.28.9", "communicators": [value]}).encode())


@given(name=st.sampled_from(JSON_SAMPLES), seed=st.integers(0, 10**9))
@settings(max_examples=60, deadline=None)
def test_order_does_not_matter(name: str, seed: int) -> None:
    """Members in any order, keys in any order: the same report, but for the order of communicators' first appearances."""
    chance = random.Random(seed)

    def mixed(value: Any) -> Any:
        if isinstance(value, dict):
            items = list(value.items())
            chance.shuffle(items)
            return {key: mixed(item) for key, item in items}
        if isinstance(value, list):
            return [mixed(item) for item in value]
        return value

    answer, _ = repair.load(TEXTS[name].decode())
    for comm in answer["communicators"]:
        chance.shuffle(comm["ranks"])
    plain = Decoder().decode(json.dumps(answer, indent=2).encode())
    report = Decoder().decode(json.dumps(mixed(answer)).encode())
    assert report.comms == plain.comms
    assert np.array_equal(report.counts, plain.counts)
    assert np.array_equal(report.rank, plain.rank)
    assert [report.gpus[g] for g in report.gpu] == [plain.gpus[g] for g in plain.gpu]


def test_oversized() -> None:
    text = TEXTS["healthy-2.28.9.json"]
    began = time.monotonic()
    for filler in (b" ", b"\n", b" \n", b"]", b"{", b'{"hash":'):
        report_or_none(TEXTS["killed-2.28.9.json"].replace(b'"nvml_dev": 3', b'"nvml_dev": 3' + filler * 10**5))
        report_or_none(TEXTS["corrupt-2.28.9.txt"] + filler * 10**5)
    assert time.monotonic() - began < 20
    assert report_or_none(text + b" " * 10**6) is not None
    report_or_none(text.replace(b'"127.0.0.2"', b'"' + b"9" * 10**6 + b'"', 1))
    report_or_none(text.replace(b'"AllReduce": 92', b'"AllReduce": ' + b"9" * 10**5, 1))
    report_or_none(b'{"communicators": ' + b"[" * 10**5)


def test_regular_and_careful_reading_agree_on_changed_numbers() -> None:
    chance = random.Random(7)
    text = TEXTS["init_half-2.28.9.json"].decode()
    for _ in range(100):
        digits = [i for i, c in enumerate(text) if c.isdigit() and text[i - 1] == " " and not text[i + 1].isdigit()]
        at = chance.choice(digits)
        changed = text[:at] + str(chance.choice([0, 1, 9, 77, 12345])) + text[at + 1 :]
        assert_same(Decoder().decode(changed.encode()), Decoder()._any(changed))
