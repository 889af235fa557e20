"""One RAS answer as columns: what every later stage reads instead of JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

OPERATIONS = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")
"""The collectives that RAS counts, in the order of `Report.counts`' second axis."""

FINALIZED, DESTROYED, ABORTED, MISSING, UNRESPONSIVE, DEAD = (1 << bit for bit in range(6))
"""Bits of `Report.flags`. MISSING: the rank gave no communicator data; the two after it are its `missing_ranks` status."""

RESULT_OK = 0
RESULT_IN_PROGRESS = 7


class Gpu(NamedTuple):
    """What RAS knows a member by: bootstrap address, pid in that process's own namespace, CUDA and NVML device."""

    host: str
    pid: int
    cuda_dev: int
    nvml_dev: int


class CommKey(NamedTuple):
    """Identity of a communicator. `hash` alone is not unique; `secondary` is host and process hash of its rank 0."""

    hash: str
    secondary: str

    def __str__(self) -> str:
        return self.hash


@dataclass(frozen=True)
class Problem:
    """Something in an answer that is not as it should be.

    `kind` is a fixed word for programs (`empty_communicator`, `sum_mismatch`, `all_zero`, `foreign_process`, `duplicate_rank`,
    `rank_out_of_range`, `count_fell`, `timeouts`, `truncated`, `repaired`, `bad_entry`, …); `text` is for people; `comm` is the
    communicator that it costs, None when it concerns the whole answer.
    """

    kind: str
    text: str
    comm: CommKey | None = None


@dataclass(frozen=True)
class Report:
    """One answer: C communicators with M member rows in all, missing ranks included (flag MISSING, counts 0).

    The rows of communicator `c` are `start[c]:start[c + 1]`, ascending by rank. Arrays are read-only by agreement, so that
    unchanged parts may be shared between reports.
    """

    nccl_version: str
    taken_at: str
    """Local time of the answering process, as printed; for people only, it has no zone."""
    collection_s: float
    timeouts: int
    comms: tuple[CommKey, ...]
    size: NDArray[np.int32]
    """(C,) number of ranks that each communicator has."""
    start: NDArray[np.int64]
    """(C + 1,) first row of each communicator, then M."""
    rank: NDArray[np.int32]
    """(M,) rank within its communicator."""
    gpu: NDArray[np.int32]
    """(M,) index into `gpus`."""
    counts: NDArray[np.uint64]
    """(M, 5) launches so far, in the order of OPERATIONS."""
    init_state: NDArray[np.int16]
    """(M,) ncclResult_t of initialisation, RESULT_IN_PROGRESS while it lasts."""
    async_error: NDArray[np.int16]
    """(M,) ncclResult_t of asynchronous errors."""
    flags: NDArray[np.uint8]
    """(M,) FINALIZED | DESTROYED | … bits."""
    gpus: tuple[Gpu, ...]
    """Each process and device once, in the order of first appearance."""
    problems: tuple[Problem, ...] = field(default=())
    coherent: bool = True
    """False: the answer contradicts itself (communicators under construction, sums that do not add up): neither evidence of a
    hang nor of progress."""

    def rows(self, comm: int) -> slice:
        """Row range of communicator number `comm`."""
        return slice(int(self.start[comm]), int(self.start[comm + 1]))

    @property
    def members(self) -> int:
        """M, the number of member rows."""
        return len(self.rank)
