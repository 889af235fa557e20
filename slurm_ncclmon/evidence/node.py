"""The node's side of a fan-out: one process on each node of the step looks at that node and writes what it finds to its output.

Order: what cannot hurt or hang first. /proc facts go out at once; stacks, GPU and network facts follow in a second message.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from slurm_ncclmon.evidence.assemble import Known, assemble
from slurm_ncclmon.evidence.bounded import Later, bounded_map
from slurm_ncclmon.evidence.find import READING_S, find_processes
from slurm_ncclmon.evidence.flight import Recorder, armed, fresh_dump, read_dump, trigger
from slurm_ncclmon.evidence.frames import probe_folders, read_frames
from slurm_ncclmon.evidence.host import HostFacts, host_facts
from slurm_ncclmon.evidence.model import NodeReport
from slurm_ncclmon.evidence.preflight import preflight
from slurm_ncclmon.evidence.procfs import Look, look
from slurm_ncclmon.evidence.roles import RANK
from slurm_ncclmon.evidence.stacks import dump_all, look_again
from slurm_ncclmon.slurm.step import StepId

_FLIGHT_S = 4.0
"""PyTorch writes a dump about a second after it is asked to."""
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
    flight: bool = False
    """Trigger and bring along PyTorch's flight recorder where the job has armed it."""
    preflight: bool = False
    """Say what will keep stacks from being taken, even if none are taken now."""
    frames: bool = False
    """Bring along what the probe has written."""
    site_phases: tuple[tuple[str, str], ...] = field(default=())


class Sink(Protocol):
    """Where what was found goes to, piece by piece."""

    def report(self, report: NodeReport) -> None:
        """A report; each replaces the one before."""

    def flight_record(self, rank: int, content: bytes) -> None:
        """A rank's flight recorder dump; before the last report."""


def collect(ask: Ask, sink: Sink) -> NodeReport:
    """Look at this node; a first report goes out early, the last one is also the answer.

    Raises nothing for what is merely missing: that is among the report's problems.
    """
    begun = time.monotonic()
    deadline = begun + ask.seconds
    found = find_processes(ask.step, ask.node)
    known = found.known
    stuck = [pid for pid, one in known.items() if in_driver(one.candidate.look)]
    problems = [
        *found.problems,
        *(f"GPUs: not asked, because process {pid} sleeps in the NVIDIA driver" for pid in stuck[:1]),
    ]
    host = Later(lambda: host_facts(ask.gpus and not stuck, ask.seconds / 2))
    report = NodeReport(node=ask.node, answered=True, wall_s=time.time(), tasks=found.tasks, problems=tuple(problems))
    sink.report(_finish(report, known, HostFacts(), ask, begun))
    recorders = [one for one in _armed(known) if trigger(one)] if ask.flight else []
    if ask.stacks:
        known = dump_all(known, deadline - min(1.0, ask.seconds / 4), ask.native)
    known = _with_rates(known, begun)
    if ask.stacks and ask.gap_s > 0:
        known = _second_sample(known, begun + ask.gap_s, deadline)
    report = replace(
        report,
        flight_records=_flight_records(recorders, report.wall_s, min(begun + _FLIGHT_S, deadline), sink),
        problems=(*problems, *_permissions(known, ask, deadline)),
    )
    report = _finish(report, known, host.get(deadline - time.monotonic()) or HostFacts(), ask, begun)
    sink.report(report)
    return report


def _armed(known: Mapping[int, Known]) -> list[Recorder]:
    ranks = (
        (pid, one.role.rank, one.candidate.memory.environment) for pid, one in known.items() if one.role.kind == RANK
    )
    found = (armed(pid, rank, environment) for pid, rank, environment in ranks if rank is not None)
    return [recorder for recorder in found if recorder]


def _flight_records(recorders: Sequence[Recorder], since_s: float, deadline: float, sink: Sink) -> dict[str, str]:
    records = {}
    for recorder in recorders:
        path = fresh_dump(recorder, since_s, deadline)
        if path:
            records[str(recorder.rank)] = str(path)
            content = read_dump(path)
            if content:
                sink.flight_record(recorder.rank, content)
    return records


def _permissions(known: Mapping[int, Known], ask: Ask, deadline: float) -> tuple[str, ...]:
    """What keeps stacks from being taken; in a thread, for it reads what may be locked."""
    if not ask.preflight and not _refused(known):
        return ()
    return Later(lambda: preflight(known)).get(min(3.0, deadline - time.monotonic())) or ()


def _refused(known: Mapping[int, Known]) -> bool:
    """Whether a stack was refused for want of permission."""
    errors = [attempt.error for one in known.values() for attempt in one.dump.attempts]
    return any("ermission" in error or "os error 13" in error for error in errors)


def in_driver(one: Look) -> bool:
    """Whether a process is in uninterruptible sleep in NVIDIA's driver: whoever asks the driver then may never return."""
    return "D" in one.thread_states and one.wchan.startswith(("uvm_", "nv_", "nvidia", "rm_", "os_acquire"))


def _with_rates(known: Mapping[int, Known], begun: float) -> dict[int, Known]:
    """CPU and writing rates since the first look, over half a second at least."""
    time.sleep(max(0.0, begun + _RATE_WINDOW_S - time.monotonic()))
    elapsed_s = time.monotonic() - begun
    later = bounded_map(look, known, READING_S)
    return {pid: replace(one, later=later.get(pid), elapsed_s=elapsed_s) for pid, one in known.items()}


def _second_sample(known: dict[int, Known], at: float, deadline: float) -> dict[int, Known]:
    wait_s = max(0.0, at - time.monotonic())
    if wait_s > deadline - time.monotonic() - 1.0:
        return known
    time.sleep(wait_s)
    return look_again(known, deadline)


def _finish(report: NodeReport, known: Mapping[int, Known], host: HostFacts, ask: Ask, begun: float) -> NodeReport:
    """The report as of now, with the newest frames."""
    on_gpu = {pid: str(gpu.index) for gpu in host.gpus for pid in gpu.pids}
    folders = probe_folders(one.candidate.memory.environment for one in known.values()) if ask.frames else ()
    probe = read_frames(folders, ask.step, ask.node)
    return replace(
        report,
        exited=tuple(task for task in report.tasks if task not in {one.role.task for one in known.values()}),
        addresses=host.addresses,
        seconds=round(time.monotonic() - begun, 3),
        processes=tuple(assemble(one, on_gpu.get(pid), ask.site_phases) for pid, one in known.items()),
        gpus=host.gpus,
        counters=host.counters,
        events=host.events,
        frames=probe.images,
        problems=report.problems + host.problems + probe.problems,
    )
