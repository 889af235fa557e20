"""A ProcessReport from what was learnt of a process. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from slurm_ncclmon.evidence.membership import Candidate
from slurm_ncclmon.evidence.model import ProcessReport
from slurm_ncclmon.evidence.phases import classify
from slurm_ncclmon.evidence.procfs import Look
from slurm_ncclmon.evidence.pyspy import NONE, Dump
from slurm_ncclmon.evidence.roles import RANK, Role

_PREFIXES = ("NCCL_", "NCCLMON_", "TORCH_", "TORCHELASTIC_", "NVSHMEM_", "GLOO_", "UCX_", "FI_")
_OTHERS = (
    "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK MASTER_ADDR MASTER_PORT CUDA_VISIBLE_DEVICES CUDA_LAUNCH_BLOCKING "
    "CUDA_DEVICE_MAX_CONNECTIONS SLURM_PROCID SLURM_LOCALID SLURM_NODEID SLURM_RESTART_COUNT OMP_NUM_THREADS"
)
_NAMES = frozenset(_OTHERS.split())
_SECRET = ("TOKEN", "SECRET", "PASSWORD", "KEY")
_DEFAULT_RAS = "localhost:28028"
_COMMAND_LENGTH = 300

NO_DUMP = Dump(NONE, (), ())


@dataclass(frozen=True)
class Known:
    """One process of the step, as far as it is known at the moment."""

    candidate: Candidate
    role: Role
    dump: Dump = NO_DUMP
    later: Look | None = None
    elapsed_s: float = 0.0
    """Seconds between `candidate.look` and `later`."""
    moved: bool | None = None


def assemble(known: Known, gpu: str | None, site: tuple[tuple[str, str], ...] = ()) -> ProcessReport:
    """The report of one process. `gpu` is what NVML says it runs on, if it does."""
    look, memory, dump = known.candidate.look, known.candidate.memory, known.dump
    cpu_rate, write_rate = rates(look, known.later, known.elapsed_s)
    return ProcessReport(
        pid=look.pid,
        ns_pid=look.ns_pid,
        ppid=look.stat.ppid,
        role=known.role.kind,
        rank=known.role.rank,
        local_rank=known.role.local_rank,
        task=known.role.task,
        gpu=gpu if gpu is not None else visible_gpu(memory.environment, known.role.local_rank),
        command=" ".join(memory.command)[:_COMMAND_LENGTH] or f"[{look.stat.name}]",
        state=look.stat.state,
        wchan=look.wchan,
        tracer_pid=look.tracer_pid,
        threads_total=look.stat.threads,
        cpu_rate=cpu_rate,
        write_rate=write_rate,
        phase=classify(look.stat.state, look.tracer_pid, look.thread_states, dump.threads, site),
        source=dump.source,
        threads=dump.threads,
        attempts=dump.attempts,
        environment=telling(memory.environment),
        nccl_ports=ras_addresses(memory.environment) if known.role.kind == RANK else (),
        thread_states=look.thread_states,
        moved=known.moved,
        note=_note(known),
    )


def _note(known: Known) -> str:
    look = known.candidate.look
    notes = [known.dump.note]
    if look.tracer_pid:
        notes.append(f"traced by process {look.tracer_pid} (a debugger or another stack dump)")
    if look.stat.state == "Z" and sum(look.thread_states.values()) > 1:
        notes.append("its main thread has ended, other threads live on")
    return "; ".join(note for note in notes if note)


def rates(first: Look, later: Look | None, elapsed_s: float) -> tuple[float | None, float | None]:
    """CPU seconds and bytes written, a second."""
    if later is None or elapsed_s <= 0 or later.stat.started != first.stat.started:
        return None, None
    written = None
    if first.write_bytes is not None and later.write_bytes is not None:
        written = round(max(0, later.write_bytes - first.write_bytes) / elapsed_s, 1)
    return round(max(0.0, later.stat.cpu_s - first.stat.cpu_s) / elapsed_s, 3), written


def telling(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that a diagnosis needs, nothing that smells of a password."""
    return {
        name: value
        for name, value in sorted(environment.items())
        if (name in _NAMES or name.startswith(_PREFIXES)) and not any(word in name for word in _SECRET)
    }


def visible_gpu(environment: Mapping[str, str], local_rank: int | None) -> str | None:
    """The device that a rank takes by custom: its local rank's place among the visible ones."""
    visible = [device for device in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if device]
    if not visible or local_rank is None:
        return None
    return visible[0] if len(visible) == 1 else visible[local_rank] if local_rank < len(visible) else None


def ras_addresses(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Where NCCL's RAS listens in a process with this environment; nowhere when it is switched off."""
    if environment.get("NCCL_RAS_ENABLE") == "0":
        return ()
    return (environment.get("NCCL_RAS_ADDR") or _DEFAULT_RAS,)
