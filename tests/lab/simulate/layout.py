"""Parallel layouts: which ranks form which communicators, as the frameworks of the field build them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

GPUS_PER_NODE = 8

TO_NEXT, FROM_PREV, TO_PREV, FROM_NEXT = "to_next", "from_prev", "to_prev", "from_next"
"""Ends of the point-to-point channels between pipeline stages."""


@dataclass(frozen=True)
class Comm:
    """One communicator, or (`visible` False) a point-to-point channel inside one, which RAS does not know of."""

    role: str
    ranks: tuple[int, ...]
    visible: bool = True


@dataclass(frozen=True)
class Layout:
    """`kind` is ddp, fsdp, hsdp, islands, megatron, moe or rl; its sizes multiply to the number of ranks."""

    kind: str
    ranks: int
    tp: int = 1
    pp: int = 1
    ep: int = 1
    gpus_per_node: int = GPUS_PER_NODE
    world: bool = True
    late: bool = False
    """There is a second communicator of everybody, made while the job runs."""

    @property
    def dp(self) -> int:
        """Data-parallel size."""
        return self.ranks // (self.tp * self.pp)

    def stage(self, rank: int) -> int:
        """Pipeline stage of a rank: pipeline is the slowest dimension, tensor the fastest."""
        return rank // (self.tp * self.dp)

    def node(self, rank: int) -> int:
        """Number of the node that a rank runs on."""
        return rank // self.gpus_per_node

    @property
    def nodes(self) -> int:
        """How many nodes the job has."""
        return -(-self.ranks // self.gpus_per_node)


@dataclass
class Mesh:
    """The communicators of a layout. A *slot* is one member of one communicator, numbered through all of them."""

    layout: Layout
    comms: list[Comm] = field(default_factory=list)
    base: list[int] = field(default_factory=list)
    """First slot of each communicator."""
    slots: dict[str, list[int]] = field(default_factory=dict)
    """Role -> for each rank its slot there, -1 where it has none."""

    def add(self, role: str, ranks: list[int], visible: bool = True, as_roles: tuple[str, ...] = ()) -> None:
        """One more communicator; `as_roles` gives each member its own name for it (the ends of a channel)."""
        base = self.base[-1] + len(self.comms[-1].ranks) if self.comms else 0
        self.comms.append(Comm(role, tuple(ranks), visible))
        self.base.append(base)
        for index, rank in enumerate(ranks):
            name = as_roles[index] if as_roles else role
            self.slots.setdefault(name, [-1] * self.layout.ranks)[rank] = base + index

    @property
    def size(self) -> int:
        """Number of slots."""
        return self.base[-1] + len(self.comms[-1].ranks)

    def comm_of_slot(self) -> np.ndarray:
        """(slots,) communicator number."""
        return np.repeat(np.arange(len(self.comms)), [len(comm.ranks) for comm in self.comms])

    def rank_of_slot(self) -> np.ndarray:
        """(slots,) global rank."""
        return np.concatenate([np.asarray(comm.ranks) for comm in self.comms])

    def has(self, role: str) -> bool:
        """Whether any rank has that role."""
        return role in self.slots

    def comm(self, role: str, rank: int) -> int:
        """Number of the communicator that `rank` calls `role`; KeyError or ValueError where it has none."""
        slot = self.slots[role][rank]
        if slot < 0:
            raise ValueError(f"rank {rank} has no {role}")
        return int(np.searchsorted(self.base, slot, side="right")) - 1


def mesh(layout: Layout) -> Mesh:
    """All communicators of a layout; groups of one rank are left out, as NCCL does not count them."""
    made = Mesh(layout)
    if layout.world:
        made.add("world", list(range(layout.ranks)))
    {"ddp": _flat, "fsdp": _flat, "hsdp": _hybrid, "islands": _islands, "megatron": _megatron, "moe": _moe, "rl": _rl}[
        layout.kind
    ](made)
    if layout.late:
        made.add("late", list(range(layout.ranks)))
    return made


def _flat(made: Mesh) -> None:
    """Data parallel over everything: the default process group is the only one."""


def _groups(made: Mesh, role: str, groups: list[list[int]]) -> None:
    for group in groups:
        if len(group) > 1:
            made.add(role, group)


def _hybrid(made: Mesh) -> None:
    layout = made.layout
    shard = min(layout.gpus_per_node, layout.ranks // 2)
    _groups(made, "shard", [list(range(first, first + shard)) for first in range(0, layout.ranks, shard)])
    _groups(made, "replicate", [list(range(index, layout.ranks, shard)) for index in range(shard)])


def _islands(made: Mesh) -> None:
    """Independent replicas, which have no communicator in common."""
    layout = made.layout
    size = min(layout.gpus_per_node, layout.ranks // 2)
    _groups(made, "shard", [list(range(first, first + size)) for first in range(0, layout.ranks, size)])


def _at(layout: Layout, t: int, d: int, p: int) -> int:
    return t + layout.tp * (d + layout.dp * p)


def _megatron(made: Mesh) -> None:
    layout = made.layout
    tp, dp, pp = range(layout.tp), range(layout.dp), range(layout.pp)
    _groups(made, "tp", [[_at(layout, t, d, p) for t in tp] for p in pp for d in dp])
    _groups(made, "dp", [[_at(layout, t, d, p) for d in dp] for p in pp for t in tp])
    if layout.pp > 1:
        chains = [[_at(layout, t, d, p) for p in pp] for d in dp for t in tp]
        _groups(made, "pp", chains)
        if layout.pp > 2:
            _groups(made, "embed", [[chain[0], chain[-1]] for chain in chains])
        _groups(made, "mp", [[_at(layout, t, d, p) for p in pp for t in tp] for d in dp])
        for chain in chains:
            for lower, upper in zip(chain, chain[1:]):
                made.add("channel", [lower, upper], visible=False, as_roles=(TO_NEXT, FROM_PREV))
                made.add("channel", [upper, lower], visible=False, as_roles=(TO_PREV, FROM_NEXT))


def _moe(made: Mesh) -> None:
    _megatron(made)
    layout = made.layout
    ep = layout.ep
    for p in range(layout.pp):
        for t in range(layout.tp):
            line = [_at(layout, t, d, p) for d in range(layout.dp)]
            _groups(made, "ep", [line[first : first + ep] for first in range(0, len(line), ep)])
            _groups(made, "edp", [line[index::ep] for index in range(ep)])


def _rl(made: Mesh) -> None:
    """The first half trains, data parallel; the second half generates, in tensor-parallel engines."""
    layout = made.layout
    half = layout.ranks // 2
    made.add("dp", list(range(half)))
    _groups(made, "tp", [list(range(first, first + layout.tp)) for first in range(half, layout.ranks, layout.tp)])


def sample(rng: np.random.Generator, ranks: int, kinds: tuple[str, ...] = ()) -> Layout:
    """A layout of one of `kinds` (all but rl by default) that a job of that many ranks (a power of two from 8) might have."""
    kind = str(rng.choice(kinds or ("ddp", "fsdp", "hsdp", "megatron", "megatron", "megatron", "moe")))
    per_node = GPUS_PER_NODE if ranks > GPUS_PER_NODE else int(rng.choice([4, 8]))
    if kind in ("ddp", "fsdp", "hsdp"):
        return Layout(kind, ranks, gpus_per_node=per_node)
    if kind == "islands":
        return Layout(kind, ranks, gpus_per_node=per_node, world=False)
    if kind == "rl":
        return Layout(kind, ranks, tp=int(rng.choice([2, 4] if ranks >= 16 else [2])), gpus_per_node=per_node)
    tp = int(rng.choice([size for size in (1, 2, 4, 8) if size * 4 <= ranks]))
    pp = int(rng.choice([size for size in (1, 2, 4, 8) if tp * size * 2 <= ranks]))
    if tp == pp == 1:
        tp = 2
    dp = ranks // (tp * pp)
    ep = 1
    if kind == "moe":
        ep = int(rng.choice([size for size in (2, 4, 8) if size <= dp]))
    return Layout(kind, ranks, tp=tp, pp=pp, ep=ep, gpus_per_node=per_node)
