"""One case of each kind of report, made by hand: what the golden files are rendered from."""

from __future__ import annotations

from dataclasses import replace

from slurm_ncclmon.evidence.model import Attempt, Frame, NodeReport, ProcessReport, Thread
from slurm_ncclmon.report.text import Case
from slurm_ncclmon.verdict import CONFIRMED, RECOVERED, Advisory, CommunicatorRef, Culprit, FrozenComm, Verdict

WORLD = CommunicatorRef("0x1f0e", "0xa:0xb", 8, "world")
STUCK = (
    Frame("nanosleep", "libc.so", 0, native=True),
    Frame("wait_for_batch", "/home/user/train/data.py", 88),
    Frame("next_batch", "/home/user/train/data.py", 60),
    Frame("main", "/home/user/train/train.py", 31),
)


def process(rank: int, frames: tuple[Frame, ...], phase: str) -> ProcessReport:
    return ProcessReport(
        pid=4000 + rank,
        ns_pid=4000 + rank,
        ppid=1,
        role="rank",
        rank=rank,
        local_rank=rank % 2,
        task=rank,
        gpu=str(rank % 2),
        command="python train.py",
        state="S",
        wchan="hrtimer_nanosleep",
        tracer_pid=0,
        threads_total=4,
        cpu_rate=0.0,
        write_rate=0.0,
        phase=phase,
        source="native" if frames else "proc",
        threads=(Thread("MainThread", 4000 + rank, False, False, frames, main=True),) if frames else (),
        attempts=() if frames else (Attempt("py-spy dump --native", 1, 0.2, "Permission denied (os error 13)"),),
    )


NOT_ENTERED = Verdict(
    incident="1",
    state=CONFIRMED,
    cls="H1",
    kind="not_entered",
    communicator=WORLD,
    operation="AllReduce",
    round=21,
    culprits=(Culprit(3, 3, "n2", 4003, 1, "it has launched 20 AllReduce where the 7 others have launched 21"),),
    confidence=0.9,
    frozen_for_s=301.2,
    evidence=("no rank has launched anything for 5 min 1 s",),
    alternatives=("the 7 others called one AllReduce too many (unlikely: they are the majority)",),
    victims=7,
    frozen=(FrozenComm("0x1f0e", 8, "world", "AllReduce", 301.2, (0, 1, 2, 4, 5, 6, 7), (3,)),),
)

CASES = {
    "not_entered": Case(
        step="12.0",
        mode="cancel",
        wall_s=0.0,
        polls=120,
        unusable_polls=2,
        verdicts=(NOT_ENTERED,),
        nodes=(
            NodeReport("n1", True, processes=tuple(process(rank, (), "no_stack") for rank in (0, 1))),
            NodeReport("n2", True, processes=(process(2, (), "no_stack"), process(3, STUCK, "data"))),
            NodeReport("n3", False, problems=("no answer within 20 s; slurmd does not respond",)),
        ),
        action="Step 12.0 was cancelled by ncclmon, because cancel was asked for.",
        folder="/home/user/ncclmon-12.0",
    ),
    "clean": Case("12.0", "observe", 0.0, 720, 3, ()),
    "blind": Case("12.0", "observe", 0.0, 40, 40, (), (Advisory("blind", "NCCL 2.23 has no RAS.", 1.0),)),
    "recovered": Case("12.0", "observe", 0.0, 720, 0, (replace(NOT_ENTERED, state=RECOVERED, frozen_for_s=75.0),)),
    "symmetric": Case(
        "12.0",
        "observe",
        0.0,
        99,
        0,
        (
            replace(
                NOT_ENTERED,
                state="suspected",
                cls=None,
                kind="symmetric",
                culprits=(),
                alternatives=(),
                frozen=(),
                not_decidable=("all counts are equal: a pause looks the same by counts alone",),
            ),
        ),
    ),
}
