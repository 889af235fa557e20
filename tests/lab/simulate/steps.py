"""What a rank does in one training step: its host's program, as the frameworks write it.

An item is a tuple (kind, role, operation, duration, label). Durations are in units of the step's own time (job.py scales them).
"""

from __future__ import annotations

from typing import Optional

from tests.lab.simulate.layout import FROM_NEXT, FROM_PREV, TO_NEXT, TO_PREV, Layout, Mesh

COMPUTE, LAUNCH, CALL, WAIT, SYNC, HOST, STOP, INIT, CAPTURED = range(9)
"""COMPUTE: a kernel. LAUNCH: a collective that runs beside what follows. CALL: a collective that the compute stream waits for.
WAIT: the compute stream waits for the communicator. SYNC: the host waits for the GPU. HOST: the host works. STOP: the host goes
no further. INIT: all members must come before any goes on. CAPTURED: no work, the label tells what follows (graph replay)."""

BROADCAST, REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE = range(5)
"""As RAS counts them (ras/report.py)."""
UNCOUNTED = -1

Item = tuple[int, Optional[str], int, float, str]
Program = list[Item]

WAIT_LABELS = ("item", "barrier", "collective", "synchronize")
"""What a host that waits for its GPU is called by its stack."""


def compute(duration: float = 1.0) -> Item:
    """A kernel on the compute stream."""
    return (COMPUTE, None, UNCOUNTED, duration, "")


def launch(role: str, operation: int, label: str = "") -> Item:
    """An asynchronous collective."""
    return (LAUNCH, role, operation, 0.05, label)


def call(role: str, operation: int, label: str = "") -> Item:
    """A collective whose result the next kernel needs."""
    return (CALL, role, operation, 0.05, label)


def wait(role: str) -> Item:
    """The compute stream waits for all collectives so far on a communicator."""
    return (WAIT, role, UNCOUNTED, 0.0, "")


def sync(label: str = "item") -> Item:
    """The host waits until its GPU has done everything."""
    return (SYNC, None, UNCOUNTED, 0.0, label)


def host(duration: float, label: str = "dataload") -> Item:
    """Work on the CPU."""
    return (HOST, None, UNCOUNTED, duration, label)


def stop(label: str) -> Item:
    """The host never gets past this."""
    return (STOP, None, UNCOUNTED, 0.0, label)


class Style:
    """How this job's training script is written: the choices that its step programs depend on."""

    def __init__(
        self,
        layers: int = 2,
        microbatches: int = 2,
        buckets: int = 2,
        world_each_step: bool = True,
        distributed_optimizer: bool = True,
        sequence_parallel: bool = False,
        blocking: bool = False,
    ) -> None:
        self.layers = layers
        self.microbatches = microbatches
        self.buckets = buckets
        self.world_each_step = world_each_step
        self.distributed_optimizer = distributed_optimizer
        self.sequence_parallel = sequence_parallel
        self.blocking = blocking
        """TORCH_NCCL_BLOCKING_WAIT: the host waits for every collective that it needs."""


def step(mesh: Mesh, style: Style, rank: int) -> Program:
    """One step of a rank. Ranks of one pipeline stage (or half) get equal programs."""
    layout = mesh.layout
    build = {"ddp": _ddp, "fsdp": _fsdp, "hsdp": _hsdp, "islands": _islands, "rl": _rl}.get(layout.kind, _pipeline)
    items = [item for item in build(layout, style, rank) if item[1] is None or mesh.has(item[1])]
    items = [item for item in items if item[1] is None or mesh.slots[item[1]][rank] >= 0]
    return _blocking(items) if style.blocking else items


def _blocking(items: Program) -> Program:
    """After each collective that is needed at once, the host waits."""
    made: Program = []
    for item in items:
        made.append(item)
        if item[0] == CALL:
            made.append(sync("collective"))
    return made


