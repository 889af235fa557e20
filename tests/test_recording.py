"""Observations written and read again: the same, small, and whole up to the last line."""

from __future__ import annotations

import json
import logging
import random
from pathlib import Path

import numpy as np
import pytest

from slurm_ncclmon.errors import RecordingError
from slurm_ncclmon.evidence.model import Attempt, Frame, NodeReport, ProcessReport, Thread
from slurm_ncclmon.observation import Evidence, FramePoll, Observation, Poll, StepState
from slurm_ncclmon.probe import decode as probe_decode
from slurm_ncclmon.probe import layout
from slurm_ncclmon.probe.image import Image
from slurm_ncclmon.ras import problems as kind
from slurm_ncclmon.ras.decode import Decoder
from slurm_ncclmon.ras.merge import poll_of
from slurm_ncclmon.ras.report import Problem
from slurm_ncclmon.recording import Recorder, read
from tests.ras.samples import assert_same, sample
from tests.ras.synthetic import answer

THREAD = Thread(
    "python",
    7,
    True,
    False,
    (Frame("all_reduce", "train.py", 12), Frame("ncclAllReduce", "libnccl.so.2", 0, True)),
    True,
)
PROCESS = ProcessReport(
    pid=7,
    ns_pid=7,
    ppid=1,
    role="rank",
    rank=3,
    local_rank=3,
    task=0,
    gpu="0",
    command="python train.py",
    state="S",
    wchan="futex",
    tracer_pid=0,
    threads_total=9,
    cpu_rate=0.5,
    write_rate=None,
    phase="collective",
    source="native",
    threads=(THREAD,),
    attempts=(Attempt("py-spy --native", 0, 0.4, ""),),
    environment={"RANK": "3"},
    nccl_ports=("localhost:28028",),
)
NODES = (
    NodeReport("n1", True, ("10.0.0.1",), 1.0, 0.5, (PROCESS,)),
    NodeReport("n2", False, problems=("no answer in 20 s",)),
)


def observations() -> list[Observation]:
    decoder = Decoder()
    note = Problem(kind.NOT_SEEN, "process 99 of this step is in no answer")
    texts = [
        (sample("healthy-2.28.9.json"),),
        (sample("killed-2.28.9.json"),),
        (sample("healthy-2.28.9.json"), sample("four_nodes-2.28.9.json")),
    ]
    polls: list[Observation] = [
        poll_of(n, 15.0 * n, 1e9 + n, answers, decoder, (note,) * n) for n, answers in enumerate(texts)
    ]
    return [
        *polls,
        Poll(3, 45.0, 1e9 + 3, None, "localhost:28028: refused"),
        StepState(46.0, "suspended"),
        Evidence(47.0, 1e9 + 4, "suspicion", NODES),
        poll_of(4, 60.0, 1e9 + 5, (b"nonsense",), decoder, (), "not a RAS answer"),
        Evidence(61.0, 1e9 + 6, "confirmation", NODES),
        StepState(62.0, "ending"),
    ]


def record(folder: Path, seen: list[Observation]) -> Path:
    recorder = Recorder(folder)
    for observation in seen:
        recorder.write(observation)
    recorder.close()
    return folder / "polls.jsonl"


def assert_equal(one: list[Observation], other: list[Observation]) -> None:
    assert len(one) == len(other)
    for a, b in zip(one, other):
        assert type(a) is type(b)
        if isinstance(a, Poll):
            assert isinstance(b, Poll)
            assert (a.n, a.t_s, a.wall_s, a.trouble, a.notes, a.answers) == (
                b.n,
                b.t_s,
                b.wall_s,
                b.trouble,
                b.notes,
                b.answers,
            )
            assert (a.report is None) == (b.report is None)
            if a.report is not None and b.report is not None:
                assert_same(a.report, b.report)
        else:
            assert a == b


def test_what_was_written_is_read(tmp_path: Path) -> None:
    seen = observations()
    record(tmp_path, seen)
    assert_equal(list(read(tmp_path)), seen)
    assert sorted(path.name for path in (tmp_path / "nodes").iterdir()) == [
        "n1.json",
        "n1@2.json",
        "n2.json",
        "n2@2.json",
    ]


