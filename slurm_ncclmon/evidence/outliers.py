"""How odd a group of ranks is beside the majority, and what must not be read into stacks. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from slurm_ncclmon.evidence import phases
from slurm_ncclmon.evidence.model import Frame

if TYPE_CHECKING:
    from slurm_ncclmon.evidence.merge import Group

BEHIND, FROZEN, ELSEWHERE, BLIND, OTHER_PLACE, RARE = 1000.0, 500.0, 200.0, 100.0, 50.0, 10.0
"""Points: each kind of oddity outweighs all smaller ones together."""

_FROZEN = frozenset({phases.STOPPED, phases.TRACED, phases.KERNEL, phases.EXITED})


def score(group: Group, majority: Group, total: int) -> tuple[float, tuple[str, ...]]:
    """Points and the reasons for them; the majority itself gets none but those for what is wrong with it in any case."""
    points, reasons = 0.0, []
    if group.behind:
        points += BEHIND
        reasons.append("behind, by other evidence")
    if group.phase in _FROZEN:
        points += FROZEN
        reasons.append(phases.LABELS[group.phase])
    elif group.phase == phases.NO_STACK:
        points += BLIND
        reasons.append("no stack")
    elif group.phase not in phases.WAITING and majority.phase in phases.WAITING and group is not majority:
        points += ELSEWHERE
        reasons.append("does something else while the majority waits")
    elif group is not majority and group.phase in phases.WAITING:
        points += OTHER_PLACE
        reasons.append("waits at another place than the majority")
    if group is not majority and total:
        points += RARE * (1 - group.size / total)
    return round(points, 3), tuple(reasons)


def divergence(own: Sequence[Frame], others: Sequence[Frame]) -> str:
    """Where two stacks part: the deepest function that both are in, and where each goes on from there."""
    mine = [frame for frame in reversed(own) if not frame.native]
    theirs = [frame for frame in reversed(others) if not frame.native]
    depth = 0
    while depth < min(len(mine), len(theirs)) and _same(mine[depth], theirs[depth]):
        depth += 1
        if mine[depth - 1].line != theirs[depth - 1].line:
            break
    if depth == 0:
        return ""
    here, there = mine[depth - 1], theirs[depth - 1]
    if here.line == there.line and mine == theirs:
        return ""
    if here.line == there.line:
        return f"{here.function} ({here.file}:{here.line}): {_next(mine, depth)} here, {_next(theirs, depth)} there"
    return f"{here.function} ({here.file}): line {here.line} here, line {there.line} there"


def _next(frames: Sequence[Frame], depth: int) -> str:
    return frames[depth].function if depth < len(frames) else "itself"


def _same(one: Frame, other: Frame) -> bool:
    return one.function == other.function and one.file == other.file


def caution(groups: Sequence[Group]) -> str:
    """What the stacks of such groups do not show; empty when they may be taken as they are."""
    waiting = [group for group in groups if group.phase in phases.WAITING]
    if not groups or len(waiting) < len(groups):
        return ""
    if len(groups) == 1:
        return "All ranks wait at the same place: the stacks name no rank. Suspect the network or a GPU."
    if all(group.phase == phases.GPU for group in groups):
        return (
            "All ranks wait for their GPUs, at different places: their launch queues are full. These stacks show victims; "
            "the cause is in what the GPUs run."
        )
    return "All ranks wait, at different places: the majority is a reference, not innocent, nor are the others guilty by this."
