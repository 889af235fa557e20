"""Who this process is in its job: by torchrun's variables where they are set, by Slurm's otherwise."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Identity:
    rank: int
    world_size: int
    local_rank: int
    node_id: int  # index in the step's node list
    node: str  # Slurm's name of the node
    step: str  # JOB.STEP, with the number of restarts behind it if there were any

    @classmethod
    def from_environment(cls, env: Mapping[str, str] = os.environ) -> Identity:
        """Reads the variables of srun or torchrun; without either, a job of one rank."""
        step = f"{env.get('SLURM_JOB_ID', '0')}.{env.get('SLURM_STEP_ID', '0')}"
        restarts = env.get("SLURM_RESTART_COUNT", "0")
        return cls(
            rank=int(env.get("RANK") or env.get("SLURM_PROCID", "0")),
            world_size=int(env.get("WORLD_SIZE") or env.get("SLURM_STEP_NUM_TASKS") or env.get("SLURM_NTASKS", "1")),
            local_rank=int(env.get("LOCAL_RANK") or env.get("SLURM_LOCALID", "0")),
            node_id=int(env.get("SLURM_NODEID", "0")),
            node=env.get("SLURMD_NODENAME", "localhost"),
            step=step if restarts == "0" else f"{step}-r{restarts}",
        )

    @property
    def address(self) -> str:
        """The node's address on loopback, where a real node would have its bootstrap interface."""
        return f"127.0.0.{1 + self.node_id}"
