"""One step over all nodes of the watched step, which looks at all of them at once and streams what it finds to us.

srun --overlap --jobid=J -N4 -w n[1-4] --ntasks-per-node=1 … ncclmon node J.S
"""

from __future__ import annotations

import contextlib
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Callable

from slurm_ncclmon.errors import EvidenceError, SlurmError
from slurm_ncclmon.evidence.environment import stripped
from slurm_ncclmon.evidence.model import NodeReport
from slurm_ncclmon.evidence.wire import REPORT, Assembler, Message, Unpacker, unpack_flight
from slurm_ncclmon.slurm.client import STEP_NAME, SlurmClient, StepPart
from slurm_ncclmon.slurm.hostlist import fold
from slurm_ncclmon.slurm.step import StepId

_LAUNCH_S = 2.0
"""Kept back from the deadline for the start and the end of the step."""
_STOP_S = 1.0
_SILENCE_S = 5.0
"""When all others have answered, a node that said nothing is waited for this long, or so many times as long as the slowest
of the others took for its first word:"""
_SLOWEST = 5.0
_HARMLESS = re.compile(r"lacks support for cpu binding|Job step creation temporarily disabled|Step created for")

Progress = Callable[[NodeReport], None]


@dataclass(frozen=True)
class Wish:
    """What the nodes are asked for; the fields of node.Ask that the caller chooses."""

    gap_s: float = 2.0
    native: bool = True
    stacks: bool = True
    gpus: bool = True
    flight: bool = False
    preflight: bool = False
    frames: bool = False

    def arguments(self, seconds: float) -> tuple[str, ...]:
        """As options of `ncclmon node`."""
        names = ("native", "stacks", "gpus", "flight", "preflight", "frames")
        switches = tuple(f"--{name}" if getattr(self, name) else f"--no-{name}" for name in names)
        return (f"--seconds={seconds:.1f}", f"--gap={self.gap_s:g}", *switches)


def agent_command() -> tuple[str, ...]:
    """How a node starts our program: this very installation, deaf to the user's PYTHON* variables and working directory."""
    return (sys.executable, "-I", "-m", "slurm_ncclmon", "node")


def srun_command(step: StepId, parts: Iterable[StepPart], agent: Sequence[str]) -> list[str]:
    """The fan-out's command line. Nothing is asked for that the job's own steps could be waiting for."""
    argv = ["srun", f"--jobid={step.job}", f"--job-name={STEP_NAME}", "--quiet", "--input=none"]
    argv += ["--kill-on-bad-exit=0", "--wait=0", "--no-kill", "--immediate=10"]
    for number, part in enumerate(parts):
        argv += [":"] if number else []
        argv += [f"--het-group={part.group}"] if part.group is not None else []
        argv += ["--overlap", f"--nodes={len(part.nodes)}", f"--nodelist={fold(part.nodes)}", "--ntasks-per-node=1"]
        argv += ["--mem=0", "--cpu-bind=none", "--mpi=none", *agent]
    return argv


def gather(
    step: StepId,
    nodes: Sequence[str] | Sequence[StepPart],
    deadline_s: float,
    *,
    wish: Wish = Wish(),
    client: SlurmClient | None = None,
    on_report: Progress = lambda report: None,
    flight_folder: Path | None = None,
    agent: Sequence[str] = (),
) -> tuple[NodeReport, ...]:
    """One report a node, in the order of `nodes`, after `deadline_s` at the latest.

    `nodes` are names, or the parts of a heterogeneous job's step. A node that did not answer has a report with `answered` False
    and what is known of it (with `client`, what Slurm says of it too). `on_report` sees each report as it comes, the early ones
    without stacks as well. Flight recorder dumps, if wished for, are written to `flight_folder` as rank_0, rank_1, …, and
    `flight_records` then names those files. Nothing is raised for nodes that fail.
    """
    parts = [part if isinstance(part, StepPart) else StepPart(None, (part,)) for part in nodes]
    collection = _Collection(
        step, _by_group(parts), time.monotonic() + deadline_s, wish, on_report, tuple(agent) or agent_command()
    )
    collection.run()
    reports = collection.reports()
    if flight_folder:
        reports = tuple(_with_flight_records(report, collection.flight, flight_folder) for report in reports)
    return tuple(_ask_slurm(reports, step, client)) if client else reports


