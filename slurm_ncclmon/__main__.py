"""`python -m slurm_ncclmon` is `ncclmon`."""

from __future__ import annotations

from slurm_ncclmon.cli import main

main()
