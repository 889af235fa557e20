"""The step's own mesh, seen whole: whom to ask, whose the answer is, and what cannot be seen.

RAS answers for one mesh, the processes that share communicators, directly or through others. A step may have several, and several
jobs of one user may listen at one port, where the kernel picks one process for each connection. So the answers are compared with
the processes that the step has on this node, and asking goes on until all of these are covered or there is no more to expect.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Callable

from slurm_ncclmon.errors import RasError, RasUnsafeError, ReportError
from slurm_ncclmon.observation import Poll
from slurm_ncclmon.ras import client, safety
from slurm_ncclmon.ras import problems as kind
from slurm_ncclmon.ras.client import Address, Answer
from slurm_ncclmon.ras.decode import Decoder
from slurm_ncclmon.ras.merge import merge
from slurm_ncclmon.ras.report import MISSING, Gpu, Problem, Report
from slurm_ncclmon.ras.safety import Circumstances
from slurm_ncclmon.ras.version import Version, is_running, loaded_version

MOST_QUESTIONS = 6
"""To one address in one poll, if its answers are not ours. If they leave processes out, two more for each process there: who
answers is chance, and a mesh of few processes among many is found late."""
PATIENCE = 10
"""Polls until processes that no answer has ever covered are asked for again."""

Ask = Callable[[Address, bool], Answer]


@dataclass(frozen=True)
class Process:
    """A process of the step on this node."""

    pid: int
    ns_pid: int
    """Its pid in its own namespace, which RAS reports."""
    address: Address = client.DEFAULT_ADDRESS
    """Where its RAS listens."""


@dataclass(frozen=True)
class Local:
    """What is known of the step on this node. Without processes, every answer is taken for the step's."""

    processes: tuple[Process, ...] = ()
    hosts: frozenset[str] = frozenset()
    """The node's own addresses; loopback is understood."""
    circumstances: Circumstances = field(default_factory=Circumstances)
    ranks: int = 0
    """Of the whole step; 0: not known."""
    other_nodes: tuple[str, ...] = ()
    """The step's nodes but this one."""


class _ForeignError(RasError):
    """Who answers has no JSON, but the step's NCCL has."""


@dataclass
class _Look:
    """What one poll has brought so far."""

    answers: list[bytes] = field(default_factory=list)
    reports: list[Report] = field(default_factory=list)
    covered: set[int] = field(default_factory=set)
    foreign: Counter[Address] = field(default_factory=Counter)
    silent: int = 0
    troubles: list[str] = field(default_factory=list)


def ask_directly(address: Address, text: bool) -> Answer:
    """client.ask with its usual timeouts."""
    return client.ask(address, text=text)


