"""How long an answer takes to become a report: `python -m bench.ras_decode [RANKS ...] [--ray PYTHON]`.

Every rank is in three communicators (all ranks, tensor groups of 8, data groups across them), in the layout that NCCL prints. Timed
beside json.loads on the same text, and with --ray beside the parser of Ray 2.60's NCCL RAS callback, run by that interpreter (one that
has ray==2.60.0). "few changes" is an answer in which one communicator in a hundred, and one rank of the largest, have moved on.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Callable

from slurm_ncclmon.ras.decode import Decoder
from slurm_ncclmon.ras.report import OPERATIONS

SIZES = (1024, 4096, 98304)
TENSOR = 8
_RAY = """
import json, statistics, sys, time, gc
from {module} import {name} as parse
text = open(sys.argv[1]).read()
times = []
for _ in range(int(sys.argv[2])):
    gc.collect(); gc.disable()
    began = time.perf_counter(); parse(text); times.append(time.perf_counter() - began)
    gc.enable()
print(statistics.median(times))
"""


def answer(ranks: int, step: int, ahead: int = -1, odd: int = 0) -> bytes:
    """An answer of a job at `step`; one tensor group in `odd` (0: none) and rank `ahead` of the largest communicator are a step further."""
    groups = [list(range(ranks))]
    groups += [list(range(first, first + TENSOR)) for first in range(0, ranks, TENSOR)]
    groups += [list(range(first, ranks, TENSOR)) for first in range(TENSOR)]
    comms = []
    for number, members in enumerate(groups):
        moved = bool(odd) and number > 0 and number % odd == 0
        rows = ",\n".join(
            _member(rank, process, step + (moved or (number == 0 and rank == ahead))) for rank, process in enumerate(members)
        )
        name = (number * 0x9E3779B97F4A7C15 + 12345) % 2**64
        comms.append(_COMM % (name, name // 3, name // 7, len(members), len(members), rows))
    return (_ANSWER % (len(comms), ",\n".join(comms))).encode()


def _member(rank: int, process: int, step: int) -> str:
    node, device = divmod(process, 8)
    host = f"10.{node >> 16}.{(node >> 8) & 255}.{node & 255}"
    return _MEMBER % (rank, host, 100000 + process % 50000, device, device, step * 3 + 7, step * 2, step * 11 + 1)


_MEMBER = """        {
          "rank": %d,
          "host": "%s",
          "pid": %d,
          "cuda_dev": %d,
          "nvml_dev": %d,
          "status": {
            "init_state": 0,
            "async_error": 0,
            "finalize_called": false,
            "destroy_flag": false,
            "abort_flag": false
          },
          "collective_counts": {
            "Broadcast": 12,
            "Reduce": 0,
            "AllGather": %d,
            "ReduceScatter": %d,
            "AllReduce": %d
          }
        }"""
_COMM = """    {
      "hash": "0x%x",
      "secondary_hash": "0x%x:0x%x",
      "size": %d,
      "ranks_count": %d,
      "missing_ranks_count": 0,
      "ranks": [
%s
      ],
      "missing_ranks": [

      ]
    }"""
_ANSWER = """{
  "nccl_version": "2.28.9",
  "cuda_runtime_version": 12090,
  "cuda_driver_version": 13000,
  "timestamp": "2026-11-30 07:17:23",
  "communicators_count": %d,
  "communicators": [
%s
  ],
  "ras": {
    "collection_time_sec": 0.117,
    "timeouts_count": 0
  }
}
"""
assert all(name in _MEMBER for name in OPERATIONS)


def median_s(work: Callable[[], object], rounds: int) -> float:
    """Median wall time; garbage collection only between the rounds."""
    times = []
    for _ in range(rounds):
        gc.collect()
        gc.disable()
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
        gc.enable()
    return statistics.median(times)


def ray_s(python: str, module: str, text: bytes, rounds: int) -> float:
    """Median of Ray's parser on the same text."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "answer.json"
        path.write_bytes(text)
        module, _, name = module.rpartition(".")
        program = _RAY.format(module=module, name=name)
        result = subprocess.run(
            [python, "-c", program, str(path), str(rounds)], capture_output=True, text=True, timeout=600, check=True
        )
    return float(result.stdout)


def decode_all(texts: list[bytes]) -> Callable[[], object]:
    """Decoding the texts in turn, over and over, by one decoder that has seen the last."""
    decoder = Decoder()
    decoder.decode(texts[-1])
    turn = iter(range(10**9))
    return lambda: decoder.decode(texts[next(turn) % len(texts)])


def measure(ranks: int, python: str | None, module: str) -> list[str]:
    """One row of the table, times in ms."""
    rounds = 3 if ranks > 50000 else 9
    text = answer(ranks, 1000)
    moved, few = answer(ranks, 1005), answer(ranks, 1000, ahead=ranks // 2, odd=100)
    row = [f"{ranks}", f"{len(text) / 1e6:.1f} MB"]
    times = [
        median_s(lambda: Decoder().decode(text), rounds),
        median_s(decode_all([moved, text]), rounds),
        median_s(decode_all([few, text]), rounds + 1),
        median_s(decode_all([text]), rounds),
        median_s(lambda: json.loads(text), rounds),
    ]
    row += [f"{seconds * 1000:.1f}" for seconds in times]
    row.append(f"{ray_s(python, module, text, rounds) * 1000:.1f}" if python else "-")
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ranks", nargs="*", type=int, default=SIZES)
    parser.add_argument("--ray", help="Python interpreter that has ray==2.60.0")
    parser.add_argument("--parser", default="", help="dotted name of Ray's parsing function")
    options = parser.parse_args()
    print("ranks | bytes | first, ms | all moved | few changes | unchanged | json.loads | Ray 2.60", flush=True)
    for ranks in options.ranks:
        print(" | ".join(measure(ranks, options.ray, options.parser)), flush=True)


if __name__ == "__main__":
    sys.exit(main())
