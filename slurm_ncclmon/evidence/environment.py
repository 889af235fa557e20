"""The environment of the sruns that we start: a short list of what may pass, for srun reads about a hundred SLURM_* and SRUN_*
variables of the job around it, each of which could make our step ask for something."""

from __future__ import annotations

from collections.abc import Mapping

from slurm_ncclmon.evidence.membership import MONITOR_MARK

_PASS = (
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "TZ",
    "TMPDIR",
    "SLURM_CONF",
    "NCCLMON_CONFIG",
    "KRB5CCNAME",
)


def stripped(environment: Mapping[str, str]) -> dict[str, str]:
    """Of `environment`, what passes; and the mark by which the plugin knows our own steps."""
    kept = {name: environment[name] for name in _PASS if name in environment}
    kept.setdefault("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin")
    return {**kept, MONITOR_MARK: "1"}
