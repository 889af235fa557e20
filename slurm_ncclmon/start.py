"""start.json: what a watch began with, so that a recording can be judged again with the same settings."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from slurm_ncclmon import __version__
from slurm_ncclmon.config import SETTING_NAMES, Settings
from slurm_ncclmon.errors import RecordingError
from slurm_ncclmon.report.files import write_files

NAME = "start.json"


@dataclass(frozen=True)
class Start:
    """The step that was watched, the settings it was watched with (before `scaled`), and the time."""

    step: str
    settings: Settings
    wall_s: float
    node: str = ""


def write_start(folder: Path, start: Start) -> None:
    """Raises OSError."""
    write_files(folder, {NAME: json.dumps({"version": __version__, **asdict(start)}, indent=1) + "\n"})


def read_start(folder: Path) -> Start:
    """What the watch began with; defaults for a plain folder of RAS answers.

    Raises RecordingError when start.json is there and damaged.
    """
    path = folder / NAME
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        return Start(str(data["step"]), _settings(data["settings"]), float(data["wall_s"]), str(data.get("node", "")))
    except FileNotFoundError:
        return Start(folder.name, Settings(), 0.0)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RecordingError(
            f"{path}: not a start record ({error!r}); remove it to replay with default settings"
        ) from None


def _settings(data: dict[str, Any]) -> Settings:
    """Known settings only: a recording of a later release may have more."""
    known = {name: value for name, value in data.items() if name in SETTING_NAMES}
    phases = tuple((str(pattern), str(phase)) for pattern, phase in known.pop("phases", ()))
    return replace(Settings(), **known, phases=phases)
