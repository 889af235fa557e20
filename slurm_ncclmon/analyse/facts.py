"""What evidence tells of processes, found by the number that RAS's process has in the history."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from slurm_ncclmon.detect.layout import Processes
from slurm_ncclmon.evidence.model import NodeReport, ProcessReport
from slurm_ncclmon.observation import Evidence

_LOOPBACK = ("127.", "::1", "localhost")


@dataclass(frozen=True)
class Fact:
    """One process as its node told of it."""

    node: str
    report: ProcessReport


class Facts:
    """The facts of one Evidence, by process number. A loopback address belongs to every node."""

    def __init__(self, evidence: Evidence | None, processes: Processes) -> None:
        self.evidence = evidence
        self._gpus = processes.gpus
        self._found: dict[int, Fact] = {}
        self._silent: set[str] = set()
        self.exited: frozenset[int] = frozenset()
        self._nodes: dict[str, str] = {}
        if evidence is None:
            return
        self.exited = frozenset(task for node in evidence.nodes for task in node.exited)
        by_pid: dict[int, list[tuple[NodeReport, ProcessReport]]] = {}
        for node in evidence.nodes:
            for report in node.processes:
                by_pid.setdefault(report.ns_pid, []).append((node, report))
        for number, gpu in enumerate(processes.gpus):
            for node, report in by_pid.get(gpu.pid, ()):
                if gpu.host in node.addresses or gpu.host == node.node or gpu.host.startswith(_LOOPBACK):
                    self._found[number] = Fact(node.node, report)
                    break
        self._nodes = self._nodes_of_hosts(evidence)
        self._addresses = {address for node in evidence.nodes if node.answered for address in node.addresses}
        self._all_answered = all(node.answered for node in evidence.nodes)

    def _nodes_of_hosts(self, evidence: Evidence) -> dict[str, str]:
        """Node of each of RAS's addresses: as the node itself says, else as the processes tell that are there."""
        told: dict[str, set[str]] = {}
        for number, fact in self._found.items():
            told.setdefault(self._gpus[number].host, set()).add(fact.node)
        nodes = {host: min(names) for host, names in told.items() if len(names) == 1}
        return {**nodes, **{address: node.node for node in evidence.nodes for address in node.addresses}}

    def node(self, process: int) -> str:
        """Its node, also when it is gone; the address that RAS knows it by where no node is known."""
        fact, host = self._found.get(process), self._gpus[process].host
        return self._nodes.get(host, host) if fact is None else fact.node

    def of(self, process: int) -> Fact | None:
        """What is known of process number `process`."""
        return self._found.get(process)

    def known(self) -> list[int]:
        """Numbers of all processes that something is known of, ascending."""
        return sorted(self._found)

    def absent(self, process: int) -> bool:
        """Its node answered, and has no such process (any more)."""
        host = self._gpus[process].host
        if self.evidence is None or process in self._found or not self.evidence.nodes:
            return False
        return host in self._addresses or (self._all_answered and host.startswith(_LOOPBACK))

    def phase(self, process: int) -> str | None:
        """Its phase (evidence/phases.py), None when nothing was told."""
        fact = self._found.get(process)
        return None if fact is None else fact.report.phase

    def phases(self, processes: Iterable[int]) -> dict[int, str]:
        """Phases of those processes that something is known of."""
        return {process: self._found[process].report.phase for process in processes if process in self._found}
