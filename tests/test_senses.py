"""How observations are made, with real /proc and a RAS that is not there."""

from __future__ import annotations

from pathlib import Path

from slurm_ncclmon.clock import StepClock
from slurm_ncclmon.config import Settings
from slurm_ncclmon.errors import SlurmError
from slurm_ncclmon.senses import USUAL_OF, StepSenses
from slurm_ncclmon.slurm.step import StepId


class NoSlurm:
    """A controller that does not answer."""

    def __getattr__(self, name: str) -> object:
        def refuse(*arguments: object, **options: object) -> object:
            raise SlurmError(f"{name}: no answer in 20 s")

        return refuse


def senses(**changes: object) -> StepSenses:
    settings = Settings(**{"interval": 2.0, **changes})  # type: ignore[arg-type]
    return StepSenses(StepId(4294900000, 0), "n1", settings, NoSlurm(), StepClock(), Path("/nonexistent"))  # type: ignore[arg-type]


def test_a_step_without_nccl_is_not_asked_and_asked_again_soon() -> None:
    sees = senses()
    for n in (1, 2, 3):
        poll = sees.poll()
        assert (poll.n, poll.report) == (n, None)
        assert "has loaded NCCL" in (poll.trouble or "")
    assert sees.pause_after(suspicious=False) == 2.0
    assert sees.frames() is None
    assert sees.beginning() is None


def test_ras_off_asks_nobody_and_says_so() -> None:
    assert "ras=off" in (senses(ras="off").poll().trouble or "")


def test_one_slow_poll_is_a_silent_process_and_no_reason_to_look_away() -> None:
    sees = senses()
    sees._busy_s.append(5.0)
    assert sees.pause_after(suspicious=False) == 2.0
    for _ in range(USUAL_OF):
        sees._busy_s.append(5.0)
    assert sees.pause_after(suspicious=False) > 2.0


def test_a_silent_controller_is_no_news_of_the_step() -> None:
    assert senses().step_state().state == "running"
