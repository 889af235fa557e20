"""Merging the stacks of large jobs: 4,096 and 98,304 ranks, 8 a node, from the bytes that nodes send to the text on the screen.

    python bench/stacks_merge.py [RANKS ...]

Each rank has 4 threads of up to 37 frames (as a PyTorch rank has, native frames included); 1 in 1,000 stands elsewhere, at one
of 20 places.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from slurm_ncclmon.evidence.merge import merge
from slurm_ncclmon.evidence.model import Frame, NodeReport, ProcessReport, Thread
from slurm_ncclmon.evidence.render import render_text
from slurm_ncclmon.evidence.tree import render_tree
from slurm_ncclmon.evidence.wire import Unpacker, lines, pack
from tests.evidence.make import IN_ALL_REDUCE, IN_LOADER, process

DEEP = tuple(Frame(f"layer_{depth}", f"/home/anna/llm/model/block_{depth}.py", 100 + depth) for depth in range(30))
THREADS = tuple(
    Thread(
        f"thread-{number}",
        7 + number,
        False,
        False,
        (Frame("wait", f"/usr/lib/python3.11/threading_{number}.py", 324), *DEEP),
    )
    for number in range(3)
)


def rank_report(rank: int) -> ProcessReport:
    frames = (*IN_ALL_REDUCE[:4], *DEEP, *IN_ALL_REDUCE[4:])
    if rank % 1000 == 13:
        place = replace(IN_LOADER[1], line=700 + rank // 1000 % 20)
        frames = (IN_LOADER[0], place, *DEEP[:20], *IN_LOADER[2:])
    report = process(rank, frames, environment={"RANK": str(rank), "WORLD_SIZE": "98304", "NCCL_DEBUG": "WARN"})
    return replace(report, threads=(*report.threads, *THREADS))


def payloads(ranks: int) -> Iterator[bytes]:
    for start in range(0, ranks, 8):
        yield pack(
            NodeReport(
                f"n{1 + start // 8}", True, processes=tuple(rank_report(rank) for rank in range(start, start + 8))
            )
        )


def measure(ranks: int) -> None:
    sent = list(payloads(ranks))
    on_the_wire = sum(len(line) + 1 for payload in sent[:64] for line in lines("n1234", 1, "report", payload)) / len(
        sent[:64]
    )
    times = [time.perf_counter()]
    unpacker = Unpacker()
    reports = [unpacker.unpack(payload) for payload in sent]
    times.append(time.perf_counter())
    merged = merge(reports)
    times.append(time.perf_counter())
    text = render_text(merged)
    tree = render_tree(merged)
    times.append(time.perf_counter())
    unpacked, grouped, drawn = (later - sooner for sooner, later in zip(times, times[1:]))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{ranks:>7} ranks: {on_the_wire / 1024:.1f} KiB a node on the wire, unpack {unpacked:.2f} s, merge {grouped:.2f} s, "
        f"text and tree {drawn:.3f} s ({len(merged.groups)} groups, {len(text.splitlines())} and {len(tree.splitlines())} "
        f"lines), peak memory {peak:.0f} MiB"
    )


if __name__ == "__main__":
    for count in [int(word) for word in sys.argv[1:]] or [4096, 98304]:
        measure(count)
