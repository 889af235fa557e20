"""`ncclmon attach JOB[.STEP]`: watch a step that was started without the option."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click

from slurm_ncclmon.config import SITE_FILE, load_site, parse_options
from slurm_ncclmon.folders import folder_name
from slurm_ncclmon.slurm.commands import CommandClient
from slurm_ncclmon.slurm.fanout import monitor_command
from slurm_ncclmon.slurm.step import StepId


@click.command("attach")
@click.argument("target", metavar="JOB[.STEP]")
@click.option("--options", default="observe", show_default=True, help="Mode and keys as for --nccl-hang-detect.")
@click.option(
    "--site", type=click.Path(path_type=Path), default=SITE_FILE, show_default=True, help="The site's settings."
)
def command(target: str, options: str, site: Path) -> int:
    """Watch a running step from now on, until it ends or this command does (Ctrl-C).

    The step's communicators are seen as far as its NCCL listens where its environment says; two jobs of one user on one node share
    the default port, and then only the answers of this step's processes count.
    """
    parse_options(options, load_site(site))
    client = CommandClient()
    step = StepId.parse(target) if "." in target else client.last_step(int(target))
    node = client.step_nodes(step)[0]
    click.echo(
        f"watching step {step} from {node}; reports go to {Path.cwd() / folder_name(str(step))}; Ctrl-C ends the watch",
        err=True,
    )
    arguments = [sys.executable, "-m", "slurm_ncclmon", "monitor", str(step), "--options", options, "--site", str(site)]
    process = subprocess.Popen(
        monitor_command(step, node, arguments), stdin=subprocess.PIPE, env={**os.environ, "NCCLMON_IS_MONITOR": "1"}
    )
    try:
        return process.wait()
    except KeyboardInterrupt:
        assert process.stdin is not None
        process.stdin.close()
        return process.wait(timeout=15)
