"""What all reports so far say of every communicator member, as columns: its last counts and since when it has them.

Counters only grow, so equal counts in two reports prove that nothing was launched between them, whatever happened to the polls
between. A member's `since` is the first usable report with its present counts; the time that a communicator is frozen follows
exactly, whatever the distance of the polls, and a poll without a usable answer neither adds to it nor ends it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slurm_ncclmon.detect.layout import Layout, common_rows, whole
from slurm_ncclmon.ras.report import DEAD, MISSING, CommKey, Report

NEVER = np.inf
ZERO_REPORTS = 3
"""So many reports in a row that show a communicator at zero that had counted: it is a new one under an old name."""


@dataclass
class Columns:
    """One row a member, in the order of the layout. Times are the step's own (detect/clock.py)."""

    counts: NDArray[np.uint64]
    """(M, 5) last counts that it reported; of a missing rank what it had before, so at least that."""
    known: NDArray[np.bool_]
    """It has reported counts at least once."""
    since: NDArray[np.float64]
    """First usable report with these counts."""
    flags: NDArray[np.uint8]
    away_since: NDArray[np.float64]
    """First usable report since which it has always been leaving, gone or missing; of no meaning while it is not."""
    said_goodbye: NDArray[np.bool_]
    """It finalised, destroyed or aborted the communicator while it still answered."""
    init_state: NDArray[np.int16]
    init_since: NDArray[np.float64]
    async_error: NDArray[np.int16]
    error_since: NDArray[np.float64]
    """First usable report with this asynchronous error."""


@dataclass
class CommColumns:
    """One row a communicator."""

    first_seen: NDArray[np.float64]
    advances: NDArray[np.int64]
    """How often its slowest member was seen to move on."""
    lowest: NDArray[np.uint64]
    """Launches of its slowest member."""
    zeros: NDArray[np.int64]
    """Reports in a row that showed it at zero after it had counted."""
    reports: NDArray[np.int64]
    """Usable reports that told of it."""
    seen: NDArray[np.float64]
    """The last of them: nothing is known of it since."""


def _columns(rows: int, now: float) -> Columns:
    return Columns(
        counts=np.zeros((rows, 5), np.uint64),
        known=np.zeros(rows, np.bool_),
        since=np.full(rows, now),
        flags=np.zeros(rows, np.uint8),
        away_since=np.full(rows, now),
        said_goodbye=np.zeros(rows, np.bool_),
        init_state=np.zeros(rows, np.int16),
        init_since=np.full(rows, now),
        async_error=np.zeros(rows, np.int16),
        error_since=np.full(rows, now),
    )


def _comm_columns(comms: int, now: float) -> CommColumns:
    return CommColumns(
        first_seen=np.full(comms, now),
        advances=np.zeros(comms, np.int64),
        lowest=np.zeros(comms, np.uint64),
        zeros=np.zeros(comms, np.int64),
        reports=np.zeros(comms, np.int64),
        seen=np.full(comms, now),
    )


