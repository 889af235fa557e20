"""`ncclmon attach JOB[.STEP]`: watch a step that was started without the option."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click

from slurm_ncclmon.config import SITE_FILE, load_site, parse_options
from slurm_ncclmon.errors import UsageError
from slurm_ncclmon.evidence.environment import stripped
from slurm_ncclmon.folders import folder_name
from slurm_ncclmon.slurm.client import STEP_NAME, StepPart
from slurm_ncclmon.slurm.commands import CommandClient
from slurm_ncclmon.slurm.step import StepId

_END_S = 15.0


@click.command("attach")
@click.argument("target", metavar="JOB[.STEP]")
@click.option("--options", default="observe", show_default=True, help="Mode and keys as for --nccl-hang-detect.")
@click.option("--site", type=click.Path(path_type=Path), default=SITE_FILE, show_default=True, help="Site settings.")
def command(target: str, options: str, site: Path) -> int:
    """Watch a running step from now on, until it ends or this command does (Ctrl-C).

    NCCL is asked where the step's own environment says. Two jobs of one user on one node share the default port; then only
    the answers of this step's processes count.
    """
    settings = parse_options(options, load_site(site))
    client = CommandClient()
    step = client.find_step(target)
    part = client.step_parts(step)[0]
    folder = Path.cwd() / settings.dir / folder_name(str(step))
    if folder.exists():
        raise UsageError(
            f"{folder} exists: step {step} is or was watched (ncclmon status {step}); attach from another folder"
        )
    click.echo(f"watching step {step} from {part.nodes[0]}; reports go to {folder}; Ctrl-C ends the watch", err=True)
    environment = {**stripped(os.environ), "NCCLMON_REPORT_DIR": str(folder), "NCCLMON_CONFIG": str(site)}
    process = subprocess.Popen(watch_command(step, part, options), stdin=subprocess.PIPE, env=environment)
    assert process.stdin is not None
    try:
        return process.wait()
    except KeyboardInterrupt:
        process.stdin.close()
        return process.wait(timeout=_END_S)


def watch_command(step: StepId, part: StepPart, options: str) -> list[str]:
    """The srun of a monitor step on the first node of `part`, as the plugin starts it (spank/step/command.c)."""
    argv = ["srun", f"--jobid={step.job}", f"--job-name={STEP_NAME}", "--quiet"]
    argv += [f"--het-group={part.group}"] if part.group is not None else []
    argv += ["--overlap", "--nodes=1", "--ntasks=1", f"--nodelist={part.nodes[0]}", "--mem=0", "--gres=none"]
    argv += ["--cpu-bind=none", "--mpi=none", "--kill-on-bad-exit=0", "--wait=0"]
    return [*argv, sys.executable, "-I", "-m", "slurm_ncclmon", "monitor", str(step), "--options", options]
