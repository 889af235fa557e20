"""How well a verdict fits the truth."""

from __future__ import annotations

from dataclasses import dataclass

from slurm_ncclmon.events import Suspected
from slurm_ncclmon.verdict import CONFIRMED, Culprit, Verdict
from tests.lab.simulate.job import Job
from tests.lab.simulate.play import Played
from tests.lab.simulate.truth import COUNTS, FRAMES, NODE

SURE = 0.6
"""A verdict with no more confidence than this says that it may be wrong."""

EXACT, UNDECIDED, MISSED, WRONG = "exact", "undecided", "missed", "wrong"
"""Culprit set right; said that it cannot be told; should have been told and was not; somebody else accused."""


@dataclass
class Score:
    """One job's result, plain data."""

    seed: int
    case: str
    cls: str
    tier: str
    ranks: int
    layout: str
    hang: bool
    visible: bool
    """The evidence can tell it from a pause."""
    decidable: bool
    """The evidence can tell the culprits."""
    detected: bool = False
    latency_s: float | None = None
    said: tuple[str, ...] = ()
    """Classes of the confirmed verdicts."""
    kinds: tuple[str, ...] = ()
    class_right: bool = False
    kind_right: bool = False
    culprits: str = ""
    named: tuple[int, ...] = ()
    incidents: int = 0
    suspicions: int = 0
    false_alarms: int = 0
    """Confirmations while nothing was wrong."""
    spoke: bool = False
    """A suspicion or an advisory: something was said of what cannot be decided."""
    ray_s: float | None = None
    """When Ray's detector confirmed, with its own 600 s; None: never, or not asked."""
    ray_early_s: float | None = None
    """The same with 300 s."""
    ray: bool = False
    """Ray's detector saw the job."""
    seconds: float = 0.0

    @property
    def good(self) -> bool:
        """Nothing in it that the goals forbid."""
        if not self.hang:
            return self.false_alarms == 0 or not self.decidable
        if self.false_alarms:
            return False
        if not self.visible:
            return self.incidents == 0 or self.culprits in (EXACT, UNDECIDED)
        right = self.culprits == EXACT if self.decidable else self.culprits in (EXACT, UNDECIDED)
        return self.detected and right and self.class_right and self.incidents_right

    incidents_right: bool = True


def score(job: Job, played: Played) -> Score:
    """The result of one job."""
    truth, tier = job.truth, {"node": NODE, "frames": FRAMES}.get(job.tier, COUNTS)
    result = Score(
        job.seed,
        truth.case,
        truth.cls,
        job.tier,
        job.layout.ranks,
        _layout(job),
        truth.hang,
        bool(truth.visible.get(tier, True)) or job.tier == "partial",
        bool(truth.decidable.get(tier, True)),
    )
    confirmed = played.confirmed()
    early = [event for event in confirmed if not truth.hang or event.t_s < truth.since_s]
    result.false_alarms = len({event.verdict.incident for event in early})
    result.suspicions = len({event.verdict.incident for event in played.events if isinstance(event, Suspected)})
    result.spoke = bool(result.suspicions or played.advisories)
    if truth.hang:
        _judge(
            result,
            job,
            played,
            [event.t_s for event in confirmed if event not in early],
            {event.verdict.incident for event in confirmed if event not in early},
        )
    return result


def _layout(job: Job) -> str:
    layout = job.layout
    return layout.kind if layout.tp == layout.pp == 1 else f"{layout.kind} tp{layout.tp} pp{layout.pp} dp{layout.dp}"


def _judge(result: Score, job: Job, played: Played, times: list[float], names: set[str]) -> None:
    truth = job.truth
    verdicts = [verdict for verdict in played.verdicts if verdict.incident in names and verdict.state == CONFIRMED]
    result.detected, result.incidents = bool(verdicts), len(verdicts)
    result.latency_s = min(times) - truth.since_s if times else None
    result.said, result.kinds = (
        tuple(str(verdict.cls) for verdict in verdicts),
        tuple(verdict.kind for verdict in verdicts),
    )
    allowed = truth.classes if result.decidable else (*truth.classes, "None")
    result.class_right = bool(verdicts) and all(said in allowed for said in result.said)
    result.kind_right = bool(verdicts) and all(kind in truth.kinds for kind in result.kinds)
    result.incidents_right = len(verdicts) in truth.incidents
    named = {rank_of(job, culprit) for verdict in verdicts for culprit in verdict.culprits}
    result.named = tuple(sorted(named))
    result.culprits = _culprits(result, job, verdicts, frozenset(named))


def _culprits(result: Score, job: Job, verdicts: list[Verdict], named: frozenset[int]) -> str:
    truth = job.truth
    if verdicts and (named == truth.culprits or named in truth.also):
        return EXACT
    unsure = not named or all(verdict.confidence <= SURE or verdict.cls is None for verdict in verdicts)
    if unsure:
        return MISSED if result.decidable and result.visible else UNDECIDED
    return WRONG


def rank_of(job: Job, culprit: Culprit) -> int:
    """Global rank of a culprit, by its own word or by where it lives; -1 where nobody lives there."""
    if culprit.global_rank is not None:
        return culprit.global_rank
    for rank, process in enumerate(job.processes_at(job.end)):
        if culprit.host in (process.node, process.address) and culprit.pid in (process.ns_pid, process.pid):
            return rank
    return -1
