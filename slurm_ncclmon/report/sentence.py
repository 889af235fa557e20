"""The one sentence that the owner of a hung job reads first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from slurm_ncclmon.durations import format_duration
from slurm_ncclmon.evidence.model import NodeReport, ProcessReport
from slurm_ncclmon.evidence.phases import main_thread
from slurm_ncclmon.slurm.hostlist import fold_numbers
from slurm_ncclmon.verdict import CONFIRMED, RECOVERED, Culprit, FrozenComm, Verdict

_DEEDS = {
    "not_entered": "did not enter {op}",
    "exited_early": "left before {op}",
    "aborted": "aborted the communicator before {op}",
    "dead": "died; {op} can not complete without it",
    "missing": "{does} not answer; {op} can not complete without it",
    "stopped": "{is_are} stopped by a signal and did not enter {op}",
    "init_stall": "did not finish the initialisation of the communicator",
    "inconsistent_op": "made another call than the others at {op}",
    "extra_op": "called {op}, which the others did not",
    "wrong_order": "entered communicators in another order than the others",
    "stalled_group": "{is_are} where all waiting ends; what holds it up does not show in counts",
    "hardware": "{has} a GPU that failed in {op}",
    "device_not_started": "launched {op}, but {its} GPU never started it",
    "in_collective": "{is_are} where {op} stopped moving",
    "async_error": "reported an NCCL error in {op}",
    "p2p_unmatched": "did not post the other half of a send or receive",
}
_ONE = {"is_are": "is", "has": "has", "its": "its", "does": "does"}
_SEVERAL = {"is_are": "are", "has": "have", "its": "their", "does": "do"}
_MANY = 4


def awaited_text(comm: FrozenComm) -> str:
    """`its rank 3 is awaited`."""
    many = len(comm.awaited) != 1
    return f"its {'ranks' if many else 'rank'} {fold_numbers(comm.awaited)} {'are' if many else 'is'} awaited"


def shown_rank(culprit: Culprit) -> int | None:
    """The rank that the owner knows: the job's, else the communicator's."""
    return culprit.rank if culprit.global_rank is None else culprit.global_rank


def culprits_text(verdict: Verdict) -> str:
    """`rank 3 on n2 (pid 4242, GPU 3)`, or several ranks folded by node."""
    if not verdict.culprits:
        return "no single rank"
    if len(verdict.culprits) == 1:
        return _one_culprit(verdict.culprits[0])
    by_host: dict[str, list[Culprit]] = defaultdict(list)
    for culprit in verdict.culprits:
        by_host[culprit.host].append(culprit)
    hosts = [f"{_ranks_of(group)} on {host}" for host, group in sorted(by_host.items())]
    if len(hosts) > _MANY:
        hosts = [*hosts[:_MANY], f"{len(by_host) - _MANY} more nodes"]
    return "; ".join(hosts)


def _ranks_of(culprits: Sequence[Culprit]) -> str:
    known = [rank for rank in map(shown_rank, culprits) if rank is not None]
    if not known:
        return "pids " + ", ".join(str(culprit.pid) for culprit in culprits)
    return ("rank " if len(known) == 1 else "ranks ") + fold_numbers(known)


def _one_culprit(culprit: Culprit) -> str:
    rank = shown_rank(culprit)
    who = f"rank {rank}" if rank is not None else "a process without a known rank"
    gpu = f", GPU {culprit.cuda_dev}" if culprit.cuda_dev is not None else ""
    return f"{who} on {culprit.host} (pid {culprit.pid}{gpu})"


def operation_text(verdict: Verdict) -> str:
    """`AllReduce number 21 of communicator 0x1f (world, 8 ranks)`."""
    operation = verdict.operation or "a collective"
    number = f" number {verdict.round}" if verdict.round is not None else ""
    comm = verdict.communicator
    if comm is None:
        return operation + number
    role = f"{comm.role}, " if comm.role else ""
    return f"{operation}{number} of communicator {comm.hash} ({role}{comm.size} ranks)"


def headline(verdict: Verdict) -> str:
    """What happened, where, to whom and for how long, in one sentence without its full stop."""
    span = format_duration(verdict.frozen_for_s)
    if not verdict.culprits:
        return (
            f"{_state_word(verdict)}: {operation_text(verdict)} has not moved for {span}, and what is known names no rank"
            f" ({verdict.kind.replace('_', ' ')})"
        )
    words = _ONE if len(verdict.culprits) == 1 else _SEVERAL
    deed = _DEEDS.get(verdict.kind, "{is_are} the cause at {op}").format(op=operation_text(verdict), **words)
    said = _link_text(verdict) or f"{culprits_text(verdict)} {deed}"
    return f"{_state_word(verdict)}: {said}; {_victims(verdict, span)}"


def _link_text(verdict: Verdict) -> str | None:
    """What is wrong where one link is, both ends of which are known."""
    ends = {culprit.rank: culprit for culprit in verdict.culprits}
    if len(verdict.edges) != 1 or not {verdict.edges[0].source, verdict.edges[0].target} <= ends.keys():
        return None
    source, target = (_one_culprit(ends[rank]) for rank in (verdict.edges[0].source, verdict.edges[0].target))
    return f"data from {source} to {target} does not arrive in {operation_text(verdict)}"


def _victims(verdict: Verdict, span: str) -> str:
    if verdict.state == RECOVERED:
        return f"it moves again after {span}"
    if not verdict.victims:
        return f"this has lasted for {span}"
    who = "1 other rank has" if verdict.victims == 1 else f"{verdict.victims} other ranks have"
    return f"{who} waited for {span}"


def _state_word(verdict: Verdict) -> str:
    cls = f" {verdict.cls}" if verdict.cls else ""
    return {CONFIRMED: f"HANG{cls}", RECOVERED: f"RECOVERED{cls}"}.get(verdict.state, f"SUSPECTED HANG{cls}")


def culprit_processes(verdict: Verdict, nodes: Sequence[NodeReport]) -> list[tuple[NodeReport, ProcessReport]]:
    """The culprits' processes among the evidence, in the verdict's order."""
    by_place = {(node.node, process.ns_pid): (node, process) for node in nodes for process in node.processes}
    return [by_place[place] for place in ((c.host, c.pid) for c in verdict.culprits) if place in by_place]


def stands_text(process: ProcessReport, depth: int = 7) -> str:
    """Where a rank stands, innermost Python frame first, or why that is not known."""
    thread = main_thread(process.threads)
    if thread is None:
        tries = "; ".join(f"{attempt.how}: {attempt.error}" for attempt in process.attempts if attempt.error)
        return f"no stack ({tries or 'not tried'}); process state {process.state}"
    frames = [frame for frame in thread.frames if not frame.native] or list(thread.frames)
    return " < ".join(f"{frame.function} ({_short(frame.file)}:{frame.line})" for frame in frames[:depth])


def _short(path: str) -> str:
    return "/".join(path.rsplit("/", 2)[-2:]) if path.count("/") > 1 else path
