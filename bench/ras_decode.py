"""How long an answer takes to become a report: `python -m bench.ras_decode [RANKS ...] [--ray PYTHON]`.

Every rank is in three communicators (all ranks, tensor groups of 8, data groups across them), in the layout that NCCL prints.
Timed beside json.loads on the same text, and with --ray beside the parser of Ray 2.60's NCCL RAS callback, run by that
interpreter (one that has ray==2.60.0). "few changes" is an answer in which one communicator in a hundred, and one rank of the
largest, have moved on.
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
from tests.ras.synthetic import answer

SIZES = (1024, 4096, 98304)
RAY_PARSER = "ray.train.v2._internal.callbacks.nccl_ras.parse_ras_schema"
_RAY = """
import json, statistics, sys, time, gc
from {module} import {name} as parse
text = open(sys.argv[1]).read()
times = []
for _ in range(int(sys.argv[2])):
    gc.collect(); gc.disable()
    began = time.process_time(); parse(text); times.append(time.process_time() - began)
    gc.enable()
print(statistics.median(times))
"""


def median_s(work: Callable[[], object], rounds: int) -> float:
    """Median CPU time, which other work on the machine disturbs least; garbage collection only between the rounds."""
    times = []
    for _ in range(rounds):
        gc.collect()
        gc.disable()
        began = time.process_time()
        work()
        times.append(time.process_time() - began)
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
    parser.add_argument("--parser", default=RAY_PARSER, help="dotted name of Ray's parsing function")
    options = parser.parse_args()
    print("ranks | bytes | first, ms | all moved | few changes | unchanged | json.loads | Ray 2.60", flush=True)
    for ranks in options.ranks:
        print(" | ".join(measure(ranks, options.ray, options.parser)), flush=True)


if __name__ == "__main__":
    sys.exit(main())
