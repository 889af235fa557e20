"""slurm-ncclmon: which rank of a hung training step did not enter which collective, and where it stands instead."""

from __future__ import annotations

__version__ = "0.1.0"
