"""Answers as columns are what the decoder makes of their text, quirks included; and they only ever grow."""

from __future__ import annotations

import re
from dataclasses import fields

import numpy as np
import pytest

from slurm_ncclmon.ras.decode import Decoder
from slurm_ncclmon.ras.report import Report
from tests.lab.simulate.answer import Answers
from tests.lab.simulate.cases import build
from tests.lab.simulate.job import VERSIONS
from tests.lab.simulate.play import poll_times


def same(one: Report, other: Report) -> None:
    for field in fields(Report):
        left, right = getattr(one, field.name), getattr(other, field.name)
        if isinstance(left, np.ndarray):
            assert np.array_equal(left, right), field.name
        elif field.name != "problems":
            assert left == right, field.name


@pytest.mark.parametrize("case", ["P4", "P5", "P7", "P12", "P17", "P21", "P22", "N5", "N10", "N12", "N13", "N16"])
def test_text_and_columns_agree(case: str):
    job = build(11, case, most=16)
    answers, decoder = Answers(job), Decoder()
    for time in list(poll_times(job))[::3]:
        if not job.up <= time < job.down:
            continue
        answer = answers.at(time)
        decoded = decoder.decode(answers.text(answer))
        same(decoded, answers.report(answer))
        told = {problem.kind for problem in decoded.problems}
        assert not told - {"empty_communicator", "timeouts", "all_zero", "repaired"}


@pytest.mark.parametrize("version", VERSIONS)
def test_the_comma_that_some_releases_forget(version: str):
    job = build(5, "P4", ranks=8)
    job.version = version
    text = Answers(job).text(Answers(job).at(job.truth.since_s + 90.0))
    assert bool(re.search(rb'"nvml_dev": \d+\s+"status"', text)) == (version in ("2.28.7", "2.28.9"))


def test_dead_is_said_a_minute_after_unresponsive():
    job = build(7, "P4", ranks=16)
    since = next(iter(job.gone.values()))[0]
    answers = Answers(job)
    assert b'"considered_dead": true' not in answers.text(answers.at(since + 50))
    assert b'"unresponsive": true' in answers.text(answers.at(since + 50))
    assert b'"considered_dead": true' in answers.text(answers.at(since + 61))


@pytest.mark.parametrize("case", ["P1", "P15", "N1", "N7", "N17", "P23"])
def test_counts_never_fall(case: str):
    job = build(3, case, most=32)
    answers = Answers(job)
    before = None
    for time in poll_times(job):
        if time < max([job.up, *(window.whole for window in job.windows)]):
            continue
        counts = answers.at(time).counts.astype(np.int64)
        assert before is None or (counts >= before).all()
        before = counts
