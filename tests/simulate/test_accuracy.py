"""The goals, on a fixed and small part of the accuracy table (bench/accuracy.py has the whole): no false alarm, one incident a
fault, the culprits exactly where the evidence can decide them, and nobody accused where it cannot."""

from __future__ import annotations

import pytest

from tests.lab.simulate.cases import CASES, build
from tests.lab.simulate.play import play
from tests.lab.simulate.score import WRONG, Score, score

SEEDS = (9000, 9001)


@pytest.fixture(scope="module")
def scores() -> dict[str, list[Score]]:
    """Two jobs of up to 64 ranks for every case."""
    made: dict[str, list[Score]] = {}
    for name in CASES:
        for seed in SEEDS:
            job = build(seed, name, most=64)
            made.setdefault(name, []).append(score(job, play(job, text=seed % 2 == 0)))
    return made


def again(one: Score) -> str:
    return f"python -m tests.lab.simulate {one.case} --seed {one.seed} --most 64  # {one}"


@pytest.mark.parametrize("case", [name for name, case in CASES.items() if not case.hang])
def test_no_false_alarm(scores: dict[str, list[Score]], case: str):
    wrong = [again(one) for one in scores[case] if not one.good]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("case", [name for name, case in CASES.items() if case.hang])
def test_every_fault_is_one_incident_with_its_culprits(scores: dict[str, list[Score]], case: str):
    wrong = [again(one) for one in scores[case] if not one.good]
    assert not wrong, "\n".join(wrong)


def test_nobody_is_accused_wrongly(scores: dict[str, list[Score]]):
    wrong = [again(one) for part in scores.values() for one in part if one.culprits == WRONG]
    assert not wrong, "\n".join(wrong)
