"""Scores to tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

from tests.lab.simulate.score import EXACT, MISSED, UNDECIDED, WRONG, Score

CLASSES = ("H1", "H2", "H3")


def render(scores: Sequence[Score], seconds: float, seed: int) -> str:
    """All tables as Markdown."""
    hangs = [one for one in scores if one.hang]
    quiet = [one for one in scores if not one.hang]
    ranks = [one.ranks for one in scores] or [0]
    parts = [
        f"{len(scores)} jobs (seeds from {seed}), {min(ranks)} to {max(ranks)} ranks: "
        f"{len(hangs)} hang, {len(quiet)} do not; {seconds:.0f} s.",
        _summary(hangs, quiet),
        "Classes, over the hangs that the evidence can tell from a pause:",
        _classes(hangs),
        "Culprits by what the evidence of the job can decide:",
        _culprits(hangs),
        "By case:",
        _cases(scores),
    ]
    return "\n\n".join(parts)


def _table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows])


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "-"


def _quantiles(values: Sequence[float]) -> str:
    ordered = sorted(values)
    return f"{median(ordered):.0f} / {ordered[int(0.95 * (len(ordered) - 1))]:.0f}" if ordered else "-"


def _summary(hangs: Sequence[Score], quiet: Sequence[Score]) -> str:
    ray_hangs, ray_quiet = [one for one in hangs if one.ray], [one for one in quiet if one.ray]
    shown = [one for one in hangs if one.visible]
    fair = [one for one in quiet if one.decidable]
    twins = [one for one in quiet if not one.decidable]
    decided = [one for one in shown if one.decidable]

    def ray(of: Sequence[Score], seen: Callable[[Score], bool]) -> str:
        return f"{sum(map(seen, of))} of {len(of)}"

    late, early = (lambda one: one.ray_s is not None), (lambda one: one.ray_early_s is not None)
    rows = [
        (
            "hangs confirmed, of those that the evidence can tell from a pause",
            f"{sum(one.detected for one in shown)} of {len(shown)}",
            ray([one for one in ray_hangs if one.visible], late),
            ray([one for one in ray_hangs if one.visible], early),
        ),
        (
            "false alarms on silent jobs",
            f"{sum(one.false_alarms > 0 for one in fair)} of {len(fair)}",
            ray([one for one in ray_quiet if one.decidable], late),
            ray([one for one in ray_quiet if one.decidable], early),
        ),
        (
            "confirmed of silent jobs whose counts look like a hang's and that gave no other evidence",
            f"{sum(one.false_alarms > 0 for one in twins)} of {len(twins)}",
            ray([one for one in ray_quiet if not one.decidable], late),
            ray([one for one in ray_quiet if not one.decidable], early),
        ),
        (
            "culprit set exact, of those decidable",
            f"{sum(one.culprits == EXACT for one in decided)} of {len(decided)}",
            "names no rank",
            "names no rank",
        ),
        (
            "incidents a fault",
            f"{sum(one.incidents for one in shown if one.detected) / max(1, sum(one.detected for one in shown)):.2f}",
            "",
            "",
        ),
        (
            "seconds from fault to confirmation, median / 95 %",
            _quantiles([one.latency_s for one in shown if one.latency_s is not None]),
            _quantiles([one.ray_s for one in ray_hangs if one.ray_s is not None]),
            _quantiles([one.ray_early_s for one in ray_hangs if one.ray_early_s is not None]),
        ),
        (
            "suspicions on silent jobs that came to nothing",
            f"{sum(one.suspicions for one in quiet)} in {len(quiet)}",
            "",
            "",
        ),
    ]
    return _table(("", "ncclmon", "Ray 2.60 (600 s)", "Ray 2.60 (300 s)"), rows)


def _classes(hangs: Sequence[Score]) -> str:
    shown = [one for one in hangs if one.visible]
    rows = []
    for cls in CLASSES:
        said = [one for one in shown if cls in one.said]
        true = [one for one in shown if one.cls == cls]
        precision = sum(one.class_right for one in said) / len(said) if said else 0.0
        recall = sum(one.detected and one.class_right for one in true) / len(true) if true else 0.0
        f1 = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
        rows.append(
            (
                cls,
                len(true),
                len(said),
                f"{precision:.3f}",
                f"{recall:.3f}",
                f"{f1:.3f}",
                _share(sum(one.kind_right for one in true), sum(one.detected for one in true)),
            )
        )
    return _table(("class", "jobs", "said", "precision", "recall", "F1", "kind right"), rows)


def _culprits(hangs: Sequence[Score]) -> str:
    rows = []
    groups = (
        ("decidable", lambda one: one.visible and one.decidable),
        ("not decidable", lambda one: one.visible and not one.decidable),
        ("looks like a pause", lambda one: not one.visible),
    )
    for name, belongs in groups:
        part = [one for one in hangs if belongs(one)]
        count = {word: sum(one.culprits == word for one in part) for word in (EXACT, UNDECIDED, MISSED, WRONG)}
        rows.append(
            (
                name,
                len(part),
                sum(one.detected for one in part),
                count[EXACT],
                count[UNDECIDED],
                count[MISSED],
                count[WRONG],
                sum(one.spoke for one in part),
            )
        )
    return _table(
        ("evidence says", "jobs", "confirmed", "exact", "undecided said", "missed", "wrong", "spoken of"), rows
    )


def _cases(scores: Sequence[Score]) -> str:
    rows = []
    for name in sorted({one.case for one in scores}, key=lambda name: (name[0] != "P", int(name[1:]))):
        part = [one for one in scores if one.case == name]
        ray = [one for one in part if one.ray]
        rows.append(
            (
                name,
                part[0].cls or "silent",
                len(part),
                _share(sum(one.good for one in part), len(part)),
                sum(one.incidents for one in part) if part[0].hang else sum(one.false_alarms for one in part),
                _quantiles([one.latency_s for one in part if one.latency_s is not None]),
                f"{sum(one.ray_s is not None for one in ray)} of {len(ray)}",
            )
        )
    return _table(("case", "class", "jobs", "as it should be", "incidents", "latency s", "Ray confirms"), rows)
