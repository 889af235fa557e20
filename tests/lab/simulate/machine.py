"""Ranks that run programs and block as NCCL does: hosts ahead of GPUs, kernels in order, a collective over when all are in it.

A deterministic data-flow network: every time is the maximum of what it depends on plus a duration, so ranks may be advanced in
any order and the result, a deadlock included, is the same.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from math import inf

import numpy as np

from tests.lab.simulate.layout import Mesh
from tests.lab.simulate.steps import (
    BROADCAST,
    CALL,
    CAPTURED,
    COMPUTE,
    HOST,
    INIT,
    LAUNCH,
    STOP,
    SYNC,
    WAIT,
    Program,
)

LAUNCH_COST = 0.002
NEVER = 1e18


@dataclass
class Harm:
    """What is done to the machine, as opposed to the program: times in the machine's own units."""

    host_end: dict[int, float] = field(default_factory=dict)
    """Rank -> when its process was stopped or killed."""
    gpu_end: dict[int, float] = field(default_factory=dict)
    """Rank -> when its GPU (or, of a stopped process, the proxies of its network) ceased."""
    stalled: set[tuple[int, int]] = field(default_factory=set)
    """(communicator, round of this run from 0): the data never arrive."""


@dataclass
class Trace:
    """What came of a run. `reached[r][i]` is when rank r's host finished item i; where it is short, that is where the host is."""

    mesh: Mesh
    programs: list[Program]
    reached: list[list[float]]
    end: list[float]
    """Each rank's host clock."""
    arrived: list[int]
    """Each slot: how many of its collectives of this run its GPU has entered."""
    done: list[int]
    """Each communicator: how many collectives of this run are complete."""
    broken: set[int]
    """Communicators with a round whose members disagree about it."""

    @property
    def stuck(self) -> bool:
        """Some host did not come to the end of its program."""
        return any(len(reached) < len(program) for reached, program in zip(self.reached, self.programs))

    def item(self, rank: int, time: float) -> int:
        """Index of the item that a host is at; the length of the program when it is through."""
        return bisect_right(self.reached[rank], time)