class Mesh:
    """Asks for one step; remembers between polls what is in vain and what must not be done any more."""

    def __init__(
        self,
        ask: Ask = ask_directly,
        version_of: Callable[[int], Version | None] = loaded_version,
        runs: Callable[[int], bool] = is_running,
    ) -> None:
        self._ask, self._version_of, self._runs = ask, version_of, runs
        self._decoder = Decoder()
        self._version: Version | None = None
        self._needs_text = False
        self.off: str | None = None
        """Why this step's RAS is not asked any more."""
        self._in_vain: frozenset[int] = frozenset()
        self._ever: set[int] = set()
        """Processes that some answer has covered."""
        self._in_vain_since = 0

    def poll(self, n: int, t_s: float, wall_s: float, local: Local) -> Poll:
        """One observation at time `t_s`; whatever goes wrong is in it."""
        if self.off is not None:
            return Poll(n, t_s, wall_s, None, self.off)
        look = _Look()
        for address, processes in _by_address(local.processes).items():
            self._ask_until_covered(address, processes, local, look, n)
        self._watch_for_corruption(look)
        notes = self._notes(look, local, n)
        report = merge(look.reports, notes) if look.reports else None
        trouble = None if report else "; ".join(dict.fromkeys(look.troubles)) or _nothing_ours(notes)
        return Poll(n, t_s, wall_s, report, trouble, tuple(look.answers), notes)

    def _ask_until_covered(self, address: Address, processes: list[Process], local: Local, look: _Look, n: int) -> None:
        wanted = {process.ns_pid for process in processes}
        if n - self._in_vain_since < PATIENCE:
            wanted -= self._in_vain - self._ever
        for question in range(MOST_QUESTIONS + 2 * len(processes)):
            if question and (not wanted - look.covered if look.reports else not look.foreign[address]):
                return
            if question >= MOST_QUESTIONS and not look.reports:
                return
            try:
                answer = self._question(address, processes, local)
            except _ForeignError:
                look.foreign[address] += 1
                continue
            except RasError as error:
                look.troubles.append(str(error))
                return
            look.silent += answer.silent
            try:
                self._sort(answer, self._decoder.decode(answer.text), local, look)
            except ReportError as error:
                look.answers.append(answer.text)  # a recording shows what it was
                look.troubles.append(f"{address}: {error}")
                return

    def _question(self, address: Address, processes: list[Process], local: Local) -> Answer:
        """One answer, as text where there is nothing else and it cannot do harm. Raises RasError."""
        if not self._needs_text:
            try:
                return self._ask(address, False)
            except RasUnsafeError as error:
                self._version = self._version_of(processes[0].pid) if processes else None
                if self._version is not None and self._version >= safety.FIRST_WITH_JSON:
                    raise _ForeignError(str(error)) from None
                self._needs_text = True
        circumstances = local.circumstances
        if not all(self._runs(process.pid) for process in local.processes):
            circumstances = replace(circumstances, all_present=False)
        refusal = safety.refusal_of_text(self._version, circumstances)
        if refusal is not None:
            raise RasUnsafeError(refusal)
        return self._ask(address, True)

    def _sort(self, answer: Answer, report: Report, local: Local, look: _Look) -> None:
        """Keep the answer if it is the step's."""
        pids = _local_pids(report, local.hosts)
        own = pids & {process.ns_pid for process in local.processes}
        if answer.format == "text" or not report.gpus:
            own = {process.ns_pid for process in local.processes}  # it does not say whom it covers
        if local.processes and not own:
            look.foreign[answer.address] += 1
            return
        if own and own <= look.covered:
            return  # the same mesh once more
        look.covered |= own
        self._ever |= own
        look.answers.append(answer.text)
        look.reports.append(report)

    def _watch_for_corruption(self, look: _Look) -> None:
        """The off switch: what comes next from such a release may kill the process that answers."""
        for report in look.reports:
            text = any(problem.kind == kind.TEXT_ONLY for problem in report.problems)
            if not text or not safety.corrupts_text(Version.parse(report.nccl_version)):
                continue
            if (report.flags & MISSING).any() or not report.coherent:
                self.off = (
                    f"NCCL {report.nccl_version} is not asked any more: ranks are missing or being set up, and its text "
                    "answer could then crash it (fixed in 2.29.2); stacks and probes remain"
                )

    def _notes(self, look: _Look, local: Local, n: int) -> tuple[Problem, ...]:
        notes = []
        for address, count in look.foreign.items():
            text = f"{count} answer(s) at {address} came from another job's processes; they were not used"
            notes.append(Problem(kind.FOREIGN_PROCESS, text))
        if look.silent:
            text = f"{look.silent} connection(s) were taken and not served: a process on this node is stopped or stuck"
            notes.append(Problem(kind.SILENT_PROCESS, text))
        unseen = frozenset(process.ns_pid for process in local.processes) - look.covered
        if unseen != self._in_vain or n - self._in_vain_since >= PATIENCE:
            self._in_vain, self._in_vain_since = unseen, n
        if unseen and look.reports:
            listed = ", ".join(str(pid) for pid in sorted(unseen)[:8]) + (" …" if len(unseen) > 8 else "")
            text = f"process(es) {listed} of this step are in no answer: without communicator, or in a mesh that did not answer"
            notes.append(Problem(kind.NOT_SEEN, text))
        notes += _elsewhere(look.reports, local)
        return tuple(notes)


def _is_here(gpu: Gpu, hosts: frozenset[str]) -> bool:
    """Whether a process is on the node with these addresses; loopback always is."""
    return gpu.host in hosts or gpu.host.startswith("127.") or gpu.host == "::1"


def _elsewhere(reports: Iterable[Report], local: Local) -> list[Problem]:
    """Ranks of the step that no answer tells of: they are in meshes of their own, and only this node's are asked."""
    gpus = {gpu for report in reports for gpu in report.gpus}
    if not gpus or len(gpus) >= local.ranks or not local.other_nodes:
        return []
    only_here = all(_is_here(gpu, local.hosts) for gpu in gpus)
    nodes = local.other_nodes if only_here else ()
    where = f" of {', '.join(nodes[:8])}{' …' if len(nodes) > 8 else ''}" if nodes else ""
    text = (
        f"NCCL RAS tells of {len(gpus)} of the step's {local.ranks} ranks. The others{where} share no communicator with this"
        " node's ranks, or have none: a hang among them is not seen by counts (ncclmon stacks shows where they stand)"
    )
    return [Problem(kind.OTHER_MESHES, text)]


def _by_address(processes: Iterable[Process]) -> dict[Address, list[Process]]:
    found: dict[Address, list[Process]] = {}
    for process in processes:
        found.setdefault(process.address, []).append(process)
    return found or {client.DEFAULT_ADDRESS: []}


def _local_pids(report: Report, hosts: frozenset[str]) -> set[int]:
    """Pids of the report that are on this node; all of them where none is said to be (addresses that we do not know)."""
    here = {gpu.pid for gpu in report.gpus if _is_here(gpu, hosts)}
    return here or {gpu.pid for gpu in report.gpus}


def _nothing_ours(notes: tuple[Problem, ...]) -> str:
    return "; ".join(note.text for note in notes) or "no answer"