def image(counter: int, frames: int = 1) -> Image:
    """A probe file's content at some time."""
    header = np.zeros(1, layout.HEADER)
    header["magic"], header["abi"], header["frame_bytes"] = layout.MAGIC, layout.ABI, layout.FRAME.itemsize
    frame = np.zeros(frames, layout.FRAME)
    frame["magic"], frame["state"], frame["size"] = layout.MAGIC & 0xFFFFFFFF, layout.FRAME_LIVE, 8
    frame["enqueued"] = counter
    return Image("n1", "7.frames", 10.0 + counter, 1e9, header.tobytes() + frame.tobytes())


def test_probe_images(tmp_path: Path) -> None:
    images = [(image(1),), (image(2),), (), (image(3, 2), image(4, 2)), (image(5, 2),)]
    recorder = Recorder(tmp_path)
    for number, several in enumerate(images):
        recorder.write(FramePoll(15.0 * number, probe_decode.decode(several), several))
    back = [observation for observation in read(tmp_path) if isinstance(observation, FramePoll)]
    assert [poll.images for poll in back] == images
    assert [poll.t_s for poll in back] == [0.0, 15.0, 30.0, 45.0, 60.0]
    assert back[1].frames.enqueued.tolist() == [2]


def test_probe_images_are_written_as_what_differs(tmp_path: Path) -> None:
    recorder, sizes = Recorder(tmp_path), []
    for counter in range(4):
        recorder.write(FramePoll(0.0, probe_decode.decode([]), (image(counter, 20),)))
        sizes.append((tmp_path / "polls.jsonl").stat().st_size)
    assert sizes[3] - sizes[2] < 300


def test_a_second_monitor_continues_the_first_ones_recording(tmp_path: Path) -> None:
    seen = observations()
    path = record(tmp_path, seen)
    with path.open("ab") as file:
        file.write(b'{"kind":"poll","n":5,"t"')
    record(tmp_path, seen[:3])
    assert_equal(list(read(tmp_path)), seen + seen[:3])


@pytest.mark.parametrize("cut", [1, 5, 30])
def test_cut_tail_is_read_up_to_there(tmp_path: Path, cut: int, caplog: pytest.LogCaptureFixture) -> None:
    seen = observations()
    path = record(tmp_path, seen)
    path.write_bytes(path.read_bytes()[: -cut - 1])
    with caplog.at_level(logging.WARNING):
        assert_equal(list(read(tmp_path)), seen[:-1])
    assert f"{path}:10" in caplog.text


@pytest.mark.parametrize(
    ("line", "old", "new"),
    [
        (3, b"{", b"[{"),
        (3, b'"crc":', b'"crc":1'),
        (2, b'"text":"', b'"text":"!!'),
        (4, b'"on":', b'"on":7'),
        (6, b'"t":', b'"t":"x'),
        (3, b'"n":1', b'"m":1'),
        (7, b"n1.json", b"n7.json"),
    ],
)
def test_damage_is_told_with_its_place(tmp_path: Path, line: int, old: bytes, new: bytes) -> None:
    path = record(tmp_path, observations())
    lines = path.read_bytes().split(b"\n")
    damaged = lines[line - 1].replace(old, new, 1)
    if damaged == lines[line - 1]:
        damaged = damaged[:-4]
    lines[line - 1] = damaged
    path.write_bytes(b"\n".join(lines))
    with pytest.raises(RecordingError, match=rf"polls.jsonl:{line}|n7.json"):
        list(read(tmp_path))


def test_recording_of_another_release(tmp_path: Path) -> None:
    (tmp_path / "polls.jsonl").write_text('{"kind":"begin","schema":99}\n')
    with pytest.raises(RecordingError, match="another release"):
        list(read(tmp_path))


