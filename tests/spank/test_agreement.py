"""The plugin and the monitor know the same modes, keys, defaults and durations."""

from __future__ import annotations

import re

import pytest

from slurm_ncclmon.config import MODES, OPTIONS, Settings, parse_options
from slurm_ncclmon.durations import parse_duration
from slurm_ncclmon.errors import OptionError
from tests.spank.conftest import SPANK, Built

TABLE = (SPANK / "options.def").read_text()
KEYS = re.findall(r'^KEY\((\w+), (\w+), "([^"]*)", "([^"]*)"', TABLE, re.MULTILINE)


def test_modes() -> None:
    assert tuple(re.findall(r"^MODE\((\w+),", TABLE, re.MULTILINE)) == MODES


def test_keys() -> None:
    assert [key for key, *_ in KEYS] == list(OPTIONS)


@pytest.mark.parametrize(("key", "kind", "argument", "default"), KEYS)
def test_defaults(key: str, kind: str, argument: str, default: str) -> None:
    ours = getattr(Settings(), key)
    assert ours == (parse_duration(default) if kind == "DURATION" else default.replace(".", ""))
    if kind == "CHOICE":
        for choice in argument.split("|"):
            assert getattr(parse_options(f"observe,{key}={choice}", Settings()), key) == choice


@pytest.mark.parametrize("text", ["15s", "5m", "1h", "500ms", "1.5h", "2d", "90", "007s", "0.001s"])
def test_durations_that_both_take(built: Built, text: str) -> None:
    assert built.run("srun", f"--nccl-hang-detect=confirm={text},help").returncode == 0
    assert parse_options(f"observe,confirm={text}", Settings()).confirm > 0


@pytest.mark.parametrize(
    "text", ["15x", "", "s", "1.", ".5s", "-1s", "+1s", "1e3", "0x10", "inf", "0", "0.0ms", "5 m", "5mm"]
)
def test_durations_that_both_refuse(built: Built, text: str) -> None:
    assert (
        "ncclmon: --nccl-hang-detect: confirm: " in built.run("srun", f"--nccl-hang-detect=confirm={text},help").stderr
    )
    with pytest.raises(OptionError):
        parse_options(f"observe,confirm={text}", Settings())
