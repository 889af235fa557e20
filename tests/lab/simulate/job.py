"""One simulated job: its machine, the pieces of its life so far, what became of its processes, and the truth about it."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import Callable

import numpy as np

from tests.lab.simulate.history import OPERATIONS, History, Once, Periodic
from tests.lab.simulate.layout import Layout, Mesh, mesh
from tests.lab.simulate.machine import Harm, Machine, Trace, launches
from tests.lab.simulate.steps import CALL, LAUNCH, Item, Program, Style, host, step
from tests.lab.simulate.truth import Truth

VERSIONS = ("2.28.7", "2.28.9", "2.29.2", "2.29.7", "2.30.7", "2.32.3")
DEAD_AFTER_S = 60.0
TIERS = ("counts", "node", "partial", "frames")
SHARES = (0.2, 0.45, 0.1, 0.25)
FRAMES_UP_TO = 512
"""Jobs of so many ranks at most have probes."""


@dataclass(frozen=True)
class Process:
    """What RAS and the node know a rank by."""

    node: str
    address: str
    ns_pid: int
    pid: int
    cuda_dev: int
    nvml_dev: int


@dataclass(frozen=True)
class Mark:
    """From `time` on RAS shows `field` of a slot as `value`: flags (bits added), async, init, gone (its communicator)."""

    time: float
    slot: int
    field: str
    value: int = 1


@dataclass
class Window:
    """A communicator under construction: nameless until `half`, then some of its members only, whole from `whole` on."""

    comm: int
    begin: float
    half: float
    whole: float
    present: frozenset[int] = frozenset()
    """Ranks that are in the communicator from `half` on."""


@dataclass(frozen=True)
class Restart:
    """From `time` on other processes run the ranks, in communicators of other names that count from zero."""

    time: float
    processes: list[Process]
    hashes: list[tuple[int, str]]


@dataclass
class Job:
    """See the module. All times are seconds of the job's own clock, 0 being the monitor's first poll."""

    seed: int
    layout: Layout
    style: Style
    rng: np.random.Generator
    mesh: Mesh
    processes: list[Process]
    speed: list[float]
    hashes: list[tuple[int, str]]
    """Each communicator's hash and secondary hash."""
    version: str
    ahead: int
    interval: float
    tier: str = "node"
    evidence_s: float = 8.0
    truth: Truth = field(default_factory=lambda: Truth("", False, ""))
    up: float = 0.0
    """From when on RAS answers."""
    down: float = inf
    now: float = 0.0
    """End of the life that has been laid out so far."""
    end: float = 0.0
    """Time of the last poll."""
    gone: dict[int, tuple[float, str]] = field(default_factory=dict)
    """Rank -> when its process ended, and how (killed, exited)."""
    stopped: dict[int, tuple[float, float]] = field(default_factory=dict)
    marks: list[Mark] = field(default_factory=list)
    born: dict[int, float] = field(default_factory=dict)
    """Communicator -> when it came, where that was after `up`."""
    died: dict[int, float] = field(default_factory=dict)
    windows: list[Window] = field(default_factory=list)
    restarts: list[Restart] = field(default_factory=list)
    blind: list[tuple[float, float, str]] = field(default_factory=list)
    """Polls in this time fail, saying this."""
    states: list[tuple[float, str]] = field(default_factory=list)
    """What Slurm says of the step, as it changes."""
    told: list[tuple[float, str]] = field(default_factory=list)
    """StepState observations that come by themselves."""
    paused: list[tuple[float, float]] = field(default_factory=list)
    """The monitor itself stands still."""
    steps_wall: list[tuple[float, float]] = field(default_factory=list)
    """(time, seconds) by which the wall clock jumps."""
    tweaks: list[tuple[float, float, Callable[..., None]]] = field(default_factory=list)
    """(from, to, change) on the columns of answers."""
    garble: list[tuple[float, float, Callable[[bytes], bytes]]] = field(default_factory=list)
    """(from, to, change) on their text."""
    phases: dict[int, list[tuple[float, float, str]]] = field(default_factory=dict)
    """Rank -> (from, to, label): what its host does where that does not follow from its program."""
    replaying: list[tuple[float, float]] = field(default_factory=list)
    """The GPUs work though no host launches anything (graph replay)."""
    node_events: dict[int, list[tuple[float, str]]] = field(default_factory=dict)
    """Node -> kernel messages."""
    dead_links: dict[int, frozenset[int]] = field(default_factory=dict)
    """Communicator -> its ranks whose link to the next rank loses everything."""
    lost_gpus: set[int] = field(default_factory=set)
    """Ranks whose GPU NVML cannot find."""
    lost: float = 0.0
    """Share of polls that get no answer."""

    def __post_init__(self) -> None:
        self.history = History(self.mesh.size)
        self._programs: dict[tuple[object, ...], Program] = {}
        self.programs = [self._program(rank) for rank in range(self.layout.ranks)]
        self._template()
        if self.layout.late:
            self.born[self.mesh.comm("late", 0)] = inf

    def _program(self, rank: int) -> Program:
        key = (
            self.layout.stage(rank),
            rank < self.layout.ranks // 2,
            tuple(slots[rank] >= 0 for slots in self.mesh.slots.values()),
        )
        if key not in self._programs:
            self._programs[key] = step(self.mesh, self.style, rank)
        return self._programs[key]

    def _template(self) -> None:
        """One step in the steady state: where each rank begins it, how long it takes, when each launch is."""
        twice = {id(program): program * 2 for program in self.programs}
        programs = [twice[id(program)] for program in self.programs]
        trace = Machine(self.mesh, programs, [0.0] * self.layout.ranks, self.speed, self.ahead).run()
        if trace.stuck:
            raise AssertionError(f"a healthy step of {self.layout} hangs")
        begin = np.array([reached[len(reached) // 2 - 1] for reached in trace.reached])
        end = np.array(trace.end)
        self._starts = begin - begin.min()
        self._period = float((end - begin).max())
        at, slot, operation = launches(trace)
        late = at > begin[self.mesh.rank_of_slot()[slot]]
        self._offset = at[late] - begin.min()
        self._cell = slot[late] * OPERATIONS + operation[late]
        self.scale = 1.0

    def pace(self, seconds: float) -> None:
        """Make a step take so long."""
        self.scale = seconds / self._period

    @property
    def period(self) -> float:
        """Seconds of a step."""
        return self._period * self.scale

    def pause(self, seconds: float, label: str) -> Item:
        """An item: the host works for that long."""
        return host(seconds / self.scale, label)

    def healthy(self, seconds: float) -> None:
        """Train for about that long."""
        count = max(1, round(seconds / self.period))
        self.history.pieces.append(Periodic(self.now, self.period, count, self._offset * self.scale, self._cell))
        self.now += count * self.period

    def special(
        self,
        changes: dict[int, Program] | None = None,
        everyone: Callable[[Program], Program] = lambda program: program,
        follow: int = 0,
        harm: Harm | None = None,
    ) -> Once:
        """One step in which something is different, then `follow` ordinary ones (more of them where it does not end anyway)."""
        made = {id(program): everyone(program) + program * follow for program in self.programs}
        programs = [made[id(program)] for program in self.programs]
        for rank, program in (changes or {}).items():
            programs[rank] = program + self.programs[rank] * follow
        start = [float(value) for value in self._starts]
        trace = Machine(self.mesh, programs, start, self.speed, self.ahead, harm).run()
        at, slot, operation = launches(trace)
        end = inf if trace.stuck else self.now + self.scale * (max(trace.end) - float(self._starts.max()))
        piece = Once(self.now, self.scale, trace, self.now + at * self.scale, slot * OPERATIONS + operation, end)
        self.history.pieces.append(piece)
        self.now = end
        return piece

    def unit(self, seconds: float) -> float:
        """Seconds after now as the machine of the next special step counts them."""
        return seconds / self.scale

    def spots(
        self,
        rank: int,
        kinds: tuple[int, ...] = (LAUNCH, CALL),
        roles: tuple[str, ...] = (),
        counted: bool | None = None,
    ) -> list[int]:
        """Indices of items of a rank's step: of these kinds, on these roles, counted by RAS or not."""
        return [
            index
            for index, (kind, role, operation, _, _) in enumerate(self.programs[rank])
            if kind in kinds and (not roles or role in roles) and (counted is None or counted == (operation >= 0))
        ]

    def state(self, time: float) -> str:
        """What Slurm says of the step."""
        said = "running"
        for since, state in self.states:
            if since <= time:
                said = state
        return said

    def wall(self, time: float) -> float:
        """The monitor's wall clock."""
        return 1_790_000_000.0 + time + sum(jump for when, jump in self.steps_wall if when <= time)

    def processes_at(self, time: float) -> list[Process]:
        """Who runs the ranks."""
        return next((again.processes for again in reversed(self.restarts) if again.time <= time), self.processes)

    def hashes_at(self, time: float) -> list[tuple[int, str]]:
        """What the communicators are called."""
        return next((again.hashes for again in reversed(self.restarts) if again.time <= time), self.hashes)

    def trace(self) -> Trace:
        """The last special step."""
        return next(piece.trace for piece in reversed(self.history.pieces) if isinstance(piece, Once))


def make(seed: int, rng: np.random.Generator, layout: Layout, style: Style) -> Job:
    """A job that has not begun."""
    made = mesh(layout)
    speed = (1.0 + 0.03 * rng.random(layout.ranks)).tolist()
    hashes = [
        (int(rng.integers(1 << 40, 1 << 63)), f"0x{rng.integers(1 << 62):x}:0x{rng.integers(1 << 62):x}")
        for _ in made.comms
    ]
    job = Job(
        seed,
        layout,
        style,
        rng,
        made,
        place(rng, layout),
        speed,
        hashes,
        version=str(rng.choice(VERSIONS)),
        ahead=int(rng.choice([12, 40, 200])),
        interval=float(rng.choice([5.0, 15.0, 15.0])),
        tier=_tier(rng, layout),
        evidence_s=float(rng.uniform(2, 15)),
        lost=float(rng.choice([0.0, 0.0, 0.05])),
    )
    job.pace(float(rng.choice([0.4, 1.5, 4.0, 9.0])) * float(rng.uniform(0.8, 1.2)))
    return job


def names(rng: np.random.Generator, count: int) -> list[tuple[int, str]]:
    """Hashes and secondary hashes of communicators."""
    return [
        (int(rng.integers(1 << 40, 1 << 63)), f"0x{rng.integers(1 << 62):x}:0x{rng.integers(1 << 62):x}")
        for _ in range(count)
    ]


def restart(job: Job, time: float) -> None:
    """All processes end and begin anew (an elastic launcher does that within a step)."""
    job.restarts.append(Restart(time, place(job.rng, job.layout), names(job.rng, len(job.mesh.comms))))


def _tier(rng: np.random.Generator, layout: Layout) -> str:
    """What evidence there is besides counts."""
    drawn = str(rng.choice(TIERS, p=SHARES))
    return "node" if drawn == "frames" and layout.ranks > FRAMES_UP_TO else drawn


def place(rng: np.random.Generator, layout: Layout) -> list[Process]:
    """Where the ranks live. In containers every node may count its pids from the same number."""
    contained, hidden = rng.random() < 0.3, rng.random() < 0.3
    made = []
    first = [7 if contained else int(rng.integers(2000, 4_000_000)) for _ in range(layout.nodes)]
    for rank in range(layout.ranks):
        node, local = layout.node(rank), rank % layout.gpus_per_node
        ns_pid = first[node] + local * 3
        made.append(
            Process(
                f"n{node:04d}",
                f"10.{node >> 16 & 255}.{node >> 8 & 255}.{node & 255}",
                ns_pid,
                ns_pid + 50_000 if contained else ns_pid,
                0 if hidden else local,
                local,
            )
        )
    return made
