"""One agent a node that starts the node's workers, as torchrun does: a job in which Slurm knows the agents only."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import NoReturn

from .identity import Identity


def launch_agent(program: list[str], workers: int) -> NoReturn:
    """Starts `workers` copies of `program` with torchrun's variables, waits for them and exits; if one fails, all are ended."""
    agent = Identity.from_environment()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    processes = [_start(program, agent, workers, local_rank) for local_rank in range(workers)]
    try:
        sys.exit(_monitor_workers(processes))
    finally:
        for process in processes:
            process.kill()


def _start(program: list[str], agent: Identity, workers: int, local_rank: int) -> subprocess.Popen[bytes]:
    own = {
        "RANK": agent.rank * workers + local_rank,
        "LOCAL_RANK": local_rank,
        "WORLD_SIZE": agent.world_size * workers,
        "LOCAL_WORLD_SIZE": workers,
        "GROUP_RANK": agent.rank,
    }
    return subprocess.Popen([sys.executable, *program], env={**os.environ, **{k: str(v) for k, v in own.items()}})


def _monitor_workers(processes: list[subprocess.Popen[bytes]]) -> int:
    while True:
        codes = [process.poll() for process in processes]
        failed = [code for code in codes if code]
        if failed or all(code == 0 for code in codes):
            return 1 if failed else 0
        time.sleep(0.1)
