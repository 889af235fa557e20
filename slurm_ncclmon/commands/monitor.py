"""`ncclmon monitor JOB.STEP`: what the plugin starts beside a step. People use `ncclmon attach`."""

from __future__ import annotations

import gc
import logging
import os
import sys
from pathlib import Path

import click

from slurm_ncclmon.actions import JobHands
from slurm_ncclmon.clock import StepClock
from slurm_ncclmon.config import SITE_FILE, Settings, load_site, parse_options
from slurm_ncclmon.engine import Engine
from slurm_ncclmon.errors import OptionError
from slurm_ncclmon.folders import folder_name
from slurm_ncclmon.monitor import Monitor
from slurm_ncclmon.senses import StepSenses
from slurm_ncclmon.slurm.commands import CommandClient
from slurm_ncclmon.slurm.step import StepId
from slurm_ncclmon.start import Start, write_start

log = logging.getLogger(__name__)


@click.command("monitor", hidden=True)
@click.argument("step", metavar="JOB.STEP")
@click.option("--options", default="", help="Mode and keys as for --nccl-hang-detect.")
@click.option("--site", type=click.Path(path_type=Path), help="The site's settings instead of the usual file.")
def command(step: str, options: str, site: Path | None) -> int:
    """Watch one step until standard input ends: the plugin in srun holds the other end of that pipe."""
    logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    clock = StepClock()
    clock.listen()
    step_id = StepId.parse(step)
    settings = _settings(options, site)
    folder = _folder(step_id, settings)
    node = os.environ.get("SLURMD_NODENAME") or os.uname().nodename
    log.info("watching step %s from %s: %s", step_id, node, options or "site defaults")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_start(folder, Start(step, settings, clock.wall(), node))
    except OSError as error:
        log.error("cannot write to %s: %s; this watch leaves no recording", folder, error)
    return _watch(step_id, node, settings.scaled(), folder, clock)


def _watch(step: StepId, node: str, settings: Settings, folder: Path, clock: StepClock) -> int:
    client = CommandClient()
    senses = StepSenses(step, node, settings, client, clock, folder)
    hands = JobHands(step, settings, folder, client, clock)
    gc.freeze()  # what is imported stays: a poll of a large job need not search it
    code = Monitor(settings, Engine(settings), senses, hands, clock).run()
    senses.finish()
    log.info("the watch of step %s ends", step)
    logging.shutdown()
    os._exit(code)  # a gathering may still be under way, and the job must not wait for it


def _settings(options: str, site: Path | None) -> Settings:
    """A site file that is wrong must not cost the watch: the defaults do, and the log says so."""
    path = site or Path(os.environ.get("NCCLMON_CONFIG") or SITE_FILE)
    try:
        base = load_site(path)
    except OptionError as error:
        log.error("%s; its settings are left out", error)
        base = Settings()
    return parse_options(options, base)


def _folder(step: StepId, settings: Settings) -> Path:
    given = os.environ.get("NCCLMON_REPORT_DIR")
    return Path(given) if given else Path.cwd() / settings.dir / folder_name(str(step))
