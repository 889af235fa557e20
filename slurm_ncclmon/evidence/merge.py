"""All ranks' stacks as a few groups, the odd ones first. Pure, and linear in the number of processes.

The idea is that of LLNL's STAT (Arnold et al., "Stack Trace Analysis for Large Scale Debugging", IPDPS 2007): in a stuck job most
processes stand at the same place, so equal stacks are one group with a folded set of ranks. As in ByteRobust (Wan et al., 2025)
the largest group is taken as the waiting majority and the others are held against it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from slurm_ncclmon.evidence import normalise, phases
from slurm_ncclmon.evidence.model import Frame, NodeReport, ProcessReport
from slurm_ncclmon.evidence.outliers import caution, divergence, score
from slurm_ncclmon.evidence.phases import main_thread

MOST_GROUPS = 12
"""With more groups than this, stacks are compared more coarsely: without line numbers, then by the place of waiting."""
LEVELS = ("stacks with line numbers", "stacks without line numbers", "phase and innermost own function")

Stack = tuple[Frame, ...]


@dataclass(frozen=True)
class Group:
    """Ranks that stand at the same place. `frames` are the representative's, normalised, innermost first."""

    phase: str
    frames: Stack
    size: int
    ranks: tuple[int, ...]
    """Those whose number is known, ascending."""
    nodes: tuple[str, ...]
    node: str
    process: ProcessReport | None
    """The representative, on `node`: the lowest rank; None for ranks that have no process any more."""
    moved: int = 0
    """How many stood elsewhere at the second look, of `looked_twice`."""
    looked_twice: int = 0
    behind: tuple[int, ...] = ()
    """Its ranks that other evidence names as behind."""
    score: float = 0.0
    reasons: tuple[str, ...] = ()
    divergence: str = ""


@dataclass(frozen=True)
class Merged:
    """The whole job. `groups` are ordered, the odd ones first, the majority last."""

    groups: tuple[Group, ...]
    ranks: int
    stacks: int
    """Ranks that have a stack."""
    nodes: int
    silent: tuple[NodeReport, ...] = ()
    """Nodes that did not answer."""
    level: int = 0
    """Index into LEVELS: how finely stacks were compared."""
    caution: str = ""
    """A sentence against reading too much into the stacks; empty when there is none."""

    @property
    def majority(self) -> Group | None:
        """The largest group; None when there are no ranks."""
        return max(self.groups, key=lambda group: group.size, default=None)


@dataclass
class _Pile:
    """A group in the making."""

    phase: str
    frames: Stack
    ranks: list[int] = field(default_factory=list)
    nodes: dict[str, None] = field(default_factory=dict)
    size: int = 0
    moved: int = 0
    looked_twice: int = 0
    best: tuple[int, str, ProcessReport | None] | None = None

    def add(self, node: str, process: ProcessReport) -> None:
        self.size += 1
        self.nodes[node] = None
        if process.rank is not None:
            self.ranks.append(process.rank)
        if process.moved is not None:
            self.looked_twice += 1
            self.moved += process.moved
        place = process.rank if process.rank is not None else 1 << 40
        if self.best is None or place < self.best[0]:
            self.best = (place, node, process)
            self.frames = _stack_of(process)

    def absorb(self, other: _Pile) -> None:
        self.size += other.size
        self.nodes.update(other.nodes)
        self.ranks += other.ranks
        self.moved += other.moved
        self.looked_twice += other.looked_twice
        if other.best and (self.best is None or other.best[0] < self.best[0]):
            self.best, self.frames = other.best, other.frames

    def group(self, behind: frozenset[int]) -> Group:
        _, node, process = self.best or (0, next(iter(self.nodes), ""), None)
        ranks = tuple(sorted(self.ranks))
        return Group(
            phase=self.phase,
            frames=self.frames,
            size=self.size,
            ranks=ranks,
            nodes=tuple(self.nodes),
            node=node,
            process=process,
            moved=self.moved,
            looked_twice=self.looked_twice,
            behind=tuple(sorted(behind.intersection(ranks))) if behind else (),
        )


