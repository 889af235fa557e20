"""The step's own time: seconds in which it could have moved."""

from __future__ import annotations


class StepTime:
    """Turns the observations' time into the step's: it never runs backwards and stands still while the step is suspended."""

    def __init__(self) -> None:
        self._seen: float | None = None
        self._stopped = 0.0
        self._suspended = False
        self.now = 0.0

    def advance(self, t_s: float) -> float:
        """The step's time at the observation's `t_s`."""
        if self._seen is not None and t_s > self._seen:
            if self._suspended:
                self._stopped += t_s - self._seen
            self.now = t_s - self._stopped
        elif self._seen is None:
            self.now = t_s
        self._seen = t_s if self._seen is None else max(t_s, self._seen)
        return self.now

    @property
    def suspended(self) -> bool:
        """Whether the step stands still on purpose."""
        return self._suspended

    def suspend(self) -> None:
        """From the last observation on, time does not count."""
        self._suspended = True

    def resume(self) -> None:
        """From the last observation on, time counts again."""
        self._suspended = False
