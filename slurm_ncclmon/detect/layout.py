"""Which member of which communicator stands in which row, and how rows of one report are found again in the next."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from slurm_ncclmon.ras.report import CommKey, Gpu, Report


@dataclass
class Processes:
    """Numbers for processes (Gpu), the same in all reports."""

    gpus: list[Gpu] = field(default_factory=list)
    numbers: dict[object, int] = field(default_factory=dict)
    hosts: list[int] = field(default_factory=list)
    """A number for the host of each."""
    _host_numbers: dict[str, int] = field(default_factory=dict)
    _last: tuple[Gpu, ...] = ()
    _last_numbers: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))

    def number(self, name: object, gpu: Gpu) -> int:
        """The number of `gpu`, known as `name`."""
        found = self.numbers.get(name)
        if found is None:
            found = self.numbers[name] = len(self.gpus)
            self.gpus.append(gpu)
            self.hosts.append(self._host_numbers.setdefault(gpu.host, len(self._host_numbers)))
        return found

    def of(self, gpus: tuple[Gpu, ...]) -> NDArray[np.int64]:
        """Numbers of all of a report's processes; -1 where RAS does not know the process."""
        if gpus is not self._last and gpus != self._last:
            self._last = gpus
            self._last_numbers = np.array(
                [self.number(gpu, gpu) if gpu.pid > 0 else -1 for gpu in gpus], dtype=np.int64
            )
        return self._last_numbers


@dataclass(frozen=True)
class Layout:
    """C communicators with M rows, those of the last report first; rows ascend by rank."""

    comms: tuple[CommKey, ...]
    size: NDArray[np.int64]
    start: NDArray[np.int64]
    """(C + 1,)"""
    rank: NDArray[np.int32]
    process: NDArray[np.int64]
    """(M,) number of the member's process in `processes`."""
    comm_of: NDArray[np.int64]
    """(M,) communicator of each row."""
    processes: Processes
    by_process: NDArray[np.int64]
    """Rows ordered by process, and where each process that has rows begins in that order."""
    process_start: NDArray[np.int64]

    @classmethod
    def empty(cls) -> Layout:
        """No communicators yet."""
        none = np.zeros(0, np.int64)
        return cls((), none, np.zeros(1, np.int64), np.zeros(0, np.int32), none, none, Processes(), none, none)

    def rows(self, comm: int) -> slice:
        """Rows of communicator number `comm`."""
        return slice(int(self.start[comm]), int(self.start[comm + 1]))

    @property
    def present(self) -> NDArray[np.int64]:
        """Numbers of the processes that have rows, ascending."""
        found: NDArray[np.int64] = self.process[self.by_process[self.process_start]]
        return found

    def processes_in(self, comms: NDArray[np.int64]) -> NDArray[np.bool_]:
        """By process number, whether it is a member of one of `comms`."""
        member = np.zeros(len(self.processes.gpus), np.bool_)
        member[self.process[spread(self, comms)]] = True
        return member

    def latest_of_process(self, time: NDArray[np.float64]) -> NDArray[np.float64]:
        """(M,) for each row the latest `time` (M,) among all rows of its process."""
        if not len(time):
            return time
        latest = np.maximum.reduceat(time[self.by_process], self.process_start)
        result = np.empty(len(self.processes.gpus))
        result[self.process[self.by_process[self.process_start]]] = latest
        found: NDArray[np.float64] = result[self.process]
        return found

    def followed_by(self, report: Report, unclear: frozenset[CommKey]) -> Layout:
        """The layout after `report`: itself when nothing changed. Communicators that the report does not have stay when it tells
        nothing of them: it has them in `unclear`, or none of their processes answered (RAS sees only the mesh that it asks)."""
        process = self._processes_of(report)
        m, c = report.members, len(report.comms)
        if report.comms == self.comms and m == len(self.rank) and np.array_equal(process, self.process):
            return self
        kept = self._kept(report, unclear, process)
        rows = np.concatenate(
            [np.arange(*self.rows(k).indices(len(self.rank))[:2]) for k in kept] or [np.zeros(0, np.int64)]
        )
        size = np.concatenate([report.size, self.size[kept]]).astype(np.int64)
        all_process = np.concatenate([process, self.process[rows]])
        order = np.argsort(all_process, kind="stable")
        return Layout(
            comms=report.comms + tuple(self.comms[k] for k in kept),
            size=size,
            start=np.concatenate([[0], np.cumsum(size)]).astype(np.int64),
            rank=np.concatenate([report.rank[:m], self.rank[rows]]),
            process=all_process,
            comm_of=np.repeat(np.arange(c + len(kept)), size),
            processes=self.processes,
            by_process=order,
            process_start=np.flatnonzero(np.diff(all_process[order], prepend=-1)),
        )

    def _kept(self, report: Report, unclear: frozenset[CommKey], process: NDArray[np.int64]) -> NDArray[np.int64]:
        here = set(report.comms)
        answered = np.zeros(len(self.processes.gpus), np.bool_)
        answered[process] = True
        absent = [k for k, key in enumerate(self.comms) if key not in here]
        return np.array(
            [k for k in absent if self.comms[k] in unclear or not answered[self.process[self.rows(k)]].any()], np.int64
        )

    def _processes_of(self, report: Report) -> NDArray[np.int64]:
        """(M of the report,) process numbers; a member that RAS has lost keeps the process that it had before."""
        process = self.processes.of(report.gpus)[report.gpu] if report.members else np.zeros(0, np.int64)
        lost = np.flatnonzero(process < 0)
        if len(lost):
            before = {key: number for number, key in enumerate(self.comms)}
            comm_of = np.repeat(np.arange(len(report.comms)), np.diff(report.start))
            for row in lost:
                key, rank = report.comms[comm_of[row]], int(report.rank[row])
                old = before.get(key)
                if old is not None and rank < self.size[old]:
                    process[row] = self.process[self.start[old] + rank]
                else:
                    process[row] = self.processes.number((key, rank), report.gpus[report.gpu[row]])
        return process


