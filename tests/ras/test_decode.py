"""Real answers to reports."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from slurm_ncclmon.errors import ReportError
from slurm_ncclmon.ras import problems as kind
from slurm_ncclmon.ras import segments
from slurm_ncclmon.ras.decode import Decoder
from slurm_ncclmon.ras.report import ABORTED, DEAD, MISSING, OPERATIONS, UNRESPONSIVE, CommKey, Gpu, Report
from slurm_ncclmon.ras.rows import IrregularError
from tests.ras.samples import ALL_SAMPLES, JSON_SAMPLES, assert_same, assert_sound, kinds, sample
from tests.ras.synthetic import answer


def decode(name: str) -> Report:
    return Decoder().decode(sample(name))


def largest(report: Report) -> slice:
    return report.rows(int(np.argmax(report.size)))


@pytest.mark.parametrize("name", ALL_SAMPLES)
def test_every_sample_makes_a_sound_report(name: str) -> None:
    assert_sound(decode(name))


@pytest.mark.parametrize("name", JSON_SAMPLES)
def test_both_ways_of_reading_agree(name: str) -> None:
    text = sample(name)
    assert_same(Decoder()._regular(text, 0), Decoder()._any(text.decode()))


def test_healthy_answer() -> None:
    report = decode("healthy-2.28.9.json")
    assert report.coherent
    assert not report.problems
    assert report.nccl_version == "2.28.9"
    assert report.taken_at == "2026-11-30 07:17:23"
    assert report.collection_s == pytest.approx(0.001)
    assert report.size.tolist() == [4, 2, 2, 2, 8, 2, 4]
    assert report.comms[0] == CommKey("0x813e268c386bbc5", "0x2482d5dbc21bb3ef:0x3591499a8aaf5450")
    assert report.members == 24
    assert report.gpus[0] == Gpu("127.0.0.2", 5508, 0, 0)
    assert len(report.gpus) == 8
    assert report.counts[0].tolist() == [0, 0, 46, 46, 92]


def test_rank_behind() -> None:
    report = decode("not_entered-2.32.3.json")
    reduced = report.counts[largest(report), OPERATIONS.index("AllReduce")]
    assert reduced.tolist() == [31, 31, 31, 30, 31, 31, 31, 31]


def test_killed_rank_is_missing_and_unresponsive() -> None:
    report = decode("killed-2.28.9.json")
    assert kinds(report) == {kind.REPAIRED}
    assert report.coherent
    flags = report.flags[largest(report)]
    assert flags.tolist() == [0] * 7 + [MISSING | UNRESPONSIVE]
    assert report.gpus[report.gpu[largest(report)][7]] == Gpu("127.0.0.2", 2455, 3, 3)


def test_killed_rank_is_dead_a_minute_later() -> None:
    report = decode("killed_dead-2.28.9.json")
    assert report.flags[largest(report)][7] == MISSING | UNRESPONSIVE | DEAD


def test_destroyed_communicator_is_missing_only() -> None:
    report = decode("finalized-2.30.7.json")
    assert not report.problems
    assert report.flags[largest(report)].tolist() == [0, MISSING, 0, 0, 0, 0, 0, 0]


def test_asynchronous_error() -> None:
    report = decode("async_error-2.28.9.json")
    assert report.async_error[largest(report)].tolist() == [0, 0, 0, 0, 6, 0, 0, 0]
    assert report.flags[largest(report)][4] == ABORTED


def test_communicator_under_construction_is_no_evidence() -> None:
    report = decode("init-2.28.9.json")
    assert kinds(report) == {kind.EMPTY_COMMUNICATOR}
    assert not report.coherent


def test_half_made_communicator_is_no_evidence() -> None:
    report = decode("init_half-2.28.9.json")
    assert {kind.EMPTY_COMMUNICATOR, kind.SUM_MISMATCH} <= kinds(report)
    assert not report.coherent


def test_timeouts_are_named() -> None:
    report = decode("stopped_timeouts-2.32.3.json")
    assert report.timeouts == 2
    assert kind.TIMEOUTS in kinds(report)
    assert report.coherent


def test_four_nodes() -> None:
    report = decode("four_nodes-2.28.9.json")
    assert report.comms == (CommKey("0xf31e5874c3f25459", "0xc4a40ef4528a7a56:0x2fda2edc54faea7"),)
    assert report.counts[:, 4].tolist() == [101, 100, 101, 101]
    assert report.gpus[report.gpu[1]] == Gpu("10.0.0.2", 6247, 0, 0)


def test_all_zero_is_named() -> None:
    zeros = re.sub(
        rb'(Broadcast|Reduce|AllGather|ReduceScatter|AllReduce)": \d+', rb'\1": 0', sample("healthy-2.28.9.json")
    )
    assert kinds(Decoder().decode(zeros)) == {kind.ALL_ZERO}


def test_lines_of_a_launcher_before_the_answer() -> None:
    text = sample("healthy-2.28.9.json")
    assert_same(Decoder().decode(b"srun: some warning\nOK\n" + text), Decoder().decode(text))


@pytest.mark.parametrize(
    "text", [b"", b"\n", b"Connection refused", b"{}", b"[]", b'{"communicators": 3}', b"\xff" * 100, b"{" * 10**6]
)
def test_what_is_no_answer_is_an_error(text: bytes) -> None:
    with pytest.raises(ReportError):
        Decoder().decode(text)


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9, 0.99, 0.999])
def test_cut_off_answer_is_no_evidence(share: float) -> None:
    text = sample("healthy-2.28.9.json")
    report = Decoder().decode(text[: int(len(text) * share)])
    assert_sound(report)
    assert not report.coherent
    assert kind.TRUNCATED in kinds(report)


def test_one_bad_entry_costs_that_entry() -> None:
    text = sample("healthy-2.28.9.json").replace(b'"pid": 5509', b'"pid": "many"', 1)
    report = Decoder().decode(text)
    assert_sound(report)
    assert [problem.kind for problem in report.problems] == [kind.BAD_ENTRY]
    assert report.problems[0].comm == report.comms[0]
    assert report.rank[report.rows(0)].tolist() == [0, 2, 3]
    assert report.members == 23


def test_rank_told_twice_is_told_by_nobody() -> None:
    text = sample("healthy-2.28.9.json").replace(b'"rank": 1,', b'"rank": 2,', 1)
    report = Decoder().decode(text)
    assert kinds(report) == {kind.DUPLICATE_RANK}
    assert report.rank[report.rows(0)].tolist() == [0, 3]
    assert not report.coherent


def test_rank_that_cannot_be() -> None:
    text = sample("healthy-2.28.9.json").replace(b'"rank": 3,', b'"rank": 33,', 1)
    report = Decoder().decode(text)
    assert kind.RANK_OUT_OF_RANGE in kinds(report)
    assert not report.coherent


def test_communicator_listed_twice() -> None:
    text = sample("healthy-2.28.9.json").decode()
    begin, end = text.index("    {\n"), text.index("\n    },\n") + 8
    doubled = text[:begin] + text[begin:end] * 2 + text[end:]
    report = Decoder().decode(doubled.replace('"communicators_count": 7', '"communicators_count": 8').encode())
    assert kinds(report) == {kind.DUPLICATE_COMMUNICATOR}
    assert len(report.comms) == 6
    assert not report.coherent


def test_wrong_number_of_communicators() -> None:
    text = sample("healthy-2.28.9.json").replace(b'"communicators_count": 7', b'"communicators_count": 9')
    assert kinds(Decoder().decode(text)) == {kind.COUNT_MISMATCH}


def test_large_counters_and_wide_addresses() -> None:
    text = sample("healthy-2.28.9.json").replace(b'"AllReduce": 92', b'"AllReduce": 18446744073709551615', 1)
    text = text.replace(b"127.0.0.2", b"2001:db8::7:1")
    report = Decoder().decode(text)
    assert int(report.counts[0, 4]) == 2**64 - 1
    assert report.gpus[0].host == "2001:db8::7:1"
    assert not report.problems


@pytest.mark.parametrize("ranks", [8, 264, 1024, 2056])
def test_many_members_and_pieces(ranks: int) -> None:
    text = answer(ranks, 99, ahead=ranks // 2, odd=5)
    report = Decoder().decode(text)
    assert_same(report, Decoder()._any(text.decode()))
    assert report.members == 3 * ranks


def test_reports_do_not_depend_on_what_was_read_before() -> None:
    used = Decoder()
    texts = [answer(520, step, odd=odd) for step, odd in ((9, 0), (10, 0), (10, 7), (100, 3), (100, 0), (9, 0))]
    texts.insert(3, sample("killed-2.28.9.json"))
    texts.insert(5, sample("init_half-2.28.9.json"))
    for text in texts:
        assert_same(used.decode(text), Decoder().decode(text))


def test_unchanged_pieces_are_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = Decoder()
    first = decoder.decode(answer(2048, 9))
    members = 0
    original = segments.read_blocks

    def counting(text: bytes, data: object, blocks: list[segments.Block], gpus: object) -> object:
        nonlocal members
        members += sum(len(block.ends) for block in blocks) // segments.LINES
        return original(text, data, blocks, gpus)  # type: ignore[arg-type]

    monkeypatch.setattr(segments, "read_blocks", counting)
    again = decoder.decode(answer(2048, 9))
    assert members == 0
    assert_same(first, again)
    decoder.decode(answer(2048, 9, ahead=1000))
    assert 0 < members <= segments.MEMBERS


def test_new_communicator_leaves_the_rest_recognisable(monkeypatch: pytest.MonkeyPatch) -> None:
    text = answer(2048, 9).decode()
    begin = text.index("\n    },\n", len(text) // 2) + 8
    end = text.index("\n    },\n", begin) + 8
    less = (text[:begin] + text[end:]).replace('"communicators_count": 265', '"communicators_count": 264')
    decoder = Decoder()
    decoder.decode(less.encode())
    read = []
    original = segments.read_blocks
    monkeypatch.setattr(segments, "read_blocks", lambda *a: read.append(sum(len(b.ends) for b in a[2])) or original(*a))
    assert_same(decoder.decode(text.encode()), Decoder()._any(text))
    assert sum(read) // segments.LINES < 600


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"rank": 1,', b'"rank": 01,'),
        (b'"AllGather": 46', b'"AllGather":  46'),
        (b"false", b"False"),
        (b"        },\n", b"        }x,\n"),
        (b"        {\n", b"x        {\n"),
        (b'"cuda_dev": 1', b'"cuda_dev": 1.5'),
        (b'"init_state": 0', b'"init_state": -1'),
        (b'"AllReduce": 92\n', b'"AllReduce": 92,\n'),
        (b"      ],\n", b"      ]\n"),
        (b'"status"', b'"status2"'),
    ],
)
def test_text_in_another_layout_is_left_to_the_careful_reader(old: bytes, new: bytes) -> None:
    text = sample("healthy-2.28.9.json").replace(old, new, 1)
    assert text != sample("healthy-2.28.9.json")
    with pytest.raises(IrregularError):
        Decoder()._regular(text, 0)
    assert_sound(Decoder().decode(text))


def comms_of(**flags: dict[int, str]) -> bytes:
    """Communicators by name, `used…` with launches, others without: ranks 0 to 3, of which some are `missing` or in `init`."""
    comms = []
    for name, states in flags.items():
        rows, missing = [], []
        for rank in range(4):
            who = {"rank": rank, "host": "10.0.0.1", "pid": 100 + rank, "cuda_dev": rank, "nvml_dev": rank}
            state = states.get(rank)
            if state == "missing":
                missing.append({**who, "status": {"unresponsive": False, "considered_dead": False}})
                continue
            status = {"async_error": 0, "finalize_called": False, "destroy_flag": False, "abort_flag": False}
            counts = dict.fromkeys(OPERATIONS, int(name.startswith("used")))
            rows.append(
                {**who, "status": {**status, "init_state": 7 if state == "init" else 0}, "collective_counts": counts}
            )
        comms.append(
            {
                "hash": f"0x{len(comms) + 1}",
                "secondary_hash": "0x1:0x1",
                "size": 4,
                "ranks_count": len(rows),
                "missing_ranks_count": len(missing),
                "ranks": rows,
                "missing_ranks": missing,
            }
        )
    answer_ = {"nccl_version": "2.30.7", "timestamp": "", "communicators_count": len(comms), "communicators": comms}
    return json.dumps({**answer_, "ras": {"collection_time_sec": 0.1, "timeouts_count": 0}}).encode()


GONE, ALL = {3: "missing"}, {}


@pytest.mark.parametrize(
    ("text", "finished"),
    [
        (comms_of(used=ALL, new=GONE), False),
        (comms_of(used=GONE, new=GONE), True),
        (comms_of(used=GONE, new=GONE, used2=ALL), False),
        (comms_of(used=GONE, new=ALL), True),
        (comms_of(new=GONE), False),
        (comms_of(used=ALL, new={0: "init", 1: "init", 2: "init", 3: "missing"}), True),
        (comms_of(used=ALL, new={0: "init", 3: "missing"}), False),
    ],
)
def test_half_made_communicator_without_another_sign(text: bytes, finished: bool) -> None:
    report = Decoder().decode(text)
    assert (kind.UNFINISHED_COMMUNICATOR not in kinds(report)) == finished
    assert report.coherent == finished
