"""What the probe costs: `bench/probe.py [--rounds N]`. Builds the plugin and the driver, needs no GPU and no NCCL.

Nanoseconds a kind of event as callers without a plugin, with the least possible one and with the probe see them, in turns of one
run; system calls after init; bytes; and what one reading of 8 ranks with 16 communicators each costs.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # runs from anywhere

from slurm_ncclmon.probe import layout  # noqa: E402
from slurm_ncclmon.probe.decode import decode  # noqa: E402
from slurm_ncclmon.probe.read import read_folder  # noqa: E402
from slurm_ncclmon.probe.standing import standing, waits  # noqa: E402

PLUGIN = ROOT / "probe" / "libnccl-profiler-ncclmon.so"
TURNS = 7
GOALS = {"collective": 30, "send_step": 40, "receive_step": 40, "repeated_wait": 3}
RANKS, COMMUNICATORS = 8, 16
RANK = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from tests.lab.probe_caller import Caller
caller = Caller({str(PLUGIN)!r})
comms = [caller.communicator(1000 + c, int(sys.argv[1]), {RANKS}, 2, "group") for c in range({COMMUNICATORS})]
for comm in comms:
    for step in range(20):
        operation = comm.enqueue("AllReduce", 1 << 20)
        comm.begin(operation)
        if step < 19:
            comm.end(operation)
"""


def main() -> None:
    """Print the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    rounds = parser.parse_args().rounds
    folder = Path(tempfile.mkdtemp(prefix="ncclmon-bench-", dir="/dev/shm"))
    try:
        for arguments in (["-C", ROOT / "probe"], ["-C", ROOT / "tests/lab/probe_driver", f"BUILD={folder / 'bin'}"]):
            subprocess.run(["make", "-s", *arguments], check=True, timeout=300)
        events(folder, rounds)
        system_calls(folder)
        print(f"bytes a rank and communicator: {layout.FRAME.itemsize}, a process: {layout.HEADER_BYTES} more")
        reader(folder)
    finally:
        shutil.rmtree(folder)


def events(folder: Path, rounds: int) -> None:
    """Time each kind of event; callers take turns, so that a noisy machine is noisy for all."""
    callers = {"none": "none", "minimal": folder / "bin" / "minimal.so", "probe": PLUGIN}
    results: dict[tuple[str, str], list[float]] = {}
    for _ in range(TURNS):
        for caller, path in callers.items():
            for kind, value in timed(folder, path, rounds):
                results.setdefault((kind, caller), []).append(value)
    print(f"ns an event, median of {TURNS} runs' medians of {rounds}; net = probe less none")
    print(f"{'':18}{'none':>8}{'minimal':>9}{'probe':>8}{'net':>8}{'goal':>8}")
    for kind in dict.fromkeys(kind for kind, _ in results):
        none, minimal, probe = (median(results[kind, caller]) for caller in callers)
        print(f"{kind:18}{none:8.1f}{minimal:9.1f}{probe:8.1f}{probe - none:8.1f}{GOALS.get(kind, '-'):>8}")


def timed(folder: Path, plugin: Path | str, rounds: int) -> list[tuple[str, float]]:
    """Kinds of events and nanoseconds of one run."""
    output = subprocess.run(
        [folder / "bin" / "bench", plugin, str(rounds)],
        env={**os.environ, "NCCLMON_PROBE_DIR": str(folder / "events"), "NCCLMON_PROBE_MASK": "0x5e"},
        check=True,
        timeout=300,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout
    shutil.rmtree(folder / "events", ignore_errors=True)
    return [(line.split()[0], float(line.split()[1])) for line in output.splitlines()]


def system_calls(folder: Path) -> None:
    """A run with a filter that kills the process at its first system call but write and exit."""
    done = subprocess.run(
        [folder / "bin" / "abuse", PLUGIN, "no_system_call"],
        env={**os.environ, "NCCLMON_PROBE_DIR": str(folder / "calls")},
        timeout=60,
        check=False,
    )
    print("system calls after init:", "none" if done.returncode == 0 else f"FAILED with status {done.returncode}")


def reader(folder: Path) -> None:
    """Time reading and decoding what 8 ranks left, and finding where every communicator stands."""
    frames = folder / "frames"
    for rank in range(RANKS):
        subprocess.run(
            [sys.executable, "-c", RANK, str(rank)],
            env={**os.environ, "NCCLMON_PROBE_DIR": str(frames), "SLURM_PROCID": str(rank)},
            check=True,
            timeout=60,
        )
    read = [elapsed(lambda: decode(read_folder(frames, os.getuid(), "n1").images)) for _ in range(300)]
    decoded = decode(read_folder(frames, os.getuid(), "n1").images)
    assert len(decoded) == RANKS * COMMUNICATORS
    stand = [elapsed(lambda: [standing(decoded, 1000 + c) for c in range(COMMUNICATORS)]) for _ in range(20)]
    links = [elapsed(lambda: waits(decoded)) for _ in range(20)]
    print(f"reading {RANKS} ranks x {COMMUNICATORS} communicators: {median(read) * 1e3:.2f} ms (goal 1), ", end="")
    print(f"{median(read) * 100:.3f} % of a core at one a second (goal 0.1)")
    print(
        f"where all communicators stand: {median(stand) * 1e3:.2f} ms; their waiting links: {median(links) * 1e3:.2f} ms"
    )


def elapsed(action: object) -> float:
    """CPU seconds of one call."""
    begin = time.process_time()
    action()  # type: ignore[operator]
    return time.process_time() - begin


if __name__ == "__main__":
    main()
