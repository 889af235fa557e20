"""Builders of node reports for tests and benchmarks."""

from __future__ import annotations

from typing import Any

from slurm_ncclmon.evidence.model import Frame, NodeReport, ProcessReport, Thread
from slurm_ncclmon.evidence.phases import classify

SITE = "/opt/venv/lib/python3.11/site-packages"

TRAIN = (
    Frame("train_step", "/home/anna/llm/train.py", 398),
    Frame("train", "/home/anna/llm/train.py", 120),
    Frame("<module>", "/home/anna/llm/train.py", 200),
)
IN_ALL_REDUCE = (
    Frame("sched_yield", "/usr/lib/x86_64-linux-gnu/libc.so.6", 0, True),
    Frame("ncclLaunchKernel(ncclComm*, ncclKernelPlan*)", f"{SITE}/nvidia/nccl/lib/libnccl.so.2.28.9", 0, True),
    Frame("all_reduce", f"{SITE}/torch/distributed/distributed_c10d.py", 2501),
    Frame("wrapper", f"{SITE}/torch/distributed/c10d_logger.py", 83),
    *TRAIN,
)
IN_LOADER = (
    Frame("read", "/usr/lib/x86_64-linux-gnu/libc.so.6", 0, True),
    Frame("__next__", f"{SITE}/torch/utils/data/dataloader.py", 701),
    Frame("train_step", "/home/anna/llm/train.py", 390),
    *TRAIN[1:],
)


def process(rank: int | None, frames: tuple[Frame, ...] = IN_ALL_REDUCE, **fields: Any) -> ProcessReport:
    """A rank whose main thread stands in `frames`; its phase by the rules, unless given."""
    number = rank if rank is not None else 0
    threads = (Thread("MainThread", 1000 + number, False, False, frames, main=True),) if frames else ()
    values: dict[str, Any] = {
        "pid": 1000 + number,
        "ns_pid": 1000 + number,
        "ppid": 1,
        "role": "rank",
        "rank": rank,
        "local_rank": number % 8,
        "task": rank,
        "gpu": str(number % 8),
        "command": "python train.py",
        "state": "S",
        "wchan": "futex_do_wait",
        "tracer_pid": 0,
        "threads_total": 12,
        "cpu_rate": 0.02,
        "write_rate": None,
        "source": "native" if frames else "proc",
        "threads": threads,
        "moved": False,
        **fields,
    }
    values.setdefault(
        "phase", classify(values["state"], values["tracer_pid"], values.get("thread_states", {}), threads)
    )
    return ProcessReport(**values)


def node(name: str, *processes: ProcessReport, **fields: Any) -> NodeReport:
    return NodeReport(node=name, answered=True, processes=processes, **fields)


def job(ranks: int, odd: dict[int, ProcessReport], per_node: int = 8) -> list[NodeReport]:
    """`ranks` ranks in an all-reduce, but for the odd ones."""
    everyone = [odd.get(rank) or process(rank) for rank in range(ranks)]
    return [
        node(f"n{1 + start // per_node}", *everyone[start : start + per_node]) for start in range(0, ranks, per_node)
    ]
