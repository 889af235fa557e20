"""Every error that ncclmon raises on purpose. Only the command line turns them into text and exit codes.

Exit codes of `ncclmon`: 0 fine, 1 a finding, 2 wrong use, 3 blind (could not look), 4 Slurm refused.
"""

from __future__ import annotations


class NcclmonError(Exception):
    """Base of all; `exit_code` is what the command line ends with."""

    exit_code = 3


class UsageError(NcclmonError):
    """The caller asked for something that does not exist or is written wrongly."""

    exit_code = 2


class OptionError(UsageError):
    """An option string, duration or site configuration is wrong; the message says what would be right."""


class RasError(NcclmonError):
    """NCCL's RAS subsystem gave no usable answer."""


class RasUnreachableError(RasError):
    """Nobody answered at the address in time: no NCCL process yet, a frozen one, or none any more."""


class RasProtocolError(RasError):
    """Something answered that does not speak RAS, or broke off in the middle."""


class RasUnsafeError(RasError):
    """This NCCL version may be harmed by the question, so it was not asked."""


class ReportError(RasError):
    """A RAS answer is no report: not JSON, cut off, or of another shape altogether."""


class RecordingError(NcclmonError):
    """A recording cannot be read; the message names the file and line."""

    exit_code = 2


class FrameError(NcclmonError):
    """A probe frame is not one of ours, or its content is not believable."""


class EvidenceError(NcclmonError):
    """Evidence could not be gathered on a node; the message says which and why."""


class SlurmError(NcclmonError):
    """Slurm refused or did not answer; carries the command and what it printed."""

    exit_code = 4
