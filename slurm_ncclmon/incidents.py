"""Incidents over time: the same cause under the same name, from suspicion to confirmation or recovery."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from slurm_ncclmon.analyse.draft import Draft
from slurm_ncclmon.config import Settings
from slurm_ncclmon.detect.limits import confirm_after, evidence_grace, least_notice, needs_witness, suspect_after
from slurm_ncclmon.detect.pauses import Pauses
from slurm_ncclmon.events import Confirmed, Event, GatherEvidence, Recovered, Reminder, Suspected
from slurm_ncclmon.verdict import CONFIRMED, RECOVERED, SUSPECTED, Verdict

NO_WITNESS = (
    "no stack shows what the named ranks do instead, so by counts this may as well be a checkpoint or a compilation;"
    " nothing is ended for that before the limit for such phases"
)
QUIET = "quiet"
"""An incident that is looked into and not spoken of: counts alone cannot tell it from a pause."""


@dataclass
class Incident:
    """One cause that is or was followed."""

    name: str
    draft: Draft
    state: str
    said_at: float
    asked_at: float
    """When evidence was last asked for."""
    opened_at: float
    confirming: bool = False
    """The evidence asked for last is the one that confirmation waits for."""
    open: bool = True

    def verdict(self) -> Verdict:
        """As of now."""
        return self.draft.verdict(self.name, SUSPECTED if self.state == QUIET else self.state)


class Gathering:
    """The one fan-out that may be under way."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._asked_at: float | None = None
        self._answered = False
        self._unanswered = False

    def ask(self, t_s: float) -> bool:
        """Whether evidence may be asked for now; if so it counts as asked for."""
        if self._asked_at is not None:
            return False
        self._asked_at = t_s
        return True

    def answer(self) -> None:
        """Evidence came."""
        self._asked_at, self._answered, self._unanswered = None, True, False

    def tick(self, t_s: float) -> None:
        """Give up on an answer that is overdue."""
        if self._asked_at is not None and t_s - self._asked_at >= evidence_grace(self._settings, self._answered):
            self._asked_at, self._unanswered = None, True

    @property
    def waiting(self) -> bool:
        """Whether an answer may still come."""
        return self._asked_at is not None

    @property
    def hopeless(self) -> bool:
        """The last question was not answered: nothing waits for the next answer."""
        return self._unanswered


