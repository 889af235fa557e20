"""Settings: site file < environment < option, merged once into one frozen object."""

from __future__ import annotations

import difflib
import sys
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Callable

from slurm_ncclmon.durations import parse_duration
from slurm_ncclmon.errors import OptionError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SITE_FILE = Path("/etc/slurm-ncclmon/config.toml")
MODES = ("off", "observe", "cancel", "requeue")


@dataclass(frozen=True)
class Settings:
    """Everything that can be set. Times in seconds."""

    mode: str = "observe"
    interval: float = 15.0
    """Between two polls while nothing is wrong; it grows with the mesh (ras/pace.py)."""
    suspect: float = 60.0
    """Frozen for this long: a suspicion, with a warning."""
    remind: float = 120.0
    confirm: float = 300.0
    """Frozen for this long: confirmed, and acted on."""
    dir: str = ""
    """Where the report folder is made; empty: the working directory of the step."""
    ras: str = "on"
    """`on`, `off`, or the ADDR:PORT to ask instead of what the ranks' environment says."""
    ncclras: str = ""
    """Path of an ncclras binary to ask with; empty: speak the protocol ourselves."""
    probe: str = "auto"
    stacks: str = "on"
    keep: str = "always"
    init: float = 1800.0
    """Grace before the first collective of a communicator (compilation, loading)."""
    exited: float = 120.0
    """How long ranks may differ in teardown."""
    dead: float = 60.0
    phase_limit: float = 1800.0
    """A checkpoint, evaluation or compilation holds a suspicion back for at most this long."""
    ray_compatible: bool = False
    """Judge as Ray Train's NCCL RAS callback does: counts alone, no wait-for graph."""
    phases: tuple[tuple[str, str], ...] = ()
    """The site's own (regular expression, phase) pairs, tried before the built-in ones."""

    def scaled(self) -> Settings:
        """Settings in which no time contradicts another: whoever asks for `confirm=15s` wants all of it faster."""
        return replace(
            self,
            suspect=min(self.suspect, self.confirm / 3),
            init=min(self.init, self.confirm * 6),
            remind=min(self.remind, max(self.confirm / 2, self.interval)),
            dead=min(self.dead, self.confirm),
            exited=min(self.exited, self.confirm),
            phase_limit=min(self.phase_limit, self.confirm * 6),
        )


def _choice(*allowed: str) -> Callable[[str, str], str]:
    def parse(key: str, text: str) -> str:
        if text not in allowed:
            raise OptionError(f"{key}: '{text}' is not one of {', '.join(allowed)}")
        return text

    return parse


def _duration(key: str, text: str) -> float:
    try:
        seconds = parse_duration(text)
    except OptionError as error:
        raise OptionError(f"{key}: {error}") from None
    if seconds <= 0:
        raise OptionError(f"{key}: '{text}' must be more than nothing (write 15s, 5m or 1h)")
    return seconds


def _text(key: str, text: str) -> str:
    if not text:
        raise OptionError(f"{key}: needs a value, as in {key}=…")
    return text


OPTIONS: dict[str, Callable[[str, str], Any]] = {
    "confirm": _duration,
    "suspect": _duration,
    "remind": _duration,
    "interval": _duration,
    "dir": _text,
    "ras": _text,
    "probe": _choice("on", "off", "auto"),
    "stacks": _choice("on", "off"),
    "keep": _choice("always", "findings"),
}
"""The keys of `--nccl-hang-detect`; spank/ refuses the same ones at submission (a test holds both together)."""

_SITE_ONLY: dict[str, Callable[[str, str], Any]] = {
    "mode": _choice(*MODES),
    "ncclras": _text,
    "init": _duration,
    "exited": _duration,
    "dead": _duration,
    "phase_limit": _duration,
}


def parse_options(text: str, base: Settings) -> Settings:
    """`base` changed by an option string such as `cancel,confirm=5m`.

    Raises OptionError that names the word and what would be right.
    """
    changes: dict[str, Any] = {}
    for position, word in enumerate(part for part in text.split(",") if part):
        key, equals, value = word.partition("=")
        if equals:
            changes[key] = _parser(key, OPTIONS)(key, value)
        elif position == 0 and key in MODES:
            changes["mode"] = key
        else:
            raise OptionError(f"'{word}' is neither a mode ({', '.join(MODES)}) nor key=value")
    return replace(base, **changes)


def _parser(key: str, known: dict[str, Callable[[str, str], Any]]) -> Callable[[str, str], Any]:
    if key in known:
        return known[key]
    near = difflib.get_close_matches(key, known, n=1)
    hint = f" (did you mean {near[0]}?)" if near else ""
    raise OptionError(f"'{key}' is not a key{hint}; known: {', '.join(known)}")


def load_site(path: Path) -> Settings:
    """Settings of the site's TOML file; the defaults when there is none.

    Raises OptionError that names the file and the key.
    """
    try:
        with path.open("rb") as file:
            table = tomllib.load(file)
    except FileNotFoundError:
        return Settings()
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise OptionError(f"{path}: {error}") from None
    try:
        return _from_table(table)
    except OptionError as error:
        raise OptionError(f"{path}: {error}") from None


def _from_table(table: dict[str, Any]) -> Settings:
    table = dict(table)
    changes: dict[str, Any] = {}
    phases = table.pop("phases", {})
    if not isinstance(phases, dict):
        raise OptionError("phases: must be a table of  regular-expression = phase")
    changes["phases"] = tuple((str(pattern), str(phase)) for pattern, phase in phases.items())
    if "ray_compatible" in table:
        changes["ray_compatible"] = bool(table.pop("ray_compatible"))
    for key, value in table.items():
        changes[key] = _parser(key, {**OPTIONS, **_SITE_ONLY})(key, str(value))
    return replace(Settings(), **changes)


SETTING_NAMES = tuple(field.name for field in fields(Settings))
