"""Which NCCL called, asked of the shipped libraries; kernel events are asked for everywhere but in 2.31."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from .conftest import ROOT

LIBRARIES = sorted((Path(os.environ.get("NCCLMON_PREFIX", "/opt/slurm-ncclmon")) / "nccl").glob("*/lib/libnccl.so.2"))
WITH_KERNELS, WITHOUT = "0x5e", "0x1e"


@pytest.fixture(scope="module")
def version_check(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("version") / "version_check"
    sources = [ROOT / "tests/probe/version_check.c", ROOT / "probe/version.c"]
    subprocess.run(["cc", "-D_GNU_SOURCE", f"-I{ROOT / 'probe'}", *sources, "-o", program], check=True, timeout=60)
    return program


def asked(program: Path, library: Path | str, interface: int) -> list[str]:
    done = subprocess.run([program, library, str(interface)], check=True, timeout=60, stdout=subprocess.PIPE, text=True)
    return done.stdout.split()


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda path: path.parents[1].name)
def test_shipped_library(version_check: Path, library: Path) -> None:
    major, minor, patch = (int(part) for part in library.parents[1].name.split(".")[:3])
    expected = WITHOUT if (major, minor) == (2, 31) else WITH_KERNELS
    assert asked(version_check, library, 6) == [str(major * 10000 + minor * 100 + patch), expected]


def test_there_are_libraries_to_ask() -> None:
    assert LIBRARIES, "no NCCL library: run scripts/setup"


def test_a_caller_that_is_no_nccl(version_check: Path) -> None:
    assert asked(version_check, "none", 4) == ["22700", WITH_KERNELS]
    assert asked(version_check, "none", 5) == ["22800", WITH_KERNELS]
    assert asked(version_check, "none", 6) == ["0", WITHOUT]
