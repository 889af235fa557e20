"""The C tests, as they are and under sanitizers, and what the plugin shows to Slurm."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.spank.conftest import Built, make


def test_c_tests(tmp_path: Path) -> None:
    result = make(tmp_path, "check")
    assert result.returncode == 0, result.stderr


def test_c_tests_with_sanitizers(tmp_path: Path) -> None:
    sanitizers = "-fsanitize=address,undefined -fno-sanitize-recover=all"
    result = make(tmp_path, f"CFLAGS=-O1 -g {sanitizers}", f"LDFLAGS={sanitizers}", f"{tmp_path}/build/check")
    assert result.returncode == 0, result.stderr
    # ncclmon-step's argument lists are made once and for good
    environment = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0"}
    result = subprocess.run(
        [f"{tmp_path}/build/check"], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert result.returncode == 0, result.stderr


def test_exported_symbols(built: Built) -> None:
    result = subprocess.run(
        ["nm", "-D", "--defined-only", built.plugin], capture_output=True, text=True, timeout=60, check=True
    )
    assert {line.split()[-1] for line in result.stdout.splitlines()} == {
        "plugin_name", "plugin_type", "plugin_version", "spank_plugin_version",
        "slurm_spank_init", "slurm_spank_init_post_opt", "slurm_spank_local_user_init", "slurm_spank_user_init",
        "slurm_spank_task_init", "slurm_spank_exit",
    }  # fmt: skip


def test_hardening(built: Built) -> None:
    for file in (built.plugin, built.plugin.with_name("ncclmon-step")):
        result = subprocess.run(["readelf", "-Wld", file], capture_output=True, text=True, timeout=60, check=True)
        assert "GNU_RELRO" in result.stdout
        assert "NOW" in result.stdout
        assert "RWE" not in result.stdout
