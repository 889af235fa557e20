"""A step in which nothing moves and everybody has launched the same: a hang inside a collective looks exactly like a pause.

Counts alone never tell one from the other. What does is a score over other evidence, each line a sentence:
stacks that wait in collectives, the same in two samples; GPUs that spin at low power; hardware events; no storage traffic and
silent network counters. Less than two points, and the verdict stays a suspicion that says why.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np

from slurm_ncclmon.analyse.draft import Draft
from slurm_ncclmon.analyse.facts import Facts
from slurm_ncclmon.analyse.hardware import with_failed_gpus
from slurm_ncclmon.analyse.names import Names
from slurm_ncclmon.analyse.stacks import busy, place, same_stack, works
from slurm_ncclmon.analyse.wording import ranks_phrase
from slurm_ncclmon.config import Settings
from slurm_ncclmon.detect.history import History
from slurm_ncclmon.detect.shape import Shape
from slurm_ncclmon.durations import format_duration
from slurm_ncclmon.evidence.model import GpuReport, NodeReport
from slurm_ncclmon.evidence.phases import COLLECTIVE, GPU, LABELS, NO_STACK, P2P
from slurm_ncclmon.verdict import FrozenComm

MOST = 0.9
"""Share of ranks that speaks for all."""
SPINNING_UTILISATION, SPINNING_POWER, WORKING_POWER = 95.0, 0.4, 0.7
"""A GPU that waits inside NCCL is fully utilised at a fraction of its power limit; one at work is not."""
NEEDED = 2
MOST_LISTED = 256
"""Communicators that are listed one by one."""
_INSIDE = frozenset({COLLECTIVE, P2P})


@dataclass(frozen=True)
class Score:
    """Points for a hang, and the sentences behind them. `core`: at least one of them is about waiting inside NCCL or hardware."""

    points: int = 0
    core: bool = False
    lines: tuple[str, ...] = ()

    def add(self, points: int, line: str, core: bool = False) -> Score:
        """With one more line."""
        return Score(self.points + points, self.core or core, (*self.lines, line))


def symmetric_draft(
    history: History, shape: Shape, names: Names, before: Facts, now: float, settings: Settings, progress_since: float
) -> Draft | None:
    """A draft when no process of the step has launched anything for a while; None while anybody moves. `progress_since`: last
    sign of progress from elsewhere (probe frames)."""
    layout, members = history.layout, history.members
    counted = shape.running & (shape.highest > 0)[layout.comm_of] if len(layout.comms) else shape.running
    if not counted.any():
        return None
    since = max(float(members.since[members.known].max()), progress_since)
    comm = _main(history, shape)
    key = layout.comms[comm]
    draft = Draft(
        kind="symmetric",
        comm=names.reference(comm),
        operation=None,
        round=int(shape.highest[comm]),
        culprits=(),
        confidence=0.2,
        frozen_s=now - since,
        clock_s=now - since,
        evidence=(
            f"No rank has launched anything for {format_duration(now - since)}, and on every communicator all have launched"
            " the same"
            f" ({int(shape.highest[comm])} operations on the largest).",
        ),
        keys=frozenset(layout.comms),
        processes=frozenset(),
        not_decidable=(
            "From counts alone: whether all ranks hang inside a collective, or pause outside of one (checkpoint,"
            " evaluation, compilation,"
            " CUDA graphs, send/recv); counts are equal in all of these.",
        ),
        victims=int(layout.processes_in(np.flatnonzero(shape.highest > 0)).sum()),
        frozen=tuple(
            _resting(history, names, comm, now) for comm in np.flatnonzero(shape.highest > 0)[:MOST_LISTED].tolist()
        ),
        pause=(key, "all"),
        confirmable=False,
        young=bool(history.comms.advances[comm] == 0 and history.comms.lowest[comm] < 8),
    )
    return draft if names.facts.evidence is None else _weighed(draft, names, before, settings)


def _resting(history: History, names: Names, comm: int, now: float) -> FrozenComm:
    reference = names.reference(comm)
    since = float(history.members.since[history.layout.rows(comm)].max())
    return FrozenComm(reference.hash, reference.size, reference.role, None, round(now - since, 3))


def _main(history: History, shape: Shape) -> int:
    """The communicator to speak of: the largest that counts anything."""
    layout = history.layout
    comms: list[int] = np.flatnonzero(shape.highest > 0).tolist()
    return max(comms, key=lambda comm: (int(layout.size[comm]), layout.comms[comm]))


def _weighed(draft: Draft, names: Names, before: Facts, settings: Settings) -> Draft:
    facts = names.facts
    failed = with_failed_gpus(draft, names)
    if failed is not None:
        return failed
    outliers = _outliers(facts)
    if outliers:
        return _outlier_draft(draft, names, outliers, settings)
    score = _stacks(facts, before)
    score = _gpus(score, facts)
    score = _nodes(score, facts, before)
    if not score.core:
        return replace(draft, evidence=(*draft.evidence, *score.lines), excused=score.points <= 0 or not score.core)
    return replace(
        draft,
        confidence=min(0.5, 0.15 + 0.1 * max(score.points, 0)),
        evidence=(*draft.evidence, *score.lines),
        confirmable=score.points >= NEEDED,
        excused=score.points <= 0,
        not_decidable=(
            "Which rank or link is at fault, and whether arguments of the collective differ between ranks: all counts and"
            " stacks agree."
            " Probe frames tell it, or a test of the nodes (nccl-tests on half of them, then on half of those).",
        ),
    )


def _stacks(facts: Facts, before: Facts) -> Score:
    reports = [fact.report for process in facts.known() if (fact := facts.of(process)) is not None]
    known = [report for report in reports if report.phase != NO_STACK]
    score = Score()
    working = [report for report in known if busy(report)]
    if working:
        ranks = [report.rank if report.rank is not None else report.pid for report in working]
        return score.add(
            -2, f"{ranks_phrase(ranks).capitalize()}: {LABELS[working[0].phase]} ({place(working[0])}), as in a pause."
        )
    inside = [report for report in known if report.phase in _INSIDE]
    if known and len(known) >= MOST * len(reports) and len(inside) >= MOST * len(known):
        score = score.add(
            1, f"The main threads of {len(inside)} of {len(known)} ranks wait in a collective or send/recv.", True
        )
        pairs = [(fact.report, old.report) for p in facts.known() if (fact := facts.of(p)) and (old := before.of(p))]
        if (
            before.evidence is not facts.evidence
            and pairs
            and sum(same_stack(a, b) for a, b in pairs) >= MOST * len(pairs)
        ):
            score = score.add(1, "They stand at the same place as in the sample before.")
    elif known:
        phases = Counter(LABELS.get(report.phase, report.phase) for report in known)
        score = score.add(0, "Main threads: " + ", ".join(f"{n} {phase}" for phase, n in sorted(phases.items())) + ".")
    return score


def _gpus(score: Score, facts: Facts) -> Score:
    gpus = [gpu for node in _nodes_of(facts) for gpu in node.gpus if gpu.pids]
    measured = [gpu for gpu in gpus if gpu.utilisation is not None and gpu.power_w and gpu.power_limit_w]
    if not measured:
        return score
    if sum(_share(gpu) >= WORKING_POWER for gpu in measured) * 2 > len(measured):
        return score.add(-9, "Most GPUs draw the power of work: they compute, whatever the counts say (CUDA graphs).")
    spinning = [
        gpu for gpu in measured if (gpu.utilisation or 0.0) >= SPINNING_UTILISATION and _share(gpu) <= SPINNING_POWER
    ]
    if len(spinning) >= MOST * len(measured):
        return score.add(
            1, f"{len(spinning)} of {len(measured)} GPUs are busy at little power, as NCCL's waiting kernels are.", True
        )
    return score


def _share(gpu: GpuReport) -> float:
    return (gpu.power_w or 0.0) / (gpu.power_limit_w or 1.0)


def _nodes(score: Score, facts: Facts, before: Facts) -> Score:
    nodes = _nodes_of(facts)
    told = [(node.node, event) for node in nodes for event in node.events]
    if told:
        score = score.add(1, f"Hardware events: {'; '.join(f'{node}: {event}' for node, event in told[:3])}.", True)
    reports = [report for node in nodes for report in node.processes if report.role == "rank"]
    measured = [report for report in reports if report.write_rate is not None]
    if measured and not any((report.write_rate or 0.0) >= 1.0 for report in measured):
        score = score.add(1, "No rank writes to storage.")
    elif any(works(report) and (report.write_rate or 0.0) >= 1.0 for report in measured):
        score = score.add(-1, "Some rank writes to storage.")
    earlier = {node.node: node.counters for node in _nodes_of(before)}
    pairs = [(node.counters, earlier[node.node]) for node in nodes if node.counters and earlier.get(node.node)]
    if before.evidence is not facts.evidence and pairs and all(now == then for now, then in pairs):
        score = score.add(1, "The network counters of all nodes stand still.")
    return score


def _nodes_of(facts: Facts) -> list[NodeReport]:
    return [node for node in facts.evidence.nodes if node.answered] if facts.evidence is not None else []


# -- one rank elsewhere


def _outliers(facts: Facts) -> list[int]:
    """Processes that are outside of all waiting while nearly all others wait inside NCCL: at most a tenth, or one."""
    phases = {p: phase for p, phase in facts.phases(facts.known()).items() if phase != NO_STACK}
    outside = [process for process, phase in phases.items() if phase not in _INSIDE and phase != GPU]
    inside = sum(phase in _INSIDE for phase in phases.values())
    few = len(outside) == 1 or len(outside) <= (1 - MOST) * len(phases)
    return outside if few and inside >= 2 and inside + len(outside) == len(phases) else []


def _outlier_draft(draft: Draft, names: Names, outliers: list[int], settings: Settings) -> Draft:
    """All wait in something uncounted but few, who are elsewhere: they are the ones waited for."""
    facts = names.facts
    told = [fact for process in outliers if (fact := facts.of(process)) is not None]
    ranks = [fact.report.rank if fact.report.rank is not None else fact.report.pid for fact in told]
    label = LABELS[told[0].report.phase]
    held = None
    if any(busy(fact.report) for fact in told) and draft.clock_s < settings.phase_limit:
        held = f"{ranks_phrase(ranks)}: {label}; it will be confirmed after {format_duration(settings.phase_limit)} at the latest"
    why = f"by its stack {label}, while all other ranks wait in collectives or send/recv"
    return replace(
        draft,
        kind="not_entered",
        culprits=tuple(names.culprit(names.row_of(process), why) for process in outliers),
        processes=frozenset(outliers),
        confidence=0.6,
        evidence=(
            *draft.evidence,
            f"{ranks_phrase(ranks).capitalize()}: {label} at {place(told[0].report)}; all others wait inside NCCL.",
        ),
        not_decidable=(
            "Which operation is waited for: RAS does not count it (send/recv, all-to-all, or one inside a CUDA graph).",
        ),
        victims=draft.victims - len(outliers),
        confirmable=True,
        round=None,
        held=held,
    )
