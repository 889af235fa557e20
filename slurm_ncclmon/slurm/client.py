"""The job as Slurm sees it: what the rest of the package may ask of Slurm, whatever answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from slurm_ncclmon.slurm.step import StepId

RUNNING = "running"
SUSPENDED = "suspended"
ENDING = "ending"
"""Step states as the engine knows them; everything that is neither running nor suspended is on its way out."""

STEP_NAME = "ncclmon"
"""Job name of every step that we start ourselves: how they are told from the user's."""


@dataclass(frozen=True)
class StepPart:
    """A step's nodes in one component of its job. `group` is None unless the job is heterogeneous."""

    group: int | None
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class StepInfo:
    """One line of the list of a job's steps."""

    step: StepId
    name: str
    state: str
    nodes: tuple[str, ...]


class SlurmClient(Protocol):
    """All methods raise SlurmError, with the command and what it printed, where Slurm refuses or does not answer in time."""

    def version(self) -> tuple[int, int]:
        """Slurm's release, such as (22, 5)."""

    def steps(self, job: int) -> tuple[StepInfo, ...]:
        """The job's running steps, batch and extern included, by number."""

    def find_step(self, text: str) -> StepId:
        """The step that a person means by `12.0`, `12`, `12_3` or `12_3.0`; without a step, the last one."""

    def last_step(self, job: int) -> StepId:
        """The newest running step that an srun of the user made; the batch step where there is none."""

    def work_dir(self, job: int) -> str:
        """The job's working directory."""

    def restarts(self, job: int) -> int:
        """How often the job was requeued so far."""

    def step_parts(self, step: StepId) -> tuple[StepPart, ...]:
        """The step's nodes by component of its job: one part, unless the job is heterogeneous."""

    def step_nodes(self, step: StepId) -> tuple[str, ...]:
        """Names of the step's nodes, in Slurm's order."""

    def task_layout(self, step: StepId) -> dict[str, tuple[int, ...]]:
        """Node -> the tasks (SLURM_PROCID) that it was given."""

    def step_state(self, step: StepId) -> str:
        """RUNNING, SUSPENDED or ENDING; a step that Slurm no longer knows is ENDING."""

    def node_states(self, nodes: tuple[str, ...]) -> dict[str, str]:
        """Node -> Slurm's state word for it, such as `allocated` or `down*` (the star: slurmd does not answer)."""

    def comment(self, job: int) -> str:
        """The job's whole comment."""

    def set_comment(self, job: int, text: str) -> None:
        """Say `text` in the job's comment. It starts with `ncclmon:`; what the user had written is kept behind it."""

    def notify(self, job: int, text: str) -> None:
        """Print `text` on the job's standard error."""

    def cancel_step(self, step: StepId, signal: str = "") -> None:
        """Send a signal (such as `TERM`) to the step's tasks; without one, end the step."""

    def requeue(self, job: int) -> None:
        """Put the job back into the queue; this ends it at once."""
