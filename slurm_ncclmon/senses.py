"""Where the monitor's observations come from: NCCL RAS, the probe's frames, Slurm, and all nodes of the step."""

from __future__ import annotations

import functools
import logging
import os
import re
import shutil
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from slurm_ncclmon.clock import StepClock
from slurm_ncclmon.config import Settings
from slurm_ncclmon.errors import FrameError, OptionError, SlurmError
from slurm_ncclmon.evidence import fanout
from slurm_ncclmon.evidence.assemble import Known, assemble, ras_addresses
from slurm_ncclmon.evidence.frames import probe_folders, read_frames
from slurm_ncclmon.evidence.host import own_addresses
from slurm_ncclmon.evidence.local import local_ranks
from slurm_ncclmon.evidence.model import NodeReport
from slurm_ncclmon.evidence.preflight import preflight
from slurm_ncclmon.observation import Evidence, FramePoll, Observation, Poll, StepState
from slurm_ncclmon.probe import decode as probe_decode
from slurm_ncclmon.probe.image import Image
from slurm_ncclmon.ras import client as ras_client
from slurm_ncclmon.ras import ncclras, pace
from slurm_ncclmon.ras.client import Address, Answer, Timeouts
from slurm_ncclmon.ras.mesh import Local, Mesh, Process
from slurm_ncclmon.ras.safety import Circumstances
from slurm_ncclmon.slurm.client import RUNNING, SlurmClient, StepPart
from slurm_ncclmon.slurm.hostlist import expand
from slurm_ncclmon.slurm.step import StepId

log = logging.getLogger(__name__)

GATHER_S = 60.0
"""For stacks of all nodes: done well before the watchdogs in the ranks end the job."""
MEMORY = Path("/dev/shm")  # noqa: S108


USUAL_OF = 4
"""The quickest of so many polls is what a poll costs: one that meets a silent process only waits, for five seconds or more,
and to ask less often just then would be to look away from a hang."""


