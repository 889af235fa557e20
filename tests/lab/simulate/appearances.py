"""Silent situations in which nothing pauses and RAS looks as if: uncounted traffic, skew, rubbish, communicators that come and go."""

from __future__ import annotations

from math import inf

import numpy as np

from slurm_ncclmon.ras.report import DESTROYED, FINALIZED, MISSING, UNRESPONSIVE
from tests.lab.simulate.answer import Answer
from tests.lab.simulate.job import Job, Mark, Window, restart
from tests.lab.simulate.scene import begin, case, pick, silent, some_ranks
from tests.lab.simulate.steps import ALL_GATHER, ALL_REDUCE


@case("N5", False, kinds=("moe", "megatron"), pp=True, world=False)
def uncounted(job: Job) -> None:
    """Point-to-point and all-to-all communicators never show a count; the world communicator is idle."""
    begin(job, 900.0)
    silent(job, "uncounted traffic", suspicion=False)


@case("N6", False, world=False)
def stale_mismatch(job: Job) -> None:
    """One communicator was left behind with unequal counts at the start, and never used again."""
    number = int(job.rng.choice([c for c, comm in enumerate(job.mesh.comms) if comm.role in ("world", "late")]))
    slot = job.mesh.base[number] + int(job.rng.integers(len(job.mesh.comms[number].ranks)))
    job.history.before[slot * 5 + ALL_REDUCE] += 1
    begin(job, 900.0)
    silent(job, "stale mismatch", suspicion=False)


@case("N7", False, kinds=("megatron", "moe"), pp=True)
def pipeline_skew(job: Job) -> None:
    """Long pipelined steps: stages are apart all the time."""
    job.pace(float(job.rng.uniform(15, 50)))
    begin(job, 900.0)
    silent(job, "pipeline skew")


@case("N8", False)
def ordinary_skew(job: Job) -> None:
    """An ordinary job whose polls all catch some skew."""
    job.pace(float(job.rng.uniform(2, 12)))
    begin(job, 900.0)
    silent(job, "ordinary skew", suspicion=False)


@case("N9", False)
def blind_spell(job: Job) -> None:
    """No poll is answered for 10 minutes, while the job goes on."""
    begin(job, 800.0)
    job.blind.append((100.0, 700.0, "connection refused"))
    silent(job, "blind for 10 minutes", suspicion=False)


@case("N10", False)
def teardown(job: Job) -> None:
    """The ranks finish over a minute and a half: finalised, gone from their communicators, ended."""
    begin(job)
    for rank in range(job.layout.ranks):
        leaves = job.now + job.period + float(job.rng.uniform(0, 90))
        job.phases[rank] = [(job.now, inf, "teardown")]
        job.gone[rank] = (leaves + 3.0, "exited")
        for slots in job.mesh.slots.values():
            if slots[rank] >= 0:
                job.marks += [
                    Mark(leaves - 5, slots[rank], "flags", FINALIZED | DESTROYED),
                    Mark(leaves, slots[rank], "gone"),
                ]
    job.down = max(when for when, _ in job.gone.values())
    job.end = job.down + 60.0
    job.now += 200.0
    if job.rng.random() < 0.5:
        job.told.append((job.down + 1.0, "ending"))
    silent(job, "staggered teardown")


@case("N11", False)
def corrupt(job: Job) -> None:
    """Some answers carry rubbish: a rank of nine digits, 255 missing ranks of a communicator of two, no end."""
    begin(job, 500.0)
    for _ in range(4):
        at = float(job.rng.uniform(job.up + 30, job.now))
        ways = (_nine_digits, _many_missing, _cut_off)
        job.garble.append((at, at + job.interval * 1.2, ways[int(job.rng.integers(3))]))
    silent(job, "corrupt answers", suspicion=False)


def _nine_digits(text: bytes) -> bytes:
    return text.replace(b'"rank": 1,', b'"rank": 1057455228,', 1)


def _many_missing(text: bytes) -> bytes:
    return text.replace(b'"missing_ranks_count": 0', b'"missing_ranks_count": 255', 1)


