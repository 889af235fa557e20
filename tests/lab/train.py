#!/usr/bin/python3
"""The laboratory's training job: every rank is a Python process and a real member of a real NCCL RAS mesh.

    srun -N4 -n8 --ntasks-per-node=2 /usr/bin/python3 train.py --tp 2 --fault not_entered --rank 3 --step 20

Writes into --dir (by default train-JOB.STEP below the working folder): `ranks.json` (who runs where, which
communicators there are), `truth.json` (the fault, when it struck), `progress/RANK` (a line "step time" for each step
that the rank finished). Ends by itself after --steps or --duration, whatever is wrong with it.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # started as a program: the package is the folder that this file lies in
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    __package__ = Path(__file__).resolve().parent.name
    __import__(__package__)

from . import distributed_c10d as dist
from .data_loader import DataLoader
from .faults import FAULTS, MAIN_OPERATION
from .identity import Identity
from .parallel import groups
from .shared import SharedFile
from .torchrun import launch_agent

KINDS = ("world", "tp", "dp", "pp")
STILL_HANGING = 3  # exit status of a rank that --duration ended while the job hung


class Training:
    """One rank of the job."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.me = options, Identity.from_environment()
        self.fault = FAULTS[options.fault]
        self.folder = Path(options.dir or f"train-{self.me.step}").resolve()
        (self.folder / "progress").mkdir(parents=True, exist_ok=True)
        self.layout = groups(self.me.world_size, options.tp, options.pp)
        self.kinds = [kind for kind in KINDS if kind in self.layout and kind in options.groups]
        if options.fault != "none" and options.group not in [*self.kinds, "late"]:
            raise SystemExit(f"train.py: no group {options.group!r} in this job; it has {', '.join(self.kinds)}")
        if options.group in ("pp", "late") and self.fault.collective:
            raise SystemExit(f"train.py: {options.fault} needs a group with collectives, and not {options.group}")
        self.culprits = self.find_culprits()
        self.struck_ranks = list(range(self.me.world_size)) if self.fault.everyone else self.culprits
        self.shared = SharedFile(self.folder / "shared")
        self.loader = DataLoader()
        self.progress = os.open(
            self.folder / "progress" / str(self.me.rank), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644
        )
        self._end_in_time()
        self.world = dist.World(self.me, options.nccl, self.shared, options.run_ahead)

    def find_culprits(self) -> list[int]:
        """Global ranks that are at fault, which need not be all that the fault strikes."""
        if self.options.rank == "all" or (self.fault.everyone and not self.fault.link):
            return list(range(self.me.world_size))
        ranks = [int(rank) for rank in self.options.rank.split(",")]
        if not self.fault.link:
            return ranks
        ring = next(members for members in self.layout[self.options.group] if ranks[0] in members)
        return [ranks[0], ring[(ring.index(ranks[0]) + 1) % len(ring)]]

    # ---- the job's beginning and end

    def init_process_groups(self) -> None:
        """Makes this rank's communicators, world first."""
        dist.announce(self.world)
        index = 0
        for kind in self.kinds:
            for number, ranks in enumerate(self.layout[kind]):
                if self.me.rank in ranks:
                    if self.options.fault == "init_stall" and self.options.group == kind:
                        self.strike(0, kind, name(kind, number), ranks)
                    joins_mesh = kind == "world" or "world" not in self.kinds
                    dist.new_group(self.world, kind, name(kind, number), ranks, index, joins_mesh)
                index += 1
        if self.me.rank == 0:
            self.shared.wait_for_all(self.me.world_size)
            write_json(self.folder / "ranks.json", self.describe())
            if self.options.fault == "none":
                self.write_truth(0, None, [])

    def _end_in_time(self) -> None:
        signal.signal(signal.SIGALRM, lambda *_: self._time_is_up())
        remaining = self.shared.started + self.options.duration - time.time()
        signal.setitimer(signal.ITIMER_REAL, max(0.001, remaining))

    def _time_is_up(self) -> None:
        """Ends this process at once, and a stopped rank that cannot end itself."""
        if self.options.fault == "stopped":
            for rank in self.culprits:
                pid = self.shared.process(rank)[0]
                if pid and pid != os.getpid():
                    os.kill(pid, signal.SIGKILL)
        hangs = self.fault.hangs and (self.folder / "truth.json").exists()
        os._exit(STILL_HANGING if hangs else 0)

    # ---- a step

    def train(self) -> None:
        for step in range(self.options.steps):
            begin = time.monotonic()
            self.train_step(step)
            self.world.stream.synchronize()
            os.write(self.progress, f"{step} {time.time():.3f}\n".encode())
            if self.me.rank == 0 and step % self.options.log_every == 0:
                print(f"step {step}", flush=True)
            time.sleep(max(0.0, 1 / self.options.rate - (time.monotonic() - begin)))

    def train_step(self, step: int) -> None:
        self.loader.next_batch()
        self.forward(step)
        self.backward(step)
        self.reduce_gradients(step)
        self.clip_gradients(step)

    def forward(self, step: int) -> None:
        pipeline = self.world.groups.get(self.own("pp"))
        self.struck(step, "pp")
        if pipeline and pipeline.rank > 0:
            dist.recv(self.world, pipeline, pipeline.rank - 1)
        self.tensor_parallel(step, first=True)
        if pipeline and pipeline.rank < len(pipeline.ranks) - 1:
            dist.send(self.world, pipeline, pipeline.rank + 1)

    def backward(self, step: int) -> None:
        pipeline = self.world.groups.get(self.own("pp"))
        if pipeline and pipeline.rank < len(pipeline.ranks) - 1:
            dist.recv(self.world, pipeline, pipeline.rank + 1)
        self.tensor_parallel(step, first=False)
        if pipeline and pipeline.rank > 0:
            dist.send(self.world, pipeline, pipeline.rank - 1)

    def tensor_parallel(self, step: int, first: bool) -> None:
        group = self.world.groups.get(self.own("tp"))
        if group:
            if not (first and self.struck(step, "tp")):
                dist.all_reduce(self.world, self.options.bytes, group)
            dist.all_gather_into_tensor(self.world, self.options.bytes, group)

    def reduce_gradients(self, step: int) -> None:
        group = self.world.groups.get(self.own("dp"))
        if group:
            if not self.struck(step, "dp"):
                dist.reduce_scatter_tensor(self.world, self.options.bytes, group)
            dist.all_gather_into_tensor(self.world, self.options.bytes, group)

    def clip_gradients(self, step: int) -> None:
        """The norm of all gradients: one all-reduce over the world, and the place where late groups are made."""
        world = self.world.groups.get("world")
        if world and not self.struck(step, "world"):
            dist.all_reduce(self.world, self.options.bytes, world)
        if self.options.group == "late" and step == self.options.step:
            everyone = list(range(self.me.world_size))
            self.strike(step, "late", "late", everyone)
            dist.new_group(self.world, "late", "late", everyone, self.world.next_dynamic_index(), joins_mesh=False)

    def own(self, kind: str) -> str:
        """Name of this rank's group of that kind; a name that no group has if there is none."""
        for number, ranks in enumerate(self.layout.get(kind, [])):
            if self.me.rank in ranks:
                return name(kind, number)
        return ""

    # ---- faults

    def struck(self, step: int, kind: str) -> bool:
        """Lets the fault strike if this is its place; True if it took the place of the group's collective."""
        due = step >= self.options.step if self.fault.repeats else step == self.options.step
        if not due or kind != self.options.group or self.options.fault in ("none", "init_stall"):
            return False
        group = self.world.groups[self.own(kind)]
        return self.strike(step, kind, group.name, group.ranks)

    def strike(self, step: int, kind: str, group_name: str, ranks: list[int]) -> bool:
        if self.me.rank not in self.struck_ranks:
            return False
        first_time = step == self.options.step or self.options.fault == "init_stall"
        if first_time and self.me.rank == min(self.culprits):
            self.write_truth(step, group_name, ranks)
        return self.fault.act(self, self.world.groups.get(group_name))  # type: ignore[arg-type]

    def write_truth(self, step: int, group_name: str | None, ranks: list[int]) -> None:
        """Says what is wrong, on standard output and in truth.json, before it is."""
        kind = self.options.group
        truth = {
            "fault": self.options.fault,
            "hang": self.fault.hangs,
            "step": step,
            "time": time.time(),
            "culprits": [] if group_name is None else [self.process(rank) for rank in self.culprits],
            "communicator": group_name and self.communicator(kind, group_name, ranks),
            "operation": group_name and MAIN_OPERATION[kind],
            "pause_s": self.options.pause,
        }
        print(json.dumps({"truth": truth}), flush=True)
        write_json(self.folder / "truth.json", truth)

    # ---- what is what

    def describe(self) -> dict[str, Any]:
        """All ranks and all communicators of the job."""
        return {
            "step": self.me.step,
            "nccl": self.options.nccl,
            "ras": os.environ.get("NCCL_RAS_ADDR", "localhost:28028"),
            "ranks": [self.process(rank) for rank in range(self.me.world_size)],
            "communicators": [
                self.communicator(kind, name(kind, number), ranks)
                for kind in self.kinds
                for number, ranks in enumerate(self.layout[kind])
            ],
        }

    def process(self, rank: int) -> dict[str, Any]:
        pid, device, node_id = self.shared.process(rank)
        return {
            "rank": rank,
            "pid": pid,
            "node": self.shared.node(rank),
            "host": f"127.0.0.{1 + node_id}",
            "cuda_dev": device,
        }

    def communicator(self, kind: str, group_name: str, ranks: list[int]) -> dict[str, Any]:
        made_before = self.world.made_dynamic
        return {
            "name": group_name,
            "kind": kind,
            "hash": hex(dist.communicator_hash(self.me.step, group_name, made_before)),
            "ranks": ranks,
        }


