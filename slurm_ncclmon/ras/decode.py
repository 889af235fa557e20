"""From the bytes of an answer to a Report."""

from __future__ import annotations

import re

from slurm_ncclmon.errors import ReportError
from slurm_ncclmon.ras import entries, repair
from slurm_ncclmon.ras import text as text_form
from slurm_ncclmon.ras.client import MOST_BYTES
from slurm_ncclmon.ras.columns import Gpus
from slurm_ncclmon.ras.report import Report

_BEGIN = re.compile(rb"^(?:\{|NCCL version )", re.MULTILINE)


class Decoder:
    """Reads answers. What it remembers from one to the next only makes it faster: equal bytes give equal reports."""

    def __init__(self) -> None:
        self._gpus = Gpus()

    def decode(self, answer: bytes) -> Report:
        """The report in `answer`, JSON or text, with whatever a launcher printed before it.

        Raises ReportError when it is no RAS answer, or breaks off before its first communicator.
        """
        if len(answer) > MOST_BYTES:
            raise ReportError(f"{len(answer)} bytes; no report is that long")
        begin = _BEGIN.search(answer)
        if begin is None:
            raise ReportError(f"not a RAS answer: {answer[:60]!r}" if answer.strip() else "an empty answer")
        text = answer[begin.start() :].decode(errors="replace")
        if not text.startswith("{"):
            return text_form.report_of(text, self._gpus)
        value, found = repair.load(text)
        return entries.report_of(value, self._gpus, found)
