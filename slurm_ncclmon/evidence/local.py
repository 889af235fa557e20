"""The step's ranks on this very node, without asking Slurm: what the monitor needs at each poll."""

from __future__ import annotations

import os

from slurm_ncclmon.evidence.assemble import Known
from slurm_ncclmon.evidence.bounded import bounded_map
from slurm_ncclmon.evidence.membership import Candidate, select
from slurm_ncclmon.evidence.procfs import EMPTY, look, own_pids, read_memory
from slurm_ncclmon.evidence.roles import RANK, roles
from slurm_ncclmon.slurm.step import StepId

_READING_S = 1.5


def local_ranks(step: StepId, node: str) -> tuple[Known, ...]:
    """Ranks of the step on this node that have NCCL loaded, by pid; processes that cannot be read in time are left out."""
    pids = [pid for pid in own_pids(os.getuid()) if pid != os.getpid()]
    looks = bounded_map(look, pids, _READING_S)
    memories = bounded_map(read_memory, looks, _READING_S)
    candidates = {pid: Candidate(one, memories.get(pid, EMPTY)) for pid, one in looks.items()}
    members = select(candidates, step, node, {})
    who = roles(members, {})
    ranks = (Known(member, who[pid]) for pid, member in members.items() if who[pid].kind == RANK)
    return tuple(rank for rank in ranks if rank.candidate.memory.has_nccl)
