"""Stands for a framework's writing of a checkpoint, as its frames appear in a stack."""

from __future__ import annotations

import time


def save(state: dict[str, int], path: str, seconds: float) -> None:
    """Takes as long as it is told."""
    _write_tensors(state, path, seconds)


def _write_tensors(state: dict[str, int], path: str, seconds: float) -> None:
    end = time.monotonic() + seconds
    while (remaining := end - time.monotonic()) > 0:
        time.sleep(remaining)