def test_each_line_is_on_disk_at_once(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    for number, observation in enumerate(observations()[:4], 1):
        recorder.write(observation)
        assert len((tmp_path / "polls.jsonl").read_bytes().splitlines()) == number + 1


def advanced(text: bytes, chance: random.Random, step: int) -> bytes:
    """A job's answer some steps later, at another time, each rank caught at its own place in the step."""
    lines = text.split(b"\n")
    ahead = 0
    for i, line in enumerate(lines):
        if line.startswith(b'            "'):
            name, _, count = line.partition(b": ")
            if name.endswith(b'Broadcast"'):
                ahead = chance.random() < 0.1
            elif name.endswith((b'AllGather"', b'ReduceScatter"', b'AllReduce"')):
                comma = b"," if count.endswith(b",") else b""
                lines[i] = b"%s: %d%s" % (name, int(count.rstrip(b",")) + 30 * step + ahead, comma)
    return (
        b"\n".join(lines)
        .replace(b"07:17:23", b"07:%02d:%02d" % divmod(step % 3600, 60))
        .replace(b'_sec": 0.117', b'_sec": 0.%03d' % (100 + step % 40))
    )


def test_a_day_of_a_thousand_ranks_is_a_few_megabytes(tmp_path: Path) -> None:
    """Polled every 30 s, as pace.py has it for that size; three communicators a rank, all counters moving, ordinary skew."""
    chance, first = random.Random(3), answer(1000, 1000)
    recorder, sizes = Recorder(tmp_path), []
    for n in range(12):
        text = advanced(first, chance, n)
        recorder.write(Poll(n, 30.0 * n, 1e9, None, None, (text,)))
        sizes.append((tmp_path / "polls.jsonl").stat().st_size)
    a_day = sizes[0] + (sizes[-1] - sizes[0]) / 11 * 2880
    assert a_day < 8e6


# Folders of plain answers


def plain(folder: Path, polls: dict[int, str], log: str = "") -> Path:
    for n, name in polls.items():
        (folder / f"poll_{n:03d}.{name.rsplit('.', 1)[1]}").write_bytes(sample(name))
    if log:
        (folder / "polls.jsonl").write_text(log)
    return folder


def test_plain_answers_with_an_interval(tmp_path: Path) -> None:
    polls = [
        poll
        for poll in read(plain(tmp_path, {0: "healthy-2.28.9.json", 2: "killed-2.28.9.json"}), 20.0)
        if isinstance(poll, Poll)
    ]
    assert [(poll.n, poll.t_s, poll.report is None) for poll in polls] == [
        (0, 0.0, False),
        (1, 20.0, True),
        (2, 40.0, False),
    ]
    assert polls[1].trouble == "no answer"


def test_plain_answers_with_times(tmp_path: Path) -> None:
    lines = [
        {"n": 0, "fmt": "json", "t": 1.5, "wall": 100.0},
        {"n": 0, "fmt": "text", "t": 1.6},
        {"n": 1, "fmt": "json", "t": 7.25, "stderr": "Connection refused"},
    ]
    folder = plain(tmp_path, {0: "healthy-2.28.9.json"}, "".join(json.dumps(line) + "\n" for line in lines))
    (folder / "poll_000.txt").write_bytes(sample("not_entered-2.32.3.txt"))
    polls = [poll for poll in read(folder) if isinstance(poll, Poll)]
    assert [(poll.t_s, poll.wall_s, poll.trouble) for poll in polls] == [
        (1.5, 100.0, None),
        (7.25, 7.25, "Connection refused"),
    ]
    assert polls[0].report is not None
    assert polls[0].report.members == 24


def test_plain_text_answers(tmp_path: Path) -> None:
    polls = [poll for poll in read(plain(tmp_path, {0: "not_entered-2.27.5.txt"})) if isinstance(poll, Poll)]
    assert polls[0].report is not None
    assert polls[0].report.nccl_version == "2.27.5"


def test_empty_answer_is_a_poll_that_failed(tmp_path: Path) -> None:
    plain(tmp_path, {0: "healthy-2.28.9.json"})
    (tmp_path / "poll_001.json").write_bytes(b"")
    polls = [poll for poll in read(tmp_path) if isinstance(poll, Poll)]
    assert (polls[1].report, polls[1].trouble) == (None, "an empty answer")


def test_nothing_to_read(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match=r"poll_000\.json"):
        list(read(tmp_path))


def test_missing_numbers_are_bounded(tmp_path: Path) -> None:
    (tmp_path / "poll_999999999.json").write_bytes(b"{}")
    (tmp_path / "poll_0.json").write_bytes(b"{}")
    with pytest.raises(RecordingError, match="renumber"):
        list(read(tmp_path))
