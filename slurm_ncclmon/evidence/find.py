"""The step's processes on this node, from /proc and from Slurm."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from slurm_ncclmon.evidence.assemble import Known
from slurm_ncclmon.evidence.bounded import Later, bounded_map
from slurm_ncclmon.evidence.listpids import listed_pids
from slurm_ncclmon.evidence.membership import Candidate, select
from slurm_ncclmon.evidence.procfs import EMPTY, look, own_pids, read_memory
from slurm_ncclmon.evidence.roles import roles
from slurm_ncclmon.slurm.cluster import own_cluster
from slurm_ncclmon.slurm.step import StepId

READING_S = 1.5
"""For all processes together, each time they are read."""


@dataclass(frozen=True)
class Found:
    """Pid -> process; the tasks that the node was given; sentences on what could not be seen."""

    known: dict[int, Known]
    tasks: tuple[int, ...]
    problems: tuple[str, ...]


def find_processes(step: StepId, node: str) -> Found:
    """Look at all processes of this user; never longer than a few times READING_S."""
    listed = Later(lambda: listed_pids(step, node, READING_S * 2))
    candidates = own_processes()
    from_slurm, trouble = listed.get(READING_S * 2) or ({}, "Slurm did not answer")
    members = select(candidates, step, node, from_slurm, own_cluster(os.environ))
    who = roles(members, from_slurm)
    tasks = expected_tasks(members)
    problems = [
        f"process {pid}: its memory is locked, environment and command unknown"
        for pid, member in members.items()
        if member.memory is EMPTY
    ]
    if trouble and not members:
        problems.append(f"second source of processes: {trouble}")
    return Found({pid: Known(members[pid], who[pid]) for pid in members}, tasks, tuple(problems))


def own_processes() -> dict[int, Candidate]:
    """All processes of this user but this one; those that could not be read in time have an EMPTY memory."""
    pids = [pid for pid in own_pids(os.getuid()) if pid != os.getpid()]
    looks = bounded_map(look, pids, READING_S)
    memories = bounded_map(read_memory, looks, READING_S)
    return {pid: Candidate(one, memories.get(pid, EMPTY)) for pid, one in looks.items()}


def expected_tasks(members: Mapping[int, Candidate]) -> tuple[int, ...]:
    """The tasks that Slurm gave this node, as it tells each of them (SLURM_GTIDS)."""
    for member in members.values():
        words = member.memory.environment.get("SLURM_GTIDS", "").split(",")
        if all(word.isdigit() for word in words):
            return tuple(sorted(map(int, words)))
    return ()
