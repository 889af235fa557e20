"""How often to ask: every question wakes one thread in every process of the job."""

from __future__ import annotations

import math

LARGE = 1024
LARGE_INTERVAL_S = 30.0
BUSY_SHARE = 0.02
"""Of the time, at most this much goes by while RAS collects and we read."""
MOST_SUSPICIOUS_S = 60.0
MOST_TROUBLES = 4


def interval(base: float, processes: int, busy_s: float, suspicious: bool = False, troubles: int = 0) -> float:
    """Seconds until the next question.

    `base` is what the settings say, for small jobs; `processes` are in the mesh, which took `busy_s` to answer and be read;
    `troubles` failed polls in a row double it, a few times. While something is suspected the size counts for less.
    """
    size = LARGE_INTERVAL_S * processes / LARGE
    if processes > LARGE:
        size = LARGE_INTERVAL_S * (1 + math.log2(processes / LARGE))
    if suspicious:
        size = min(size, MOST_SUSPICIOUS_S)
    return max(base * math.ldexp(1.0, min(troubles, MOST_TROUBLES)), size, busy_s / BUSY_SHARE)
