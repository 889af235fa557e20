"""Who is who among a step's processes: ranks, the launchers above them, the children below them. Pure.

Processes that claim the same rank form a chain (shell, srun's task, trainer, its workers); the rank is the topmost one that has
NCCL loaded, else the topmost Python program, else the topmost one that is no launcher and not just passing. A launcher such as
torchrun claims no rank of its own, or the one that Slurm gave to the task, while the processes below it claim others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath

from slurm_ncclmon.evidence.membership import Candidate

RANK, LAUNCHER, CHILD = "rank", "launcher", "child"

_RANK_NAMES = ("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")
_LOCAL_NAMES = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID")
_PROGRAMS = (
    "sh bash dash ash ksh zsh fish tcsh csh busybox env nice time timeout stdbuf numactl taskset setsid script tee "
    "nsys ncu strace ltrace perf gdb apptainer singularity starter starter-suid enroot bwrap unshare podman docker "
    "srun mpirun mpiexec orted prted torchrun accelerate deepspeed horovodrun ft_launcher"
)
_LAUNCHERS = frozenset(_PROGRAMS.split())
_PASSING_S = 2.0
"""A shell script's small commands are younger than this nearly always."""
_LAUNCHER_MODULES = (
    "torch.distributed.run",
    "torch.distributed.launch",
    "accelerate.commands.launch",
    "deepspeed.launcher",
    "nvidia_resiliency_ext.fault_tolerance.launcher",
)


@dataclass(frozen=True)
class Role:
    """`rank` is global; it is None for several ranks that one process forked and gave no numbers in the environment."""

    kind: str
    rank: int | None
    local_rank: int | None
    task: int | None


def roles(members: Mapping[int, Candidate], listed: Mapping[int, int | None]) -> dict[int, Role]:
    """Role of each process of the step; `listed` is Slurm's own pid -> task."""
    family = _Family(members, listed)
    ranks = {pid for chain in family.chains() for pid in _ranks_of(chain, family)}
    above = {ancestor for pid in ranks for ancestor in family.ancestors(pid)} - ranks
    result = {}
    for pid in members:
        kind = RANK if pid in ranks else LAUNCHER if pid in above else CHILD
        result[pid] = family.role(pid, kind, ranks)
    return result


class _Family:
    """Parents, and the rank that each process claims (inherited from its parent where its environment has none)."""

    def __init__(self, members: Mapping[int, Candidate], listed: Mapping[int, int | None]) -> None:
        self.members = members
        self.listed = listed
        self.claims: dict[int, int | None] = {}
        for pid in members:
            self._claim(pid)

    def parent(self, pid: int) -> int | None:
        ppid = self.members[pid].look.stat.ppid
        return ppid if ppid in self.members and ppid != pid else None

    def ancestors(self, pid: int) -> list[int]:
        found: list[int] = []
        parent = self.parent(pid)
        while parent is not None and parent not in found:
            found.append(parent)
            parent = self.parent(parent)
        return found

    def _claim(self, pid: int) -> int | None:
        if pid in self.claims:
            return self.claims[pid]
        self.claims[pid] = None  # ends a circle, which only a pid used twice could make
        claim = _number(self.members[pid].memory.environment, _RANK_NAMES)
        if claim is None:
            claim = self.listed.get(pid)
        parent = self.parent(pid)
        if claim is None and parent is not None:
            claim = self._claim(parent)
        self.claims[pid] = claim
        return claim

    def chains(self) -> list[list[int]]:
        """Processes by the rank that they claim, less those that have another claim below them: launchers."""
        chains: dict[int | None, list[int]] = {}
        for pid, claim in self.claims.items():
            chains.setdefault(claim, []).append(pid)
        above_others = {
            ancestor
            for pid, claim in self.claims.items()
            for ancestor in self.ancestors(pid)
            if self.claims[ancestor] != claim or not self._same_source(ancestor, pid)
        }
        kept = ([pid for pid in chain if pid not in above_others] for chain in chains.values())
        return [chain for chain in kept if chain]

    def _same_source(self, ancestor: int, pid: int) -> bool:
        """torchrun's first worker has RANK 0 under a task that is number 0 as well: only the worker has a RANK."""
        upper, lower = self.members[ancestor].memory.environment, self.members[pid].memory.environment
        return not ("LOCAL_RANK" in lower and "RANK" in lower and "RANK" not in upper)

    def role(self, pid: int, kind: str, ranks: set[int]) -> Role:
        environment = self.members[pid].memory.environment
        claim = self.claims[pid]
        twins = sum(self.claims[other] == claim for other in ranks)
        return Role(
            kind=kind,
            rank=None if kind == LAUNCHER or (kind == RANK and twins > 1) else claim,
            local_rank=_number(environment, _LOCAL_NAMES) if kind != LAUNCHER else None,
            task=self._task(pid),
        )

    def _task(self, pid: int) -> int | None:
        for one in (pid, *self.ancestors(pid)):
            task = _number(self.members[one].memory.environment, ("SLURM_PROCID",))
            if task is None:
                task = self.listed.get(one)
            if task is not None:
                return task
        return None


def _ranks_of(chain: list[int], family: _Family) -> list[int]:
    inside = set(chain)
    for wanted in (_has_nccl, _is_python, _is_worker):
        fitting = {pid for pid in chain if wanted(family.members[pid])}
        top = [pid for pid in sorted(fitting) if not fitting.intersection(family.ancestors(pid))]
        if top:
            return top
    return [pid for pid in sorted(chain) if not inside.intersection(family.ancestors(pid))]


def _has_nccl(candidate: Candidate) -> bool:
    return candidate.memory.has_nccl


def _is_python(candidate: Candidate) -> bool:
    return candidate.memory.has_python and not is_launcher(candidate.memory.command)


def _is_worker(candidate: Candidate) -> bool:
    return not is_launcher(candidate.memory.command) and candidate.look.age_s >= _PASSING_S


def is_launcher(command: tuple[str, ...]) -> bool:
    """Whether a command line starts other programs and does no work of its own."""
    if not command:
        return False
    words = [PurePath(word).name.lstrip("-") for word in command[:2]]
    if words[0] in _LAUNCHERS:
        return True
    if not words[0].startswith("python"):
        return False
    if "-m" in command[:-1]:
        module = command[command.index("-m") + 1]
        return module.startswith(_LAUNCHER_MODULES)
    return len(words) > 1 and words[1] in _LAUNCHERS


def _number(environment: Mapping[str, str], names: tuple[str, ...]) -> int | None:
    return next((int(environment[name]) for name in names if environment.get(name, "").isdigit()), None)