class _Collection:
    """The reports as they come in, over one or more launches."""

    def __init__(
        self,
        step: StepId,
        parts: list[StepPart],
        deadline: float,
        wish: Wish,
        on_report: Progress,
        agent: tuple[str, ...],
    ) -> None:
        self._step, self._parts, self._deadline, self._wish = step, parts, deadline, wish
        self._on_report, self._agent = on_report, agent
        self._unpacker = Unpacker()
        self._nodes = [node for part in parts for node in part.nodes]
        self._wanted = frozenset(self._nodes)
        self._reports: dict[str, NodeReport] = {}
        self._complete: set[str] = set()
        self._complaints: list[str] = []
        self.flight: dict[int, bytes] = {}

    def run(self) -> None:
        """Launch; where Slurm could not launch on some nodes, launch again on those that it did not complain of."""
        blamed: set[str] = set()
        for _ in range(3):
            wanted = {node for node in self._nodes if node not in self._reports and node not in blamed}
            seconds = self._deadline - time.monotonic() - _LAUNCH_S
            if not wanted or seconds < 1.0:
                return
            complaints = self._launch(_only(self._parts, wanted), seconds)
            if not complaints:
                return
            self._complaints += complaints
            blamed |= {node for node in wanted if any(_names(line, node) for line in complaints)}

    def _launch(self, parts: list[StepPart], seconds: float) -> list[str]:
        """One srun, read until it ends or is given up; its complaints if it ended by itself, and so may be tried again."""
        agent = [*self._agent, str(self._step), *self._wish.arguments(seconds)]
        try:
            child = subprocess.Popen(
                srun_command(self._step, parts, agent),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                env=stripped(os.environ),
                start_new_session=True,
            )
        except OSError as error:
            return [f"srun: {error.strerror}"]
        lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        complaints: list[str] = []
        assert child.stdout is not None
        assert child.stderr is not None
        threading.Thread(target=_pump, args=(child.stdout, lines), daemon=True).start()
        said = threading.Thread(target=_keep, args=(child.stderr, complaints), daemon=True)
        said.start()
        ended = self._read(lines, {node for part in parts for node in part.nodes})
        _stop(child)
        said.join(0.5)
        if not ended:
            self._complaints += complaints
        return complaints if ended else []

    def _read(self, lines: queue.SimpleQueue[str | None], wanted: set[str]) -> bool:
        """Until all have answered in full, the deadline, or only silent ones are left and they had their time.

        True when the output ended before that.
        """
        assembler = Assembler()
        begun = time.monotonic()
        slowest, ended = 0.0, False
        while not wanted <= self._complete:
            until = self._deadline - _STOP_S / 2
            answered = wanted.intersection(self._reports)
            if answered and answered <= self._complete:
                until = min(until, begun + max(_SILENCE_S, _SLOWEST * slowest))
            try:
                line = lines.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                break
            if line is None:
                ended = True
                break
            message = assembler.feed(line)
            if message and self._take(message):
                slowest = time.monotonic() - begun
        self._complaints += assembler.foreign
        return ended

    def _take(self, message: Message) -> bool:
        """Keep a node's report; True when it is the node's first."""
        if message.node not in self._wanted:
            return False
        if message.kind != REPORT:
            self.flight.update([record] if (record := unpack_flight(message)) else [])
            return False
        try:
            report = self._unpacker.unpack(message.payload)
        except EvidenceError as error:
            self._complaints.append(f"{message.node}: {error}")
            return False
        first = message.node not in self._reports
        if not first:  # the second message is the last
            self._complete.add(message.node)
        self._reports[message.node] = report
        self._on_report(report)
        return first

    def reports(self) -> tuple[NodeReport, ...]:
        """All nodes, in order."""
        return tuple(self._reported(node) for node in self._nodes)

    def _reported(self, node: str) -> NodeReport:
        report = self._reports.get(node)
        if report is None:
            own = [line for line in self._complaints if _names(line, node)]
            told = [line for line in self._complaints if "Exited with exit code" not in line]
            said = [*own, *told[-2:]] or ["no answer in time: its slurmd or the whole node may hang"]
            return NodeReport(node=node, answered=False, problems=tuple(dict.fromkeys(said)))
        if node not in self._complete:
            return replace(report, problems=(*report.problems, "only its first answer came in time, without stacks"))
        return report


