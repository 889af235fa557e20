"""The answers under tests/data/ras, and what tests compare reports by."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from slurm_ncclmon.ras.report import Report

DATA = Path(__file__).resolve().parents[1] / "data" / "ras"
JSON_SAMPLES = sorted(path.name for path in DATA.glob("*.json"))
ALL_SAMPLES = sorted([*JSON_SAMPLES, *(path.name for path in DATA.glob("*.txt"))])


def sample(name: str) -> bytes:
    return (DATA / name).read_bytes()


def kinds(report: Report) -> set[str]:
    """What is wrong with it."""
    return {problem.kind for problem in report.problems}


def assert_same(one: Report, other: Report) -> None:
    """Equal in every column, number and order of everything."""
    for name, value in vars(one).items():
        compared = getattr(other, name)
        if isinstance(value, np.ndarray):
            assert value.dtype == compared.dtype, name
            assert np.array_equal(value, compared), name
        else:
            assert value == compared, name


def assert_sound(report: Report) -> None:
    """What every report promises, whatever it was made of."""
    members = report.members
    assert len(report.start) == len(report.comms) + 1 == len(report.size) + 1
    assert report.start[0] == 0
    assert report.start[-1] == members
    assert len(set(report.comms)) == len(report.comms)
    for column in (report.gpu, report.counts, report.init_state, report.async_error, report.flags):
        assert len(column) == members
    assert not members or ((report.gpu >= 0).all() and report.gpu.max() < len(report.gpus))
    for c, size in enumerate(report.size):
        ranks = report.rank[report.rows(c)]
        assert size > 0
        assert (np.diff(ranks) > 0).all()
        assert not len(ranks) or (ranks[0] >= 0 and ranks[-1] < size)
