"""Ray Train's NCCL RAS callback, driven with given polls. Runs in an environment of its own that has ray[train]==2.60.0.

Reads JSON lines: {"job": seed, "interval": s}, then one line a poll ({"text": the RAS answer}, {"comms": {hash: [[rank, status,
[five counts]], …]}, "same": [hashes as before]} or {"none": true}), then {"end": true}, which is answered by one line:
{"confirmed": number of the poll or null, "early": the same with half of the confirm time, "comms": those confirmed}.
"""

from __future__ import annotations

import json
import logging
import math
import os
import sys
from typing import Any

logging.disable(logging.CRITICAL)

from ray.train.v2._internal.callbacks.nccl_ras import (  # noqa: E402
    NCCLRASCallback,
    RASQueryError,
    RASReport,
    parse_ras_schema,
)
from ray.train.v2.api.exceptions import NCCLHangError  # noqa: E402

OPERATIONS = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")


class Queue:
    """Stands where Ray's polling thread stands: gives the callback one report at a time."""

    def __init__(self) -> None:
        self.report: RASReport | None = None

    def next_result(self) -> RASReport | None:
        """What the callback asks for at each tick."""
        report, self.report = self.report, None
        return report

    def query(self, fmt: str) -> str:
        """There is no text report to fetch."""
        raise RASQueryError("no_text")


class Detector:
    """One job's callback, with Ray's own settings but its interval."""

    def __init__(self, interval: float) -> None:
        os.environ["RAY_TRAIN_NCCL_RAS_MIN_POLL_INTERVAL_S"] = str(interval)
        os.environ["RAY_TRAIN_NCCL_RAS_ACTION"] = "fail"
        self._callback, self._queue = NCCLRASCallback(), Queue()
        self._callback._ras_poller = self._queue
        self._half = math.ceil(self._callback._confirm_poll_counts / 2)
        self._polls = -1
        self._counts: dict[str, dict[int, dict[str, int]]] = {}
        self._status: dict[str, dict[int, str]] = {}
        self.confirmed: int | None = None
        self.early: int | None = None
        self.comms: list[str] = []

    def poll(self, line: dict[str, Any]) -> None:
        """One poll, as it came; nothing after a confirmation, which ends a Ray run."""
        self._polls += 1
        report = self._report(line)
        if report is None or self.confirmed is not None:
            return
        self._queue.report = report
        try:
            self._callback.after_worker_group_poll_status(None)
        except NCCLHangError:
            self.confirmed = self._polls
        streaks = self._callback.comm_deadlock_count
        if self.early is None and any(count >= self._half for count in streaks.values()):
            self.early = self._polls
        if self.confirmed is not None:
            self.comms = [comm for comm, count in streaks.items() if count >= 2 * self._half - 1]

    def _report(self, line: dict[str, Any]) -> RASReport | None:
        if "text" in line:
            return parse_ras_schema(line["text"])
        if "none" in line:
            return None
        kept = line["same"]
        counts = {comm: self._counts[comm] for comm in kept}
        status = {comm: self._status[comm] for comm in kept}
        for comm, rows in line["comms"].items():
            counts[comm] = {rank: dict(zip(OPERATIONS, values)) for rank, _, values in rows}
            status[comm] = {rank: said for rank, said, _ in rows}
        self._counts, self._status = counts, status
        return RASReport(str(self._polls), counts, status)


def main() -> None:
    """Line by line until the end of input."""
    detector: Detector | None = None
    for text in sys.stdin:
        line = json.loads(text)
        if "job" in line:
            detector = Detector(float(line["interval"]))
        elif detector is None:
            continue
        elif "end" in line:
            answer = {"confirmed": detector.confirmed, "early": detector.early, "comms": detector.comms}
            print(json.dumps(answer), flush=True)
        else:
            detector.poll(line)


if __name__ == "__main__":
    main()