def _with_flight_records(report: NodeReport, contents: dict[int, bytes], folder: Path) -> NodeReport:
    """Dumps that came along are written to the folder; the others stay named by their place on the node."""
    records = dict(report.flight_records)
    problems = list(report.problems)
    for rank in [int(rank) for rank in records if int(rank) in contents]:
        path = folder / f"rank_{rank}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path.write_bytes(contents[rank])
            records[str(rank)] = str(path)
        except OSError as error:
            problems.append(f"flight record of rank {rank}: {error}")
    return replace(report, flight_records=records, problems=tuple(problems))


def _ask_slurm(reports: Sequence[NodeReport], step: StepId, client: SlurmClient) -> Iterable[NodeReport]:
    """The reports with what Slurm knows of nodes that are silent, or that have no process of the step any more."""
    silent = tuple(report.node for report in reports if not report.answered)
    states: dict[str, str] = {}
    layout: dict[str, tuple[int, ...]] = {}
    with contextlib.suppress(SlurmError):
        states = client.node_states(silent) if silent else {}
    with contextlib.suppress(SlurmError):
        layout = client.task_layout(step) if any(not report.tasks for report in reports) else {}
    for report in reports:
        tasks = report.tasks or layout.get(report.node, ())
        gone = tasks if report.answered and not report.processes else report.exited
        said = (f"Slurm says that {report.node} is {states[report.node]}",) if report.node in states else ()
        yield replace(report, tasks=tasks, exited=gone, problems=(*report.problems, *said))


def _by_group(parts: Iterable[StepPart]) -> list[StepPart]:
    groups: dict[int | None, list[str]] = {}
    for part in parts:
        groups.setdefault(part.group, []).extend(part.nodes)
    return [StepPart(group, tuple(nodes)) for group, nodes in groups.items()]


def _only(parts: Iterable[StepPart], wanted: set[str]) -> list[StepPart]:
    kept = [StepPart(part.group, tuple(node for node in part.nodes if node in wanted)) for part in parts]
    return [part for part in kept if part.nodes]


def _names(line: str, node: str) -> bool:
    """Whether a message names this node."""
    return any(word.strip(".,;()'\"") == node for word in line.replace(":", " ").split())


def _pump(stream: IO[str], lines: queue.SimpleQueue[str | None]) -> None:
    with contextlib.suppress(ValueError, OSError):
        for line in stream:
            lines.put(line.rstrip("\n"))
    lines.put(None)


def _keep(stream: IO[str], kept: list[str]) -> None:
    with contextlib.suppress(ValueError, OSError):
        for line in stream:
            if line.strip() and not _HARMLESS.search(line) and len(kept) < 200:
                kept.append(line.strip())


def _stop(child: subprocess.Popen[str]) -> None:
    """End srun, which ends its step. After KILL its shepherd process still does."""
    for number in (0, signal.SIGTERM, signal.SIGKILL):  # 0: it may be about to end by itself
        child.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(_STOP_S / 2)
            return
