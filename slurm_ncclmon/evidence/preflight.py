"""Will stacks be had when they are needed? Asked when the job starts, answered in sentences that name the remedy.

The test that decides is harmless: opening /proc/PID/mem needs the same permission as attaching (mode, capability, Yama and user
namespace are all asked), and changes nothing in the process.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from slurm_ncclmon.evidence.assemble import Known
from slurm_ncclmon.evidence.bounded import run_bounded
from slurm_ncclmon.evidence.procfs import PROC
from slurm_ncclmon.evidence.pyspy import find_program
from slurm_ncclmon.evidence.roles import RANK
from slurm_ncclmon.slurm.hostlist import fold_numbers

_SYS_PTRACE = 19
_OLDEST = (0, 4, 1)
_NEWEST_PYTHON: tuple[tuple[tuple[int, int], tuple[int, int, int]], ...] = (((3, 14), (0, 4, 2)), ((3, 12), (0, 4, 1)))
"""From which py-spy on a Python is known."""


def preflight(known: Mapping[int, Known], proc: Path = PROC) -> tuple[str, ...]:
    """Sentences on what will keep stacks of these ranks from being taken; none when all is well."""
    program = find_program()
    version = pyspy_version(program)
    said = [] if version and version >= _OLDEST else [_program_problem(program, version)]
    trouble: dict[str, list[int]] = {}
    for pid, one in known.items():
        if one.role.kind == RANK:
            for sentence in _rank_problems(pid, version, has_capability(program), proc):
                trouble.setdefault(sentence, []).append(pid if one.role.rank is None else one.role.rank)
    said += [f"{_ranks(ranks)}: {sentence}" for sentence, ranks in trouble.items()]
    return tuple(said)


def _rank_problems(pid: int, version: tuple[int, ...], capable: bool, proc: Path) -> Iterable[str]:
    folder = proc / str(pid)
    if not capable and not may_attach(folder):
        yield why_not(folder, proc)
        return
    python, threaded = target_python(folder)
    if python and version:
        needed = next((least for since, least in _NEWEST_PYTHON if python >= since), _OLDEST)
        if version < needed:
            yield (
                f"py-spy {_dotted(version)} does not know Python {_dotted(python)}: it needs {_dotted(needed)} or later "
                "where ncclmon is installed"
            )
    if threaded:
        yield f"Python {_dotted(python)}t (free-threaded) is not known to py-spy: there will be no Python stacks"


def may_attach(folder: Path) -> bool:
    """Whether this process may read another's memory, by asking for it."""
    try:
        os.close(os.open(folder / "mem", os.O_RDONLY))
    except OSError:
        return False
    return True


def why_not(folder: Path, proc: Path = PROC) -> str:
    """The reason for which a process may not be read, and the remedy. The first that fits."""
    scope = _text(proc / "sys/kernel/yama/ptrace_scope").strip()
    if scope in _YAMA:
        return f"kernel.yama.ptrace_scope is {scope}: {_YAMA[scope]}"
    if not _same_link(folder / "ns/user", proc / "self/ns/user"):
        return (
            "it runs in a container with a user namespace of its own, which keeps ncclmon out "
            "(start the container with CAP_SYS_PTRACE: docker --cap-add SYS_PTRACE, Kubernetes securityContext.capabilities)"
        )
    if _owner(folder / "environ") not in (None, os.geteuid()):
        return (
            "it is not dumpable (a set-uid program, file capabilities, or prctl(PR_SET_DUMPABLE, 0)), "
            f"so that only CAP_SYS_PTRACE may look into it ({_SETCAP})"
        )
    if _status_number(proc / "self/status", "Seccomp") == 2:
        return "ncclmon itself runs under a seccomp filter that may forbid ptrace (a container without --cap-add SYS_PTRACE)"
    return f"the kernel does not permit ptrace; look for a security module such as SELinux or AppArmor, or {_SETCAP}"


_SETCAP = "setcap cap_sys_ptrace+ep on ncclmon's py-spy lifts that"
_YAMA = {
    "1": "only a process's ancestors may look into it, and another step is none "
    f"(sysctl kernel.yama.ptrace_scope=0 on the compute nodes, or {_SETCAP})",
    "2": f"stacks need CAP_SYS_PTRACE ({_SETCAP})",
    "3": "no stacks can be taken until the node is rebooted with a lower value",
}


def has_capability(program: str, status: Path = PROC / "self/status") -> bool:
    """Whether py-spy will have CAP_SYS_PTRACE, from us or from its own file."""
    match = re.search(r"^CapEff:\s*([0-9a-f]+)", _text(status), re.MULTILINE)
    if match and int(match.group(1), 16) >> _SYS_PTRACE & 1:
        return True
    with contextlib.suppress(OSError):
        return bool(os.getxattr(program, "security.capability"))
    return False


def pyspy_version(program: str) -> tuple[int, ...]:
    """Of `py-spy --version`; empty when there is none."""
    try:
        ran = run_bounded([program, "--version"], 5.0)
    except OSError:
        return ()
    match = re.search(r"(\d+)\.(\d+)\.(\d+)", ran.stdout)
    return tuple(int(number) for number in match.groups()) if match else ()


def target_python(folder: Path) -> tuple[tuple[int, int] | tuple[()], bool]:
    """The version of the interpreter in a process and whether it is free-threaded; empty for another program."""
    match = re.search(r"/(?:lib)?python3\.(\d+)(t?)(?:\.so[0-9.]*|[^/\n]{0,12})?(?:\n|/)", _text(folder / "maps"))
    return ((3, int(match.group(1))), match.group(2) == "t") if match else ((), False)


def _program_problem(program: str, version: tuple[int, ...]) -> str:
    if not version:
        return f"{program} cannot be run: there will be no stacks (pip install py-spy where ncclmon is installed)"
    return f"py-spy {_dotted(version)} is too old: native stacks need {_dotted(_OLDEST)} or later"


def _ranks(ranks: list[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {fold_numbers(ranks)}"


def _dotted(version: Iterable[int]) -> str:
    return ".".join(map(str, version))


def _same_link(one: Path, other: Path) -> bool:
    """Two namespaces; those that cannot be read count as the same, for then they say nothing."""
    try:
        return one.readlink() == other.readlink()
    except OSError:
        return True


def _owner(path: Path) -> int | None:
    with contextlib.suppress(OSError):
        return path.stat().st_uid
    return None


def _status_number(path: Path, name: str) -> int:
    match = re.search(rf"^{name}:\s*(\d+)", _text(path), re.MULTILINE)
    return int(match.group(1)) if match else 0


def _text(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text(encoding="utf-8", errors="replace")
    return ""
