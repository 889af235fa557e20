"""Which processes of a node belong to a step, and never those of another job. Pure: facts in, choice out.

A process is the step's when its environment says so (SLURM_JOB_ID, SLURM_STEP_ID, and SLURMD_NODENAME where several slurmd
share a machine). One whose environment does not say (cleared, unreadable, a zombie) is the step's when Slurm lists it, when its
cgroup is the step's, or when its parent is the step's. One that says another step is that step's, whatever its parent.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from slurm_ncclmon.evidence.procfs import EMPTY, Look, Memory
from slurm_ncclmon.slurm.cluster import cluster_name
from slurm_ncclmon.slurm.step import BATCH, StepId

MONITOR_MARK = "NCCLMON_IS_MONITOR"
"""In the environment of every process that we start; the plugin in srun starts no monitor where it is set."""


@dataclass(frozen=True)
class Candidate:
    """One process of the user on the node."""

    look: Look
    memory: Memory = EMPTY

    @property
    def pid(self) -> int:
        """Shorthand."""
        return self.look.pid


def select(
    candidates: Mapping[int, Candidate], step: StepId, node: str, listed: Mapping[int, int | None], cluster: str = ""
) -> dict[int, Candidate]:
    """Pid -> candidate of those that belong to the step on this node.

    `listed` is pid -> task (None for a descendant), as Slurm itself lists them; it may be empty. `cluster` is the step's
    cluster: a machine may be a node of several, each of which has a job 1.
    """
    verdicts = {pid: _says(candidate.memory.environment, step, node, cluster) for pid, candidate in candidates.items()}
    chosen = {pid for pid, says in verdicts.items() if says is True}
    open_ones = {pid for pid, says in verdicts.items() if says is None}
    chosen |= {pid for pid in open_ones if pid in listed or in_cgroup(candidates[pid].look.cgroup, step, node)}
    # Children of chosen ones: their parents have been decided on when no round finds any more.
    open_ones -= chosen
    while True:
        more = {pid for pid in open_ones if candidates[pid].look.stat.ppid in chosen}
        if not more:
            return {pid: candidates[pid] for pid in sorted(chosen)}
        chosen |= more
        open_ones -= more


def _says(environment: Mapping[str, str], step: StepId, node: str, cluster: str) -> bool | None:
    """Whether an environment names this step and node; None when it names none."""
    if MONITOR_MARK in environment:
        return False
    job = environment.get("SLURM_JOB_ID")
    if job is None:
        return None
    if environment.get("SLURMD_NODENAME", node) != node:
        return False
    if cluster and (cluster_name(environment) or cluster) != cluster:
        return False
    named = environment.get("SLURM_STEP_ID")
    if named is None:  # the batch script's own processes, an interactive shell, and sruns on their way
        return job == str(step.job) and step.step == BATCH
    return job == str(step.job) and named == str(step.step)


def in_cgroup(cgroup: str, step: StepId, node: str) -> bool:
    """Whether /proc/PID/cgroup lies in the step's, by Slurm's names for them (v1 and v2)."""
    word = str(step).partition(".")[2]
    match = re.search(rf"^(.*)/job_{step.job}/step_{word}(?:/|$)", cgroup, re.MULTILINE)
    # Several slurmd on one machine have a tree each, with the node's name in it.
    other = match and re.search(r"/(?:slurm_|)([^/]+?)(?:_slurmstepd\.scope|/uid_\d+)$", match.group(1))
    return bool(match) and (not other or other.group(1) in (node, "slurm", "slurmstepd.scope"))
