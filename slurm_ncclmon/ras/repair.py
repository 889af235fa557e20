"""JSON values from text that is not quite JSON."""

from __future__ import annotations

import json
import re
from typing import Any

from slurm_ncclmon.errors import ReportError
from slurm_ncclmon.ras import problems as kind
from slurm_ncclmon.ras.report import Problem

_NO_COMMA = re.compile(r'("nvml_dev": -?[0-9]+)(?=\s+"status")')
"""NCCL 2.28.7 and 2.28.9 forget this comma in `missing_ranks`."""
COMMAS = (kind.REPAIRED, "commas that NCCL 2.28.7 to 2.28.9 forgets were put in")
_COMMUNICATOR = re.compile(r'\{\s*"hash"\s*:')
_HEAD = re.compile(r'"(nccl_version|timestamp)"\s*:\s*"([^"\\]{0,100})"|"(communicators_count)"\s*:\s*([0-9]{1,9})')
_STATISTICS = re.compile(r'\]\s*,\s*"ras"\s*:\s*')
_MOST_PROBLEMS = 1000
_DECODER = json.JSONDecoder()


def load(text: str) -> tuple[Any, list[Problem]]:
    """The JSON value in `text`, and what had to be mended: as much as can be saved of an answer that is damaged or cut off.

    Raises ReportError when nothing of it looks like a RAS answer.
    """
    try:
        return json.loads(text), []
    except (ValueError, RecursionError):
        pass
    mended = _NO_COMMA.sub(r"\1,", text)
    if mended != text:
        try:
            return json.loads(mended), [Problem(*COMMAS)]
        except (ValueError, RecursionError):
            pass
    return _salvage(mended)


def _salvage(text: str) -> tuple[Any, list[Problem]]:
    """Whole communicators of a text that is no JSON as a whole."""
    problems: list[Problem] = []
    starts = [match.start() for match in _COMMUNICATOR.finditer(text)]
    answer: dict[str, Any] = {"communicators": []}
    for match in _HEAD.finditer(text, 0, starts[0] if starts else len(text)):
        name, value, number, digits = match.groups()
        answer[name or number] = value if name else int(digits)
    if "nccl_version" not in answer:
        raise ReportError(f"not a RAS answer: {text[:60]!r}")
    end = 0
    for begin in starts:
        if begin < end or len(problems) > _MOST_PROBLEMS:
            continue
        value, end = _value(text, begin)
        if value is None:
            problems.append(Problem(kind.BAD_ENTRY, f"communicator at byte {begin} is not JSON"))
        else:
            answer["communicators"].append(value)
    _take_statistics(text, answer, problems)
    return answer, problems


def _take_statistics(text: str, answer: dict[str, Any], problems: list[Problem]) -> None:
    begins = [match.end() for match in _STATISTICS.finditer(text)]
    value, end = _value(text, begins[-1]) if begins else (None, 0)
    if value is None or text[end:].strip() != "}":
        problems.append(Problem(kind.TRUNCATED, f"the answer breaks off after {len(text)} bytes"))
    else:
        answer["ras"] = value


def _value(text: str, begin: int) -> tuple[Any, int]:
    try:
        return _DECODER.raw_decode(text, begin)
    except (ValueError, RecursionError):
        return None, begin