def _ddp(_layout: Layout, style: Style, _rank: int) -> Program:
    items = [host(0.05), compute(style.layers)]
    for _ in range(style.buckets):
        items += [compute(), launch("world", ALL_REDUCE)]
    return [*items, wait("world"), compute(0.2), sync("item")]


def _sharded(role: str, style: Style) -> Program:
    items = [host(0.05)]
    for _ in range(style.layers):
        items += [call(role, ALL_GATHER), compute()]
    for _ in range(style.layers):
        items += [call(role, ALL_GATHER), compute(2.0), launch(role, REDUCE_SCATTER)]
    return [*items, wait(role)]


def _fsdp(_layout: Layout, style: Style, _rank: int) -> Program:
    return [*_sharded("world", style), call("world", ALL_REDUCE), sync("item"), compute(0.2)]


def _hsdp(_layout: Layout, style: Style, _rank: int) -> Program:
    items = [*_sharded("shard", style), launch("replicate", ALL_REDUCE), wait("replicate")]
    return [*items, *_world(style), compute(0.2), sync("item")]


def _islands(_layout: Layout, style: Style, _rank: int) -> Program:
    return [*_sharded("shard", style), call("shard", ALL_REDUCE), compute(0.2), sync("item")]


def _world(style: Style) -> Program:
    return [call("world", ALL_REDUCE)] if style.world_each_step else []


def _rl(layout: Layout, style: Style, rank: int) -> Program:
    if rank < layout.ranks // 2:
        items = [host(0.05), compute(style.layers)]
        for _ in range(style.buckets):
            items += [compute(), launch("dp", ALL_REDUCE)]
        items += [wait("dp"), sync("item")]
    else:
        items = [host(0.05)]
        for _ in range(style.layers * 2):
            items += [compute(0.5), call("tp", ALL_REDUCE), call("tp", ALL_GATHER)]
        items += [sync("item")]
    return [*items, call("world", BROADCAST), sync("synchronize")]


def _pipeline(layout: Layout, style: Style, rank: int) -> Program:
    """One forward, one backward: the schedule of Megatron-LM."""
    stage, last = layout.stage(rank), layout.pp - 1
    forward = ([call(FROM_PREV, UNCOUNTED)] if stage else []) + _layers(layout, style, 1.0)
    forward += [launch(TO_NEXT, UNCOUNTED)] if stage < last else []
    backward = ([call(FROM_NEXT, UNCOUNTED)] if stage < last else []) + _layers(layout, style, 2.0)
    backward += [launch(TO_PREV, UNCOUNTED)] if stage else []
    micro = max(style.microbatches, layout.pp)
    warm = min(last - stage, micro)
    items = [host(0.05), *forward * warm, *(forward + backward) * (micro - warm), *backward * warm]
    items += [wait(TO_NEXT), wait(TO_PREV)]
    return items + _gradients(layout, style) + _world(style) + [compute(0.2), sync("item")]


def _layers(layout: Layout, style: Style, duration: float) -> Program:
    items: Program = []
    for _ in range(style.layers):
        if style.sequence_parallel:
            items += [call("tp", ALL_GATHER), compute(duration), call("tp", REDUCE_SCATTER)]
        else:
            items += [compute(duration), call("tp", ALL_REDUCE)]
        if layout.kind == "moe":
            items += [call("ep", UNCOUNTED), compute(duration), call("ep", UNCOUNTED)]
    return items


def _gradients(layout: Layout, style: Style) -> Program:
    reduce = REDUCE_SCATTER if style.distributed_optimizer else ALL_REDUCE
    items = [launch("dp", reduce) for _ in range(style.buckets)]
    if layout.kind == "moe":
        items += [launch("edp", reduce), wait("edp")]
    items += [wait("dp"), call("embed", ALL_REDUCE), call("mp", ALL_REDUCE), sync("item"), compute(0.5)]
    if style.distributed_optimizer:
        items.append(call("dp", ALL_GATHER))
    return items