class StepSenses:
    """The senses of one watch; see monitor.Senses."""

    def __init__(
        self, step: StepId, node: str, settings: Settings, client: SlurmClient, clock: StepClock, folder: Path
    ) -> None:
        self._step, self._node = step, node
        self._settings = settings
        self._client = client
        self._clock = clock
        self._folder = folder
        self._fixed = _fixed_address(settings)
        self._factor = 1.0
        self._mesh = Mesh(self._ask)
        self._polls = 0
        self._troubles = 0
        self._busy_s: deque[float] = deque([0.0], maxlen=USUAL_OF)
        self._members = 0
        self._parts: tuple[StepPart, ...] = ()
        self._folders: tuple[str, ...] = ()
        self._seen = False
        self._beginning: Evidence | None = None

    def poll(self) -> Poll:
        """Ask RAS once."""
        self._polls += 1
        n, t_s, wall_s = self._polls, self._clock.now(), self._clock.wall()
        if self._settings.ras == "off":
            return Poll(n, t_s, wall_s, None, "ras=off: NCCL is not asked")
        ranks = local_ranks(self._step, self._node)
        if not ranks:
            return Poll(n, t_s, wall_s, None, f"no process of step {self._step} on {self._node} has loaded NCCL")
        if not self._seen:
            self._seen = True
            self._beginning = self._first_look(ranks)
        self._learn(ranks)
        local = self._local(ranks)
        if not local.processes:
            return Poll(
                n,
                t_s,
                wall_s,
                None,
                "the ranks' RAS is switched off or has no address (NCCL_RAS_ENABLE, NCCL_RAS_ADDR)",
            )
        poll = self._mesh.poll(n, t_s, wall_s, local)
        self._busy_s.append(self._clock.now() - t_s)
        self._troubles = 0 if poll.report is not None else self._troubles + 1
        self._members = len(poll.report.gpus) if poll.report is not None else self._members
        return poll

    def _learn(self, ranks: tuple[Known, ...]) -> None:
        """What only the ranks' environment tells."""
        environments = [rank.candidate.memory.environment for rank in ranks]
        try:
            self._factor = max(1.0, float(environments[0].get("NCCL_RAS_TIMEOUT_FACTOR", "1")))
        except ValueError:
            self._factor = 1.0
        self._folders = probe_folders(environments)

    def _local(self, ranks: tuple[Known, ...]) -> Local:
        youngest = max(rank.candidate.look.stat.started for rank in ranks) / os.sysconf("SC_CLK_TCK")
        age_s = max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - youngest)
        processes = tuple(process for rank in ranks for process in self._processes(rank))
        environment = ranks[0].candidate.memory.environment
        return Local(
            processes,
            frozenset(own_addresses()),
            Circumstances(age_s, _all_present(ranks)),
            _rank_count(environment),
            tuple(node for node in expand(environment.get("SLURM_STEP_NODELIST", "")) if node != self._node),
        )

    def _processes(self, rank: Known) -> list[Process]:
        look = rank.candidate.look
        if self._fixed is not None:
            return [Process(look.pid, look.ns_pid, self._fixed)]
        found = []
        for text in ras_addresses(rank.candidate.memory.environment):
            try:
                found.append(Process(look.pid, look.ns_pid, Address.parse(text)))
            except OptionError as error:
                log.warning("rank with pid %d: NCCL_RAS_ADDR: %s; it is not asked", look.pid, error)
        return found

    def _ask(self, address: Address, text: bool) -> Answer:
        timeouts = Timeouts(factor=self._factor)
        if self._settings.ncclras:
            return ncclras.ask(Path(self._settings.ncclras), address, timeouts=timeouts, text=text)
        return ras_client.ask(address, timeouts=timeouts, text=text)

    def beginning(self) -> Evidence | None:
        """The ranks of this node as they were first seen with NCCL, once: their environment (the watchdogs' limits are there),
        and as the node's problems what will keep stacks from being taken."""
        found, self._beginning = self._beginning, None
        return found

    def _first_look(self, ranks: tuple[Known, ...]) -> Evidence:
        processes = tuple(assemble(rank, None, self._settings.phases) for rank in ranks)
        problems = preflight({rank.candidate.pid: rank for rank in ranks})
        node = NodeReport(self._node, True, wall_s=self._clock.wall(), processes=processes, problems=problems)
        return Evidence(self._clock.now(), self._clock.wall(), "start", (node,))

    def frames(self) -> FramePoll | None:
        """This node's probe frames; None when there are none."""
        reading = read_frames(self._folders, self._step, self._node)
        for problem in reading.problems:
            _once(problem)
        return self._frame_poll(reading.images)

    def _frame_poll(self, images: tuple[Image, ...]) -> FramePoll | None:
        images = tuple(image for image in images if _is_sound(image))
        return FramePoll(self._clock.now(), probe_decode.decode(images), images) if images else None

    def step_state(self) -> StepState:
        """What Slurm says of the step; `running` when it says nothing, for its silence is no news of the step."""
        try:
            return StepState(self._clock.now(), self._client.step_state(self._step))
        except SlurmError as error:
            log.warning("%s", error)
            return StepState(self._clock.now(), RUNNING)

    def gather(self, reason: str) -> tuple[Observation, ...]:
        """Stacks and facts from all nodes of the step; before them the frames of all, where there are any."""
        began = self._clock.now()
        try:
            self._parts = self._parts or self._client.step_parts(self._step)
        except SlurmError as error:
            log.warning("the step's nodes are not known, so only this one is looked at: %s", error)
        parts = self._parts or (StepPart(None, (self._node,)),)
        deadline = min(GATHER_S, max(10.0, self._settings.confirm / 2))
        flight = self._folder / "flight" if reason == "confirmation" else None  # a dump costs each rank a second
        wish = fanout.Wish(frames=True, flight=flight is not None)
        nodes = fanout.gather(self._step, parts, deadline, wish=wish, client=self._client, flight_folder=flight)
        answered = sum(node.answered for node in nodes)
        log.info("evidence from %d of %d nodes in %.1f s", answered, len(nodes), self._clock.now() - began)
        frames = self._frame_poll(tuple(image for node in nodes for image in node.frames))
        nodes = tuple(replace(node, frames=()) for node in nodes)
        evidence = Evidence(self._clock.now(), self._clock.wall(), reason, nodes)
        return (evidence,) if frames is None else (frames, evidence)

    def pause_after(self, suspicious: bool) -> float:
        """Seconds until the next poll."""
        usual_s = min(self._busy_s)
        return pace.interval(self._settings.interval, self._members, usual_s, suspicious, self._troubles)

    def finish(self) -> None:
        """Remove what the probe left in memory on this node; its processes are gone."""
        ours = re.compile(rf"ncclmon-{os.getuid()}-(.*-)?{re.escape(str(self._step))}")
        for folder in map(Path, self._folders):
            if folder.parent == MEMORY and ours.fullmatch(folder.name):
                shutil.rmtree(folder, ignore_errors=True)


def _rank_count(environment: Mapping[str, str]) -> int:
    """Ranks of the whole step, as its launcher tells each of them; 0 where it does not."""
    counts = (environment.get(name, "") for name in ("WORLD_SIZE", "SLURM_STEP_NUM_TASKS"))
    return next((int(count) for count in counts if count.isdigit()), 0)


def _all_present(ranks: tuple[Known, ...]) -> bool:
    """Whether these are all tasks of the whole step: known only where it has one node."""
    environment = ranks[0].candidate.memory.environment
    tasks = {rank.role.task for rank in ranks} - {None}
    return environment.get("SLURM_STEP_NUM_NODES") == "1" and environment.get("SLURM_STEP_NUM_TASKS") == str(len(tasks))


def _fixed_address(settings: Settings) -> Address | None:
    return None if settings.ras in ("on", "off") else Address.parse(settings.ras)


def _is_sound(image: Image) -> bool:
    """Whether it can be decoded: a node may have another release of the probe."""
    try:
        probe_decode.check(image.data)
    except FrameError as error:
        _once(f"{image.host}: {image.file}: {error}")
        return False
    return True


@functools.lru_cache(maxsize=1000)
def _once(problem: str) -> None:
    """One line in the log for each different problem."""
    log.warning("%s", problem)
