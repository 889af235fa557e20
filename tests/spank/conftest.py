"""The plugin built into a folder of its own, and Slurm's commands with it but without a cluster.

With a controller that nobody can reach, sbatch and srun still load the plugin, read options and variables, and say what
is wrong, all in well under a second.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

SPANK = Path(__file__).resolve().parents[2] / "spank"

SLURM_CONF = """\
ClusterName=nobody
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort=1
SlurmUser=root
PlugStackConfig={folder}/plugstack.conf
MessageTimeout=2
NodeName=n1 State=UNKNOWN
PartitionName=main Nodes=n1 Default=YES
"""


@dataclass(frozen=True)
class Built:
    """Where `make install` has put the plugin, and a Slurm configuration that loads it."""

    folder: Path

    @property
    def plugin(self) -> Path:
        return self.folder / "prefix" / "lib" / "ncclmon" / "spank_ncclmon.so"

    def run(
        self, *command: str, site: str = "", env: dict[str, str] | None = None, kind: str = "optional"
    ) -> subprocess.CompletedProcess[str]:
        """Runs a Slurm command; `site` stands behind the plugin in plugstack.conf."""
        (self.folder / "plugstack.conf").write_text(f"{kind} {self.plugin} {site}\n")
        environment = {
            "PATH": "/usr/bin:/bin",
            "HOME": "/",
            "SLURM_CONF": str(self.folder / "slurm.conf"),
            **(env or {}),
        }
        return subprocess.run(
            command,
            env=environment,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )


def make(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["make", "-s", "-C", str(SPANK), f"BUILD={folder}/build", f"PREFIX={folder}/prefix", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder = tmp_path_factory.mktemp("spank")
    result = make(folder, "install")
    assert result.returncode == 0, result.stderr
    (folder / "slurm.conf").write_text(SLURM_CONF.format(folder=folder))
    return Built(folder)
