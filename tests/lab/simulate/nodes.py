"""What the nodes of a simulated job tell when they are asked: processes with stacks, GPUs, kernel messages."""

from __future__ import annotations

from math import inf

from slurm_ncclmon.evidence.model import Attempt, GpuReport, NodeReport, ProcessReport, Thread
from slurm_ncclmon.evidence.phases import classify
from tests.lab.simulate.history import Once
from tests.lab.simulate.job import Job, Process
from tests.lab.simulate.stacks import IDLE_GPU, MOVING, WAITING, WRITING, stack
from tests.lab.simulate.steps import CALL, HOST, INIT, LAUNCH, STOP, SYNC

_THREADS: dict[tuple[str, int], tuple[Thread, ...]] = {}


def activity(job: Job, rank: int, time: float) -> tuple[str, int, bool]:
    """What a rank's host is at: label, operation (for `collective`), and whether it will never get past it."""
    for begin, end, label in job.phases.get(rank, ()):
        if begin <= time < end:
            return label, -1, end == inf
    piece = job.history.piece(time)
    if piece is None:
        return ("item", -1, False) if job.history.pieces and time >= job.up else ("init", -1, False)
    if not isinstance(piece, Once):
        return "item", -1, False
    index, program = piece.item(rank, time), piece.trace.programs[rank]
    if index >= len(program):
        return "item", -1, False
    kind, _, _, _, label = program[index]
    if kind == SYNC and label == "collective":
        return label, _operation_before(program, index), False
    if kind == INIT:
        return "init", -1, False
    if kind in (SYNC, HOST, STOP):
        return label, -1, kind == STOP
    return "launch", -1, False


def _operation_before(program: list[tuple[int, object, int, float, str]], index: int) -> int:
    return next((item[2] for item in reversed(program[:index]) if item[0] in (LAUNCH, CALL)), -1)


def gather(job: Job, time: float, reason: str = "") -> tuple[NodeReport, ...]:
    """All nodes' answers to one question at `time`. In tier `partial` some nodes say nothing and some stacks cannot be had."""
    del reason
    silent = (
        set(job.rng.choice(job.layout.nodes, max(1, job.layout.nodes // 8), replace=False).tolist())
        if job.tier == "partial"
        else set()
    )
    if job.layout.nodes == 1:
        silent = set()
    nodes = []
    for node in range(job.layout.nodes):
        ranks = range(node * job.layout.gpus_per_node, min((node + 1) * job.layout.gpus_per_node, job.layout.ranks))
        name = job.processes_at(time)[ranks[0]].node
        if node in silent:
            nodes.append(NodeReport(name, False, problems=("it gave no answer in time",)))
        else:
            nodes.append(_node(job, node, ranks, time))
    return tuple(nodes)


def _node(job: Job, node: int, ranks: range, time: float) -> NodeReport:
    alive = [rank for rank in ranks if job.gone.get(rank, (inf, ""))[0] > time]
    events = tuple(f"{time - when:.0f} s ago: {text}" for when, text in job.node_events.get(node, ()) if when <= time)
    return NodeReport(
        node=job.processes_at(time)[ranks[0]].node,
        answered=True,
        addresses=(job.processes_at(time)[ranks[0]].address,),
        wall_s=job.wall(time),
        seconds=1.5,
        processes=tuple(_process(job, rank, time) for rank in alive),
        exited=tuple(rank for rank in ranks if rank not in alive),
        gpus=tuple(_gpu(job, rank, time, rank in alive) for rank in ranks),
        events=events,
    )


def _process(job: Job, rank: int, time: float) -> ProcessReport:
    process = job.processes_at(time)[rank]
    label, operation, stuck = activity(job, rank, time)
    if label == "evaluation" and rank % 2:
        label = "evaluation_gpu"
    begin, until = job.stopped.get(rank, (inf, inf))
    state, tracer = "S", 0
    if begin <= time < until:
        state = "T"
    elif label == "storage":
        state = "D"
    elif label == "debugger":
        state, tracer = "t", 4_100_000
    elif label in WAITING or (label in MOVING and not stuck):
        state = "R"
    denied = job.tier == "partial" and job.rng.random() < 0.1
    threads = () if denied else _threads(label, operation)
    attempts = (Attempt("native", 1, 0.1, "Error: Permission denied (os error 13)"),) if denied else ()
    busy = state == "R"
    return ProcessReport(
        pid=process.pid,
        ns_pid=process.ns_pid,
        ppid=1,
        role="rank",
        rank=rank,
        local_rank=rank % job.layout.gpus_per_node,
        task=rank,
        gpu=str(process.nvml_dev),
        command="python train.py",
        state=state,
        wchan="nfs_wait_bit_killable" if state == "D" else "",
        tracer_pid=tracer,
        threads_total=40,
        cpu_rate=1.0 if busy else 0.0,
        write_rate=2e8 if label in WRITING and not stuck else 0.0,
        phase=classify(state, tracer, {state: 1, "S": 39}, threads),
        source="proc" if denied else "native",
        threads=threads,
        attempts=attempts,
        thread_states={state: 1} if state != "S" else {"S": 40},
        moved=None if denied else bool(label in MOVING and not stuck),
    )


def _threads(label: str, operation: int) -> tuple[Thread, ...]:
    key = (label, operation)
    if key not in _THREADS:
        _THREADS[key] = (Thread("MainThread", 1, label in WAITING, False, stack(label, operation), main=True),)
    return _THREADS[key]


def _gpu(job: Job, rank: int, time: float, alive: bool) -> GpuReport:
    process: Process = job.processes_at(time)[rank]
    label, _, _ = activity(job, rank, time)
    replay = any(begin <= time < end for begin, end in job.replaying)
    utilisation, power = (100.0, 118.0) if label in WAITING else (100.0, 560.0)
    if not alive or label in IDLE_GPU:
        utilisation, power = 0.0, 75.0
    if replay:
        utilisation, power = 100.0, 620.0
    if rank in job.lost_gpus and job.truth.since_s <= time:
        return GpuReport(process.nvml_dev, f"GPU-{rank:08x}", "H200", problem="GPU is lost")
    return GpuReport(
        process.nvml_dev,
        f"GPU-{rank:08x}",
        "H200",
        utilisation,
        power,
        700.0,
        1980.0,
        45.0,
        pids=(process.pid,) if alive else (),
    )
