"""PyTorch's own watchdogs, read from the ranks' environment: who kills the job first, they or we?

Sources: torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp (2.4 to 2.9): TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC (480 s; 600 s before
2.4), TORCH_NCCL_ENABLE_MONITORING, TORCH_NCCL_ASYNC_ERROR_HANDLING (0: no watchdog kill). The timeout of a process group (10
min for NCCL) is an argument of the program and can not be seen from outside.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from slurm_ncclmon.config import Settings
from slurm_ncclmon.durations import format_duration
from slurm_ncclmon.evidence.model import ProcessReport

GROUP_TIMEOUT_S = 600.0
COLLECTION_S = 60.0
"""Room for gathering evidence before the job is killed."""
_HEARTBEAT = ("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "TORCH_NCCL_HEARTBEAT_TIMEOUT_S")
_MONITORING = "TORCH_NCCL_ENABLE_MONITORING"
_HANDLING = ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "NCCL_ASYNC_ERROR_HANDLING")


@dataclass(frozen=True)
class Limit:
    """Something else that ends a hung job after `seconds`."""

    seconds: float
    what: str


def limits(environment: Mapping[str, str]) -> list[Limit]:
    """The watchdogs that `environment` tells of, the soonest first; none where no PyTorch shows."""
    found = []
    if any(environment.get(name) == "0" for name in _HANDLING):
        return []
    if any(name.startswith(("TORCH_", "TORCHELASTIC_")) for name in environment):
        found.append(
            Limit(GROUP_TIMEOUT_S, "PyTorch's process group timeout (10 min unless the program says otherwise)")
        )
    for name in _HEARTBEAT:
        seconds = _number(environment.get(name))
        if seconds is not None and environment.get(_MONITORING, "1").lower() not in ("0", "false"):
            found.append(Limit(seconds, f"PyTorch's heartbeat monitor ({name}={environment[name]})"))
    return sorted(found, key=lambda limit: limit.seconds)


def late(processes: Iterable[ProcessReport], settings: Settings) -> str | None:
    """A warning when one of the ranks' watchdogs ends the job before evidence is complete; None when all is well."""
    soonest = min(
        (limit for process in processes for limit in limits(process.environment)),
        key=lambda limit: limit.seconds,
        default=None,
    )
    if soonest is None or settings.confirm + COLLECTION_S <= soonest.seconds:
        return None
    advice = max(10.0, (soonest.seconds - COLLECTION_S) * 0.6)
    return (
        f"A hang would be confirmed after {format_duration(settings.confirm)}, but {soonest.what} ends the job after"
        f" {format_duration(soonest.seconds)}: evidence might be lost. Use confirm={advice:.0f}s or less, or raise that limit."
    )


def _number(text: str | None) -> float | None:
    try:
        return float(text) if text is not None else None
    except ValueError:
        return None