class Machine:
    """One run of all ranks from `start` (each rank's clock) to the end of their programs, or until nothing moves any more."""

    def __init__(
        self,
        mesh: Mesh,
        programs: list[Program],
        start: list[float],
        speed: list[float],
        ahead: int = 64,
        harm: Harm | None = None,
    ) -> None:
        self._mesh, self._programs, self._speed, self._ahead = mesh, programs, speed, ahead
        self._harm = harm or Harm()
        count = len(programs)
        self._reached: list[list[float]] = [[] for _ in range(count)]
        self._host = list(start)
        self._gpu = list(start)
        self._at = [0] * count
        """Device's place in the program."""
        self._pending = [-1] * count
        """Round that the device's present item has entered, -1 before."""
        self._full = [False] * count
        self._arrived = [0] * mesh.size
        self._comm_of = mesh.comm_of_slot().tolist()
        self._sizes = [len(comm.ranks) for comm in mesh.comms]
        self._rounds: list[dict[int, list[object]]] = [{} for _ in mesh.comms]
        self._over: list[list[float]] = [[] for _ in mesh.comms]
        self._waiting: list[set[int]] = [set() for _ in mesh.comms]
        self._broken: set[int] = set()
        self._todo: list[int] = []

    def run(self) -> Trace:
        """Advance every rank until nothing moves."""
        self._todo = list(range(len(self._programs) - 1, -1, -1))
        while self._todo:
            rank = self._todo.pop()
            self._device(rank)
            while self._run_host(rank):
                self._device(rank)
        return Trace(
            self._mesh,
            self._programs,
            self._reached,
            self._host,
            self._arrived,
            [len(over) for over in self._over],
            self._broken,
        )

    def _run_host(self, rank: int) -> bool:
        """Let the host go on as far as it can; True if it moved."""
        program, reached = self._programs[rank], self._reached[rank]
        clock, end = self._host[rank], self._harm.host_end.get(rank, NEVER)
        index = first = len(reached)
        while index < len(program):
            kind, role, _, duration, _ = program[index]
            if kind == SYNC:
                if self._at[rank] < index or self._gpu[rank] == inf:
                    break
                clock = max(clock, self._gpu[rank])
                now = clock + LAUNCH_COST
            elif kind == HOST:
                now = clock + duration
            elif kind == STOP:
                break
            elif kind == INIT:
                joined = self._join(rank, role, clock)
                if joined is None:
                    break
                now = joined
            else:
                if index - self._at[rank] >= self._ahead:
                    self._full[rank] = True
                    break
                if self._full[rank]:
                    self._full[rank] = False
                    clock = max(clock, min(self._gpu[rank], NEVER))
                now = clock + LAUNCH_COST
            if now > end:
                break
            reached.append(now)
            clock = now
            index += 1
        self._host[rank] = clock
        return index > first

    def _join(self, rank: int, role: str | None, clock: float) -> float | None:
        """Enter a communicator's initialisation; when it is over, or None while others are missing."""
        assert role is not None
        slot = self._mesh.slots[role][rank]
        comm = self._comm_of[slot]
        if self._pending[rank] < 0:
            self._pending[rank] = self._arrived[slot]
            self._enter(slot, comm, clock, -2, "init")
        number = self._pending[rank]
        if len(self._over[comm]) <= number:
            self._waiting[comm].add(rank)
            return None
        self._pending[rank] = -1
        return max(clock, self._over[comm][number])

    def _device(self, rank: int) -> None:
        """Let the GPU work on what the host has launched."""
        program, reached = self._programs[rank], self._reached[rank]
        clock, speed, index = self._gpu[rank], self._speed[rank], self._at[rank]
        while index < len(reached):
            kind, role, operation, duration, label = program[index]
            if kind == COMPUTE:
                clock = max(clock, reached[index]) + duration * speed
            elif kind in (LAUNCH, CALL):
                assert role is not None
                slot = self._mesh.slots[role][rank]
                comm = self._comm_of[slot]
                if self._pending[rank] < 0:
                    time = max(clock, reached[index])
                    if time >= self._harm.gpu_end.get(rank, NEVER):
                        break
                    self._pending[rank] = self._arrived[slot]
                    self._enter(slot, comm, time, operation, label)
                if kind == CALL and not (operation == BROADCAST and slot == self._mesh.base[comm]):
                    number = self._pending[rank]
                    if len(self._over[comm]) <= number:
                        self._waiting[comm].add(rank)
                        break
                    clock = max(clock, self._over[comm][number])
                self._pending[rank] = -1
            elif kind == WAIT:
                assert role is not None
                slot = self._mesh.slots[role][rank]
                comm, need = self._comm_of[slot], self._arrived[slot]
                if len(self._over[comm]) < need:
                    self._waiting[comm].add(rank)
                    break
                clock = max(clock, self._over[comm][need - 1]) if need else clock
            elif kind in (SYNC, HOST, INIT, CAPTURED):
                clock = max(clock, reached[index])
            index += 1
        self._gpu[rank], self._at[rank] = clock, index

    def _enter(self, slot: int, comm: int, time: float, operation: int, label: str) -> None:
        """A member's kernel is on its GPU. `label` is the signature, where it is not everybody's."""
        number = self._arrived[slot]
        self._arrived[slot] = number + 1
        entry = self._rounds[comm].setdefault(number, [0, 0.0, (operation, label)])
        entry[0] += 1  # type: ignore[operator]
        entry[1] = max(entry[1], time)  # type: ignore[call-overload]
        if entry[2] != (operation, label):
            entry[2] = None
            self._broken.add(comm)
        if number == len(self._over[comm]):
            self._finish(comm)

    def _finish(self, comm: int) -> None:
        """Complete all rounds in which everybody is, and wake who waited."""
        over, rounds = self._over[comm], self._rounds[comm]
        before = len(over)
        while True:
            entry = rounds.get(len(over))
            if (
                entry is None
                or entry[0] != self._sizes[comm]
                or entry[2] is None
                or (comm, len(over)) in self._harm.stalled
            ):
                break
            del rounds[len(over)]
            over.append(max(float(entry[1]), over[-1] if over else 0.0) + 0.05)  # type: ignore[arg-type]
        if len(over) > before:
            self._todo += self._waiting[comm]
            self._waiting[comm] = set()


def launches(trace: Trace) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Every counted launch of a run as columns: time, slot, operation."""
    times, slots, operations = [], [], []
    by_program: dict[int, list[int]] = {}
    for rank, program in enumerate(trace.programs):
        by_program.setdefault(id(program), []).append(rank)
    for ranks in by_program.values():
        program = trace.programs[ranks[0]]
        counted = [i for i, item in enumerate(program) if item[0] in (LAUNCH, CALL) and item[2] >= 0]
        if not counted:
            continue
        table = np.full((len(ranks), len(program)), NEVER)
        for row, rank in enumerate(ranks):
            reached = trace.reached[rank]
            table[row, : len(reached)] = reached
        times.append(table[:, counted].ravel())
        roles = [trace.mesh.slots[program[i][1] or ""] for i in counted]
        slots.append(np.array([[role[rank] for role in roles] for rank in ranks]).ravel())
        operations.append(np.tile([program[i][2] for i in counted], len(ranks)))
    if not times:
        return np.zeros(0), np.zeros(0, int), np.zeros(0, int)
    time, slot, operation = np.concatenate(times), np.concatenate(slots), np.concatenate(operations)
    kept = time < NEVER
    return time[kept], slot[kept], operation[kept]
