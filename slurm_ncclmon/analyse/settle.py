"""Causes settled against each other: which of them is the one, and which are only its other side.

Counts do not show everything that ranks wait in (send/recv, kernels that hang after equal launches), so several places may
look as if all waiting ended there. What decides: a rank that is dead, or that its stack shows outside of NCCL, is a cause; one
that is seen waiting itself is none, however far behind. Where all are seen waiting, or the ranks at the end are all of one
communicator which launched the same, the cause lies inside and does not show in counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Callable

import numpy as np

from slurm_ncclmon.analyse.causes import Cause
from slurm_ncclmon.analyse.facts import Facts
from slurm_ncclmon.analyse.graph import Numbers
from slurm_ncclmon.detect.stuck import Stuck
from slurm_ncclmon.evidence.phases import NO_STACK, WAITING

FactsSince = Callable[[float], Facts]


def settled(stuck: Stuck, causes: list[Cause], facts_since: FactsSince) -> list[Cause]:
    """The causes that remain, the one that holds up most ranks first."""
    causes = [_only_those_outside(stuck, cause, facts_since(float(stuck.clock_since[cause.own]))) for cause in causes]
    causes = _joined_errors(stuck, causes)
    solid = [cause for cause in causes if cause.certainty == "solid"]
    shown = [cause for cause in causes if cause.certainty == "shown"]
    waiting = [cause for cause in causes if cause.certainty == "waiting"]
    if solid:
        hidden = waiting if any(_has_facts(stuck, cause, facts_since) for cause in causes) else [*shown, *waiting]
        rest = [cause for cause in shown if cause not in hidden]
        return [_absorbed(stuck, solid[0], hidden), *solid[1:], *rest]
    if shown:
        return [_absorbed(stuck, shown[0], waiting), *shown[1:]]
    return [replace(_absorbed(stuck, waiting[0], waiting[1:], blame=True), certainty="waiting")] if waiting else []


def _has_facts(stuck: Stuck, cause: Cause, facts_since: FactsSince) -> bool:
    facts = facts_since(float(stuck.clock_since[cause.own]))
    return any(facts.of(int(process)) is not None for process in cause.processes)


def _only_those_outside(stuck: Stuck, cause: Cause, facts: Facts) -> Cause:
    """`cause` with its certainty, and without those of its processes that are seen waiting while others of it are not.

    By counts alone those that are a whole communicator which launched the same are less likely than those that are not.
    `solid`: dead, failed, left or diverged, whatever stacks say, or seen outside of NCCL. `shown`: behind by counts, and nothing
    speaks against it. `waiting`: all seen waiting, or by counts alone a whole communicator that launched the same.
    """
    if cause.sort != "processes":
        return replace(cause, certainty="solid")
    hard = _hard(stuck, cause.processes)
    phases = {process: facts.phase(process) for process in cause.processes.tolist()}
    outside = [
        p
        for p, phase in phases.items()
        if p in hard or (phase is not None and phase not in WAITING and phase != NO_STACK)
    ]
    waiting = [p for p, phase in phases.items() if p not in hard and phase in WAITING]
    if outside:
        rest = np.array(sorted(set(phases) - set(waiting)), np.int64)
        return replace(cause, processes=rest, certainty="solid", demoted=np.array(waiting, np.int64))
    whole = _whole(stuck, cause.processes)
    if len(waiting) == len(phases) or len(whole) == len(phases):
        return replace(cause, certainty="waiting")
    return replace(cause, certainty="shown", processes=np.setdiff1d(cause.processes, whole), demoted=whole)


def _hard(stuck: Stuck, processes: Numbers) -> set[int]:
    """Of `processes` those that are gone, left or report an error."""
    marked = stuck.awaited & (stuck.shape.gone | stuck.shape.left | stuck.failed)
    return set(stuck.history.layout.process[marked].tolist()) & set(processes.tolist())


def _whole(stuck: Stuck, processes: Numbers) -> Numbers:
    """Those of `processes` that are in a communicator with level counts whose members are all among them."""
    layout, shape = stuck.history.layout, stuck.shape
    if len(processes) < 2:
        return processes[:0]
    mine = np.zeros(len(layout.processes.gpus), np.bool_)
    mine[processes] = True
    whole = np.logical_and.reduceat(mine[layout.process], layout.start[:-1])
    comms = np.flatnonzero(whole & shape.level & (shape.highest > 0) & (layout.size > 1))
    return np.flatnonzero(layout.processes_in(comms))


def _joined_errors(stuck: Stuck, causes: list[Cause]) -> list[Cause]:
    """One cause for all communicators in which the same processes report errors."""
    layout = stuck.history.layout
    first: dict[frozenset[int], int] = {}
    result: list[Cause] = []
    for cause in causes:
        rows = layout.rows(cause.own)
        failed = frozenset(layout.process[rows][stuck.failed[rows]].tolist())
        if cause.sort != "inside" or not failed:
            result.append(cause)
        elif failed in first:
            result[first[failed]] = _absorbed(stuck, result[first[failed]], [cause])
        else:
            first[failed] = len(result)
            result.append(cause)
    return result


def _absorbed(stuck: Stuck, cause: Cause, others: Iterable[Cause], blame: bool = False) -> Cause:
    """`cause` with all that `others` hold up; their processes are blamed too where `blame`, else told beside."""
    for other in others:
        comms = np.concatenate([cause.comms, other.comms[~np.isin(other.comms, cause.comms)]])
        processes = np.union1d(cause.processes, other.processes) if blame else cause.processes
        demoted = cause.demoted if blame else np.union1d(cause.demoted, other.processes)
        members = int(stuck.history.layout.processes_in(comms).sum())
        cause = replace(cause, comms=comms, processes=processes, demoted=demoted, members=members)
    return cause
