"""The files of a report, each written whole or not at all: a job that is killed meanwhile leaves the last good ones."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slurm_ncclmon.evidence.model import Frame, NodeReport, ProcessReport, Thread
from slurm_ncclmon.report.text import Case
from slurm_ncclmon.verdict import SCHEMA


def verdict_document(case: Case) -> dict[str, Any]:
    """verdict.json, and what `ncclmon replay --json` prints."""
    return {
        "schema": SCHEMA,
        "incidents": [verdict.to_json() for verdict in case.verdicts],
        "advisories": [advisory.to_json() for advisory in case.advisories],
        "polls": case.polls,
        "unusable_polls": case.unusable_polls,
    }


def write_report(folder: Path, case: Case, text: str) -> Path:
    """report.txt, verdict.json and stacks/<rank>.txt under `folder`, synced to disk; returns report.txt's path.

    Raises OSError (disk full, quota, folder gone).
    """
    stacks = {f"stacks/{name}.txt": content for name, content in stack_files(case.nodes).items()}
    if stacks:
        (folder / "stacks").mkdir(exist_ok=True)
    write_files(
        folder, {**stacks, "verdict.json": json.dumps(verdict_document(case), indent=1) + "\n", "report.txt": text}
    )
    return folder / "report.txt"


def write_files(folder: Path, contents: Mapping[str, str]) -> None:
    """Write each file beside its place, sync it, then rename it into place."""
    for name, content in contents.items():
        path = folder / name
        temporary = path.with_name(path.name + ".new")
        temporary.unlink(missing_ok=True)
        with temporary.open("x", encoding="utf-8", errors="backslashreplace") as file:  # never through a link
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)


def stack_files(nodes: tuple[NodeReport, ...]) -> dict[str, str]:
    """One text a process that has a rank or a stack: `3`, or `3-child-4711` for its descendants."""
    files: dict[str, str] = {}
    for node in nodes:
        for process in node.processes:
            owner = "unknown" if process.rank is None else str(process.rank)
            name = (
                owner
                if process.role == "rank" and process.rank is not None
                else f"{owner}-{process.role}-{process.pid}"
            )
            files[name] = _process_text(node, process)
    return files


def _process_text(node: NodeReport, process: ProcessReport) -> str:
    state = f"state {process.state}, wchan {process.wchan or '-'}, {process.threads_total} threads"
    head = [
        f"rank {process.rank} on {node.node}, pid {process.pid}: {process.command}",
        f"{state}, phase {process.phase}, stack by {process.source}",
    ]
    tries = [f"tried {attempt.how}: {attempt.error or 'ok'} ({attempt.seconds:.2f} s)" for attempt in process.attempts]
    return "\n".join([*head, *tries, "", *(_thread_text(thread) for thread in process.threads)]) + "\n"


def _thread_text(thread: Thread) -> str:
    flags = [word for word, on in (("main", thread.main), ("active", thread.active), ("gil", thread.gil)) if on]
    head = " ".join([f"thread {thread.tid} {thread.name!r}", *flags])
    return "\n".join([head, *(_frame_text(frame) for frame in thread.frames), ""])


def _frame_text(frame: Frame) -> str:
    place = f"{frame.file}:{frame.line}" if frame.line else frame.file
    return f"    {frame.function} ({place})"
