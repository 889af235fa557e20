"""Ray Train's judgement (its NCCL RAS callback, 2.60), for comparison: counts alone, polls instead of time.

A communicator is suspect when its running ranks differ in any operation's count. A report in which it is suspect and all
counts are those of the report before adds one to its streak; any other report that has it, or has it no more, ends the streak.
At `confirm_polls` the hang is confirmed. A poll without a report changes nothing.

The mapping of settings: Ray's `confirm_polls` is `confirm / interval`, so its clock gains one `interval` for each such report
and stands still in between. Nobody is named, no graph is drawn, and a rank that is no longer RUNNING takes its communicator out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slurm_ncclmon.analyse.draft import Draft
from slurm_ncclmon.config import Settings
from slurm_ncclmon.observation import Observation, Poll
from slurm_ncclmon.ras.report import CommKey, Report
from slurm_ncclmon.verdict import CommunicatorRef


@dataclass(frozen=True)
class _Last:
    counts: bytes
    streak: int


class RayJudge:
    """One streak a communicator."""

    def __init__(self, settings: Settings) -> None:
        self._interval = settings.interval
        self._last: dict[CommKey, _Last] = {}
        self._drafts: list[Draft] = []

    @property
    def streaks(self) -> dict[CommKey, int]:
        """Streaks above zero."""
        return {key: last.streak for key, last in self._last.items() if last.streak}

    def drafts(self, observation: Observation) -> list[Draft]:
        """One draft for each communicator with a streak."""
        if not isinstance(observation, Poll) or observation.report is None:
            return self._drafts
        report, now = observation.report, {}
        for number, key in enumerate(report.comms):
            counts, skewed = _state(report, number)
            before = self._last.get(key)
            same = skewed and before is not None and before.counts == counts
            now[key] = _Last(counts, before.streak + 1 if same and before is not None else 0)
        self._last = now
        self._drafts = [self._draft(report, key) for key, streak in self.streaks.items() if streak]
        return self._drafts

    def _draft(self, report: Report, key: CommKey) -> Draft:
        frozen = self._last[key].streak * self._interval
        size = int(report.size[report.comms.index(key)])
        return Draft(
            kind="count_mismatch",
            comm=CommunicatorRef(key.hash, key.secondary, size),
            operation=None,
            round=None,
            culprits=(),
            confidence=0.5,
            frozen_s=frozen,
            clock_s=frozen,
            evidence=(
                f"Counts differ on communicator {key.hash} and were the same in {self._last[key].streak + 1} reports.",
            ),
            keys=frozenset({key}),
            processes=frozenset(),
            not_decidable=("Who is the cause: this setting judges by counts alone, as Ray Train does.",),
        )


def _state(report: Report, number: int) -> tuple[bytes, bool]:
    """The counts of a communicator as bytes, and whether its ranks differ; with a rank that is not running it does not count."""
    rows = report.rows(number)
    counts = np.ascontiguousarray(report.counts[rows])
    running = bool((report.flags[rows] == 0).all() and (report.init_state[rows] == 0).all()) and len(counts) > 0
    return counts.tobytes(), running and bool((counts != counts[0]).any())
