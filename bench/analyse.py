#!/usr/bin/env python3
"""From report to verdict in a cascade: one tensor-parallel rank is stuck, everybody waits, three communicators a rank.

bench/analyse.py [--ranks 4096,98304]     exit code 1 when a goal is missed: 25 ms at 4,096 ranks, 250 ms at 98,304
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from slurm_ncclmon.config import Settings  # noqa: E402
from slurm_ncclmon.engine import Engine  # noqa: E402
from slurm_ncclmon.events import Confirmed, Event, Suspected  # noqa: E402
from slurm_ncclmon.observation import Poll  # noqa: E402
from tests.lab.simulate.answer import Answers  # noqa: E402
from tests.lab.simulate.job import Job, make  # noqa: E402
from tests.lab.simulate.layout import Layout  # noqa: E402
from tests.lab.simulate.scene import conclude_not_entered, hang  # noqa: E402
from tests.lab.simulate.steps import Style, stop  # noqa: E402

GOALS_MS = {4096: 25.0, 98304: 250.0}
TENSOR = 8


def cascade(ranks: int) -> Job:
    """A job that hangs: world, tensor- and data-parallel communicators, one rank stuck before a tensor-parallel collective."""
    rng = np.random.default_rng(ranks)
    job = make(ranks, rng, Layout("megatron", ranks, tp=TENSOR), Style(layers=1, microbatches=1, buckets=1))
    job.interval = 15.0
    job.up, job.now = 1.0, 5.0
    job.pace(2.0)
    job.healthy(100.0)
    rank = ranks // 3
    spot = job.spots(rank, roles=("tp",))[0]
    hang(job, {rank: [*job.programs[rank][:spot], stop("sleep")]}, follow=1)
    conclude_not_entered(job, "cascade", {rank})
    return job


def measure(job: Job) -> tuple[dict[str, list[float]], list[Event]]:
    """Milliseconds of every poll, by what the engine answered; and all its events."""
    engine, answers = Engine(replace(Settings(), interval=job.interval, stacks="off")), Answers(job)
    spent: dict[str, list[float]] = {"healthy": [], "standing still": [], "suspicion": [], "confirmation": []}
    events: list[Event] = []
    for n, moment in enumerate(np.arange(2.0, job.truth.since_s + 420.0, job.interval)):
        poll = Poll(n, float(moment), job.wall(moment), answers.report(answers.at(float(moment))))
        began = time.perf_counter()
        said = engine.observe(poll)
        took = 1000 * (time.perf_counter() - began)
        name = "healthy" if moment < job.truth.since_s else "standing still"
        if any(isinstance(event, Suspected) for event in said):
            name = "suspicion"
        if any(isinstance(event, Confirmed) for event in said):
            name = "confirmation"
        spent[name].append(took)
        events += said
    return spent, events


def main() -> int:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="4096,98304")
    missed = False
    head = ("ranks", "communicators", "members", "healthy poll ms", "standing still ms", "suspicion ms", "verdict ms")
    print(f"| {' | '.join(head)} | worst ms | goal ms | culprit |\n|{' --- |' * (len(head) + 3)}")
    for ranks in map(int, parser.parse_args().ranks.split(",")):
        job = cascade(ranks)
        spent, events = measure(job)
        verdicts = [event.verdict for event in events if isinstance(event, Confirmed)]
        named = sorted(culprit.pid for verdict in verdicts for culprit in verdict.culprits)
        right = named == [job.processes[rank].ns_pid for rank in job.truth.culprits]
        worst = max(spent["standing still"] + spent["suspicion"] + spent["confirmation"])
        goal = GOALS_MS.get(ranks)
        missed |= not right or (goal is not None and worst > goal)
        cells = [f"{median(times):.1f}" if times else "-" for times in spent.values()]
        comms = sum(comm.visible for comm in job.mesh.comms)
        sizes = f"| {ranks:,} | {comms:,} | {job.mesh.size:,} | {' | '.join(cells)} | {worst:.1f}"
        print(f"{sizes} | {goal or '-'} | {'right' if right else 'WRONG'} |", flush=True)
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
