"""Stacks of one process by py-spy, without ever hanging on it or leaving it stopped.

What each way costs and where it fails (py-spy 0.4):
  native       pauses the process for tens of ms; hangs for ever on a thread in uninterruptible sleep; refused under a tracer
  plain        the same without the frames of C code: the fallback when the two cannot be merged
  nonblocking  reads memory only, never pauses anything: the only one for processes asleep in the kernel, stopped or traced
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurm_ncclmon.evidence.bounded import run_bounded
from slurm_ncclmon.evidence.model import Attempt, Frame, Thread
from slurm_ncclmon.evidence.procfs import PROC, read_stat, thread_states

NATIVE, PLAIN, NONBLOCKING, NONE = "native", "plain", "nonblocking", "proc"
_FLAGS = {NATIVE: ("--native",), PLAIN: (), NONBLOCKING: ("--nonblocking",)}
_MOST_FRAMES = 96
_EQUAL_THREADS = 3
"""So many threads with the same stack are told one by one; a pool of hundreds says nothing more."""


@dataclass(frozen=True)
class Dump:
    """What was got of one process. `note` is a sentence when something has to be said about it."""

    source: str
    threads: tuple[Thread, ...]
    attempts: tuple[Attempt, ...]
    note: str = ""


def find_program() -> str:
    """py-spy of the same installation, else the first on PATH."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.exists() else shutil.which("py-spy") or "py-spy"


def ways(states: Iterable[str], tracer_pid: int, native: bool) -> tuple[str, ...]:
    """Which ways to try, in order, on a process whose threads are in these states."""
    if tracer_pid or {"D", "T", "t"} & set(states):
        return (NONBLOCKING,)
    return (NATIVE, PLAIN, NONBLOCKING) if native else (PLAIN, NONBLOCKING)


def dump(pid: int, wanted: tuple[str, ...], seconds: float, program: str = "") -> Dump:
    """Try the ways in order within `seconds`; a process that we left stopped is continued."""
    deadline = time.monotonic() + seconds
    attempts: list[Attempt] = []
    notes: list[str] = []
    for way in wanted:
        left = deadline - time.monotonic()
        if left < 0.2:
            break
        if way != NONBLOCKING and "D" in thread_states(PROC / str(pid)):
            continue  # fell asleep in the kernel since it was looked at: attaching would never return
        threads, attempt = _attempt(program or find_program(), pid, way, left)
        attempts.append(attempt)
        if way != NONBLOCKING:
            notes += continue_if_stopped(pid)
        if threads:
            return Dump(way, mark_main(threads, pid), tuple(attempts), " ".join(notes))
        if _hopeless(attempt.error):
            break
    notes.append(explain(attempts))
    return Dump(NONE, (), tuple(attempts), " ".join(note for note in notes if note))


def _attempt(program: str, pid: int, way: str, seconds: float) -> tuple[tuple[Thread, ...], Attempt]:
    # An attempt that has to be killed must leave time for the next one.
    limit = seconds if way == NONBLOCKING else seconds * 0.6
    try:
        ran = run_bounded([program, "dump", "--json", *_FLAGS[way], "--pid", str(pid)], limit, grace_s=0.5)
    except OSError as error:
        return (), Attempt(way, None, 0.0, f"{program}: {error.strerror}")
    if ran.rc == 0:
        with contextlib.suppress(ValueError, KeyError, TypeError):
            return parse(ran.stdout), Attempt(way, 0, round(ran.seconds, 3), "")
        return (), Attempt(way, 0, round(ran.seconds, 3), "its output is not the JSON that py-spy 0.4 prints")
    complaint = f"no answer in {limit:.1f} s, killed" if ran.rc is None else first_complaint(ran.stderr)
    return (), Attempt(way, ran.rc, round(ran.seconds, 3), complaint)


def first_complaint(stderr: str) -> str:
    """py-spy's error and its innermost cause, on one line."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    causes = [line for line in lines if line.startswith("Reason:") or "os error" in line]
    return "; ".join(dict.fromkeys(lines[:1] + causes[-1:]))[:300]


def _hopeless(error: str) -> bool:
    """Errors that another way of asking does not mend."""
    return any(
        text in error for text in ("Permission", "os error 13", "os error 2)", "find python version", "No such file")
    )


def explain(attempts: Iterable[Attempt]) -> str:
    """Why there is no stack, with the remedy where there is one."""
    errors = [attempt.error for attempt in attempts if attempt.error]
    if not errors:
        return "no time was left to take its stack"
    error = errors[-1]
    for texts, sentence in _SENTENCES:
        if any(text in error for text in texts):
            return sentence
    return f"py-spy: {error}"


_SENTENCES: tuple[tuple[tuple[str, ...], str], ...] = (
    (
        ("Permission", "os error 13"),
        "py-spy may not read it (ptrace is not permitted): run `ncclmon doctor` on the node for the reason and the remedy",
    ),
    (("find python version", "Failed to find a python interpreter"), "not a Python program"),
    (
        ("os error 2)", "Check that the process is running", "No such process", "os error 3)"),
        "it ended while it was looked at",
    ),
    (
        ("Unsupported version of Python", "Py_Version"),
        "this py-spy does not know the program's Python: install a newer py-spy where ncclmon is installed",
    ),
    (("killed",), "py-spy did not come back in time"),
    (("No such file",), "py-spy is not installed beside ncclmon"),
)


def parse(text: str) -> tuple[Thread, ...]:
    """Threads of `py-spy dump --json`. Raises ValueError, KeyError or TypeError when it is something else."""
    seen: dict[tuple[Frame, ...], int] = {}
    threads = []
    for entry in json.loads(text):
        frames = tuple(_frame(frame) for frame in entry["frames"][:_MOST_FRAMES])
        seen[frames] = seen.get(frames, 0) + 1
        if seen[frames] <= _EQUAL_THREADS or entry["owns_gil"]:
            threads.append(
                Thread(
                    name=entry["thread_name"] or "",
                    tid=entry["os_thread_id"] or 0,
                    active=bool(entry["active"]),
                    gil=bool(entry["owns_gil"]),
                    frames=frames,
                )
            )
    return tuple(threads)


def _frame(frame: dict[str, Any]) -> Frame:
    native = bool(frame["module"]) and not frame["line"]
    file = (frame["module"] if native else frame["filename"]) or ""
    name = frame["name"] or "??"
    # An address differs from process to process and would make equal stacks unequal.
    return Frame("??" if name.startswith("0x") else name, file, int(frame["line"] or 0), native)


def mark_main(threads: tuple[Thread, ...], pid: int) -> tuple[Thread, ...]:
    """Threads with the main one marked and first: the one with the process's own number, else the one that Python calls so."""
    main = next((thread for thread in threads if thread.tid == pid), None)
    main = main or next((thread for thread in threads if thread.name == "MainThread"), None)
    if main is None:
        return threads
    others = tuple(thread for thread in threads if thread is not main)
    return (Thread(main.name, main.tid, main.active, main.gil, main.frames, main=True), *others)


def continue_if_stopped(pid: int, kill: Callable[[int, int], None] = os.kill) -> list[str]:
    """After an attempt that attached: a process that now stands stopped was stopped by it. Continue it, and say so."""
    time.sleep(0.002)
    with contextlib.suppress(OSError, IndexError, ValueError):
        if read_stat(PROC / str(pid)).state == "T":
            kill(pid, signal.SIGCONT)
            return ["it was left stopped by the stack dump and was continued."]
    return []
