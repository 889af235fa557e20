"""The job's data loader: gives a batch at once, late or never."""

from __future__ import annotations

import queue
import time


class DataLoader:
    """Batches from a queue that a worker process would fill."""

    def __init__(self) -> None:
        self._worker_result: queue.Queue[int] = queue.Queue()
        self._step = 0

    def next_batch(self, delay_s: float = 0.0) -> int:
        """The next batch, `delay_s` later than it should be."""
        self._step += 1
        if delay_s:
            self._wait_for_storage(delay_s)
        self._worker_result.put(self._step)
        return self._try_get_data(None)

    def wait_for_lost_worker(self) -> int:
        """What `next_batch` does if its worker is gone: waits for ever."""
        return self._try_get_data(None)

    def _wait_for_storage(self, delay_s: float) -> None:
        time.sleep(delay_s)

    def _try_get_data(self, timeout: float | None) -> int:
        return self._worker_result.get(timeout=timeout)
