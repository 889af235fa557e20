"""What a node tells of the step's processes: plain data, the same on the node, in the job and in nodes/<node>.json.

On the wire equal stacks are sent once (wire.py), and arrive as one shared object.
"""

# No `from __future__ import annotations` here: msgspec reads these annotations at run time, on Python 3.9 as well.
from dataclasses import dataclass, field
from typing import Optional

from slurm_ncclmon.probe.image import Image


@dataclass(frozen=True)
class Frame:
    """One stack frame. Native frames have line 0 and the library in `file`."""

    function: str
    file: str
    line: int
    native: bool = False


@dataclass(frozen=True)
class Thread:
    """One thread's stack, innermost frame first."""

    name: str
    tid: int
    active: bool
    gil: bool
    frames: tuple[Frame, ...]
    main: bool = False


@dataclass(frozen=True)
class Attempt:
    """One try at a stack: what was run, its exit status, how long it took, its first line of complaint."""

    how: str
    rc: Optional[int]
    seconds: float
    error: str


@dataclass(frozen=True)
class ProcessReport:
    """One process of the step on this node: a rank, or a descendant of one."""

    pid: int
    """In the namespace of the node agent; `ns_pid` is the process's own view, which RAS reports."""
    ns_pid: int
    ppid: int
    role: str
    """`rank`, `launcher` (torchrun, a shell) or `child` (a data-loader worker)."""
    rank: Optional[int]
    """Global rank: RANK, else SLURM_PROCID."""
    local_rank: Optional[int]
    task: Optional[int]
    """SLURM_PROCID."""
    gpu: Optional[str]
    command: str
    state: str
    """R, S, D, T, t, Z or X as in /proc/PID/stat."""
    wchan: str
    tracer_pid: int
    threads_total: int
    cpu_rate: Optional[float]
    """CPU seconds a second while it was looked at; None if not measured."""
    write_rate: Optional[float]
    """Bytes a second written to storage while it was looked at."""
    phase: str
    """Class of the stack, see evidence/phases.py; `no_stack` when there is none."""
    source: str
    """`native`, `plain`, `nonblocking` (py-spy) or `proc` (no stack)."""
    threads: tuple[Thread, ...] = ()
    attempts: tuple[Attempt, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    """Only the variables that a diagnosis needs: NCCL_*, TORCH_*, RANK and the like; never the whole environment."""
    nccl_ports: tuple[str, ...] = ()
    """Addresses at which its RAS listens (NCCL_RAS_ADDR, else the default), as the process sees them."""
    thread_states: dict[str, int] = field(default_factory=dict)
    """State letter -> how many of its threads are in it; `state` is the main thread's alone."""
    moved: Optional[bool] = None
    """Whether the main thread stood elsewhere when it was looked at again; None: looked at once."""
    note: str = ""
    """A sentence for people: why there is no stack, or what else was odd."""


@dataclass(frozen=True)
class GpuReport:
    """One GPU as NVML sees it; None for what it did not tell."""

    index: int
    uuid: str
    name: str
    utilisation: Optional[float] = None
    power_w: Optional[float] = None
    power_limit_w: Optional[float] = None
    sm_clock_mhz: Optional[float] = None
    temperature_c: Optional[float] = None
    throttle: tuple[str, ...] = ()
    ecc_uncorrected: Optional[int] = None
    pids: tuple[int, ...] = ()
    problem: str = ""


@dataclass(frozen=True)
class NodeReport:
    """All that one node told in one fan-out. `answered` False: it told nothing, and `problems` says what is known of that."""

    node: str
    answered: bool
    addresses: tuple[str, ...] = ()
    """The node's own IP addresses, to match RAS's hosts; loopback is left out."""
    wall_s: float = 0.0
    seconds: float = 0.0
    processes: tuple[ProcessReport, ...] = ()
    tasks: tuple[int, ...] = ()
    """Tasks (SLURM_PROCID) that Slurm gave the node, as far as known; for a node that did not answer as well."""
    exited: tuple[int, ...] = ()
    """Tasks (SLURM_PROCID) of the step that have no process on the node any more."""
    gpus: tuple[GpuReport, ...] = ()
    counters: dict[str, int] = field(default_factory=dict)
    """Monotone NIC and InfiniBand counters, `mlx5_0/1/port_xmit_data` style."""
    events: tuple[str, ...] = ()
    """Kernel messages that matter (XID, ECC, link down), where they may be read."""
    flight_records: dict[str, str] = field(default_factory=dict)
    """Rank -> path of its PyTorch flight recorder dump, where the job had armed one."""
    frames: tuple[Image, ...] = ()
    """Its ranks' probe files, on their way to the monitor, which takes them out: they are an observation of their own."""
    problems: tuple[str, ...] = ()
