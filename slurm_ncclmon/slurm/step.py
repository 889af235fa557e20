"""Names of job steps, as Slurm writes them: 12.0, 12.batch, 12.extern."""

from __future__ import annotations

import re
from dataclasses import dataclass

from slurm_ncclmon.errors import UsageError

BATCH = 0xFFFFFFFB
EXTERN = 0xFFFFFFFC
INTERACTIVE = 0xFFFFFFFA
"""Slurm's own numbers (slurm.h) for the steps that have a name instead of a number."""

_NAMES = {"batch": BATCH, "extern": EXTERN, "interactive": INTERACTIVE}
_WORDS = {number: name for name, number in _NAMES.items()}
_PATTERN = re.compile(r"([0-9]+)\.([0-9]+|batch|extern|interactive)")


@dataclass(frozen=True, order=True)
class StepId:
    """One step: the job's raw number (not that of an array) and the step's number."""

    job: int
    step: int

    @classmethod
    def parse(cls, text: str) -> StepId:
        """The step that `12.3`, `12.batch` or `StepId=12.3` names. Raises UsageError."""
        match = _PATTERN.fullmatch(text.strip().rpartition("=")[2])
        if not match:
            raise UsageError(f"'{text}' is not a job step (write JOB.STEP, such as 12.0 or 12.batch)")
        word = match.group(2)
        return cls(int(match.group(1)), _NAMES[word] if word in _NAMES else int(word))

    @property
    def numbered(self) -> bool:
        """Whether an srun made it: neither batch, extern nor interactive."""
        return self.step < INTERACTIVE

    def __str__(self) -> str:
        return f"{self.job}.{_WORDS.get(self.step, self.step)}"
