"""Answers of large jobs, in the layout that NCCL prints."""

from __future__ import annotations

from slurm_ncclmon.ras.report import OPERATIONS

TENSOR = 8

_MEMBER = """        {
          "rank": %d,
          "host": "%s",
          "pid": %d,
          "cuda_dev": %d,
          "nvml_dev": %d,
          "status": {
            "init_state": 0,
            "async_error": 0,
            "finalize_called": false,
            "destroy_flag": false,
            "abort_flag": false
          },
          "collective_counts": {
            "Broadcast": 12,
            "Reduce": 0,
            "AllGather": %d,
            "ReduceScatter": %d,
            "AllReduce": %d
          }
        }"""
_COMM = """    {
      "hash": "0x%x",
      "secondary_hash": "0x%x:0x%x",
      "size": %d,
      "ranks_count": %d,
      "missing_ranks_count": 0,
      "ranks": [
%s
      ],
      "missing_ranks": [

      ]
    }"""
_ANSWER = """{
  "nccl_version": "2.28.9",
  "cuda_runtime_version": 12090,
  "cuda_driver_version": 13000,
  "timestamp": "2026-11-30 07:17:23",
  "communicators_count": %d,
  "communicators": [
%s
  ],
  "ras": {
    "collection_time_sec": 0.117,
    "timeouts_count": 0
  }
}
"""
assert all(name in _MEMBER for name in OPERATIONS)


def answer(ranks: int, step: int, ahead: int = -1, odd: int = 0) -> bytes:
    """An answer of a job at `step`: all ranks, tensor groups of 8, data groups across these.

    One group in `odd` (0: none), and rank `ahead` of the communicator of all, are a step further.
    """
    groups = [list(range(ranks))]
    groups += [list(range(first, first + TENSOR)) for first in range(0, ranks, TENSOR)]
    groups += [list(range(first, ranks, TENSOR)) for first in range(TENSOR)]
    comms = []
    for number, members in enumerate(groups):
        moved = bool(odd) and number > 0 and number % odd == 0
        rows = ",\n".join(
            _member(rank, process, step + (moved or (number == 0 and rank == ahead)))
            for rank, process in enumerate(members)
        )
        name = (number * 0x9E3779B97F4A7C15 + 12345) % 2**64
        comms.append(_COMM % (name, name // 3, name // 7, len(members), len(members), rows))
    return (_ANSWER % (len(comms), ",\n".join(comms))).encode()


def _member(rank: int, process: int, step: int) -> str:
    node, device = divmod(process, 8)
    host = f"10.{node >> 16}.{(node >> 8) & 255}.{node & 255}"
    return _MEMBER % (rank, host, 100000 + process % 50000, device, device, step * 3 + 7, step * 2, step * 11 + 1)