def whole(report: Report) -> tuple[Report, frozenset[CommKey]]:
    """The report with only those communicators of which every rank is told exactly once; and the names of the others."""
    told = np.diff(report.start)
    offset = np.arange(report.members) - np.repeat(report.start[:-1], told)
    odd = told != report.size
    odd |= told == 0
    wrong = np.flatnonzero(report.rank != offset)
    odd[np.searchsorted(report.start, wrong, side="right") - 1] = True
    unclear = frozenset(problem.comm for problem in report.problems if problem.comm is not None)
    if not odd.any():
        return report, unclear
    good = np.flatnonzero(~odd)
    rows = np.flatnonzero(np.repeat(~odd, told))
    bad = frozenset(report.comms[k] for k in np.flatnonzero(odd))
    return replace(
        report,
        comms=tuple(report.comms[k] for k in good),
        size=report.size[good],
        start=np.concatenate([[0], np.cumsum(told[good])]).astype(np.int64),
        **{
            name: getattr(report, name)[rows]
            for name in ("rank", "gpu", "counts", "init_state", "async_error", "flags")
        },
    ), unclear | bad


Pairs = tuple[NDArray[np.int64], NDArray[np.int64]]


def common_rows(old: Layout, new: Layout) -> tuple[Pairs, NDArray[np.int64], NDArray[np.int64]]:
    """Communicators that both have with the same processes, as pairs (old, new), and their rows in both."""
    before = {key: number for number, key in enumerate(old.comms)}
    found = [(before[key], number) for number, key in enumerate(new.comms) if key in before]
    pair = np.array(found, np.int64).reshape(-1, 2)
    pair = pair[old.size[pair[:, 0]] == new.size[pair[:, 1]]]
    rows_from, rows_to = spread(old, pair[:, 0]), spread(new, pair[:, 1])
    other = old.process[rows_from] != new.process[rows_to]
    if other.any():
        changed = np.unique(new.comm_of[rows_to[other]])
        pair = pair[~np.isin(pair[:, 1], changed)]
        rows_from, rows_to = spread(old, pair[:, 0]), spread(new, pair[:, 1])
    return (pair[:, 0], pair[:, 1]), rows_from, rows_to


def spread(layout: Layout, comms: NDArray[np.int64]) -> NDArray[np.int64]:
    """All rows of `comms`, one communicator after the other."""
    size = layout.size[comms]
    within = np.arange(size.sum()) - np.repeat(np.cumsum(size) - size, size)
    rows: NDArray[np.int64] = np.repeat(layout.start[comms], size) + within
    return rows
