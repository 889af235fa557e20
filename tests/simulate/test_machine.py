"""The machine blocks as NCCL does: what each rank has launched in the end follows from who waits for whom."""

from __future__ import annotations

import numpy as np
import pytest

from tests.lab.simulate.layout import Layout, Mesh, mesh, sample
from tests.lab.simulate.machine import Harm, Machine, Trace, launches
from tests.lab.simulate.steps import (
    ALL_GATHER,
    ALL_REDUCE,
    Program,
    Style,
    call,
    compute,
    launch,
    step,
    stop,
    sync,
    wait,
)


def run(made: Mesh, programs: list[Program], ahead: int = 64, harm: Harm | None = None) -> Trace:
    count = made.layout.ranks
    return Machine(made, programs, [0.0] * count, [1.0] * count, ahead, harm).run()


def launched(trace: Trace, role: str) -> list[int]:
    """How many collectives each rank has launched on its communicator of that role."""
    _, slot, _ = launches(trace)
    counts = np.bincount(slot, minlength=trace.mesh.size)
    return [int(counts[s]) for s in trace.mesh.slots[role]]


def test_a_cascade_from_one_rank_to_everybody():
    # tp {01}{23}{45}{67}, dp {02}{13}{46}{57}; rank 5 never comes to its tensor-parallel collective
    made = mesh(Layout("megatron", 8, tp=2, pp=2))
    usual = [call("tp", ALL_REDUCE), sync(), call("dp", ALL_REDUCE), sync(), call("world", ALL_REDUCE), sync()]
    programs = [usual] * 5 + [[stop("sleep"), *usual]] + [usual] * 2
    trace = run(made, programs)
    assert trace.stuck
    assert launched(trace, "tp") == [1, 1, 1, 1, 1, 0, 1, 1]
    assert launched(trace, "dp") == [1, 1, 1, 1, 0, 0, 1, 1]
    assert launched(trace, "world") == [1, 1, 1, 1, 0, 0, 0, 0]


def test_two_communicators_in_opposite_order_hang():
    made = mesh(Layout("hsdp", 8, gpus_per_node=4))
    usual = [call("shard", ALL_REDUCE), sync(), call("world", ALL_REDUCE), sync()]
    odd = [call("world", ALL_REDUCE), sync(), call("shard", ALL_REDUCE), sync()]
    trace = run(made, [odd] + [usual] * 7)
    assert launched(trace, "shard") == [0, 1, 1, 1, 1, 1, 1, 1]
    assert launched(trace, "world") == [1, 0, 0, 0, 1, 1, 1, 1]


def test_a_host_runs_ahead_of_its_gpu_only_so_far():
    made = mesh(Layout("ddp", 8))
    programs: list[Program] = [[launch("world", ALL_REDUCE)] * 100 + [wait("world"), sync()]] * 7 + [[stop("sleep")]]
    assert launched(run(made, programs, ahead=10), "world")[0] == 100  # launches alone do not fill the queue of kernels
    programs = [[call("world", ALL_REDUCE), compute()] * 50] * 7 + [[stop("sleep")]]
    assert launched(run(made, programs, ahead=10), "world")[0] == 5


def test_an_operation_that_not_all_call_never_ends():
    made = mesh(Layout("ddp", 8))
    usual, odd = [call("world", ALL_REDUCE), sync()], [call("world", ALL_GATHER), sync()]
    trace = run(made, [odd] + [usual] * 7)
    assert trace.stuck
    assert trace.broken == {0}
    assert trace.done == [0]


def test_a_killed_rank_launches_nothing_afterwards():
    made = mesh(Layout("ddp", 8))
    program = [compute(), call("world", ALL_REDUCE), sync()] * 4
    trace = run(made, [program] * 8, harm=Harm({3: 2.5}, {3: 2.5}))
    times, slot, _ = launches(trace)
    assert times[slot == 3].max() <= 2.5
    assert trace.stuck


@pytest.mark.parametrize("seed", range(30))
def test_every_layout_trains(seed: int):
    rng = np.random.default_rng(seed)
    layout = sample(rng, int(rng.choice([8, 16, 32, 64])), () if seed % 4 else ("rl",))
    made = mesh(layout)
    style = Style(layers=int(rng.integers(1, 4)), microbatches=int(rng.integers(1, 6)), blocking=bool(seed % 3 == 0))
    trace = run(made, [step(made, style, rank) for rank in range(layout.ranks)], ahead=int(rng.choice([4, 20, 200])))
    assert not trace.stuck
    counts = np.zeros((made.size, 5))
    _, slot, operation = launches(trace)
    np.add.at(counts, (slot, operation), 1)
    for base, comm in zip(made.base, made.comms):
        members = counts[base : base + len(comm.ranks)]
        assert (members == members[0]).all(), f"{comm.role}: a step leaves the members uneven"
