"""A step's probe files on this node: where its ranks write them, which of them are the step's, and how many may travel."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from slurm_ncclmon.probe import layout
from slurm_ncclmon.probe.image import Image
from slurm_ncclmon.probe.read import Reading, read_folder
from slurm_ncclmon.slurm.step import StepId

FOLDER = "NCCLMON_PROBE_DIR"
MOST_FOLDERS = 8
MOST_BYTES = 8 << 20
"""Of one node: a hundred communicators for each of 64 ranks. They travel compressed to about a tenth."""


def probe_folders(environments: Iterable[Mapping[str, str]]) -> tuple[str, ...]:
    """The folders into which the probe of ranks with these environments writes; one for all of a step, as a rule."""
    folders = {environment.get(FOLDER, "") for environment in environments}
    return tuple(sorted(folder for folder in folders if folder.startswith("/")))[:MOST_FOLDERS]


def read_frames(folders: Iterable[str], step: StepId, node: str, most_bytes: int = MOST_BYTES) -> Reading:
    """The probe files of the step's ranks on this node, up to `most_bytes` of them; all of them this user's.

    Where several slurmd share a machine they share its memory as well: a file that names another node is that node's. A
    container that does not know the node's name writes its own, so where none names this node, all count.
    """
    readings = [read_folder(Path(folder), os.getuid(), node) for folder in folders]
    problems = [problem for reading in readings for problem in reading.problems]
    images = [image for reading in readings for image in reading.images if _is_of(image, step)]
    images = [image for image in images if _node_of(image) == node] or images
    ends = np.cumsum([len(image.data) for image in images])
    kept = images[: int(np.searchsorted(ends, most_bytes, side="right"))]
    if len(kept) < len(images):
        problems.append(
            f"probe frames of {len(images) - len(kept)} processes left out: more than {most_bytes >> 20} MiB"
        )
    return Reading(tuple(kept), tuple(problems))


def _is_of(image: Image, step: StepId) -> bool:
    """Whether the file's writer was in the step, as far as it knew."""
    header = np.frombuffer(image.data, layout.HEADER, 1)[0]
    job, number = int(header["job"]), int(header["step"])
    return job in (-1, step.job) and number in (-1, step.step)


def _node_of(image: Image) -> str:
    name: bytes = np.frombuffer(image.data, layout.HEADER, 1)[0]["host"]
    return name.decode("utf-8", "replace")
