"""Whether the monitor sees anything, and if not, since when and why."""

from __future__ import annotations

from slurm_ncclmon.observation import Poll
from slurm_ncclmon.ras.report import Report

UNDER_CONSTRUCTION = frozenset({"empty_communicator", "sum_mismatch"})
"""Problems of an answer that was taken while communicators were being made."""


class Blindness:
    """Follows polls without a usable answer. Times are the step's."""

    def __init__(self) -> None:
        self.ever_saw = False
        self.since: float | None = None
        """First poll without a usable answer since the last one with."""
        self.building_since: float | None = None
        """First answer since which all answers show communicators under construction."""
        self.report: Report | None = None
        """The last answer that was none to rely on."""
        self.trouble = ""
        self._told = False

    def saw(self) -> bool:
        """A usable answer came; True when the blindness before had been told."""
        told, self._told = self._told, False
        self.ever_saw = True
        self.since = self.building_since = self.report = None
        return told

    def missed(self, poll: Poll, now: float) -> None:
        """No usable answer came."""
        self.since = now if self.since is None else self.since
        report = poll.report
        self.trouble = poll.trouble or (
            report.problems[0].text if report is not None and report.problems else "no answer"
        )
        if report is None:
            return
        building = any(problem.kind in UNDER_CONSTRUCTION for problem in report.problems)
        if building:
            self.building_since = now if self.building_since is None else self.building_since
            self.report = report
        else:
            self.building_since = None

    def lasting(self, now: float, seconds: float) -> bool:
        """Whether nothing was seen for so long."""
        return self.since is not None and now - self.since >= seconds

    def tell(self) -> bool:
        """True once for each time that nothing is seen."""
        told, self._told = self._told, True
        return not told
