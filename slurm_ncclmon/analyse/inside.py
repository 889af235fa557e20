"""What probe frames tell when counts are all the same: who differs, whose GPU did not start, where the data stopped."""

from __future__ import annotations

import numpy as np

from slurm_ncclmon.analyse.draft import Draft
from slurm_ncclmon.analyse.found import Found
from slurm_ncclmon.analyse.gpus import through_the_graph
from slurm_ncclmon.analyse.names import Names
from slurm_ncclmon.analyse.point_to_point import standing_out
from slurm_ncclmon.analyse.signatures import differing
from slurm_ncclmon.detect.history import History
from slurm_ncclmon.durations import format_duration
from slurm_ncclmon.probe.decode import together
from slurm_ncclmon.probe.frame import Frames
from slurm_ncclmon.probe.standing import Standing, standing
from slurm_ncclmon.verdict import Culprit

MOST_COMMUNICATORS = 512
"""Communicators with unfinished operations that are looked into; a hang has a cause among the first, or is too large to draw."""


class Inside:
    """The newest frames of each node, and when they last showed anything move."""

    def __init__(self) -> None:
        self._frames: dict[str, Frames] = {}
        self._taken: dict[str, float] = {}
        self.moved_at = -np.inf
        """Step's time of the last sign of progress in any frame."""
        self.seen_at = -np.inf

    def take(self, frames: Frames, now: float) -> None:
        """Frames of one or more nodes, read at the step's time `now`."""
        self.seen_at = now
        for host in sorted(set(frames.host.tolist())):
            new = frames.take(frames.host == host)
            old = self._frames.get(host)
            if old is not None and _moved(old, new):
                self.moved_at = now
            self._frames[host] = new
            self._taken[host] = now

    def drafts(self, history: History, names: Names, now: float) -> list[Draft]:
        """Causes inside of collectives, for a step in which nothing moves; none where frames do not tell."""
        if not self._frames or now - self.moved_at <= 0:
            return []
        since = max(self.moved_at, float(history.members.since[history.members.known].max()))
        stands = self._standing(history, since)
        found = [f for comm, stand in stands if (f := differing(comm, stand, names)) is not None]
        found = found or through_the_graph(history, stands, names)
        found = found or [f for comm, stand in stands if (f := standing_out(comm, stand, names)) is not None][:1]
        members = len(history.layout.present)
        return [_draft(history, names, one, now - since, members) for one in found]

    def _standing(self, history: History, since: float) -> list[tuple[int, Standing]]:
        """Communicators of the history in which some rank has an unfinished operation, by frames read after `since`: those of
        most nodes come only when evidence is gathered, and may tell of an earlier stall."""
        frames = together(frames for host, frames in self._frames.items() if self._taken[host] >= since)
        frames = frames.take(~frames.finalised)
        numbers = {int(key.hash, 16): number for number, key in enumerate(history.layout.comms)}
        busy = [hash_ for hash_ in np.unique(frames.communicator[frames.oldest.known]).tolist() if hash_ in numbers]
        stands = []
        for hash_ in busy[:MOST_COMMUNICATORS]:
            stand = standing(frames, hash_)
            if stand is not None and int(stand.frames.size.max()) == history.layout.size[numbers[hash_]]:
                stands.append((numbers[hash_], stand))
        return stands


def _moved(old: Frames, new: Frames) -> bool:
    """Whether any member of a communicator has enqueued, finished, sent or received anything between both."""
    before = dict(zip(_keys(old), _progress(old)))
    return any(key in before and before[key] != values for key, values in zip(_keys(new), _progress(new)))


def _keys(frames: Frames) -> list[tuple[int, ...]]:
    return list(zip(frames.pid.tolist(), frames.communicator.tolist(), frames.rank.tolist()))


def _progress(frames: Frames) -> list[tuple[int, ...]]:
    columns = (
        frames.enqueued,
        frames.finished,
        frames.send_done,
        frames.receive_done,
        frames.steps_sent,
        frames.steps_arrived,
    )
    return list(zip(*(column.tolist() for column in columns), frames.started_channels.tolist()))


def _draft(history: History, names: Names, found: Found, stalled_s: float, members: int) -> Draft:
    layout = history.layout
    first = int(layout.start[found.comm])
    rows = [first + int(rank) for rank in found.ranks]
    culprits: tuple[Culprit, ...] = tuple(names.culprit(row, why) for row, why in zip(rows, found.whys))
    return Draft(
        kind=found.kind,
        comm=names.reference(found.comm),
        operation=found.operation,
        round=found.round,
        culprits=culprits,
        confidence=found.confidence,
        frozen_s=stalled_s,
        clock_s=stalled_s,
        evidence=(
            *found.evidence,
            "By counts all ranks have launched the same, and neither counts nor frames have moved for"
            f" {format_duration(stalled_s)}.",
        ),
        keys=frozenset(layout.comms),
        processes=frozenset(int(layout.process[row]) for row in rows),
        alternatives=found.alternatives,
        not_decidable=found.not_decidable,
        victims=members - len(set(rows)),
        edges=found.edges,
        pause=(layout.comms[found.comm], found.kind),
    )
