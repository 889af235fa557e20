"""What the plugin costs an srun: time to the first task and of the whole srun, without the plugin and with it.

Runs alternate in random order inside one allocation of a cluster of its own, as its ordinary user. "short" steps end before
the plugin starts a monitor, "long" ones outlive the delay. Needs root and what scripts/setup installs.

    python bench/spank.py [--rounds 30] [--nodes 2] [--monitor PATH] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.lab.cluster import PREFIX, Cluster
from tests.lab.cluster_files import plugstack_conf

WATCH = "--nccl-hang-detect"
GOALS_MS = {"first task": 10.0, "whole srun": 25.0}


@dataclass(frozen=True)
class Variant:
    """One row: how the plugin is configured, what srun is asked, and for how many seconds its task sleeps."""

    name: str
    plugin_args: str | None  # None: no plugin in plugstack.conf
    option: tuple[str, ...]
    sleep_s: float

    @property
    def kind(self) -> str:
        return "long" if self.sleep_s else "short"


def variants(monitor: str) -> list[Variant]:
    """Per kind of step: without plugin (the base), loaded but not asked for, watched, and watched without the delay."""
    rows = []
    for sleep_s in (0.0, 1.5):
        rows += [
            Variant("no plugin", None, (), sleep_s),
            Variant("not watched", "", (), sleep_s),
            Variant("watched", f"ncclmon={monitor}", (WATCH,), sleep_s),
            Variant("watched, delay=0", f"ncclmon={monitor} delay=0", (WATCH,), sleep_s),
        ]
    return rows


def run_once(cluster: Cluster, variant: Variant, job: str, nodes: int) -> tuple[float, float]:
    """Milliseconds from the start of srun to its first task, and to its end without the task's sleep."""
    text = "# no plugin\n" if variant.plugin_args is None else None
    if text is None:
        cluster.set_plugin_args(variant.plugin_args or "")
        text = plugstack_conf(cluster.plan)
    (cluster.folder / "plugstack.conf").write_text(text)
    task = ["date", "+%s.%N"] if not variant.sleep_s else ["sh", "-c", f"date +%s.%N; exec sleep {variant.sleep_s}"]
    command = ["srun", "-N", str(nodes), "--overlap", *variant.option, *task]
    started, wall = time.monotonic(), time.time()
    result = cluster.run(command, env={"SLURM_JOB_ID": job})
    whole = time.monotonic() - started - variant.sleep_s
    if result.returncode or result.stderr:
        raise SystemExit(f"{variant.name}: srun ended with {result.returncode}: {result.stderr}")
    return (min(map(float, result.stdout.split())) - wall) * 1000, whole * 1000


def settle(cluster: Cluster, job: str) -> None:
    """Waits until no step is left, so that one run's clean-up is not charged to the next."""
    while cluster.run(["squeue", "-h", "-s", "-j", job, "-o", "%i"]).stdout.replace(f"{job}.extern", "").strip():
        time.sleep(0.02)
    time.sleep(0.1)


def measure(cluster: Cluster, rows: list[Variant], rounds: int, nodes: int) -> dict[Variant, list[tuple[float, float]]]:
    granted = cluster.run(["salloc", "--no-shell", "-N", str(nodes), "--exclusive"])
    job = granted.stderr.split("job allocation ")[1].split()[0]
    times: dict[Variant, list[tuple[float, float]]] = {row: [] for row in rows}
    for number in range(rounds + 1):
        for row in random.sample(rows, len(rows)):
            sample = run_once(cluster, row, job, nodes)
            settle(cluster, job)
            if number:  # the first round fills caches
                times[row].append(sample)
        print(f"\rround {number} of {rounds}", end="", file=sys.stderr, flush=True)
    cluster.run(["scancel", job])
    return times


def table(times: dict[Variant, list[tuple[float, float]]]) -> list[dict[str, object]]:
    """One row a variant and quantity, in milliseconds.

    `more` is the median over the rounds of the distance from the run without plugin in the same round: on a machine that
    does other things as well, neighbours in time are comparable, and far-off runs are not.
    """
    rows: list[dict[str, object]] = []
    for variant, samples in times.items():
        base = next(values for row, values in times.items() if row.kind == variant.kind and row.plugin_args is None)
        for index, quantity in enumerate(GOALS_MS):
            values = [sample[index] for sample in samples]
            more = statistics.median(sample[index] - other[index] for sample, other in zip(samples, base))
            rows.append(
                {
                    "step": variant.kind, "variant": variant.name, "quantity": quantity, "mean": statistics.mean(values),
                    "median": statistics.median(values), "sd": statistics.stdev(values), "more": more,
                }
            )  # fmt: skip
    return rows


def show(rows: list[dict[str, object]]) -> None:
    print(f"\n{'step':6}{'variant':18}{'quantity':12}{'mean':>8}{'median':>8}{'sd':>7}{'more':>8}{'goal':>6}  (ms)")
    for row in sorted(rows, key=lambda row: (row["step"] != "short", list(GOALS_MS).index(str(row["quantity"])))):
        numbers = f"{row['mean']:8.1f}{row['median']:8.1f}{row['sd']:7.1f}{row['more']:+8.1f}"
        print(f"{row['step']:6}{row['variant']:18}{row['quantity']:12}{numbers}{GOALS_MS[str(row['quantity'])]:6.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--monitor", default=f"{PREFIX}/venv/bin/ncclmon", help="what is started as the monitor")
    parser.add_argument("--json", type=Path, help="write the table there as well")
    arguments = parser.parse_args()
    cluster = Cluster(f"bench{os.getpid()}").up(nodes=max(arguments.nodes, 2))
    try:
        rows = table(measure(cluster, variants(arguments.monitor), arguments.rounds, arguments.nodes))
    finally:
        cluster.down()
    show(rows)
    if arguments.json:
        arguments.json.write_text(
            json.dumps({"cpus": os.cpu_count(), "rounds": arguments.rounds, "rows": rows}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
