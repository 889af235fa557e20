"""Where all waiting ends, on graphs drawn by hand and at random."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_ncclmon.analyse.causes import DisjointSets
from slurm_ncclmon.analyse.graph import WaitGraph, find_sinks, strong_components
from slurm_ncclmon.config import Settings
from slurm_ncclmon.engine import Engine
from slurm_ncclmon.verdict import Verdict
from tests.detect.made import Job, parallel, run


def graph(waits: list[tuple[int, int]], misses: list[tuple[int, int]], processes: int = 8, comms: int = 8) -> WaitGraph:
    """`waits`: (process, communicator); `misses`: (communicator, process)."""
    wait = np.array(waits, np.int64).reshape(-1, 2)
    miss = np.array(misses, np.int64).reshape(-1, 2)
    stuck = np.unique(np.concatenate([wait[:, 1], miss[:, 0]]))
    return WaitGraph(processes, stuck, comms, wait[:, 0], wait[:, 1], miss[:, 0], miss[:, 1])


def test_a_chain_ends_at_its_last() -> None:
    sinks = find_sinks(graph([(0, 0), (1, 1), (2, 2)], [(0, 1), (1, 2), (2, 3)]))
    assert (sinks.processes.tolist(), sinks.comms.tolist(), sinks.cycles) == ([3], [], ())


def test_a_communicator_that_misses_nobody_is_an_end() -> None:
    sinks = find_sinks(graph([(0, 0), (1, 0), (2, 1)], [(1, 0)]))
    assert (sinks.processes.tolist(), sinks.comms.tolist()) == ([], [0])


def test_two_communicators_in_opposite_order_are_a_circle() -> None:
    sinks = find_sinks(graph([(0, 0), (1, 1), (5, 0)], [(0, 1), (1, 0)]))
    assert sinks.processes.tolist() == []
    ((processes, comms),) = sinks.cycles
    assert (processes.tolist(), comms.tolist()) == ([0, 1], [0, 1])


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 100_000))
def test_sinks_are_those_of_the_strong_components(seed: int) -> None:
    """Against Tarjan over the whole graph, processes and communicators as vertices."""
    rng = np.random.default_rng(seed)
    members = [(p, c) for p in range(8) for c in range(5) if rng.random() < 0.4]
    waits = [(p, c) for p, c in members if rng.random() < 0.5]
    misses = [(c, p) for p, c in members if (p, c) not in waits]
    comms = {c for _, c in waits}
    misses = [(c, p) for c, p in misses if c in comms]
    if not waits:
        return
    follows: dict[int, set[int]] = {v: set() for v in [*(100 + c for c in comms), *range(8)]}
    for p, c in waits:
        follows[p].add(100 + c)
    for c, p in misses:
        follows[100 + c].add(p)
    touched = {p for p, _ in waits} | {p for _, p in misses}
    expected = set()
    for component in strong_components(follows):
        inside = set(component)
        if all(follows[v] <= inside for v in component) and (inside & touched or any(v >= 100 for v in inside)):
            expected.add(frozenset(inside))
    sinks = find_sinks(graph(waits, misses))
    found = {frozenset({p}) for p in sinks.processes.tolist()} | {frozenset({100 + c}) for c in sinks.comms.tolist()}
    found |= {frozenset([*p.tolist(), *(100 + k.tolist()[i] for i in range(len(k)))]) for p, k in sinks.cycles}
    assert found == expected


def test_disjoint_sets() -> None:
    sets = DisjointSets([1, 2, 3, 4])
    sets.join(1, 3)
    sets.join(4, 3)
    assert sets.groups() == [[1, 3, 4], [2]]


def judged(job: Job, stacks: dict[int, str] | None = None, otherwise: str = "collective") -> list[Verdict]:
    """All verdicts on a job that stays as it is for ten minutes."""
    engine = Engine(Settings())
    answer = None if stacks is None else (lambda t_s: job.evidence(t_s, stacks, otherwise))
    run(engine, job, 0.0, 600.0, answer=answer)
    return engine.verdicts()


def set_up(tp: int = 4, ranks: int = 16) -> Job:
    """A job that has run for long."""
    return Job(parallel(ranks, tp)).all_step(1000)


def ranks(verdict: Verdict) -> list[int | None]:
    """Global ranks of the culprits."""
    return sorted(culprit.global_rank or 0 for culprit in verdict.culprits)


def test_order_deadlock_over_two_communicators() -> None:
    job = Job({"x": [0, 1], "y": [0, 1], "world": [0, 1, 2, 3]}).all_step(1000)
    job.step("x", but=[1]).step("y", but=[0])
    (verdict,) = judged(job)
    assert (verdict.cls, verdict.kind, ranks(verdict)) == ("H2", "wrong_order", [0, 1])


def test_a_whole_group_at_the_end_is_named_as_a_place_not_as_culprits() -> None:
    job = set_up()
    for offset in range(4):
        job.step(f"dp{offset}", but=range(4))
    (verdict,) = judged(job)
    assert (verdict.cls, verdict.kind, ranks(verdict)) == (None, "stalled_group", [0, 1, 2, 3])
    assert verdict.confidence <= 0.5
    assert verdict.not_decidable


def test_a_whole_group_that_is_seen_elsewhere_did_not_enter() -> None:
    job = set_up()
    for offset in range(4):
        job.step(f"dp{offset}", but=range(4))
    (verdict,) = judged(job, dict.fromkeys(range(4), "io"))
    assert (verdict.cls, verdict.kind, ranks(verdict)) == ("H1", "not_entered", [0, 1, 2, 3])


def test_of_several_ends_the_one_outside_is_the_cause() -> None:
    job = set_up()
    job.step("tp0", but=[1]).step("tp2", but=[9])
    (verdict,) = judged(job, {9: "sleep"})
    assert ranks(verdict) == [9]
    assert verdict.confidence >= 0.95
    assert any("as a consequence" in line for line in verdict.evidence)


def test_a_rank_that_is_gone_explains_the_others() -> None:
    job = set_up()
    engine = Engine(Settings())
    run(engine, job, 0.0, 60.0, each=lambda t_s: job.all_step())
    job.step("tp0", but=[1]).step("tp2", but=[9]).flag(9, 8 | 16)
    run(engine, job, 75.0, 600.0)
    (verdict,) = engine.verdicts()
    assert (verdict.kind, ranks(verdict)) == ("missing", [9])


def test_errors_of_one_rank_on_all_its_communicators_are_one_incident() -> None:
    job = set_up()
    for name in ("world", "tp1", "dp2"):
        job.errors[name, 6] = 2
    (verdict,) = judged(job)
    assert (verdict.state, verdict.cls, verdict.kind, ranks(verdict)) == ("confirmed", "H3", "async_error", [6])
    assert len(verdict.frozen) == 3


def test_a_process_that_is_stopped() -> None:
    job = set_up()
    engine = Engine(Settings())
    run(engine, job, 0.0, 60.0, each=lambda t_s: job.all_step())
    job.step("world", but=[5]).flag(5, 8 | 16)
    run(engine, job, 75.0, 600.0, answer=lambda t_s: job.evidence(t_s, {5: "stopped"}))
    (verdict,) = engine.verdicts()
    assert (verdict.cls, verdict.kind, ranks(verdict)) == ("H1", "stopped", [5])
    assert verdict.culprits[0].host == "n0"


def test_a_process_that_has_ended() -> None:
    job = set_up()
    engine = Engine(Settings())
    run(engine, job, 0.0, 60.0, each=lambda t_s: job.all_step())
    job.step("world", but=[5]).flag(5, 8 | 16)
    run(engine, job, 75.0, 600.0, answer=lambda t_s: job.evidence(t_s, {5: "exited"}))
    (verdict,) = engine.verdicts()
    assert (verdict.kind, ranks(verdict)) == ("dead", [5])
    assert "no such process" in verdict.culprits[0].why


def test_many_unrelated_ends_are_told_as_one() -> None:
    job = Job(parallel(64, 2)).all_step(1000)
    for group in range(12):
        job.step(f"tp{group}", but=[2 * group])
    (verdict,) = judged(job)
    assert len(verdict.culprits) == 12
    assert verdict.confidence <= 0.3
    assert any("share" in line for line in verdict.evidence)


def test_a_node_that_is_gone_is_one_incident() -> None:
    job = set_up()
    engine = Engine(Settings())
    run(engine, job, 0.0, 60.0, each=lambda t_s: job.all_step())
    job.step("world", but=range(8, 16))
    for rank in range(8, 16):
        job.flag(rank, 8 | 16)
    run(engine, job, 75.0, 600.0)
    (verdict,) = engine.verdicts()
    assert (verdict.state, ranks(verdict), verdict.victims) == ("confirmed", list(range(8, 16)), 8)
