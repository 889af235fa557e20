"""Gaps in what was seen. Equal counts before and after one prove that nothing was launched between, but not that the step ran."""

from __future__ import annotations

from collections import deque
from statistics import median

from slurm_ncclmon.config import Settings
from slurm_ncclmon.detect.limits import OUTAGE_INTERVALS


class Sight:
    """Tells whether enough was seen since the last gap. A suspended job, a frozen node and a lost monitor look the same: after
    a gap that is long for the usual pace of reports nothing is suspected until the stall has gone on for the suspect time."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._gaps: deque[float] = deque(maxlen=9)
        self._settled = -float("inf")
        self.last: float | None = None
        """Step's time of the last usable report."""

    def saw(self, now: float) -> None:
        """A usable report came."""
        if self.last is not None:
            gap = now - self.last
            pace = max(self._settings.interval, median(self._gaps) if self._gaps else 0.0)
            if gap > max(OUTAGE_INTERVALS * pace, self._settings.suspect):
                self._settled = now
            self._gaps.append(gap)
        self.last = now

    def disturbed(self, now: float) -> None:
        """The step was suspended until `now`."""
        self._settled = now

    def settled(self) -> bool:
        """Whether what stands still may be suspected."""
        return self.last is not None and self.last - self._settled >= self._settings.suspect
