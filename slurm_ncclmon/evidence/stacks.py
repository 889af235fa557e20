"""Stacks of all ranks of a node within one deadline."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace

from slurm_ncclmon.evidence import pyspy
from slurm_ncclmon.evidence.assemble import Known
from slurm_ncclmon.evidence.bounded import bounded_map
from slurm_ncclmon.evidence.model import Frame, Thread
from slurm_ncclmon.evidence.phases import main_thread
from slurm_ncclmon.evidence.roles import CHILD, RANK

WORKERS = 8
_A_PROCESS_S = 10.0
"""The most that one process may take, whatever time there is."""
_MOST_CHILDREN = 32


class NativeBudget:
    """Native stacks cost up to a second of CPU each where libraries are large; plain ones a few hundredths. Grants native ones as
    long as all that still wait would be done in half of the time left, by what the ones before have cost."""

    def __init__(self, waiting: int, deadline: float, wanted: bool = True) -> None:
        self._waiting = waiting
        self._deadline = deadline
        self._wanted = wanted
        self._parallel = max(1, min(WORKERS, os.cpu_count() or 1))
        self._lock = threading.Lock()
        self._seconds: list[float] = []

    def grant(self) -> bool:
        """Whether the next process may have a native one."""
        with self._lock:
            waiting = self._waiting
            self._waiting -= 1
            if not self._wanted or not self._seconds:
                return self._wanted
            mean = sum(self._seconds) / len(self._seconds)
            return mean * waiting / self._parallel < (self._deadline - time.monotonic()) / 2

    def cost(self, seconds: float) -> None:
        """What one native stack took."""
        with self._lock:
            self._seconds.append(seconds)


def dump_all(known: Mapping[int, Known], deadline: float, native: bool) -> dict[int, Known]:
    """First sample: ranks, then the children of ranks (non-blocking). Those that were not done in time are as before."""
    ranks = [pid for pid, one in known.items() if _worth(one, RANK)]
    children = [pid for pid, one in known.items() if _worth(one, CHILD)][:_MOST_CHILDREN]
    budget = NativeBudget(len(ranks), deadline, native)
    program = pyspy.find_program()

    def one(pid: int) -> pyspy.Dump:
        look = known[pid].candidate.look
        left = min(_A_PROCESS_S, deadline - time.monotonic())
        if known[pid].role.kind == CHILD:
            return pyspy.dump(pid, (pyspy.NONBLOCKING,), left, program)
        begun = time.monotonic()
        dump = pyspy.dump(pid, pyspy.ways(look.thread_states, look.tracer_pid, budget.grant()), left, program)
        if dump.source == pyspy.NATIVE:
            budget.cost(time.monotonic() - begun)
        return dump

    dumps = bounded_map(one, [*ranks, *children], deadline + 0.5 - time.monotonic(), WORKERS)
    late = pyspy.Dump(pyspy.NONE, (), (), "no time was left to take its stack")
    return {
        pid: replace(one_known, dump=dumps.get(pid, late if pid in ranks else one_known.dump))
        for pid, one_known in known.items()
    }


def look_again(known: Mapping[int, Known], deadline: float) -> dict[int, Known]:
    """Second sample of the ranks that have a first one: whether they moved. Never pauses anything."""
    ranks = [pid for pid, one in known.items() if one.role.kind == RANK and one.dump.threads]
    program = pyspy.find_program()

    def one(pid: int) -> pyspy.Dump:
        return pyspy.dump(pid, (pyspy.NONBLOCKING,), deadline - time.monotonic(), program)

    dumps = bounded_map(one, ranks, deadline - time.monotonic(), WORKERS)
    return {
        pid: replace(before, moved=moved(before.dump.threads, dumps[pid].threads)) if pid in dumps else before
        for pid, before in known.items()
    }


def moved(first: Iterable[Thread], second: Iterable[Thread]) -> bool | None:
    """Whether the main thread's Python frames differ between two samples; None when one has none."""
    one, other = _python_frames(first), _python_frames(second)
    if not one or not other:
        return None
    return one != other


def _python_frames(threads: Iterable[Thread]) -> tuple[Frame, ...]:
    main = main_thread(tuple(threads))
    return tuple(frame for frame in main.frames if not frame.native) if main else ()


def _worth(known: Known, kind: str) -> bool:
    return known.role.kind == kind and known.candidate.look.stat.state not in "ZX"
