"""Will frames be had when they are needed? Read from the ranks' environment; NCCL loads one profiler plugin and no more."""

from __future__ import annotations

from collections.abc import Iterable

from slurm_ncclmon.config import Settings
from slurm_ncclmon.evidence.model import ProcessReport
from slurm_ncclmon.evidence.roles import RANK


def taken(processes: Iterable[ProcessReport], settings: Settings) -> str | None:
    """A sentence where the ranks bring a profiler plugin of their own, which the probe never replaces; None otherwise."""
    if settings.probe == "off":
        return None
    plugins = {
        process.environment["NCCL_PROFILER_PLUGIN"]
        for process in processes
        if process.role == RANK
        and process.environment.get("NCCL_PROFILER_PLUGIN")
        and not process.environment.get("NCCLMON_PROBE_DIR")
    }
    if not plugins:
        return None
    return (
        f"There are no probe frames: the job has a profiler plugin of its own (NCCL_PROFILER_PLUGIN={min(plugins)}), and NCCL"
        " loads only one. Counts and stacks are watched all the same; a hang in which all ranks have launched the same will"
        " name no rank. To have both, leave NCCL_PROFILER_PLUGIN unset and name the plugin in NCCLMON_CHAIN_PLUGIN."
    )
