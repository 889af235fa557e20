"""Work that may never come back, done so that we do.

Reading /proc/PID/environ of a process whose address space is locked can sleep for ever, and so can asking a GPU driver. A thread
stuck in such a call cannot be ended from Python; it is left behind, and the agent's end takes it along.
"""

from __future__ import annotations

import queue
import subprocess
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Callable, Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def bounded_map(
    function: Callable[[Item], Result], items: Iterable[Item], seconds: float, workers: int = 16
) -> dict[Item, Result]:
    """`function` of each item, by threads; what is not done after `seconds` is missing from the answer.

    An item whose call raised OSError is missing too (its process went away in the middle).
    """
    waiting: queue.SimpleQueue[Item] = queue.SimpleQueue()
    count = 0
    for item in items:
        waiting.put(item)
        count += 1
    done: queue.SimpleQueue[tuple[Item, Result] | None] = queue.SimpleQueue()

    def work() -> None:
        while True:
            try:
                item = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                done.put((item, function(item)))
            except OSError:
                done.put(None)

    for _ in range(min(workers, count)):
        threading.Thread(target=work, daemon=True).start()
    return _collect(done, count, time.monotonic() + seconds)


def _collect(done: queue.SimpleQueue[tuple[Item, Result] | None], count: int, deadline: float) -> dict[Item, Result]:
    results: dict[Item, Result] = {}
    for _ in range(count):
        try:
            entry = done.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            break
        if entry is not None:
            results[entry[0]] = entry[1]
    return results


class Later(Generic[Result]):
    """A value that a thread is on its way to get."""

    def __init__(self, function: Callable[[], Result]) -> None:
        self._box: queue.SimpleQueue[Result] = queue.SimpleQueue()
        threading.Thread(target=lambda: self._box.put(function()), daemon=True).start()

    def get(self, seconds: float) -> Result | None:
        """The value, once; None when it was not there in time."""
        try:
            return self._box.get(timeout=max(0.0, seconds))
        except queue.Empty:
            return None


@dataclass(frozen=True)
class Ran:
    """A program that was run: `rc` None when it had to be killed."""

    rc: int | None
    stdout: str
    stderr: str
    seconds: float


def run_bounded(argv: Sequence[str], seconds: float, grace_s: float = 1.0) -> Ran:
    """Run a program; after `seconds` TERM, after `grace_s` more KILL, and then it is not waited for any longer.

    Raises OSError when it cannot be started.
    """
    begun = time.monotonic()
    child = subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace"
    )
    for wait_s, stop in ((seconds, child.terminate), (grace_s, child.kill)):
        try:
            out, err = child.communicate(timeout=max(0.05, wait_s))
        except subprocess.TimeoutExpired:
            stop()
        else:
            rc = None if wait_s is grace_s else child.returncode
            return Ran(rc, out, err, time.monotonic() - begun)
    return Ran(None, "", "", time.monotonic() - begun)