class Incidents:
    """All incidents of a step. `follow` takes what the rules say now and answers with the events that follow from it."""

    def __init__(self, settings: Settings, pauses: Pauses) -> None:
        self._settings = settings
        self._pauses = pauses
        self.gathering = Gathering(settings)
        self.all: list[Incident] = []

    def follow(self, drafts: Sequence[Draft], t_s: float, settled: bool) -> list[Event]:
        """`drafts` are all causes as of the last usable report; `t_s` is the time of the observation."""
        self.gathering.tick(t_s)
        pairs, gone = self._matched(drafts)
        events: list[Event] = []
        for lost in gone:
            if any(lost.draft.keys & draft.keys for draft in drafts):
                self._merged(lost)
            else:
                events += self._recovered(lost, t_s)
        for draft, incident in pairs:
            if incident is None:
                events += self._opened(draft, t_s) if settled else []
            else:
                incident.draft = draft
                events += self._continued(incident, t_s, settled)
        return events

    def tick(self, t_s: float, settled: bool) -> list[Event]:
        """Time went on without a usable report: nothing new is known of any incident."""
        self.gathering.tick(t_s)
        return [e for incident in self.all if incident.open for e in self._continued(incident, t_s, settled)]

    def end(self) -> None:
        """The step is ending: whatever stands still now is no hang."""
        for incident in self.all:
            incident.open = False

    def _matched(self, drafts: Sequence[Draft]) -> tuple[list[tuple[Draft, Incident | None]], list[Incident]]:
        """Drafts with the open incident that they continue: one that blames a common process, else one with a common communicator
        (of the same sort: a symmetric stall has them all). And the open incidents that no draft continues."""
        free = [incident for incident in self.all if incident.open]
        found: dict[int, Incident] = {}
        for rule in (_blames_same, _holds_same):
            for number, draft in enumerate(drafts):
                fitting = [i for i in free if number not in found and rule(i.draft, draft)]
                if fitting:
                    best = max(
                        fitting,
                        key=lambda i: (len(i.draft.processes & draft.processes), len(i.draft.keys & draft.keys)),
                    )
                    found[number] = best
                    free.remove(best)
        return [(draft, found.get(number)) for number, draft in enumerate(drafts)], free

    def _opened(self, draft: Draft, t_s: float) -> list[Event]:
        if draft.clock_s < suspect_after(draft.kind, self._settings, draft.young, draft.teardown):
            return []
        quiet = draft.kind == "symmetric"
        incident = Incident(f"hang-{len(self.all) + 1}", draft, QUIET if quiet else SUSPECTED, t_s, t_s, t_s)
        self.all.append(incident)
        events: list[Event] = [] if quiet else [Suspected(t_s, incident.verdict(), self.confirm_in(incident, t_s))]
        return events + self._ask(incident, t_s, "suspicion") + self._continued(incident, t_s, True)

    def _continued(self, incident: Incident, t_s: float, settled: bool) -> list[Event]:
        if incident.state == CONFIRMED:
            return []
        if incident.confirming and not self.gathering.waiting and self._unwitnessed(incident.draft):
            incident.draft = replace(incident.draft, held=NO_WITNESS)
        events = self._spoken(incident, t_s)
        left = self.confirm_in(incident, t_s)
        if left is not None and left <= 0 and settled:
            return events + self._confirm(incident, t_s)
        if incident.state == SUSPECTED and t_s - incident.said_at >= self._settings.remind:
            incident.said_at = t_s
            events.append(Reminder(t_s, incident.verdict(), left))
        unsettled = incident.draft.held or not incident.draft.confirmable or self._unwitnessed(incident.draft)
        if unsettled and self._look_again(incident, t_s):
            events += self._ask(incident, t_s, "still standing")
        return events

    def _spoken(self, incident: Incident, t_s: float) -> list[Event]:
        """A quiet incident is spoken of when evidence speaks for a hang, or when no evidence comes."""
        draft = incident.draft
        if incident.state != QUIET or self.gathering.waiting or draft.excused:
            return []
        incident.state, incident.said_at = SUSPECTED, t_s
        return [Suspected(t_s, incident.verdict(), self.confirm_in(incident, t_s))]

    def _look_again(self, incident: Incident, t_s: float) -> bool:
        """Less and less often: after as long as it has stood still by then."""
        return t_s - incident.asked_at >= max(self._settings.remind, incident.draft.clock_s / 2)

    def _confirm(self, incident: Incident, t_s: float) -> list[Event]:
        """Ask for evidence, wait for it, confirm."""
        events: list[Event] = []
        if not incident.confirming:
            events += self._ask(incident, t_s, "confirmation")
            incident.confirming = True
        if (self.gathering.waiting and not self.gathering.hopeless) or self._unwitnessed(incident.draft):
            return events
        incident.state = CONFIRMED
        return [*events, Confirmed(t_s, incident.verdict())]

    def _merged(self, incident: Incident) -> None:
        """What it is about is told by another incident now: two places that looked like causes turned out to have one."""
        incident.open = False
        self.all.remove(incident)

    def _recovered(self, incident: Incident, t_s: float) -> list[Event]:
        incident.open = False
        self._pauses.learn(incident.draft.pause, incident.draft.frozen_s)
        if incident.state == QUIET:
            self.all.remove(incident)
            return []
        incident.state = RECOVERED
        return [Recovered(t_s, incident.verdict())]

    def _ask(self, incident: Incident, t_s: float, reason: str) -> list[Event]:
        if not self.gathering.ask(t_s):
            return []
        incident.asked_at = t_s
        return [GatherEvidence(t_s, incident.name, reason)]

    def _unwitnessed(self, draft: Draft) -> bool:
        """Nothing is ended on counts alone before `phase_limit`: no stack tells a checkpoint from a hang."""
        return (
            needs_witness(draft.kind, self._settings)
            and not draft.witnessed
            and draft.clock_s < self._settings.phase_limit
        )

    def confirm_in(self, incident: Incident, t_s: float) -> float | None:
        """Seconds until confirmation if nothing moves; None when it will not be confirmed by what is known now."""
        draft = incident.draft
        if not draft.confirmable:
            return None
        pause = self._pauses.longest(draft.pause)
        limit = confirm_after(draft.kind, self._settings, pause, draft.young, draft.teardown)
        if draft.held:
            limit = max(limit, self._settings.phase_limit)
        notice = least_notice(draft.kind, self._settings, draft.young, draft.teardown)
        return max(0.0, limit - draft.clock_s, incident.opened_at + notice - t_s)


def _blames_same(old: Draft, new: Draft) -> bool:
    return bool(old.processes & new.processes)


def _holds_same(old: Draft, new: Draft) -> bool:
    return bool(old.keys & new.keys) or old.pause == new.pause != ()