class History:
    """`update` takes a coherent report in; the columns are then as of that report, its communicators first."""

    def __init__(self) -> None:
        self.layout = Layout.empty()
        self.members = _columns(0, 0.0)
        self.comms = _comm_columns(0, 0.0)
        self.version = 0
        """Grows whenever counts, flags or the layout changed: what was derived from them is then stale."""
        self._last: Report | None = None
        self._told = 0

    def update(self, report: Report, now: float) -> None:
        """Take in a usable report received at the step's time `now`."""
        if self._last is not None and report.counts is self._last.counts and report.flags is self._last.flags:
            told = slice(0, self._told)
            self.comms.reports[told] += 1
            self.comms.seen[told] = np.where(self.comms.zeros[told] > 0, self.comms.seen[told], now)
            return
        self._last = report
        report, unclear = whole(report)
        self._adopt(report, unclear, now)
        informed = self._informed(report, now)
        self._take_counts(report, informed, now)
        self._take_status(report, informed, now)
        self._told = len(report.comms)
        told = slice(0, self._told)
        self.comms.reports[told] += 1
        self.comms.seen[told] = np.where(self.comms.zeros[told] > 0, self.comms.seen[told], now)

    def _adopt(self, report: Report, unclear: frozenset[CommKey], now: float) -> None:
        """Bring the columns into the report's order; members keep what was known of them."""
        new = self.layout.followed_by(report, unclear)
        if new is self.layout:
            return
        old, old_members, old_comms = self.layout, self.members, self.comms
        members, comms = _columns(len(new.rank), now), _comm_columns(len(new.comms), now)
        pairs, rows_from, rows_to = common_rows(old, new)
        for name, column in vars(members).items():
            column[rows_to] = getattr(old_members, name)[rows_from]
        for name, column in vars(comms).items():
            column[pairs[1]] = getattr(old_comms, name)[pairs[0]]
        self.layout, self.members, self.comms = new, members, comms
        self.version += 1

    def _informed(self, report: Report, now: float) -> NDArray[np.bool_]:
        """(M of the report,) rows whose counts this report tells; an all-zero snapshot after counting tells nothing."""
        rows, count = report.members, len(report.comms)
        present: NDArray[np.bool_] = (report.flags & MISSING) == 0
        if not rows:
            return present
        start, of = self.layout.start[:count], self.layout.comm_of[:rows]
        old = self.members.counts[:rows]
        fell = present & self.members.known[:rows] & _any_column(report.counts < old)
        if not fell.any():
            self.comms.zeros[:count] = 0
            return present
        fell_comm = np.logical_or.reduceat(fell, start)
        zero = fell_comm & ~np.logical_or.reduceat(present & _any_column(report.counts != 0), start)
        self.comms.zeros[:count] = np.where(zero, self.comms.zeros[:count] + 1, 0)
        skipped = zero & (self.comms.zeros[:count] < ZERO_REPORTS)
        self._restart(np.flatnonzero(fell_comm & ~skipped), now)
        told: NDArray[np.bool_] = present & ~skipped[of]
        return told

    def _restart(self, comms: NDArray[np.int64], now: float) -> None:
        """Counters fell: another communicator lives under these names now."""
        for comm in comms:
            rows = self.layout.rows(int(comm))
            fresh = _columns(rows.stop - rows.start, now)
            for name, column in vars(self.members).items():
                column[rows] = getattr(fresh, name)
            self.comms.first_seen[comm] = now
            self.comms.advances[comm] = 0
            self.comms.lowest[comm] = 0
            self.comms.zeros[comm] = 0
            self.comms.reports[comm] = 0
            self.comms.seen[comm] = now

    def _take_counts(self, report: Report, informed: NDArray[np.bool_], now: float) -> None:
        rows, count = report.members, len(report.comms)
        known, counts = self.members.known[:rows], self.members.counts[:rows]
        changed = informed & (~known | _any_column(report.counts != counts))
        if not changed.any():
            return
        self.version += 1
        counts[changed] = report.counts[changed]
        self.members.since[:rows][changed] = now
        known |= informed
        total = np.where(known, counts.sum(axis=1), np.uint64(0))
        lowest = np.minimum.reduceat(total, self.layout.start[:count])
        advanced = (lowest > self.comms.lowest[:count]) & (self.comms.reports[:count] > 0)
        self.comms.advances[:count] += advanced
        self.comms.lowest[:count] = lowest

    def _take_status(self, report: Report, informed: NDArray[np.bool_], now: float) -> None:
        """Initialisation, errors and flags. In an answer with timeouts, who is missing may only have been slow."""
        rows = report.members
        members = self.members
        for value, column, since in (
            (report.init_state, members.init_state[:rows], members.init_since[:rows]),
            (report.async_error, members.async_error[:rows], members.error_since[:rows]),
        ):
            changed = informed & (column != value)
            if changed.any():
                column[changed], since[changed] = value[changed], now
                self.version += 1
        missing = (report.flags & MISSING) != 0
        told = informed | missing & ((report.timeouts == 0) | ((report.flags & DEAD) != 0))
        flags = members.flags[:rows]
        changed = told & (flags != report.flags)
        if changed.any():
            members.away_since[:rows][changed & (flags == 0)] = now
            flags[changed] = report.flags[changed]
            members.said_goodbye[:rows] |= ~missing & (flags != 0)
            members.said_goodbye[:rows] &= flags != 0
            self.version += 1

    def forget_missing(self, now: float) -> None:
        """Whoever is missing is so from now on only: after a suspension, answers show healthy ranks as missing for a moment."""
        missing = (self.members.flags & MISSING) != 0
        self.members.away_since[missing] = now


def _any_column(table: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """`table.any(axis=1)`, several times faster for few columns."""
    result: NDArray[np.bool_] = table[:, 0].copy()
    for column in range(1, table.shape[1]):
        result |= table[:, column]
    return result
