"""SlurmClient by Slurm's own commands: works with every release, needs nothing but PATH."""

from __future__ import annotations

import contextlib
import re
import subprocess
from collections.abc import Iterator, Sequence

from slurm_ncclmon.errors import SlurmError, UsageError
from slurm_ncclmon.slurm import comment as comments
from slurm_ncclmon.slurm.client import ENDING, RUNNING, STEP_NAME, SUSPENDED, StepInfo, StepPart
from slurm_ncclmon.slurm.hostlist import expand
from slurm_ncclmon.slurm.step import EXTERN, StepId

TIMEOUT_S = 20.0
_FIELD = re.compile(r"(?:^|\s)([A-Za-z:/]+)=(\S+)")
_LAYOUT_NODE = re.compile(r"Node\s+\d+\s+\((\S+)\),\s+\d+ task\(s\):((?:\s+\d+)*)")
_JOB = re.compile(r"[0-9]+(?:_[0-9]+|\+[0-9]+)?")
_GONE = re.compile(r"not found|Invalid job id|Invalid job step|does not exist", re.IGNORECASE)
_GOING = re.compile(
    r"COMPLETING|CANCELLED|COMPLETED|FAILED|TIMEOUT|NODE_FAIL|PREEMPTED|OUT_OF_MEMORY|STOPPED", re.IGNORECASE
)


def run_command(argv: Sequence[str], timeout_s: float = TIMEOUT_S) -> str:
    """Standard output of a Slurm command. Raises SlurmError with the command and what it printed."""
    shown = " ".join(argv)
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except FileNotFoundError:
        raise SlurmError(f"{argv[0]} is not on PATH: is this a machine of the cluster?") from None
    except OSError as error:
        raise SlurmError(f"{shown}: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise SlurmError(f"{shown}: no answer in {timeout_s:g} s") from None
    if done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip()) or f"exit status {done.returncode}, no message"
        raise SlurmError(f"{shown}: {'; '.join(said.splitlines())}")
    return done.stdout


