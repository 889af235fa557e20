"""The name of the cluster that a process belongs to: a machine may be a node of several, each of which has a job 1."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from pathlib import Path

_DEFAULT = "/etc/slurm/slurm.conf"


def cluster_name(environment: Mapping[str, str]) -> str:
    """By what Slurm tells a job's processes; empty where it tells nothing. Names are compared in lower case, as Slurm does."""
    name = environment.get("SLURM_CLUSTER_NAME") or environment.get("SLURM_WORKING_CLUSTER", "").partition(":")[0]
    return name.lower()


def own_cluster(environment: Mapping[str, str]) -> str:
    """The same for ourselves: srun tells a step that joins a running job nothing, but the configuration does."""
    name = cluster_name(environment)
    if not name:
        with contextlib.suppress(OSError):
            text = Path(environment.get("SLURM_CONF") or _DEFAULT).read_text(encoding="utf-8", errors="replace")
            match = re.search(r"^\s*ClusterName\s*=\s*(\S+)", text, re.MULTILINE | re.IGNORECASE)
            name = match.group(1).lower() if match else ""
    return name
