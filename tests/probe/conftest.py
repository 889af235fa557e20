"""The plugin and the programs that play NCCL to it, built once a run."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from slurm_ncclmon.probe.decode import decode
from slurm_ncclmon.probe.frame import Frames
from slurm_ncclmon.probe.read import Reading, read_folder

ROOT = Path(__file__).resolve().parents[2]
TRACES = ROOT / "tests" / "data" / "traces"
PLUGIN = "libnccl-profiler-ncclmon.so"


@dataclass(frozen=True)
class Probe:
    """The built programs, and a folder for the frames of one test."""

    programs: Path
    plugin: Path
    folder: Path

    def run(self, program: str, *arguments: str, rc: int = 0, **environment: str) -> str:
        """Run a driver program against the plugin, no input; its output."""
        done = subprocess.run(
            [self.programs / program, self.plugin, *arguments],
            env={**os.environ, "NCCLMON_PROBE_DIR": str(self.folder), **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == rc, done.stdout
        return done.stdout

    def reading(self) -> Reading:
        """What the reader finds in the folder."""
        return read_folder(self.folder, os.getuid(), "n1")

    def frames(self) -> Frames:
        """All frames in the folder, which must be without fault."""
        reading = self.reading()
        assert not reading.problems
        return decode(reading.images)


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the driver programs and the plugin."""
    folder = tmp_path_factory.mktemp("probe")
    for arguments in (["-C", ROOT / "probe", PLUGIN], ["-C", ROOT / "tests/lab/probe_driver", f"BUILD={folder}"]):
        subprocess.run(["make", "-s", *arguments], check=True, timeout=300)
    return folder


@pytest.fixture
def probe(programs: Path, tmp_path: Path) -> Probe:
    """The plugin with an empty folder."""
    return Probe(programs, ROOT / "probe" / PLUGIN, tmp_path / "frames")
