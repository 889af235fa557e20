"""Options and variables, as sbatch and srun read them."""

from __future__ import annotations

import pytest

from tests.spank.conftest import Built

WATCH = "--nccl-hang-detect"
VARIABLE = "SLURM_NCCL_HANG_DETECT"
REACHED_SLURM = "Unable to contact slurm controller"


@pytest.mark.parametrize("value", ["", "=cancel,confirm=15s,interval=2s"])
@pytest.mark.parametrize("command", ["sbatch", "srun", "salloc"])
def test_right_values_go_on_to_slurm(built: Built, command: str, value: str) -> None:
    arguments = ["--wrap", "true"] if command == "sbatch" else ["--immediate=1", "true"]
    result = built.run(command, WATCH + value, *arguments)
    assert "ncclmon" not in result.stderr
    assert REACHED_SLURM in result.stderr or "Unable to allocate resources" in result.stderr


@pytest.mark.parametrize(
    "value", ["", "observe", "off", "confirm=15s,cancel", "dir=/a b,ras=[::1]:28028", "ras=gpu1:65535"]
)
def test_right_values(built: Built, value: str) -> None:
    assert built.run("srun", f"{WATCH}={value},help").returncode == 0


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("confirm=15x", "confirm: '15x' is not a duration (write 15s, 5m or 1h)"),
        ("confirm=0", "confirm: '0' must be more than nothing (write 15s, 5m or 1h)"),
        ("cancle", "'cancle' is neither a mode (off, observe, cancel, requeue) nor key=value; did you mean 'cancel'?"),
        ("cancel,requeue", "both 'cancel' and 'requeue': name one mode"),
        ("cancel,intervall=2s", "unknown key 'intervall'; did you mean 'interval'? (known: confirm, suspect, remind, "),
        ("ras=localhost", "ras: 'localhost' is not one of on, off, ADDR:PORT"),
        ("x" * 3000, "longer than 2047 characters"),
    ],
)
@pytest.mark.parametrize("source", ["sbatch", "script", "srun", "variable"])
def test_wrong_values_are_refused(built: Built, source: str, value: str, message: str) -> None:
    if source == "script":
        script = built.folder / "job.sh"
        script.write_text(f"#!/bin/bash\n#SBATCH {WATCH}={value}\n")
        result = built.run("sbatch", str(script))
    elif source == "variable":
        result = built.run("sbatch", "--wrap", "true", env={VARIABLE: value})
    else:
        result = built.run(source, f"{WATCH}={value}", *(["--wrap", "true"] if source == "sbatch" else ["true"]))
    name = VARIABLE if source == "variable" else WATCH
    assert f"error: ncclmon: {name}: {message}" in result.stderr
    assert REACHED_SLURM not in result.stderr
    assert result.returncode != 0


def test_control_characters_are_refused(built: Built) -> None:
    result = built.run("srun", f"{WATCH}=dir=a\tb", "true")
    assert "ncclmon: --nccl-hang-detect: holds a control character" in result.stderr


@pytest.mark.parametrize("command", [["sbatch", "--wrap", "true"], ["srun"], ["salloc"]])
def test_help_needs_no_job(built: Built, command: list[str]) -> None:
    result = built.run(*command, f"{WATCH}=help", site="default=observe,confirm=3m")
    assert (result.returncode, result.stderr) == (0, "")
    assert "  confirm=TIME " in result.stdout
    assert result.stdout.endswith("This site's defaults: observe,confirm=3m\n")


def test_help_in_the_variable_is_a_mistake(built: Built) -> None:
    result = built.run("sbatch", "--wrap", "true", env={VARIABLE: "help"})
    assert "SLURM_NCCL_HANG_DETECT: help is for the option (write --nccl-hang-detect=help)" in result.stderr


def test_usage_line(built: Built) -> None:
    assert "--nccl-hang-detect=MODE,..." in built.run("srun", "--help").stdout


def test_variable_inside_a_job_stops_nothing(built: Built) -> None:
    result = built.run("srun", "true", env={VARIABLE: "cancle", "SLURM_JOB_ID": "3"})
    assert "'cancel'?; this step is not watched" in result.stderr
    assert REACHED_SLURM in result.stderr


def test_empty_variable_says_nothing(built: Built) -> None:
    result = built.run("srun", "true", env={VARIABLE: ""})
    assert "ncclmon" not in result.stderr


def test_monitor_is_never_asked(built: Built) -> None:
    result = built.run("srun", "true", env={VARIABLE: "cancle", "NCCLMON_IS_MONITOR": "1"})
    assert "ncclmon" not in result.stderr
    assert REACHED_SLURM in result.stderr


@pytest.mark.parametrize("kind", ["optional", "required"])
def test_mistakes_of_the_site_reach_no_user(built: Built, kind: str) -> None:
    result = built.run("srun", "true", site="default=cancle delay=x ncclmon=relative nonsense", kind=kind)
    assert "ncclmon" not in result.stderr
    assert REACHED_SLURM in result.stderr
