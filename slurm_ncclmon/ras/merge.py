"""One observation from the answers of several meshes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from slurm_ncclmon.errors import RasError
from slurm_ncclmon.observation import Poll
from slurm_ncclmon.ras.columns import in_order_of_appearance
from slurm_ncclmon.ras.decode import Decoder
from slurm_ncclmon.ras.problems import CONTRADICTIONS
from slurm_ncclmon.ras.report import CommKey, Gpu, Problem, Report


def poll_of(
    n: int,
    t_s: float,
    wall_s: float,
    answers: Sequence[bytes],
    decoder: Decoder,
    notes: tuple[Problem, ...] = (),
    trouble: str | None = None,
) -> Poll:
    """The observation that recorded answers make, the same as when they came."""
    reports: list[Report] = []
    for answer in answers:
        try:
            reports.append(decoder.decode(answer))
        except RasError as error:
            trouble = trouble or str(error)
    report = merge(reports, notes) if reports else None
    return Poll(n, t_s, wall_s, report, None if report else trouble or "no answer", tuple(answers), notes)


def merge(reports: Sequence[Report], notes: Sequence[Problem] = ()) -> Report:
    """All communicators of `reports` (one at least), each once, and `notes` among the problems.

    A communicator in several reports is taken from the one that knows more of its ranks, the later one if in doubt.
    """
    if len(reports) == 1:
        return _noted(reports[0], notes)
    best = _best(reports)
    picked = [
        (number, c)
        for number, report in enumerate(reports)
        for c, key in enumerate(report.comms)
        if best[key] == number
    ]
    members = [int(reports[n].start[c + 1] - reports[n].start[c]) for n, c in picked]
    merged = replace(
        reports[0],
        collection_s=max(report.collection_s for report in reports),
        timeouts=sum(report.timeouts for report in reports),
        comms=tuple(reports[n].comms[c] for n, c in picked),
        size=np.array([reports[n].size[c] for n, c in picked], np.int32),
        start=np.concatenate([np.zeros(1, np.int64), np.cumsum(members, dtype=np.int64)]),
        problems=tuple(p for n, report in enumerate(reports) for p in report.problems if best.get(p.comm, n) == n),
        coherent=all(report.coherent for report in reports),
        **_columns(reports, picked),
    )
    return _noted(merged, notes)


def _columns(reports: Sequence[Report], picked: list[tuple[int, int]]) -> dict[str, Any]:
    """Members of the communicators `picked` by report and number, and who they are."""
    rows = [_rows_of(report, [c for n, c in picked if n == number]) for number, report in enumerate(reports)]
    gpus: dict[Gpu, int] = {}
    numbers = [np.array([gpus.setdefault(gpu, len(gpus)) for gpu in report.gpus], np.int64) for report in reports]
    together = np.concatenate([numbers[n][report.gpu[rows[n]]] for n, report in enumerate(reports)])
    number, used = in_order_of_appearance(together, len(gpus))
    known = list(gpus)
    return {
        "gpu": number,
        "gpus": tuple(known[gpu] for gpu in used),
        **{
            name: np.concatenate([getattr(report, name)[rows[n]] for n, report in enumerate(reports)])
            for name in ("rank", "counts", "init_state", "async_error", "flags")
        },
    }


def _best(reports: Sequence[Report]) -> dict[CommKey | None, int]:
    """Which report each communicator is taken from."""
    best: dict[CommKey | None, tuple[int, int]] = {}
    for number, report in enumerate(reports):
        known = np.diff(report.start)
        for c, key in enumerate(report.comms):
            best[key] = max(best.get(key, (-1, -1)), (int(known[c]), number))
    return {key: number for key, (_, number) in best.items()}


def _rows_of(report: Report, comms: list[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.concatenate([np.arange(report.start[c], report.start[c + 1]) for c in comms] or [np.zeros(0, np.int64)])


def _noted(report: Report, notes: Sequence[Problem]) -> Report:
    if not notes:
        return report
    return replace(
        report,
        problems=(*report.problems, *notes),
        coherent=report.coherent and all(note.kind not in CONTRADICTIONS for note in notes),
    )
