"""Where the reports of a job are."""

from __future__ import annotations

import re
from pathlib import Path

from slurm_ncclmon.errors import UsageError
from slurm_ncclmon.slurm.commands import CommandClient

_TARGET = re.compile(r"([0-9]+)(?:\.([0-9]+))?")


def folder_name(step: str) -> str:
    """Name of a step's folder, `ncclmon-12.0`; the plugin makes it under the same name."""
    return f"ncclmon-{step}"


def find_folders(target: str) -> list[Path]:
    """Folders of a JOB, a JOB.STEP or a path, oldest step first.

    A job's folders are looked for in the working directory, then in the job's own, as Slurm knows it.
    Raises UsageError that says where was looked when there is none, SlurmError when Slurm does not know the job.
    """
    path = Path(target)
    match = _TARGET.fullmatch(target)
    if path.is_dir() and not match:
        return [path]
    if not match:
        raise UsageError(f"'{target}' is neither a folder nor a job (write 1234, 1234.0 or a path)")
    job, step = match.groups()
    pattern = folder_name(f"{job}.{step or '*'}")
    looked = [Path.cwd()]
    folders = _matches(looked[0], pattern)
    if not folders:
        looked.append(Path(CommandClient().work_dir(int(job))))
        folders = _matches(looked[1], pattern)
    if not folders:
        raise UsageError(
            f"no {pattern} in {' or '.join(map(str, looked))}; was the job started with --nccl-hang-detect (or dir=…)?"
        )
    return folders


def _matches(folder: Path, pattern: str) -> list[Path]:
    return sorted(
        folder.glob(pattern),
        key=lambda path: int(path.name.rsplit(".", 1)[1]) if path.name.rsplit(".", 1)[1].isdigit() else 0,
    )
