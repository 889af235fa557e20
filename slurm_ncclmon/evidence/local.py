"""The step's ranks on this very node, without asking Slurm: what the monitor needs at each poll."""

from __future__ import annotations

import os

from slurm_ncclmon.evidence.assemble import Known
from slurm_ncclmon.evidence.find import own_processes
from slurm_ncclmon.evidence.membership import select
from slurm_ncclmon.evidence.roles import RANK, roles
from slurm_ncclmon.slurm.cluster import own_cluster
from slurm_ncclmon.slurm.step import StepId


def local_ranks(step: StepId, node: str) -> tuple[Known, ...]:
    """Ranks of the step on this node that have NCCL loaded, by pid; processes that cannot be read in time are left out."""
    members = select(own_processes(), step, node, {}, own_cluster(os.environ))
    who = roles(members, {})
    ranks = (Known(member, who[pid]) for pid, member in members.items() if who[pid].kind == RANK)
    return tuple(rank for rank in ranks if rank.candidate.memory.has_nccl)
