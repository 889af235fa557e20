"""Merged stacks as text for people and JSON for programs. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from slurm_ncclmon.evidence import phases
from slurm_ncclmon.evidence.merge import LEVELS, Group, Merged, merge
from slurm_ncclmon.evidence.model import Frame, NodeReport, ProcessReport
from slurm_ncclmon.evidence.normalise import text
from slurm_ncclmon.slurm.hostlist import fold, fold_numbers
from slurm_ncclmon.verdict import Verdict

SCHEMA = 1
_MOST_FRAMES = 14
_MOST_GROUPS = 16
_WIDTH = 110
_LONGEST_LIST = 100


def render_stacks(nodes: Sequence[NodeReport], verdicts: Sequence[Verdict] = ()) -> str:
    """The section of a report: groups with those first that the verdicts name."""
    named = [culprit.global_rank for verdict in verdicts for culprit in verdict.culprits]
    return render_text(merge(nodes, [rank for rank in named if rank is not None]))


def render_text(merged: Merged) -> str:
    """At most a screen or two, however large the job: the odd groups with their stacks, the majority in short at the end."""
    lines = [_headline(merged)]
    if merged.caution:
        lines.append(merged.caution)
    if merged.level:
        lines.append(f"Too many different stacks: compared by {LEVELS[merged.level]}.")
    shown = merged.groups[: _MOST_GROUPS - 1] + merged.groups[_MOST_GROUPS - 1 :][-1:]
    for number, group in enumerate(shown, 1):
        if number == len(shown) and len(shown) < len(merged.groups):
            lines += ["", f"({len(merged.groups) - len(shown)} more groups in between)"]
        lines += ["", *_group(number, group, brief=_is_majority(group, merged) and len(merged.groups) > 1)]
    for node in merged.silent:
        lines += ["", *_silent(node)]
    return "\n".join(lines) + "\n"


def _is_majority(group: Group, merged: Merged) -> bool:
    return group is merged.majority and not group.behind and group.phase in phases.WAITING


def _headline(merged: Merged) -> str:
    words = [f"{_count(merged.ranks, 'rank')} on {_count(merged.nodes, 'node')}: {_count(len(merged.groups), 'group')}"]
    words.append(_count(merged.stacks, "stack"))
    if merged.stacks < merged.ranks:
        words.append(f"{merged.ranks - merged.stacks} without")
    if merged.silent:
        words.append(f"no answer from {fold(node.node for node in merged.silent)}")
    twice = sum(group.looked_twice for group in merged.groups)
    if twice:
        words.append(f"looked at twice: {sum(group.moved for group in merged.groups)} of {twice} moved")
    return ", ".join(words)


def _group(number: int, group: Group, brief: bool) -> list[str]:
    lines = [f"[{number}] {_who(group)}: {phases.LABELS.get(group.phase, group.phase)}"]
    lines += [f"    {line}" for line in (_reason_line(group), *_process_lines(group)) if line]
    lines += _brief_stack(group.frames) if brief else [f"      {line}" for line in _stack_lines(group.frames)]
    if group.divergence:
        lines.append(f"    parts from the majority in {group.divergence}")
    return lines


def _who(group: Group) -> str:
    ranks = f"rank {group.ranks[0]}" if group.size == 1 and group.ranks else _count(group.size, "rank")
    if group.size > 1 and group.ranks:
        ranks += f" {_cut(fold_numbers(group.ranks))}"
    return f"{ranks} on {_cut(fold(group.nodes))}"


def _cut(folded: str) -> str:
    """A folded list, in part when it is long: the whole one is in the JSON."""
    return folded if len(folded) <= _LONGEST_LIST else f"{folded[:_LONGEST_LIST].rpartition(',')[0]},…"


def _reason_line(group: Group) -> str:
    known = phases.LABELS.get(group.phase)
    reasons = [reason for reason in group.reasons if reason != known]
    moved = f"{group.moved} of {group.looked_twice} moved between two looks" if group.moved else ""
    return "; ".join(word for word in (_before(group), *reasons, moved) if word)


def _before(group: Group) -> str:
    """What ranks were at that the kernel holds: the stack still says so."""
    held = group.phase in (phases.STOPPED, phases.KERNEL, phases.TRACED) and group.frames
    return f"was {phases.LABELS[phases.classify_frames(group.frames)]}" if held else ""


def _process_lines(group: Group) -> list[str]:
    process = group.process
    if process is None:
        return []
    lines = [
        f"{'' if group.size == 1 else f'rank {process.rank}: ' if process.rank is not None else ''}{facts(process, group.node)}"
    ]
    if process.note:
        lines.append(process.note)
    return lines


def facts(process: ProcessReport, node: str) -> str:
    """`n3 pid 4711 GPU 5, state D in nfs_wait_bit_killable, CPU 0.00` of one process."""
    words = [f"{node} pid {process.pid}" + (f" GPU {process.gpu}" if process.gpu else "")]
    states = "".join(sorted(state for state in process.thread_states if state in "DTtZ" and state != process.state))
    asleep = f" in {process.wchan}" if process.wchan and process.state in "SD" else ""
    words.append(f"state {process.state}{asleep}" + (f" (a thread in {states})" if states else ""))
    if process.cpu_rate is not None:
        words.append(f"CPU {process.cpu_rate:.2f}" + (" (spinning)" if process.cpu_rate > 0.9 else ""))
    if process.write_rate:
        words.append(f"writes {_bytes(process.write_rate)}/s")
    words.append(f"{_count(process.threads_total, 'thread')}")
    return ", ".join(words)


def _stack_lines(frames: Sequence[Frame]) -> list[str]:
    lines = [text(frame) for frame in frames]
    if len(lines) > _MOST_FRAMES:
        half = _MOST_FRAMES // 2
        lines = [*lines[:half], f"… {len(lines) - 2 * half} more …", *lines[-half:]]
    return lines


def _brief_stack(frames: Sequence[Frame]) -> list[str]:
    """Innermost frames on one line, as far as it holds them, without libc's and without folders."""
    line = ""
    for frame in frames:
        if frame.native and frame.file == "libc.so":
            continue
        words = text(replace(frame, file=frame.file.rpartition("/")[2]))
        longer = f"{line} < {words}" if line else words
        if len(longer) > _WIDTH - 6:
            return [f"      {line or longer[: _WIDTH - 7]} < …"]
        line = longer
    return [f"      {line}"] if line else []


