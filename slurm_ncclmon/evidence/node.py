"""The node's side of a fan-out: one process on each node of the step looks at that node and writes what it finds to its output.

Order: what cannot hurt or hang first. /proc facts go out at once; stacks, GPU and network facts follow in a second message.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Callable

from slurm_ncclmon.evidence.assemble import Known, assemble
from slurm_ncclmon.evidence.bounded import Later, bounded_map
from slurm_ncclmon.evidence.host import HostFacts, host_facts
from slurm_ncclmon.evidence.listpids import listed_pids
from slurm_ncclmon.evidence.membership import Candidate, select
from slurm_ncclmon.evidence.model import NodeReport
from slurm_ncclmon.evidence.procfs import EMPTY, Look, look, own_pids, read_memory
from slurm_ncclmon.evidence.roles import roles
from slurm_ncclmon.evidence.stacks import dump_all, look_again
from slurm_ncclmon.slurm.step import StepId

_READING_S = 1.5
_RATE_WINDOW_S = 0.5


@dataclass(frozen=True)
class Ask:
    """What is wanted of a node, and within how many seconds."""

    step: StepId
    node: str
    seconds: float = 8.0
    gap_s: float = 2.0
    """Between the two samples; 0: one sample."""
    native: bool = True
    stacks: bool = True
    gpus: bool = True
    site_phases: tuple[tuple[str, str], ...] = field(default=())


def collect(ask: Ask, emit: Callable[[NodeReport], None]) -> NodeReport:
    """Look at this node. `emit` gets a first report early; the answer is the last one. Raises nothing for what is merely missing:
    that is among the report's problems."""
    begun = time.monotonic()
    deadline = begun + ask.seconds
    known, tasks, problems = find_processes(ask)
    stuck = [pid for pid, one in known.items() if in_driver(one.candidate.look)]
    problems += tuple(f"GPUs: not asked, because process {pid} sleeps in the NVIDIA driver" for pid in stuck[:1])
    host = Later(lambda: host_facts(ask.gpus and not stuck, ask.seconds / 2))
    report = NodeReport(node=ask.node, answered=True, wall_s=time.time(), tasks=tasks, problems=problems)
    emit(_finish(report, known, HostFacts(), ask, begun))
    if ask.stacks:
        known = dump_all(known, deadline - min(1.0, ask.seconds / 4), ask.native)
    known = _with_rates(known, begun)
    if ask.stacks and ask.gap_s > 0:
        known = _second_sample(known, begun + ask.gap_s, deadline)
    return _finish(report, known, host.get(deadline - time.monotonic()) or HostFacts(), ask, begun)


def find_processes(ask: Ask) -> tuple[dict[int, Known], tuple[int, ...], tuple[str, ...]]:
    """The step's processes on this node, its tasks, and sentences on what could not be seen."""
    listed = Later(lambda: listed_pids(ask.step, ask.node, _READING_S * 2))
    pids = [pid for pid in own_pids(os.getuid()) if pid != os.getpid()]
    looks = bounded_map(look, pids, _READING_S)
    memories = bounded_map(read_memory, looks, _READING_S)
    candidates = {pid: Candidate(one, memories.get(pid, EMPTY)) for pid, one in looks.items()}
    from_slurm, trouble = listed.get(_READING_S * 2) or ({}, "Slurm did not answer")
    members = select(candidates, ask.step, ask.node, from_slurm)
    who = roles(members, from_slurm)
    tasks = expected_tasks(members)
    problems = [
        f"process {pid}: its memory is locked, environment and command unknown"
        for pid in members
        if pid not in memories
    ]
    if trouble and not members:
        problems.append(f"second source of processes: {trouble}")
    return {pid: Known(members[pid], who[pid]) for pid in members}, tasks, tuple(problems)


def expected_tasks(members: Mapping[int, Candidate]) -> tuple[int, ...]:
    """The tasks that Slurm gave this node, as it tells each of them (SLURM_GTIDS)."""
    for member in members.values():
        words = member.memory.environment.get("SLURM_GTIDS", "").split(",")
        if all(word.isdigit() for word in words):
            return tuple(sorted(map(int, words)))
    return ()


def in_driver(one: Look) -> bool:
    """Whether a process is in uninterruptible sleep in NVIDIA's driver: whoever asks the driver then may never return."""
    return "D" in one.thread_states and one.wchan.startswith(("uvm_", "nv_", "nvidia", "rm_", "os_acquire"))


def _with_rates(known: Mapping[int, Known], begun: float) -> dict[int, Known]:
    """CPU and writing rates since the first look, over half a second at least."""
    time.sleep(max(0.0, begun + _RATE_WINDOW_S - time.monotonic()))
    elapsed_s = time.monotonic() - begun
    later = bounded_map(look, known, _READING_S)
    return {pid: replace(one, later=later.get(pid), elapsed_s=elapsed_s) for pid, one in known.items()}


def _second_sample(known: dict[int, Known], at: float, deadline: float) -> dict[int, Known]:
    wait_s = max(0.0, at - time.monotonic())
    if wait_s > deadline - time.monotonic() - 1.0:
        return known
    time.sleep(wait_s)
    return look_again(known, deadline)


def _finish(report: NodeReport, known: Mapping[int, Known], host: HostFacts, ask: Ask, begun: float) -> NodeReport:
    on_gpu = {pid: str(gpu.index) for gpu in host.gpus for pid in gpu.pids}
    return replace(
        report,
        exited=tuple(task for task in report.tasks if task not in {one.role.task for one in known.values()}),
        addresses=host.addresses,
        seconds=round(time.monotonic() - begun, 3),
        processes=tuple(assemble(one, on_gpu.get(pid), ask.site_phases) for pid, one in known.items()),
        gpus=host.gpus,
        counters=host.counters,
        events=host.events,
        problems=report.problems + host.problems,
    )
