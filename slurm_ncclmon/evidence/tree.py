"""The call tree of all ranks, drawn as LLNL's STAT draws it: from main inwards, each branch with its ranks. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from slurm_ncclmon.evidence.merge import Group, Merged
from slurm_ncclmon.evidence.normalise import text
from slurm_ncclmon.evidence.phases import LABELS
from slurm_ncclmon.slurm.hostlist import fold_numbers


@dataclass
class Node:
    """A frame and the groups whose stacks go through it."""

    label: str
    groups: list[Group] = field(default_factory=list)
    children: dict[str, Node] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Ranks below."""
        return sum(group.size for group in self.groups)


def build(groups: Sequence[Group]) -> Node:
    """A tree of groups, which stay in their order (the odd ones first) at each branch."""
    root = Node("all ranks")
    for group in groups:
        node = root
        node.groups.append(group)
        for label in [*(text(frame) for frame in reversed(group.frames)), f"= {LABELS.get(group.phase, group.phase)}"]:
            node = node.children.setdefault(label, Node(label))
            node.groups.append(group)
    return root


def render_tree(merged: Merged) -> str:
    """Unbranched runs of frames are one node each; every line that ends a run says `count:[ranks]`."""
    root = build(merged.groups)
    lines = [f"{_set(root)} all ranks"]
    _draw(root, "", lines)
    for node in merged.silent:
        lines.append(
            f"no answer from {node.node}" + (f": {len(node.tasks)}:[{fold_numbers(node.tasks)}]" if node.tasks else "")
        )
    return "\n".join(lines) + "\n"


def _draw(node: Node, indent: str, lines: list[str]) -> None:
    children = list(node.children.values())
    for child in children:
        last = child is children[-1]
        run = [child]
        while len(run[-1].children) == 1:
            run.append(next(iter(run[-1].children.values())))
        branch, deeper = ("└─ ", "   ") if last else ("├─ ", "│  ")
        lines.append(f"{indent}{branch}{_set(child)} {run[0].label}")
        lines += [f"{indent}{deeper}{' ' * 3}{frame.label}" for frame in run[1:]]
        _draw(run[-1], indent + deeper, lines)


def _set(node: Node) -> str:
    ranks = fold_numbers(rank for group in node.groups for rank in group.ranks)
    return f"{node.size}:[{ranks}]"
