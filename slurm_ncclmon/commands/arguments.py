"""Argument types that several commands share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from slurm_ncclmon.durations import parse_duration
from slurm_ncclmon.errors import OptionError

if TYPE_CHECKING:
    Parameter = click.ParamType[float]
else:
    Parameter = click.ParamType  # older releases of click have no type argument


class Duration(Parameter):
    """`90s`, `5m` and the like, to seconds."""

    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Seconds; click's own error when it is no duration."""
        if isinstance(value, (int, float)):
            return float(value)
        try:
            seconds = parse_duration(str(value))
        except OptionError as error:
            self.fail(str(error), param, ctx)
        if seconds <= 0:
            self.fail(f"'{value}' must be more than nothing", param, ctx)
        return seconds


DURATION = Duration()
