"""What RAS answers about a simulated job at a time: as columns, as the JSON text of a given NCCL version, as a Report."""

from __future__ import annotations

import time as calendar
from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import NDArray

from slurm_ncclmon.ras.columns import Comms, Gpus, Head, Rows, build
from slurm_ncclmon.ras.report import (
    ABORTED,
    DEAD,
    DESTROYED,
    FINALIZED,
    MISSING,
    OPERATIONS,
    UNRESPONSIVE,
    CommKey,
    Gpu,
    Report,
)
from tests.lab.simulate.job import DEAD_AFTER_S, Job, Window

COMMA_BUG = ("2.28.7", "2.28.9")
"""Releases that leave out the comma before a missing rank's status."""


@dataclass
class Answer:
    """One answer: C communicators, M members in all."""

    time: float
    version: str
    wall: float
    collection_s: float
    timeouts: int
    comms: list[int]
    """Numbers in the mesh, in the answer's order."""
    slot: NDArray[np.int64]
    """(M,)"""
    counts: NDArray[np.uint64]
    init: NDArray[np.int16]
    error: NDArray[np.int16]
    flags: NDArray[np.uint8]
    nameless: int = 0
    """Bogus communicators without hash and members."""


class Answers:
    """Answers of one job, at ascending times."""

    def __init__(self, job: Job) -> None:
        self._job, mesh = job, job.mesh
        self._rank = mesh.rank_of_slot()
        self._comm = mesh.comm_of_slot()
        self._visible = sorted((c for c, comm in enumerate(mesh.comms) if comm.visible), key=lambda c: job.hashes[c][0])
        self._rows = {c: np.arange(mesh.base[c], mesh.base[c] + len(mesh.comms[c].ranks)) for c in self._visible}
        self._lag = job.rng.random(job.layout.ranks)
        """When within the collection each rank is read."""
        self._gpus = Gpus()
        self._islands = layouts_apart(job)
        self._numbers: dict[int, NDArray[np.int64]] = {}
        self._slow_stop: set[int] = set()

    def at(self, time: float) -> Answer:
        """The answer to a question asked at a time when RAS answers."""
        job = self._job
        comms = [c for c in self._visible if job.born.get(c, job.up) <= time < job.died.get(c, inf)]
        if self._islands:
            shown = self._islands[int(job.rng.integers(len(self._islands)))]
            comms = [c for c in comms if c in shown]
        windows = [w for w in job.windows if w.begin <= time < w.whole]
        comms = [c for c in comms if all(w.comm != c or w.half <= time for w in windows)]
        slot = np.concatenate([self._rows[c] for c in comms]) if comms else np.zeros(0, np.int64)
        collection, timeouts = self._collection(time)
        read = time + (collection * self._lag)[self._rank]
        began = max((again.time for again in job.restarts if again.time <= time), default=None)
        counts = job.history.counts(read)
        if began is not None:
            counts = counts - job.history.counts(np.full(len(read), began))
        answer = Answer(
            time,
            job.version,
            job.wall(time),
            collection,
            timeouts,
            comms,
            slot,
            counts[slot].astype(np.uint64),
            np.zeros(len(slot), np.int16),
            np.zeros(len(slot), np.int16),
            self._absent(time)[slot],
        )
        self._mark(answer, time)
        self._construct(answer, windows, time)
        for begin, end, change in job.tweaks:
            if begin <= time < end:
                change(answer)
        answer.counts[answer.flags & MISSING != 0] = 0
        return answer

    def _collection(self, time: float) -> tuple[float, int]:
        """Seconds and given up connections: the first question after a process was stopped waits for its keep-alive."""
        fresh = {rank for rank, (since, until) in self._job.stopped.items() if since <= time < until} - self._slow_stop
        self._slow_stop |= fresh
        usual = 0.0001 * self._job.layout.ranks
        return (3.9, 2) if fresh else (usual, 0)

    def _absent(self, time: float) -> NDArray[np.uint8]:
        """(slots,) flags of members whose process gives no answer."""
        flags = np.zeros(self._job.layout.ranks, np.uint8)
        for rank, (since, _) in self._job.gone.items():
            if since <= time:
                flags[rank] = MISSING | UNRESPONSIVE | (DEAD if time - since >= DEAD_AFTER_S else 0)
        for rank, (since, until) in self._job.stopped.items():
            declared = time - since >= DEAD_AFTER_S and until - since >= DEAD_AFTER_S
            if declared or since <= time < until:
                flags[rank] = MISSING | UNRESPONSIVE | (DEAD if declared else 0)
        return flags[self._rank]

    def _mark(self, answer: Answer, time: float) -> None:
        where = {int(slot): row for row, slot in enumerate(answer.slot)} if self._job.marks else {}
        for mark in self._job.marks:
            row = where.get(mark.slot)
            if row is None or mark.time > time or answer.flags[row] & MISSING:
                continue
            if mark.field == "gone":
                answer.flags[row] = MISSING
            elif mark.field == "flags":
                answer.flags[row] |= mark.value
            else:
                (answer.error if mark.field == "async" else answer.init)[row] = mark.value

    def _construct(self, answer: Answer, windows: list[Window], time: float) -> None:
        for window in windows:
            if time < window.half:
                answer.nameless += max(1, min(5, len(self._job.mesh.comms[window.comm].ranks) // 4))
                continue
            rows = np.flatnonzero(self._comm[answer.slot] == window.comm)
            answer.init[rows] = 7
            absent = [row for row in rows if int(self._rank[answer.slot[row]]) not in window.present]
            answer.flags[absent], answer.init[absent] = MISSING, 0

    def report(self, answer: Answer) -> Report:
        """The Report that the decoder makes of the answer's text."""
        job = self._job
        sizes = np.array([len(job.mesh.comms[c].ranks) for c in answer.comms], np.int64)
        comm = np.repeat(np.arange(len(answer.comms)), sizes)
        missing = np.bincount(comm, answer.flags & MISSING != 0, len(sizes)).astype(np.int64)
        hashes = job.hashes_at(answer.time)
        keys = tuple(CommKey(f"0x{hashes[c][0]:x}", hashes[c][1]) for c in answer.comms)
        if answer.nameless:
            keys += (CommKey("0x0", "0x0:0x0"),) * answer.nameless
            sizes, missing = (np.concatenate([part, np.zeros(answer.nameless, np.int64)]) for part in (sizes, missing))
        rows = Rows(
            comm,
            self._rank_in_comm(answer),
            self._gpu_numbers(answer.time)[self._rank[answer.slot]],
            answer.counts,
            answer.init,
            answer.error,
            answer.flags,
        )
        head = Head(answer.version, stamp(answer.wall), round(answer.collection_s, 3), answer.timeouts)
        return build(head, Comms(keys, sizes, sizes - missing, missing, sizes), rows, self._gpus)

    def _gpu_numbers(self, time: float) -> NDArray[np.int64]:
        """(ranks,) number of each rank's process and device."""
        processes = self._job.processes_at(time)
        if id(processes) not in self._numbers:
            known = [self._gpus.number(Gpu(p.address, p.ns_pid, p.cuda_dev, p.nvml_dev)) for p in processes]
            self._numbers[id(processes)] = np.array(known)
        return self._numbers[id(processes)]

    def _rank_in_comm(self, answer: Answer) -> NDArray[np.int64]:
        return answer.slot - np.asarray(self._job.mesh.base)[self._comm[answer.slot]]

    def text(self, answer: Answer) -> bytes:
        """The answer as that NCCL version prints it."""
        blocks = [
            '    {\n      "hash": "0x0",\n      "secondary_hash": "0x0:0x0",\n      "size": 0,\n      "ranks_count": 0,\n'
            '      "missing_ranks_count": 0,\n      "ranks": [\n\n      ],\n      "missing_ranks": [\n\n      ]\n    }'
        ] * answer.nameless
        number, comm = self._rank_in_comm(answer), self._comm[answer.slot]
        for c in answer.comms:
            blocks.append(self._comm_text(answer, c, np.flatnonzero(comm == c), number))
        return (
            f'{{\n  "nccl_version": "{answer.version}",\n  "cuda_runtime_version": 12090,\n  "cuda_driver_version": 12080,\n'
            f'  "timestamp": "{stamp(answer.wall)}",\n  "communicators_count": {len(blocks)},\n  "communicators": [\n'
            + ",\n".join(blocks)
            + f'\n  ],\n  "ras": {{\n    "collection_time_sec": {answer.collection_s:.3f},\n'
            f'    "timeouts_count": {answer.timeouts}\n  }}\n}}\n'
        ).encode()

    def _comm_text(self, answer: Answer, c: int, rows: NDArray[np.int64], number: NDArray[np.int64]) -> str:
        hash_, secondary = self._job.hashes_at(answer.time)[c]
        absent = answer.flags[rows] & MISSING != 0
        present = ",\n".join(self._rank_text(answer, int(row), int(number[row])) for row in rows[~absent])
        missing = ",\n".join(self._missing_text(answer, int(row), int(number[row])) for row in rows[absent])
        return (
            f'    {{\n      "hash": "0x{hash_:x}",\n      "secondary_hash": "{secondary}",\n      "size": {len(rows)},\n'
            f'      "ranks_count": {int((~absent).sum())},\n      "missing_ranks_count": {int(absent.sum())},\n'
            f'      "ranks": [\n{present}\n      ],\n      "missing_ranks": [\n{missing}\n      ]\n    }}'
        )

    def _who(self, answer: Answer, row: int, number: int) -> str:
        process = self._job.processes_at(answer.time)[int(self._rank[answer.slot[row]])]
        return (
            f'        {{\n          "rank": {number},\n          "host": "{process.address}",\n'
            f'          "pid": {process.ns_pid},\n'
            f'          "cuda_dev": {process.cuda_dev},\n          "nvml_dev": {process.nvml_dev}'
        )

    def _rank_text(self, answer: Answer, row: int, number: int) -> str:
        flags = int(answer.flags[row])
        bits = [str(bool(flags & bit)).lower() for bit in (FINALIZED, DESTROYED, ABORTED)]
        counts = ",\n".join(
            f'            "{name}": {int(count)}' for name, count in zip(OPERATIONS, answer.counts[row])
        )
        return (
            f'{self._who(answer, row, number)},\n          "status": {{\n            "init_state": {answer.init[row]},\n'
            f'            "async_error": {answer.error[row]},\n            "finalize_called": {bits[0]},\n'
            f'            "destroy_flag": {bits[1]},\n'
            f'            "abort_flag": {bits[2]}\n          }},\n'
            f'          "collective_counts": {{\n{counts}\n          }}\n        }}'
        )

    def _missing_text(self, answer: Answer, row: int, number: int) -> str:
        flags = int(answer.flags[row])
        comma = "" if answer.version in COMMA_BUG else ","
        return (
            f'{self._who(answer, row, number)}{comma}\n          "status": {{\n'
            f'            "unresponsive": {str(bool(flags & UNRESPONSIVE)).lower()},\n'
            f'            "considered_dead": {str(bool(flags & DEAD)).lower()}\n          }}\n        }}'
        )


def layouts_apart(job: Job) -> list[set[int]]:
    """The communicators of each RAS mesh, where the job has several: a question is answered by any process, for its own mesh."""
    if job.layout.kind != "islands":
        return []
    return [{number} for number, comm in enumerate(job.mesh.comms) if comm.visible]


def stamp(wall: float) -> str:
    """Local time of the answering process, which has no zone."""
    return calendar.strftime("%Y-%m-%d %H:%M:%S", calendar.gmtime(wall))
