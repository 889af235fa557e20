"""Silent situations in which ranks pause, or seem to: checkpoints, evaluation, compilation, data, suspension, rollouts."""

from __future__ import annotations

import numpy as np

from slurm_ncclmon.ras.report import MISSING, UNRESPONSIVE
from tests.lab.simulate.answer import Answer
from tests.lab.simulate.job import Job
from tests.lab.simulate.scene import begin, case, pick, silent, some_ranks
from tests.lab.simulate.steps import ALL_REDUCE, BROADCAST, Program, call, sync
from tests.lab.simulate.truth import COUNTS

LIKE_A_HANG_S = 250.0
"""One rank away for longer than this looks, by counts alone, exactly like P1."""


def _barrier(program: Program) -> Program:
    """A collective of everybody, and the hosts wait for it."""
    return [call("world", ALL_REDUCE), sync("barrier"), *program]


def _one_away(job: Job, rank: int, seconds: float, label: str) -> None:
    """One rank works while all others are in a barrier."""
    away = job.pause(seconds, label)
    job.special({rank: [away, *_barrier(job.programs[rank])]}, everyone=_barrier)


def _resume(job: Job) -> None:
    job.healthy(float(job.rng.uniform(40, 90)))


def _one_away_case(job: Job, rank: int, seconds: float, label: str, what: str) -> None:
    begin(job)
    _one_away(job, rank, seconds, label)
    _resume(job)
    silent(job, what)
    job.truth.decidable[COUNTS] = seconds < LIKE_A_HANG_S


@case("N1", False)
def checkpoint_of_one(job: Job) -> None:
    """Rank 0 writes a checkpoint for minutes, the others are in a barrier."""
    seconds = float(job.rng.uniform(90, 480))
    _one_away_case(job, 0, seconds, "checkpoint", f"rank 0 saves for {seconds:.0f} s")


def _all_away(job: Job, seconds: float, label: str) -> None:
    away = job.pause(seconds, label)
    job.special(everyone=lambda program: [away, *program])


@case("N2", False)
def all_away(job: Job) -> None:
    """All ranks save a checkpoint or evaluate for 10 to 20 minutes."""
    begin(job)
    label = str(job.rng.choice(["checkpoint", "evaluation"]))
    _all_away(job, float(job.rng.uniform(600, 1200)), label)
    _resume(job)
    silent(job, f"all ranks: {label}")


@case("N3", False)
def first_compile(job: Job) -> None:
    """The first step is compiled for 15 minutes."""
    job.up, job.now = 5.0, 12.0
    _all_away(job, 900.0, "compile")
    _resume(job)
    silent(job, "first compilation")


@case("N4", False)
def graph_replay(job: Job) -> None:
    """Training goes on in CUDA graphs, which RAS does not count."""
    begin(job)
    begins = job.now
    _all_away(job, 1500.0, "item")
    job.replaying.append((begins, job.now))
    job.end = job.now - 10
    silent(job, "graph replay")


@case("N15", False)
def clock_jumps(job: Job) -> None:
    """The wall clock jumps by an hour, to and fro."""
    begin(job)
    _one_away(job, pick(job), 40.0, "dataload")
    job.steps_wall = [(40.0, 3600.0), (120.0, -7200.0)]
    job.healthy(300.0)
    silent(job, "clock jumps")


@case("N16", False)
def suspended(job: Job) -> None:
    """The whole job, monitor included, is suspended for 20 minutes; the first answer afterwards is full of false alarms."""
    begin(job)
    begins, ends = job.now, job.now + float(job.rng.uniform(300, 1200))
    job.paused.append((begins, ends))
    job.told += [(begins, "suspended"), (ends, "running")]
    job.now = ends
    absent = some_ranks(job)
    of_rank = job.mesh.rank_of_slot()

    def change(answer: Answer) -> None:
        answer.flags[np.isin(of_rank[answer.slot], sorted(absent))] = MISSING | UNRESPONSIVE

    job.tweaks.append((ends, ends + 4.0, change))
    job.healthy(200.0)
    silent(job, "suspended", suspicion=False)


@case("N17", False, kinds=("rl",))
def rollout(job: Job) -> None:
    """Trainers wait 10 to 15 minutes for the generating half, in a queue or already in the broadcast of the weights."""
    begin(job)
    half, seconds = job.layout.ranks // 2, float(job.rng.uniform(600, 900))
    rounds = int(seconds / 10)
    trainers = [call("world", BROADCAST), sync("synchronize")]
    if job.rng.random() < 0.5:
        trainers = [job.pause(seconds + 5, "queue"), *trainers]
    else:
        trainers = [call("world", ALL_REDUCE), sync("collective"), *trainers]
    making: Program = [job.pause(10.0, "python"), call("tp", ALL_REDUCE), sync("item")] * rounds
    making += ([call("world", ALL_REDUCE)] if trainers[0][1] == "world" and len(trainers) > 2 else []) + [
        call("world", BROADCAST),
        sync("synchronize"),
    ]
    changes = {rank: trainers if rank < half else making for rank in range(job.layout.ranks)}
    job.special(changes)
    _resume(job)
    silent(job, "rollout")


@case("N18", False)
def data_stall(job: Job) -> None:
    """The end of an epoch: one rank, or all, wait two minutes for data."""
    begin(job)
    seconds = float(job.rng.uniform(60, 170))
    if job.rng.random() < 0.5:
        _one_away(job, pick(job), seconds, "dataload")
    else:
        _all_away(job, seconds, "dataload")
    _resume(job)
    silent(job, f"data stall of {seconds:.0f} s")


@case("N25", False)
def idle(job: Job) -> None:
    """An interactive job idles for an hour."""
    begin(job)
    _all_away(job, 3600.0, "input")
    job.end = job.now - 5.0
    silent(job, "idle")


@case("N27", False)
def evaluation_of_one(job: Job) -> None:
    """Rank 0 evaluates for minutes, the others are in a barrier."""
    seconds = float(job.rng.uniform(90, 600))
    _one_away_case(job, 0, seconds, "evaluation", f"rank 0 evaluates for {seconds:.0f} s")


@case("N28", False)
def download(job: Job) -> None:
    """Rank 0 fetches the data set before the first step, the others are in a barrier."""
    job.up, job.now = 5.0, 15.0
    seconds = float(job.rng.uniform(100, 900))
    _one_away(job, 0, seconds, "download")
    _resume(job)
    silent(job, f"rank 0 downloads for {seconds:.0f} s")
    job.truth.decidable[COUNTS] = seconds < LIKE_A_HANG_S


@case("N29", False)
def straggler(job: Job) -> None:
    """One rank is away for three minutes, twice, in plain Python."""
    begin(job)
    rank = pick(job)
    for _ in range(2):
        _one_away(job, rank, float(job.rng.uniform(90, 200)), "python")
        _resume(job)
    silent(job, f"rank {rank} straggles")
