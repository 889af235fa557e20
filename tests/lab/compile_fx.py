"""Stands for a framework's compilation of a model, as its frames appear in a stack."""

from __future__ import annotations

import time


def compile_fx(seconds: float) -> None:
    """Takes as long as it is told."""
    end = time.monotonic() + seconds
    while (remaining := end - time.monotonic()) > 0:
        time.sleep(remaining)
