"""Benign pauses, learned: how long something stood still in this very way before it went on by itself."""

from __future__ import annotations


class Pauses:
    """Longest recovered pause by shape (communicator, and the hosts of those that were waited for)."""

    def __init__(self) -> None:
        self._longest: dict[tuple[object, ...], float] = {}

    def learn(self, shape: tuple[object, ...], seconds: float) -> None:
        """A suspicion of this shape went away after `seconds`."""
        self._longest[shape] = max(seconds, self._longest.get(shape, 0.0))

    def longest(self, shape: tuple[object, ...]) -> float:
        """Seconds; 0 when there was none."""
        return self._longest.get(shape, 0.0)
