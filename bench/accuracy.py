#!/usr/bin/env python3
"""The accuracy table: seeded jobs of every fault and every silent situation, judged by the engine and by Ray Train's detector.

    bench/accuracy.py                            1,000 jobs (about ten minutes on two cores)
    bench/accuracy.py --jobs 100 --seed 5000     seeds 5000 to 5099
    bench/accuracy.py --cases P1,P17 --jobs 50
    bench/accuracy.py --markdown docs/accuracy.md   writes the table there, between its marks

A job that does not come out as it should is printed with the command that plays it again and writes a recording of it.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "bench")]

from accuracy_table import render  # noqa: E402
from ray_pipe import Feed, Ray, install  # noqa: E402

from tests.lab.simulate.cases import CASES, build  # noqa: E402
from tests.lab.simulate.play import Senses, play  # noqa: E402
from tests.lab.simulate.score import Score, score  # noqa: E402

TEXT_UP_TO = 64
"""Jobs of so many ranks at most are polled as JSON text, half of them; larger ones as columns."""
_ray: Ray | None = None


def start_worker(with_ray: bool) -> None:
    """Each worker process has a Ray process of its own."""
    global _ray  # noqa: PLW0603
    _ray = Ray() if with_ray else None


def judge(task: tuple[int, str | None, int]) -> tuple[int, Score | None, str]:
    """Build, play and score the job of a seed; Ray's detector sees the same polls of jobs of at most so many ranks."""
    seed, case, ray_most = task
    began = time.perf_counter()
    try:
        job = build(seed, case)
        senses = Senses(job, text=job.layout.ranks <= TEXT_UP_TO and seed % 2 == 0)
        feed = Feed(_ray, job) if _ray and job.layout.ranks <= ray_most else None
        if feed:
            senses.raw = feed.take
        result = score(job, play(job, senses=senses))
        if feed and _ray:
            _add_ray(result, _ray.answer(), feed.times, job.truth.since_s)
    except Exception:  # noqa: BLE001  (a crash of what is examined is a result like any other)
        return seed, None, traceback.format_exc()
    result.seconds = time.perf_counter() - began
    return seed, result, ""


def _add_ray(result: Score, answer: dict[str, Any], times: list[float], since: float) -> None:
    result.ray = True
    for name, poll in (("ray_s", answer["confirmed"]), ("ray_early_s", answer["early"])):
        setattr(result, name, None if poll is None else times[poll] - since)


def results(
    seeds: list[int], cases: list[str], with_ray: bool, ray_most: int, workers: int
) -> Iterator[tuple[int, Score | None, str]]:
    """Scores as they come, the slow jobs first so that no worker is left with one at the end."""
    tasks = [(seed, cases[number % len(cases)] if cases else None, ray_most) for number, seed in enumerate(seeds)]
    with multiprocessing.Pool(workers, start_worker, (with_ray,)) as pool:
        yield from pool.imap_unordered(judge, tasks, chunksize=4)


def again(seed: int, result: Score | None, case: str | None) -> str:
    """The command that plays a job again."""
    name = result.case if result else case or list(CASES)[seed % len(CASES)]
    return f"python -m tests.lab.simulate {name} --seed {seed} --out /tmp/job-{seed}"


def main() -> int:
    """Exit code 1 when a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cases", help="only these, as P1,N4")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--no-ray", action="store_true")
    parser.add_argument(
        "--ray-most",
        type=int,
        default=1024,
        help="Ray's detector judges jobs of at most so many ranks (it takes seconds a poll beyond)",
    )
    parser.add_argument("--failures", type=int, default=30, help="print so many failing jobs at most")
    parser.add_argument("--json", type=Path, help="write every job's result there, one a line")
    parser.add_argument("--markdown", type=Path, help="write the table into this file, between its marks")
    asked = parser.parse_args()
    if not asked.no_ray:
        trouble = install()
        if trouble:
            print(f"Ray cannot be had ({trouble}); going on without it", file=sys.stderr)
            asked.no_ray = True
    cases = asked.cases.split(",") if asked.cases else []
    seeds = list(range(asked.seed, asked.seed + asked.jobs))
    began, scores, crashes = time.monotonic(), [], []
    for seed, result, crash in results(seeds, cases, not asked.no_ray, asked.ray_most, asked.workers):
        if result is None:
            crashes.append((seed, crash))
        else:
            scores.append(result)
        done = len(scores) + len(crashes)
        if done % 50 == 0:
            print(f"{done} of {asked.jobs} jobs, {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    table = render(scores, time.monotonic() - began, asked.seed)
    print(table)
    _failures(scores, crashes, asked.failures)
    if asked.json:
        asked.json.write_text("".join(json.dumps(asdict(one)) + "\n" for one in scores))
    if asked.markdown:
        _insert(asked.markdown, table)
    return int(bool(crashes) or not all(one.good for one in scores))


def _failures(scores: list[Score], crashes: list[tuple[int, str]], most: int) -> None:
    bad = sorted((one for one in scores if not one.good), key=lambda one: (one.case, one.ranks))
    print(f"\n{len(bad)} jobs not as they should be, {len(crashes)} crashes")
    for one in bad[:most]:
        what = (
            f"{one.false_alarms} false alarms"
            if not one.hang or one.false_alarms
            else (
                f"culprits {one.culprits} {list(one.named)[:6]}, {one.incidents} incidents, "
                f"said {'/'.join(one.said[:3]) or 'nothing'} {'/'.join(one.kinds[:3])}"
            )
        )
        print(
            f"  {one.case:4s} {one.tier:7s} {one.ranks:5d} ranks {one.layout:24s} {what}\n       {again(one.seed, one, None)}"
        )
    for seed, crash in crashes[:5]:
        print(f"  crash: {again(seed, None, None)}\n{crash}")


def _insert(path: Path, table: str) -> None:
    """Replace what is between the marks."""
    begin, end = "<!-- table -->\n", "<!-- end of table -->"
    text = path.read_text()
    before, _, rest = text.partition(begin)
    _, _, after = rest.partition(end)
    path.write_text(f"{before}{begin}{table}\n{end}{after}")


if __name__ == "__main__":
    sys.exit(main())
