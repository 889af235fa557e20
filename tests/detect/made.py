"""Jobs made by hand for the tests of detector, analyser and engine: counts are set or stepped, reports and polls come out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Callable

import numpy as np

from slurm_ncclmon.engine import Engine
from slurm_ncclmon.events import Event
from slurm_ncclmon.evidence.model import Frame, NodeReport, ProcessReport, Thread
from slurm_ncclmon.observation import Evidence, Poll
from slurm_ncclmon.ras.report import OPERATIONS, CommKey, Gpu, Report

RANKS_A_NODE = 8


def host(rank: int) -> str:
    """Address of the node of a global rank."""
    return f"10.0.0.{rank // RANKS_A_NODE + 1}"


@dataclass
class Job:
    """Communicators by name -> global ranks, and what each member shows."""

    members: Mapping[str, Sequence[int]]
    counts: dict[str, np.ndarray] = field(default_factory=dict)
    flags: dict[tuple[str, int], int] = field(default_factory=dict)
    """(communicator, global rank) -> bits."""
    errors: dict[tuple[str, int], int] = field(default_factory=dict)
    init: dict[tuple[str, int], int] = field(default_factory=dict)
    absent: set[str] = field(default_factory=set)
    """Communicators that RAS does not show."""
    timeouts: int = 0
    coherent: bool = True
    pid_base: int = 1000
    shuffle: np.random.Generator | None = None
    """Shows communicators and processes in another order each time."""

    def __post_init__(self) -> None:
        for name, ranks in self.members.items():
            self.counts.setdefault(name, np.zeros((len(ranks), 5), np.uint64))

    def put(self, name: str, values: Mapping[int, int | Mapping[str, int]]) -> Job:
        """Counts by global rank: a number of AllReduces, or numbers by operation."""
        for rank, value in values.items():
            row = list(self.members[name]).index(rank)
            table = {"AllReduce": value} if isinstance(value, int) else value
            self.counts[name][row] = [table.get(operation, 0) for operation in OPERATIONS]
        return self

    def step(self, name: str, but: Iterable[int] = (), operation: str = "AllReduce", times: int = 1) -> Job:
        """All members of `name` launch, except the global ranks `but`."""
        rows = [row for row, rank in enumerate(self.members[name]) if rank not in set(but)]
        self.counts[name][rows, OPERATIONS.index(operation)] += np.uint64(times)
        return self

    def all_step(self, times: int = 1) -> Job:
        """Everybody launches everywhere."""
        for name in self.members:
            self.step(name, times=times)
        return self

    def flag(self, rank: int, bits: int, names: Iterable[str] | None = None) -> Job:
        """Set a global rank's flags in all (or some) of its communicators."""
        for name, ranks in self.members.items():
            if rank in ranks and (names is None or name in names):
                self.flags[name, rank] = bits
        return self

    def report(self) -> Report:
        """What RAS shows now."""
        names = [name for name in self.members if name not in self.absent]
        if self.shuffle is not None:
            self.shuffle.shuffle(names)
        ranks = [rank for name in names for rank in self.members[name]]
        order = sorted(set(ranks))
        if self.shuffle is not None:
            self.shuffle.shuffle(order)
        number = {rank: index for index, rank in enumerate(order)}
        pairs = [(name, rank) for name in names for rank in self.members[name]]
        size = np.array([len(self.members[name]) for name in names], np.int32)
        counts = np.concatenate([self.counts[name] for name in names]) if names else np.zeros((0, 5), np.uint64)
        flags = np.array([self.flags.get(pair, 0) for pair in pairs], np.uint8)
        return Report(
            nccl_version="2.28.9",
            taken_at="",
            collection_s=0.001,
            timeouts=self.timeouts,
            comms=tuple(key(name) for name in names),
            size=size,
            start=np.concatenate([[0], np.cumsum(size)]).astype(np.int64),
            rank=np.array([self.members[name].index(rank) for name, rank in pairs], np.int32),
            gpu=np.array([number[rank] for _, rank in pairs], np.int32),
            counts=np.where((flags & 8 != 0)[:, None], np.uint64(0), counts),
            init_state=np.array([self.init.get(pair, 0) for pair in pairs], np.int16),
            async_error=np.array([self.errors.get(pair, 0) for pair in pairs], np.int16),
            flags=flags,
            gpus=tuple(self.gpu(rank) for rank in order),
            coherent=self.coherent,
        )

    def gpu(self, rank: int) -> Gpu:
        """The process of a global rank."""
        return Gpu(host(rank), self.pid_base + rank, rank % RANKS_A_NODE, rank % RANKS_A_NODE)

    def poll(self, t_s: float) -> Poll:
        """One answer."""
        return Poll(int(t_s), t_s, 1.7e9 + t_s, self.report())

    def evidence(
        self, t_s: float, phases: Mapping[int, str], otherwise: str = "collective", reason: str = "suspicion"
    ) -> Evidence:
        """All nodes' answers: the phase of each global rank, with a stack to match."""
        ranks = sorted({rank for ranks in self.members.values() for rank in ranks})
        nodes = {rank // RANKS_A_NODE for rank in ranks}
        return Evidence(
            t_s, 1.7e9 + t_s, reason, tuple(self._node(node, ranks, phases, otherwise) for node in sorted(nodes))
        )

    def _node(self, node: int, ranks: Sequence[int], phases: Mapping[int, str], otherwise: str) -> NodeReport:
        here = [rank for rank in ranks if rank // RANKS_A_NODE == node]
        processes = tuple(
            self._process(rank, phases.get(rank, otherwise)) for rank in here if phases.get(rank) != "exited"
        )
        return NodeReport(f"n{node}", True, addresses=(host(node * RANKS_A_NODE),), processes=processes)

    def _process(self, rank: int, phase: str) -> ProcessReport:
        frames = (Frame(f"in_{phase}", "train.py", 10),)
        return ProcessReport(
            pid=self.pid_base + rank,
            ns_pid=self.pid_base + rank,
            ppid=1,
            role="rank",
            rank=rank,
            local_rank=rank % RANKS_A_NODE,
            task=rank,
            gpu=None,
            command="python train.py",
            state={"stopped": "T", "traced": "t"}.get(phase, "S"),
            wchan="",
            tracer_pid=0,
            threads_total=1,
            cpu_rate=0.0,
            write_rate=0.0,
            phase=phase,
            source="plain",
            threads=() if phase == "no_stack" else (Thread("MainThread", 1, True, False, frames, main=True),),
        )


def key(name: str) -> CommKey:
    """The key under which RAS shows the communicator of that name."""
    return CommKey(f"0x{abs(hash_of(name)):x}", f"0x{abs(hash_of(name)):x}:0x1")


def hash_of(name: str) -> int:
    """The same number for the same name, in every process."""
    return int.from_bytes(name.encode(), "big") % (1 << 61)


def run(
    engine: Engine,
    job: Job,
    begin: float,
    end: float,
    every: float = 15.0,
    each: Callable[[float], object] = lambda t_s: None,
    answer: Callable[[float], Evidence] | None = None,
) -> list[Event]:
    """Poll from `begin` to `end`; `each` changes the job before a poll, `answer` gives the evidence that the engine asks for."""
    events: list[Event] = []
    t_s = begin
    while t_s <= end:
        each(t_s)
        new = engine.observe(job.poll(t_s))
        events += new
        if answer is not None and any(type(event).__name__ == "GatherEvidence" for event in new):
            events += engine.observe(answer(t_s + 1.0))
        t_s += every
    return events


def names(events: Iterable[Event]) -> list[str]:
    """Kinds of events, in order."""
    return [type(event).__name__ for event in events]


def world(size: int) -> dict[str, list[int]]:
    """One communicator of all."""
    return {"world": list(range(size))}


def parallel(size: int, tp: int) -> dict[str, list[int]]:
    """World, tensor-parallel groups of neighbours, data-parallel groups across them."""
    groups = {f"tp{first // tp}": list(range(first, first + tp)) for first in range(0, size, tp)}
    across = {f"dp{offset}": list(range(offset, size, tp)) for offset in range(tp)}
    return {**world(size), **groups, **across}