class CommandClient:
    """See SlurmClient."""

    def __init__(self, timeout_s: float = TIMEOUT_S) -> None:
        self.timeout_s = timeout_s

    def _run(self, *argv: str) -> str:
        return run_command(argv, self.timeout_s)

    def version(self) -> tuple[int, int]:
        text = self._run("scontrol", "--version")
        match = re.search(r"(\d+)\.(\d+)", text)
        if not match:
            raise SlurmError(f"scontrol --version: '{text.strip()}' has no version number")
        return int(match.group(1)), int(match.group(2))

    def steps(self, job: int) -> tuple[StepInfo, ...]:
        # Not squeue --steps: with a step manager on the nodes (24.05 and later) it does not know the steps, scontrol does.
        return tuple(sorted(_step_records(self._run("scontrol", "show", "step", str(job))), key=lambda info: info.step))

    def find_step(self, text: str) -> StepId:
        job_text, dot, step_text = text.strip().partition(".")
        if not _JOB.fullmatch(job_text):
            raise UsageError(f"'{text}' is neither a job nor a job step (write 12, 12.0 or 12_3)")
        job = int(job_text) if job_text.isdigit() else self._raw_job(job_text)
        if dot:
            return StepId.parse(f"{job}.{step_text}")
        return self.last_step(job)

    def last_step(self, job: int) -> StepId:
        steps = [info.step for info in self.steps(job) if info.name != STEP_NAME and info.step.step != EXTERN]
        numbered = [step for step in steps if step.numbered]
        if not steps:
            raise SlurmError(f"job {job} has no running step")
        return max(numbered or steps)

    def work_dir(self, job: int) -> str:
        return self._job_field(job, "WorkDir", r".+")

    def restarts(self, job: int) -> int:
        return int(self._job_field(job, "Restarts", r"\d+(?= BatchFlag=)"))

    def _job_field(self, job: int, name: str, value: str) -> str:
        text = self._run("scontrol", "show", "job", str(job))
        match = re.search(
            rf"^ +(?:\S+=\S* )*{name}=({value})", text, re.MULTILINE
        )  # not in the first line: a job's name is its user's
        if not match:
            raise SlurmError(f"scontrol show job {job}: no {name} in what it printed")
        return match.group(1)

    def _raw_job(self, text: str) -> int:
        """Number of an array's task (12_3) or of a component of a heterogeneous job (12+1)."""
        words = self._run("squeue", "--noheader", f"--jobs={text}", "--format=%A").split()
        if not words or not words[0].isdigit():
            raise SlurmError(f"job {text} is not running")
        return int(words[0])

    def step_parts(self, step: StepId) -> tuple[StepPart, ...]:
        components = self._components(step.job)
        if len(components) < 2:
            return (StepPart(None, self._own_nodes(step)),)
        parts = []
        for group, job in components:
            with contextlib.suppress(SlurmError):  # a step need not run on every component
                parts.append(StepPart(group, self._own_nodes(StepId(job, step.step))))
        if not parts:
            raise SlurmError(f"step {step} has no nodes: it is not running")
        return tuple(parts)

    def _components(self, job: int) -> list[tuple[int, int]]:
        """(group, raw job) of each component of a heterogeneous job, the leader first; one entry for any other job."""
        # A job's leader is asked for, and Slurm answers with all components.
        records = self._run("scontrol", "show", "job", str(job)).split("\n\n")
        found = []
        for record in records:
            fields = dict(_FIELD.findall(record))
            if "JobId" in fields:
                found.append((int(fields.get("HetJobOffset", "0")), int(fields["JobId"])))
        return sorted(found)

    def _own_nodes(self, step: StepId) -> tuple[str, ...]:
        info = self._step(step)
        if info and info.nodes:
            return info.nodes
        raise SlurmError(f"step {step} has no nodes: it is not running")

    def _step(self, step: StepId) -> StepInfo | None:
        # scontrol takes 12.batch for 12.0, but lists it among all steps of the job.
        asked = str(step) if step.numbered else str(step.job)
        records = _step_records(self._run("scontrol", "show", "step", asked))
        return next((info for info in records if info.step.step == step.step), None)

    def step_nodes(self, step: StepId) -> tuple[str, ...]:
        return tuple(node for part in self.step_parts(step) for node in part.nodes)

    def task_layout(self, step: StepId) -> dict[str, tuple[int, ...]]:
        text = self._run("sattach", "--layout", str(step))
        return {node: tuple(int(task) for task in tasks.split()) for node, tasks in _LAYOUT_NODE.findall(text)}

    def step_state(self, step: StepId) -> str:
        try:
            job_state = self._run("squeue", "--noheader", f"--jobs={step.job}", "--format=%T").split()
            if not job_state:
                return ENDING
            if job_state[0] == "SUSPENDED":
                return SUSPENDED
            if _GOING.search(job_state[0]):
                return ENDING
            info = self._step(step)
        except SlurmError as error:
            if _GONE.search(str(error)):
                return ENDING
            raise
        state = info.state if info else ""
        if state.startswith("SUSPENDED"):
            return SUSPENDED
        return ENDING if not state or _GOING.search(state) else RUNNING

    def node_states(self, nodes: tuple[str, ...]) -> dict[str, str]:
        text = self._run("sinfo", "--noheader", "--Node", f"--nodes={','.join(nodes)}", "--format=%N %T")
        words = (line.split() for line in text.splitlines())
        return {pair[0]: pair[1] for pair in words if len(pair) == 2}

    def comment(self, job: int) -> str:
        return self._run("squeue", "--noheader", f"--jobs={job}", "--format=%k").rstrip("\n").replace("(null)", "")

    def set_comment(self, job: int, text: str) -> None:
        self._run("scontrol", "update", f"JobId={job}", f"Comment={comments.combined(self.comment(job), text)}")

    def notify(self, job: int, text: str) -> None:
        self._run("scontrol", "notify", str(job), text)

    def cancel_step(self, step: StepId, signal: str = "") -> None:
        self._run("scancel", *([f"--signal={signal}"] if signal else []), str(step))

    def requeue(self, job: int) -> None:
        self._run("scontrol", "requeue", str(job))


def _step_records(text: str) -> Iterator[StepInfo]:
    for record in re.split(r"\n\s*\n", text):
        fields = dict(_FIELD.findall(record))
        if "StepId" not in fields:
            continue
        nodes = fields.get("NodeList", "(null)")
        with contextlib.suppress(UsageError):  # pending steps are written 12.TBD
            yield StepInfo(
                step=StepId.parse(fields["StepId"]),
                name=fields.get("Name", ""),
                state=fields.get("State", ""),
                nodes=() if nodes == "(null)" else expand(nodes),
            )
