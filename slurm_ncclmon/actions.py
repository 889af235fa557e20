"""What the monitor does to the world: recording, warnings, reports, the job's comment, cancel and requeue.

Nothing here may raise: a full disk or a controller that does not answer must neither end the watch nor harm the job.
"""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Callable, TypeVar

from slurm_ncclmon.clock import StepClock
from slurm_ncclmon.config import Settings
from slurm_ncclmon.errors import NcclmonError
from slurm_ncclmon.evidence.render import render_stacks
from slurm_ncclmon.judge import Judge
from slurm_ncclmon.observation import Observation
from slurm_ncclmon.plain import plain
from slurm_ncclmon.recording import Recorder
from slurm_ncclmon.replay import Tally
from slurm_ncclmon.report.files import write_report
from slurm_ncclmon.report.text import comment_text, render_report
from slurm_ncclmon.slurm.client import SlurmClient
from slurm_ncclmon.slurm.step import StepId
from slurm_ncclmon.verdict import Verdict

log = logging.getLogger(__name__)
T = TypeVar("T")

MOST_REQUEUES = 3
"""A job that hangs after each of so many requeues is cancelled instead: it would come back for ever."""


class JobHands:
    """The hands of one watch; see monitor.Hands."""

    def __init__(self, step: StepId, settings: Settings, folder: Path, client: SlurmClient, clock: StepClock) -> None:
        self._step = step
        self._settings = settings
        self._folder = folder
        self._client = client
        self._clock = clock
        self._recorder: Recorder | None = _quietly("start the recording", lambda: Recorder(folder))
        self._tally = Tally()
        self._action = ""

    def record(self, observation: Observation) -> None:
        """Keep an observation for the report and for replay."""
        self._tally.count(observation)
        if self._recorder is None:
            return
        try:
            self._recorder.write(observation)
        except OSError as error:
            self._recorder = None
            log.error("recording stopped (%s); the watch goes on, but cannot be replayed past this point", error)

    def say(self, text: str) -> None:
        """Tell the job's owner, on the job's standard error and in monitor.log."""
        text = plain(text)
        for line in text.splitlines():
            log.warning("%s", line)
        _quietly("notify the job", lambda: self._client.notify(self._step.job, f"ncclmon: step {self._step}: {text}"))

    def report(self, engine: Judge) -> Path | None:
        """Write the report as of now; its path, or None where that failed."""
        return _quietly(f"write the report to {self._folder}", lambda: self._write(engine))

    def _write(self, engine: Judge) -> Path:
        self._tally.wall_s = self._tally.wall_s or self._clock.wall()
        case = self._tally.case(str(self._step), self._settings.mode, engine, self._action, str(self._folder))
        return write_report(self._folder, case, render_report(case, render_stacks))

    def conclude(self, engine: Judge, verdict: Verdict) -> bool:
        """Report, comment and, if asked for, end the step; True when it was ended."""
        mode = self._mode()
        self._action = _INTENTIONS[mode].format(step=self._step, job=self._step.job)
        path = self.report(engine)
        where = str(path or self._folder)
        _quietly(
            "set the comment", lambda: self._client.set_comment(self._step.job, plain(comment_text(verdict, where)))
        )
        self.say(f"{self._action} Report: {where}")
        if mode == "observe":
            return False
        ended = _quietly(f"{mode} {self._step}", lambda: self._end(mode))
        if not ended:
            self._action = f"{mode} was asked for, but Slurm refused (see monitor.log); nothing was ended."
            self.report(engine)
            self.say(self._action)
        return bool(ended)

    def _mode(self) -> str:
        if self._settings.mode != "requeue":
            return self._settings.mode
        restarts = _quietly("count the restarts", lambda: self._client.restarts(self._step.job))
        return "requeue" if restarts is not None and restarts < MOST_REQUEUES else "cancel"

    def _end(self, mode: str) -> bool:
        if mode == "requeue":
            self._client.requeue(self._step.job)
        else:
            self._client.cancel_step(self._step)
        return True

    def finish(self, engine: Judge) -> None:
        """The step is gone: the last report, or nothing left behind where only findings are kept."""
        if self._settings.keep == "findings" and not engine.verdicts():
            self._recorder = None
            shutil.rmtree(self._folder, ignore_errors=True)
            return
        self.report(engine)


_INTENTIONS = {
    "observe": "Nothing was ended: mode observe only reports. To end it yourself: scancel {step}",
    "cancel": "Step {step} was cancelled by ncclmon, because cancel was asked for.",
    "requeue": "Job {job} was requeued by ncclmon, because requeue was asked for.",
}


def _quietly(what: str, action: Callable[[], T]) -> T | None:
    """The action's result; None, and a line in the log, where it failed."""
    try:
        return action()
    except (NcclmonError, OSError, ValueError) as error:
        log.error("could not %s: %s", what, error)
        return None