def _cut_off(text: bytes) -> bytes:
    return text[: len(text) * 2 // 3]


@case("N12", False)
def half_absent(job: Job) -> None:
    """An overloaded mesh: for a poll or two half of the ranks give no answer in time."""
    begin(job, 500.0)
    absent = some_ranks(job)
    of_rank = job.mesh.rank_of_slot()

    def change(answer: Answer) -> None:
        answer.timeouts = 4
        rows = np.isin(of_rank[answer.slot], sorted(absent))
        answer.flags[rows] = MISSING | UNRESPONSIVE

    at = float(job.rng.uniform(job.up + 60, job.now - 60))
    job.tweaks.append((at, at + float(job.rng.uniform(1, 2)) * job.interval, change))
    silent(job, "half of the mesh unheard")


@case("N13", False, late=True)
def recreated(job: Job) -> None:
    """A communicator is destroyed and made again, under its old name, and counts from zero."""
    begin(job, 800.0)
    late = job.mesh.comm("late", 0)
    first, last = job.up + 60.0, job.now - 60.0
    breaks = [first, *np.sort(job.rng.uniform(first + 60, last, 2)).tolist()]
    of_slot = job.mesh.comm_of_slot()
    job.born[late] = first
    rate = float(job.rng.uniform(0.2, 3.0))
    for begin_s, end_s in zip(breaks, [*breaks[1:], inf]):
        job.windows.append(Window(late, begin_s, begin_s + 2.0, begin_s + 4.0, some_ranks(job)))
        job.tweaks.append((begin_s + 4.0, end_s, _counting(job, of_slot == late, begin_s + 4.0, rate)))
    silent(job, "a communicator made anew", suspicion=False)


def _counting(job: Job, member: np.ndarray, since: float, rate: float) -> object:
    def change(answer: Answer) -> None:
        done = max(0, int((answer.wall - job.wall(since)) * rate))
        answer.counts[member[answer.slot], ALL_GATHER] = done

    return change


@case("N14", False)
def torn(job: Job) -> None:
    """One answer has a member's counts half read: they fit no common order."""
    begin(job, 500.0)

    def change(answer: Answer) -> None:
        row = int(np.argmax(answer.counts.sum(axis=1)))
        answer.counts[row, ALL_REDUCE] -= min(2, int(answer.counts[row, ALL_REDUCE]))
        answer.counts[row, ALL_GATHER] += 1

    for _ in range(3):
        at = float(job.rng.uniform(job.up + 60, job.now))
        job.tweaks.append((at, at + job.interval * 0.9, change))
    silent(job, "torn counts", suspicion=False)


@case("N24", False, kinds=("rl",))
def root_leaves(job: Job) -> None:
    """Broadcasts whose root is ahead of everybody else."""
    job.pace(float(job.rng.uniform(3, 20)))
    begin(job, 700.0)
    silent(job, "root ahead", suspicion=False)


@case("N26", False)
def slow_steps(job: Job) -> None:
    """Steps of two minutes and more: every communicator stands still for longer than a suspicion takes, every time."""
    job.pace(float(job.rng.uniform(80, 160)))
    begin(job, 1500.0)
    silent(job, "slow steps")


@case("N30", False)
def never_answers(job: Job) -> None:
    """RAS never answers."""
    begin(job, 900.0)
    job.blind.append((0.0, inf, "connection refused"))
    silent(job, "no RAS at all", suspicion=False)


@case("P23", False)
def slow_rank(job: Job) -> None:
    """One rank, or one node, computes at less than half the speed: slow, but no hang."""
    slow = range(job.layout.gpus_per_node) if job.rng.random() < 0.5 else [pick(job)]
    for rank in slow:
        job.speed[rank] *= float(job.rng.uniform(2.0, 4.0))
    job.pace(job.period * 2)
    begin(job, 800.0)
    silent(job, "slow rank")


@case("N31", False)
def elastic_restart(job: Job) -> None:
    """An elastic launcher ends all processes and begins anew within the step: other pids, other communicators, counts from zero."""
    begin(job)
    begins = job.now
    job.now += float(job.rng.uniform(20, 120))
    job.blind.append((begins, job.now, "connection refused"))
    restart(job, job.now)
    job.healthy(400.0)
    silent(job, "elastic restart", suspicion=False)


@case("N32", False, kinds=("islands",))
def islands(job: Job) -> None:
    """Independent replicas have meshes of their own: every poll shows another one."""
    begin(job, 900.0)
    silent(job, "islands", suspicion=False)
