"""What Slurm itself says of a step's processes on this node: the second source beside their environment."""

from __future__ import annotations

from slurm_ncclmon.errors import SlurmError
from slurm_ncclmon.slurm.commands import run_command
from slurm_ncclmon.slurm.step import StepId


def listed_pids(step: StepId, node: str, seconds: float) -> tuple[dict[int, int | None], str]:
    """Pid -> task (None for a descendant) on this node, and what went wrong (empty when nothing did).

    `scontrol listpids` asks the node's own slurmstepd and knows the tasks; `sstat` goes through the controller and knows
    pids only.
    """
    try:
        found = parse_listpids(run_command(("scontrol", "listpids", str(step), node), seconds / 2))
        if found:
            return found, ""
        problem = "scontrol listpids: no processes"
    except SlurmError as error:
        problem = str(error)
    try:
        text = run_command(
            ("sstat", "--allsteps", "--pidformat", "--noheader", "--parsable2", f"--jobs={step}"), seconds / 2
        )
        return dict.fromkeys(parse_sstat(text, step, node)), ""
    except SlurmError as error:
        return {}, f"{problem}; {error}"


def parse_listpids(text: str) -> dict[int, int | None]:
    """Of `PID JOBID STEPID LOCALID GLOBALID`; a dash stands for a descendant of a task."""
    found: dict[int, int | None] = {}
    for line in text.splitlines()[1:]:
        words = line.split()
        if len(words) == 5 and words[0].isdigit():
            found[int(words[0])] = int(words[4]) if words[4].isdigit() else None
    return found


def parse_sstat(text: str, step: StepId, node: str) -> list[int]:
    """Of `12.0|n1|4711,4712`."""
    rows = [line.split("|") for line in text.splitlines()]
    return [
        int(pid)
        for row in rows
        if len(row) == 3 and row[0] == str(step) and row[1] == node
        for pid in row[2].split(",")
        if pid.isdigit()
    ]
