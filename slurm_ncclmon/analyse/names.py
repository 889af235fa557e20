"""Who is who: the job's ranks, nodes and roles of communicators behind RAS's addresses and pids."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from slurm_ncclmon.analyse.facts import Facts
from slurm_ncclmon.detect.layout import Layout
from slurm_ncclmon.verdict import CommunicatorRef, Culprit


class Names:
    """Names for the rows and processes of one layout, with what evidence has told of them (`facts`)."""

    def __init__(self, layout: Layout, facts: Facts) -> None:
        self._layout = layout
        self.facts = facts
        self._processes = len(layout.process_start)
        world = np.flatnonzero(layout.size == self._processes)
        self._world = layout.rows(int(world[0])) if len(world) else slice(0, 0)
        first = layout.process[:1]
        self._one_host = all(
            layout.processes.hosts[number] == layout.processes.hosts[int(first[0])] for number in layout.present
        )

    def global_rank(self, process: int) -> int | None:
        """The job's rank: as the process itself was told, else its rank in the communicator of all."""
        told = self.facts.of(process)
        if told is not None and told.report.rank is not None:
            return told.report.rank
        rows = np.flatnonzero(self._layout.process[self._world] == process)
        return int(self._layout.rank[self._world][rows[0]]) if len(rows) else None

    def row_of(self, process: int) -> int:
        """A row of `process`: that in the largest communicator it is in."""
        rows = np.flatnonzero(self._layout.process == process)
        return int(rows[np.argmax(self._layout.size[self._layout.comm_of[rows]])])

    def host(self, process: int) -> str:
        """The Slurm node, else the address that RAS knows."""
        return self.facts.node(process)

    def culprit(self, row: int, why: str) -> Culprit:
        """The member in `row`, named because of `why`."""
        process = int(self._layout.process[row])
        gpu = self._layout.processes.gpus[process]
        return Culprit(
            rank=int(self._layout.rank[row]),
            global_rank=self.global_rank(process),
            host=self.host(process),
            pid=gpu.pid,
            cuda_dev=gpu.cuda_dev if gpu.cuda_dev >= 0 else None,
            why=why,
        )

    def shown(self, rows: Iterable[int]) -> list[int]:
        """Ranks as the job's owner knows them, ascending."""
        ranks = [(self.global_rank(int(self._layout.process[row])), int(self._layout.rank[row])) for row in rows]
        return sorted(rank if known is None else known for known, rank in ranks)

    def reference(self, comm: int) -> CommunicatorRef:
        """What a verdict says of communicator number `comm`."""
        key = self._layout.comms[comm]
        return CommunicatorRef(key.hash, key.secondary, int(self._layout.size[comm]), self.role(comm))

    def role(self, comm: int) -> str | None:
        """A guess by shape: all processes are the world; one node's are tensor-parallel; ranks at equal distance over several
        nodes data-parallel. None where the job has only one node, and so shows no difference."""
        size = int(self._layout.size[comm])
        if size == self._processes:
            return "world"
        if self._one_host or size < 2:
            return None
        members = self._layout.process[self._layout.rows(comm)].tolist()
        return "tp" if len({self._layout.processes.hosts[process] for process in members}) == 1 else "dp"
