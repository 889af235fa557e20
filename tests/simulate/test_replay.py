"""A recording of a simulated job gives the verdicts that the engine gave while it was made."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_ncclmon.recording import Recorder, read
from slurm_ncclmon.replay import replay
from tests.lab.simulate.cases import build
from tests.lab.simulate.play import play, settings_of


@pytest.mark.parametrize(
    ("case", "tier"),
    [
        ("P1", "counts"),
        ("P5", "node"),
        ("P14", "frames"),
        ("P17", "partial"),
        ("P12", "frames"),
        ("N1", "node"),
        ("N11", "counts"),
        ("N16", "node"),
    ],
)
def test_replay_says_the_same(case: str, tier: str, tmp_path: Path):
    job = build(21, case, ranks=8, tier=tier)
    job.interval, job.end = 15.0, min(job.end, (job.truth.since_s or 500.0) + 360.0)
    recorder = Recorder(tmp_path / "job")
    played = play(job, text=True, record=recorder.write)
    recorder.close()
    events: list[object] = []
    again = replay(read(tmp_path / "job"), settings_of(job), "21.0", events.append)
    assert again.verdicts == played.verdicts
    assert events == played.events
