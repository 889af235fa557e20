"""Time and the end of the watched step, behind one small object so that the monitor's loop can be tested without waiting."""

from __future__ import annotations

import os
import signal
import threading
import time
from types import FrameType

EXIT_GRACE_S = 8.0
"""After the step's end the monitor leaves within this time whatever it is doing, or it would hold up the job."""


class StepClock:
    """Monotonic and wall time, and a wait that ends early when the watched step does.

    The step's end is the end of file on standard input, a pipe that only the watched srun holds open; SIGTERM (the job is
    ending) counts as the same.
    """

    def __init__(self) -> None:
        self._woken = threading.Event()
        self._ended = threading.Event()

    def listen(self, stdin: int = 0) -> None:
        """Start to notice the step's end."""
        signal.signal(signal.SIGTERM, self._on_signal)
        threading.Thread(target=self._read_to_end, args=(stdin,), daemon=True).start()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._end()

    def _read_to_end(self, stdin: int) -> None:
        try:
            while os.read(stdin, 4096):
                pass
        except OSError:
            pass
        self._end()

    def _end(self) -> None:
        if self._ended.is_set():
            return
        self._ended.set()
        self._woken.set()
        timer = threading.Timer(EXIT_GRACE_S, os._exit, args=(0,))
        timer.daemon = True
        timer.start()

    def now(self) -> float:
        """Seconds on the monotonic clock."""
        return time.monotonic()

    def wall(self) -> float:
        """Seconds since 1970."""
        return time.time()

    def ended(self) -> bool:
        """Whether the watched step is gone."""
        return self._ended.is_set()

    def wake(self) -> None:
        """End a wait in another thread."""
        self._woken.set()

    def wait(self, seconds: float) -> None:
        """Sleep, but not past the step's end or a `wake`."""
        self._woken.wait(max(0.0, seconds))
        if not self._ended.is_set():
            self._woken.clear()
