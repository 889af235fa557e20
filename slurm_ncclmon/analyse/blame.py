"""From a cause to a verdict in the making, by counts and status alone."""

from __future__ import annotations

import numpy as np

from slurm_ncclmon.analyse.behind import charge_processes
from slurm_ncclmon.analyse.causes import Cause
from slurm_ncclmon.analyse.charge import Blame, next_operation
from slurm_ncclmon.analyse.draft import Draft
from slurm_ncclmon.analyse.names import Names
from slurm_ncclmon.analyse.within import charge_cycle, charge_within
from slurm_ncclmon.analyse.wording import ranks_phrase, verb
from slurm_ncclmon.detect.stuck import Stuck
from slurm_ncclmon.verdict import FrozenComm

MOST_LISTED = 256
"""Communicators of one incident that are listed one by one."""


def draft(stuck: Stuck, cause: Cause, names: Names) -> Draft:
    """What counts and status say of `cause`."""
    layout = stuck.history.layout
    charge = {"processes": charge_processes, "cycle": charge_cycle}.get(cause.sort, charge_within)
    blame = charge(stuck, cause, names)
    processes = layout.process[blame.rows]
    hosts = tuple(sorted({layout.processes.gpus[int(process)].host for process in processes}))  # evidence renames nodes
    return Draft(
        kind=blame.kind,
        comm=names.reference(cause.own),
        operation=blame.operation,
        round=blame.round,
        culprits=tuple(names.culprit(int(row), why) for row, why in zip(blame.rows, blame.whys)),
        confidence=_confidence(cause, blame),
        frozen_s=stuck.frozen_s(cause.own),
        clock_s=min(stuck.clock_s(cause.own), float(stuck.history.comms.seen[cause.own]) - blame.since),
        evidence=(*blame.evidence, *_held_up(cause), *_scattered(cause), *_demoted(stuck, cause, names)),
        keys=frozenset(layout.comms[comm] for comm in cause.comms),
        processes=frozenset(processes.tolist()),
        alternatives=blame.alternatives,
        not_decidable=blame.not_decidable,
        victims=cause.members - len(set(processes.tolist())),
        frozen=tuple(_frozen(stuck, int(comm), names) for comm in cause.comms[:MOST_LISTED]),
        pause=(layout.comms[cause.own], hosts),
        teardown=_teardown(stuck, cause.own),
        waiting=frozenset(layout.process[stuck.rows_of(cause.own, stuck.waiting)].tolist()),
        at_work_s=stuck.now - float(stuck.launched(blame.rows).min()) if len(blame.rows) else np.inf,
    )


def _teardown(stuck: Stuck, comm: int) -> bool:
    """Whether a member has left a communicator in which it had launched all that anybody has: it is done, others may be too."""
    rows = stuck.rows_of(comm, stuck.shape.left)
    return bool((stuck.shape.total[rows] >= stuck.shape.highest[comm]).any())


def _confidence(cause: Cause, blame: Blame) -> float:
    """Lower where many stopped at once, or where others might as well be the cause and only their shape speaks against them."""
    if cause.scattered:
        return 0.3
    doubtful = cause.certainty == "shown" and (len(cause.demoted) or (len(blame.rows) > 1 and len(cause.comms) > 1))
    return min(blame.confidence, 0.6) if doubtful and blame.kind == "not_entered" else blame.confidence


def _demoted(stuck: Stuck, cause: Cause, names: Names) -> tuple[str, ...]:
    if not len(cause.demoted):
        return ()
    ranks = names.shown(names.row_of(int(process)) for process in cause.demoted)
    return (
        f"{ranks_phrase(ranks).capitalize()} {verb(len(ranks), 'is', 'are')} behind as well, but as a consequence.",
    )


def _held_up(cause: Cause) -> tuple[str, ...]:
    others = len(cause.comms) - 1
    if not others:
        return ()
    return (
        f"{others} more {verb(others, 'communicator stands', 'communicators stand')} still only because of this:"
        f" followed from rank to rank, all waiting ends there.",
    )


def _scattered(cause: Cause) -> tuple[str, ...]:
    if not cause.scattered:
        return ()
    return (
        f"{len(cause.processes)} ranks in unrelated communicators stopped at once; look for what they share"
        " (storage, network, a power or clock limit) rather than at each of them.",
    )


def _frozen(stuck: Stuck, comm: int, names: Names) -> FrozenComm:
    layout = stuck.history.layout
    reference = names.reference(comm)
    awaited, waiting = stuck.rows_of(comm, stuck.awaited), stuck.rows_of(comm, stuck.waiting)
    return FrozenComm(
        hash=reference.hash,
        size=reference.size,
        role=reference.role,
        operation=next_operation(stuck, comm)[0],
        frozen_for_s=round(stuck.frozen_s(comm), 3),
        waiting=tuple(layout.rank[waiting].tolist()),
        awaited=tuple(layout.rank[awaited].tolist()),
    )
