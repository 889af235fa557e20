"""Recordings of real NCCL RAS answers (NCCL's own RAS code, ranks without GPUs): the right verdict on each, with its culprits' pids.

tests/data/cases/captures has them as recordings; each truth is what the ranks were made to do. Their polls are a second apart and
the faults last 20 to 90 s, so the times are scaled to that.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slurm_ncclmon import recording
from slurm_ncclmon.config import Settings
from slurm_ncclmon.engine import Engine
from slurm_ncclmon.observation import Poll
from slurm_ncclmon.verdict import Verdict

FOLDER = Path(__file__).parent / "data" / "cases" / "captures"
TRUTH = json.loads((FOLDER / "truth.json").read_text())
FAST = Settings(interval=1.0, confirm=10.0).scaled()
SLOW_TWINS = Settings(interval=1.0, confirm=15.0).scaled()
"""For those that stand still for 12 s and go on."""

HANGS = {
    "async_error": ("H3", "async_error"),
    "finalized_early": ("H1", "exited_early"),
    "finalized_early-2.30.7": ("H1", "exited_early"),
    "mismatched_op": ("H2", "inconsistent_op"),
    "missing_collective": ("H1", "not_entered"),
    "missing_collective-2.27.5": ("H1", "not_entered"),
    "missing_collective-2.32.3": ("H1", "not_entered"),
    "process_killed": ("H3", "dead"),  # confirmed as missing; RAS gives it up a minute later
    "process_stopped-2.32.3": ("H3", "dead"),
    "process_stopped_local": ("H3", "missing"),
    "rank_exit_early": ("H3", "missing"),
    "two_jobs_same_port": ("H1", "not_entered"),
}
EQUAL = ("symmetric_stall", "pp_p2p_only", "checkpoint_pause", "graph_captured")
"""All counts equal: two hangs and two pauses that RAS alone can not tell apart, and we do not pretend to."""
SILENT = ("healthy", "init_window", "transient_skew", "rank0_checkpoint")


def judged(name: str, settings: Settings = FAST, seconds: float = float("inf")) -> list[Verdict]:
    """Verdicts on the recording's first `seconds`."""
    engine = Engine(settings)
    for seen in recording.read(FOLDER / name):
        if seen.t_s <= seconds:
            engine.observe(seen)
    return engine.verdicts()


def test_every_recording_is_looked_at() -> None:
    assert {*HANGS, *EQUAL, *SILENT} == set(TRUTH)


@pytest.mark.parametrize("name", HANGS)
def test_hang(name: str) -> None:
    until = 94.0 if name == "process_stopped-2.32.3" else float("inf")  # it is let go then
    verdicts = judged(name, seconds=until)
    assert [(v.state, v.cls, v.kind) for v in verdicts] == [("confirmed", *HANGS[name])]
    assert [culprit.pid for culprit in verdicts[0].culprits] == TRUTH[name]["culprit_pids"]
    assert verdicts[0].confidence >= 0.8
    assert verdicts[0].evidence


@pytest.mark.parametrize("name", EQUAL)
def test_equal_counts(name: str) -> None:
    verdicts = judged(name)
    assert [(v.cls, v.kind, v.culprits) for v in verdicts] == [(None, "symmetric", ())]
    assert verdicts[0].state in ("suspected", "recovered")
    assert verdicts[0].not_decidable


@pytest.mark.parametrize("name", SILENT)
def test_silent(name: str) -> None:
    assert [v for v in judged(name, SLOW_TWINS) if v.state != "recovered"] == []


def test_a_process_that_is_let_go_is_never_trusted_again_by_ras() -> None:
    """RAS keeps its death for good; once the others move on the incident has recovered all the same."""
    states = [verdict.state for verdict in judged("process_stopped-2.32.3")]
    assert states[0] in ("confirmed", "recovered")


@pytest.mark.parametrize("name", ["missing_collective", "mismatched_op", "process_killed"])
@pytest.mark.parametrize("keep", [2, 3, 5])
def test_fewer_polls_give_the_same_verdict(name: str, keep: int) -> None:
    engine = Engine(FAST)
    for seen in recording.read(FOLDER / name):
        if not isinstance(seen, Poll) or seen.n % keep == 0:
            engine.observe(seen)
    (verdict,) = engine.verdicts()
    assert [culprit.pid for culprit in verdict.culprits] == TRUTH[name]["culprit_pids"]
    assert verdict.state == "confirmed"
