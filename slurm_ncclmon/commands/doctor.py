"""`ncclmon doctor`: whether this machine has what a watch needs, with the remedy for what it lacks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from slurm_ncclmon.config import SITE_FILE, load_site
from slurm_ncclmon.errors import OptionError, SlurmError
from slurm_ncclmon.evidence import pyspy
from slurm_ncclmon.evidence.preflight import preflight
from slurm_ncclmon.slurm.commands import CommandClient, run_command


@click.command("doctor")
@click.option("--site", type=click.Path(path_type=Path), default=SITE_FILE, show_default=True, help="Site settings.")
def command(site: Path) -> int:
    """Check this machine: Slurm's commands, the plugin, the site's settings, py-spy and the right to take stacks.

    Exit code 3 when something is missing that a watch needs.
    """
    failed = False
    for name, problem in _checks(site):
        failed = failed or bool(problem)
        click.echo(f"{'FAIL' if problem else 'ok  '} {name}{': ' + problem if problem else ''}")
    return 3 if failed else 0


def _checks(site: Path) -> Iterator[tuple[str, str]]:
    yield from _slurm()
    yield f"site settings {site}{'' if site.exists() else ' (none: defaults)'}", _problem_of_site(site)
    program = pyspy.find_program()
    yield f"py-spy {program}", "" if program else "not found; pip install py-spy beside ncclmon"
    yield "stacks of one's own processes", "; ".join([*preflight({}), *_problem_of_yama()])


def _problem_of_yama(path: Path = Path("/proc/sys/kernel/yama/ptrace_scope")) -> list[str]:
    """Yama's setting, where the kernel has it."""
    scope = path.read_text(encoding="ascii").strip() if path.exists() else "0"
    if scope == "0":
        return []
    return [
        f"{path} is {scope}: the steps of a job cannot look at each other; set it to 0, or give py-spy CAP_SYS_PTRACE"
    ]


def _slurm() -> Iterator[tuple[str, str]]:
    try:
        version = CommandClient().version()
    except SlurmError as error:
        yield "Slurm's commands", str(error)
        return
    yield f"Slurm {version[0]}.{version[1]:02}", ""
    yield "plugin in srun", _problem_of_plugin()


def _problem_of_plugin() -> str:
    try:
        known = "--nccl-hang-detect" in run_command(["srun", "--help"])
    except SlurmError as error:
        return str(error)
    remedy = "add 'optional …/spank_ncclmon.so' to plugstack.conf, on this machine and on the nodes"
    return "" if known else f"srun does not know --nccl-hang-detect; {remedy}"


def _problem_of_site(site: Path) -> str:
    try:
        load_site(site)
    except OptionError as error:
        return str(error)
    return ""