def name(kind: str, number: int) -> str:
    return kind if kind == "world" else f"{kind}{number}"


def write_json(path: Path, value: Any) -> None:
    """In one step: a reader finds all of it or nothing."""
    part = path.with_name(f"{path.name}.{os.getpid()}")
    part.write_text(json.dumps(value) + "\n")
    part.replace(path)


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--tp", type=int, default=1, help="ranks of a tensor-parallel group")
    add("--pp", type=int, default=1, help="ranks of a pipeline")
    add("--groups", default="world,tp,dp,pp", type=lambda text: text.split(","), help="kinds of communicators to make; "
        "tp alone gives disjoint meshes")  # fmt: skip
    add("--steps", type=int, default=1_000_000_000)
    add("--rate", type=float, default=5.0, help="steps a second at most")
    add("--duration", type=float, default=60.0, help="seconds after which every rank ends whatever happens")
    add("--bytes", type=int, default=1 << 20, help="size that is said for every collective")
    add("--run-ahead", type=int, default=0, help="operations that a rank launches before it blocks")
    add("--nccl", default="2.28.9", help="NCCL release whose RAS the ranks carry")
    add("--dir", help="folder for what it writes")
    add("--log-every", type=int, default=10, help="steps between lines of rank 0 on standard output")
    add("--fault", choices=sorted(FAULTS), default="none")
    add("--rank", default="0", help="global ranks that the fault strikes: 3, 3,5 or all")
    add("--step", type=int, default=10, help="step in which it strikes")
    add("--group", default="world", help="group before whose collective it strikes: world, tp, dp, pp or late")
    add("--variant", default="data", choices=("data", "lock", "sleep"), help="how not_entered waits")
    add("--pause", type=float, default=5.0, help="seconds that a passing fault takes")
    add("--torchrun", type=int, metavar="N", help="be an agent that starts N workers")
    return parser.parse_args(argv)


def main(argv: list[str]) -> None:
    options = parse(argv)
    if options.torchrun and "LOCAL_WORLD_SIZE" not in os.environ:
        launch_agent([__file__, *argv], options.torchrun)
    training = Training(options)
    try:
        training.init_process_groups()
        training.train()
    except SystemExit as end:
        leave(int(end.code or 0))
    leave(0)


def leave(status: int) -> None:
    """Ends this process as a C program ends: Python would free the communicators, which NCCL's threads read to the very end."""
    sys.stdout.flush()
    sys.stderr.flush()
    ctypes.CDLL(None).exit(status)


if __name__ == "__main__":
    main(sys.argv[1:])
