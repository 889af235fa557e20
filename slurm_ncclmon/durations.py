"""Durations as people write them: 90s, 5m, 1h, 500ms, or plain seconds."""

from __future__ import annotations

import math
import re

from slurm_ncclmon.errors import OptionError

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "": 1.0}
_PATTERN = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d|)")


def parse_duration(text: str) -> float:
    """Seconds of a duration such as `90s`, `5m`, `1h`, `500ms` or `90`.

    Raises OptionError with what would be right.
    """
    match = _PATTERN.fullmatch(text.strip())
    seconds = float(match.group(1)) * _UNITS[match.group(2)] if match else math.nan
    if not math.isfinite(seconds):
        raise OptionError(f"'{text}' is not a duration (write 15s, 5m or 1h)")
    return seconds


def format_duration(seconds: float) -> str:
    """Two units at most, for people: `4 min 10 s`, `2 h 5 min`, `0.5 s`."""
    if seconds < 10:
        return f"{seconds:.1f} s".replace(".0 s", " s")
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        minutes, rest = divmod(whole, 60)
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, rest = divmod(whole, 3600)
    return f"{hours} h {rest // 60} min" if rest >= 60 else f"{hours} h"
