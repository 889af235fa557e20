from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_ncclmon.durations import format_duration, parse_duration
from slurm_ncclmon.errors import OptionError


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("5m", 300), ("1h", 3600), ("1d", 86400), ("500ms", 0.5), ("15", 15), ("1.5m", 90), (" 2s ", 2)],
)
def test_reads_what_people_write(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "x", "15x", "-5s", "5 m", "1h30m", "inf", "nan", "9" * 400, "٣s"])
def test_refuses_the_rest_and_says_what_is_right(text: str) -> None:
    with pytest.raises(OptionError, match="write 15s, 5m or 1h"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.5, "0.5 s"),
        (9.96, "10 s"),
        (59.7, "1 min"),
        (250, "4 min 10 s"),
        (3600, "1 h"),
        (7500, "2 h 5 min"),
    ],
)
def test_writes_two_units_at_most(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@given(st.floats(0, 1e7))
def test_every_duration_can_be_written(seconds: float) -> None:
    assert format_duration(seconds)
