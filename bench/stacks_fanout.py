"""`ncclmon stacks` beside what is done by hand: py-spy in a shell loop over srun, one node after the other.

    python bench/stacks_fanout.py [--ranks 8 64] [--times 5]

Starts a cluster of four nodes on this machine (as root), runs the laboratory's training job with one rank stuck, and times both.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.lab.cluster import PREFIX, Cluster

LOOP = """
for node in n1 n2 n3 n4; do
  srun --overlap --jobid={job} --quiet --nodes=1 --ntasks=1 --nodelist=$node --mem=0 --cpu-bind=none --mpi=none bash -c '
    for pid in $(scontrol listpids {job}.0 $SLURMD_NODENAME | awk "NR > 1 {{ print \\$1 }}"); do
      {pyspy} dump --native --pid $pid
    done' 2>/dev/null
done
"""


def timed(run: Callable[[], subprocess.CompletedProcess[str]], times: int) -> tuple[float, str]:
    """Median seconds and the last output."""
    seconds, output = [], ""
    for _ in range(times):
        begun = time.perf_counter()
        done = run()
        seconds.append(time.perf_counter() - begun)
        assert done.returncode == 0, done.stderr
        output = done.stdout
    return statistics.median(seconds), output


def measure(cluster: Cluster, ranks: int, times: int) -> None:
    train = [
        str(PREFIX / "lab" / "train.py"),
        "--fault",
        "not_entered",
        "--rank",
        "3",
        "--step",
        "3",
        "--duration",
        "300",
    ]
    shape = ["--nodes=4", f"--ntasks={ranks}", f"--ntasks-per-node={ranks // 4}", "--overcommit", "--mem=64"]
    job = cluster.popen(
        ["srun", *shape, "/usr/bin/python3", *train], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert job.stdout
        next(line for line in job.stdout if "truth" in line)
        time.sleep(2)
        number = cluster.run(["squeue", "--noheader", "--format=%A"]).stdout.split()[0]
        ncclmon, bin_folder = PREFIX / "venv" / "bin" / "ncclmon", PREFIX / "venv" / "bin"
        ours, merged = timed(lambda: cluster.run([str(ncclmon), "stacks", number, "--once"]), times)
        twice, _ = timed(lambda: cluster.run([str(ncclmon), "stacks", number]), 1)
        script = LOOP.format(job=number, pyspy=bin_folder / "py-spy")
        loop, raw = timed(lambda: cluster.run(["bash", "-c", script], timeout_s=120), times)
        print(
            f"{ranks:>3} ranks on 4 nodes: ncclmon stacks {ours:.2f} s ({twice:.2f} s with two looks), "
            f"{len(merged.splitlines())} lines; shell loop {loop:.2f} s, {len(raw.splitlines())} lines; "
            f"{ours / 4:.2f} s and {loop / 4:.2f} s a node"
        )
    finally:
        job.kill()
        job.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[8, 64])
    parser.add_argument("--times", type=int, default=5)
    options = parser.parse_args()
    cluster = Cluster("benchstacks")
    cluster.up(nodes=4, plugin=False)
    try:
        for ranks in options.ranks:
            measure(cluster, ranks, options.times)
            time.sleep(3)
    finally:
        cluster.down()


if __name__ == "__main__":
    main()
