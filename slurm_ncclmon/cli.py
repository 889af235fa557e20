"""`ncclmon`: the commands, and the one place where errors become text and exit codes."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

import click

from slurm_ncclmon import __version__
from slurm_ncclmon.errors import NcclmonError

COMMANDS = ("monitor", "attach", "stacks", "status", "report", "replay", "doctor", "node")
"""Each is `command` in slurm_ncclmon/commands/<name>.py, imported only when called: the node agent must start fast."""


class LazyGroup(click.Group):
    """A group whose commands are modules."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order in which a newcomer needs them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name, None when there is none."""
        if cmd_name not in COMMANDS:
            return None
        command = importlib.import_module(f"slurm_ncclmon.commands.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command


@click.command(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="ncclmon")
def cli() -> None:
    """Find out why a distributed training step hangs: which rank, where, in which collective, at which line.

    Exit codes: 0 fine, 1 a hang or slow anomaly was found, 2 wrong use, 3 could not look, 4 Slurm refused.
    """


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit the process."""
    try:
        sys.exit(cli.main(args=None if arguments is None else list(arguments), standalone_mode=False) or 0)
    except NcclmonError as error:
        click.echo(f"ncclmon: {error}", err=True)
        sys.exit(error.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except (click.Abort, KeyboardInterrupt):
        click.echo("ncclmon: interrupted", err=True)
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()  # the reader (head, less) left: nobody to tell
        sys.exit(0)