def merge(nodes: Sequence[NodeReport], behind: Iterable[int] = ()) -> Merged:
    """Groups of all ranks of the nodes. `behind` are ranks that other evidence (RAS, the probe) names: they come first."""
    fine = _pile_up(nodes)
    piles, level = fine, 0
    while len(piles) > MOST_GROUPS and level < len(LEVELS) - 1:
        level += 1
        piles = _coarser(fine, _KEYS[level])
    groups = [pile.group(frozenset(behind)) for pile in [*piles, *_exited(nodes)]]
    total = sum(group.size for group in groups)
    return Merged(
        groups=tuple(_ordered(groups, total)),
        ranks=total,
        stacks=sum(pile.size for pile in fine if pile.frames),
        nodes=len(nodes),
        silent=tuple(node for node in nodes if not node.answered),
        level=level,
        caution=caution(groups),
    )


def _pile_up(nodes: Sequence[NodeReport]) -> list[_Pile]:
    """The finest groups. Processes mostly share few stack objects (wire.py), so those are normalised once each."""
    known: dict[int, Stack] = {}
    piles: dict[tuple[str, Stack], _Pile] = {}
    by_object: dict[tuple[str, int], _Pile] = {}
    for node in nodes:
        for process in node.processes:
            if process.role != "rank":
                continue
            main = main_thread(process.threads)
            shortcut = (process.phase, id(main.frames) if main else 0)
            pile = by_object.get(shortcut)
            if pile is None:
                frames = main.frames if main else ()
                key = known.setdefault(id(frames), _python(normalise.stack(frames)))
                pile = piles.setdefault((process.phase, key), _Pile(process.phase, ()))
                by_object[shortcut] = pile
            pile.add(node.node, process)
    return list(piles.values())


def _stack_of(process: ProcessReport) -> Stack:
    main = main_thread(process.threads)
    return normalise.stack(main.frames) if main else ()


def _python(frames: Stack) -> Stack:
    """What stacks are compared by: a loop in C is caught at another place each time, its Python line is the same."""
    return tuple(frame for frame in frames if not frame.native) or frames


def _without_lines(pile: _Pile) -> object:
    return (pile.phase, tuple((frame.function, frame.file) for frame in _python(pile.frames)))


def _wait_site(pile: _Pile) -> object:
    frames = _python(pile.frames)
    own = next((frame for frame in frames if "/" not in frame.file or "distributed" in frame.file), None)
    own = own or (frames[0] if frames else None)
    return (pile.phase, own and (own.function, own.file))


_KEYS: tuple[Callable[[_Pile], object], ...] = (id, _without_lines, _wait_site)


def _coarser(piles: Iterable[_Pile], key: Callable[[_Pile], object]) -> list[_Pile]:
    joined: dict[object, _Pile] = {}
    for pile in piles:
        joined.setdefault(key(pile), _Pile(pile.phase, ())).absorb(pile)
    return list(joined.values())


def _exited(nodes: Iterable[NodeReport]) -> list[_Pile]:
    """Tasks without a process: a group of their own, for they are the ones that nobody can dump."""
    pile = _Pile(phases.EXITED, ())
    for node in nodes:
        if node.exited:
            pile.ranks += node.exited
            pile.size += len(node.exited)
            pile.nodes[node.node] = None
    return [pile] if pile.size else []


def _ordered(groups: list[Group], total: int) -> list[Group]:
    if not groups:
        return []
    majority = max(groups, key=lambda group: (group.size, -_lowest(group)))
    judged = []
    for group in groups:
        points, reasons = score(group, majority, total)
        parting = "" if group is majority else divergence(group.frames, majority.frames)
        judged.append(replace(group, score=points, reasons=reasons, divergence=parting))
    return sorted(
        judged, key=lambda group: (-group.score, _lowest(group), group.phase, group.frames and group.frames[0].function)
    )


def _lowest(group: Group) -> int:
    return group.ranks[0] if group.ranks else 1 << 40