def _silent(node: NodeReport) -> list[str]:
    ranks = f" ({_count(len(node.tasks), 'rank')} {fold_numbers(node.tasks)})" if node.tasks else ""
    return [f"[!] node {node.node}{ranks}: no answer", *[f"    {problem}" for problem in node.problems]]


def to_json(merged: Merged) -> dict[str, Any]:
    """The documented JSON object of `ncclmon stacks --json`."""
    return {
        "schema": SCHEMA,
        "ranks": merged.ranks,
        "stacks": merged.stacks,
        "nodes": merged.nodes,
        "compared_by": LEVELS[merged.level],
        "caution": merged.caution,
        "groups": [_group_json(number, group) for number, group in enumerate(merged.groups, 1)],
        "silent_nodes": [
            {"node": node.node, "tasks": list(node.tasks), "problems": list(node.problems)} for node in merged.silent
        ],
        "failures": list(_failures(merged.groups)),
    }


def _group_json(number: int, group: Group) -> dict[str, Any]:
    process = group.process
    return {
        "id": number,
        "phase": group.phase,
        "size": group.size,
        "ranks": fold_numbers(group.ranks),
        "nodes": fold(group.nodes),
        "score": group.score,
        "reasons": list(group.reasons),
        "behind": list(group.behind),
        "moved": group.moved,
        "looked_twice": group.looked_twice,
        "divergence": group.divergence,
        "frames": [text(frame) for frame in group.frames],
        "representative": None
        if process is None
        else {
            "rank": process.rank,
            "node": group.node,
            "pid": process.pid,
            "gpu": process.gpu,
            "state": process.state,
            "wchan": process.wchan,
            "cpu_rate": process.cpu_rate,
            "tracer_pid": process.tracer_pid,
            "source": process.source,
            "note": process.note,
        },
    }


def _failures(groups: Iterable[Group]) -> Iterable[dict[str, Any]]:
    for group in groups:
        if group.process is not None and group.process.source == "proc":
            attempts = [
                {"how": one.how, "rc": one.rc, "seconds": one.seconds, "error": one.error}
                for one in group.process.attempts
            ]
            yield {
                "ranks": fold_numbers(group.ranks),
                "node": group.node,
                "note": group.process.note,
                "attempts": attempts,
            }


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def _bytes(value: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"
