"""The text form of an answer, which is all that NCCL before 2.28.7 has: far less than JSON, and wrong where ranks are missing.

It names communicators only where something is odd in them, and never the counts of ranks that agree. What it does not tell, but
what follows from what it tells (seven of eight ranks at 31, the eighth named with 30), is filled in; processes of such ranks stay
unknown. Before 2.29.2 NCCL reads past its own data once ranks are missing, and prints what it finds: that is recognised by ranks
that a communicator cannot have, and its communicators are left out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import numpy as np

from slurm_ncclmon.errors import ReportError
from slurm_ncclmon.ras import problems as kind
from slurm_ncclmon.ras.columns import Comms, Gpus, Head, Rows, build
from slurm_ncclmon.ras.report import (
    ABORTED,
    DEAD,
    FINALIZED,
    MISSING,
    OPERATIONS,
    RESULT_IN_PROGRESS,
    UNRESPONSIVE,
    CommKey,
    Gpu,
    Problem,
    Report,
)

UNKNOWN = Gpu("unknown", -1, -1, -1)
MERGED_COLUMN = len(OPERATIONS) - 1
"""Where the one count of NCCL 2.24 and 2.25, all operations together, is put."""

_VERSION = re.compile(r"NCCL version ([0-9][0-9.]*)")
_TIME = re.compile(r"^Communicators\.\.\. \(([0-9.]+)s\)", re.MULTILINE)
_TIMEOUTS = re.compile(r"^ +Encountered ([0-9]{1,9}) communication timeout", re.MULTILINE)
_GROUP = re.compile(
    r"^ *([0-9]{1,10}) +([0-9]{1,10}) +([0-9-]+) +([0-9-]+) +([0-9]{1,10}) +([0-9]{1,10}) +([A-Z]+) +([A-Z,]+) *$",
    re.MULTILINE,
)
_SECTION = re.compile(r"^#([0-9]{1,10})-[0-9]{1,10} \(([0-9a-f]{1,16})\) ([A-Z,]+)")
_OPERATION = re.compile(r" +Communicator ranks have different (\w+)(?: operation counts)?")
_STATEMENT = re.compile(
    r" +(?:(?P<many>[0-9]{1,10}) ranks?|Rank (?P<one>-?[0-9]{1,10})) (?:ha(?:s|ve) )?"
    r"(?:launched up to operation (?P<count>[0-9]{1,19})|(?P<none>not launched any operations)|status (?P<status>\w+)"
    r"|reported (?P<error>[^-\n]+?))(?: -- (?P<where>.*))?$"
)
_LISTED = re.compile(r" +Rank (-?[0-9]{1,10}) -- (.*)$")
_MISSING = re.compile(r" +Missing communicator data from ([0-9]{1,10}) ranks?")
_WHERE = re.compile(r"GPUs? ([0-9]{1,10})(?: \(NVML ([0-9]{1,10})\))? managed by process ([0-9]{1,10}) on node (\S+)")
_PROCESS = re.compile(r" +Process ([0-9]{1,10}) on node (\S+) managing GPU")

_STATUS = {"FINALIZE": FINALIZED, "ABORT": ABORTED, "NOCOMM": MISSING}
_RESULTS = {
    "Unhandled CUDA error": 1,
    "System error": 2,
    "Internal error": 3,
    "Invalid argument": 4,
    "Invalid usage": 5,
    "Remote process error": 6,
    "NCCL operation in progress": RESULT_IN_PROGRESS,
}
_INTERNAL_ERROR = 3

_MOST_RANKS = 1 << 18
"""A size beyond this was read from somewhere else."""

Topic = str
Value = tuple[str, int]


@dataclass
class _Member:
    gpu: Gpu = UNKNOWN
    counts: list[int] = field(default_factory=lambda: [0] * len(OPERATIONS))
    flags: int = 0
    init_state: int = 0
    async_error: int = 0


@dataclass
class _Statement:
    """So many ranks of a communicator have this value; `ranks` are those named."""

    topic: Topic
    value: Value
    count: int
    ranks: list[int] = field(default_factory=list)


@dataclass
class _Comm:
    key: CommKey
    size: int
    members: dict[int, _Member] = field(default_factory=dict)
    statements: list[_Statement] = field(default_factory=list)
    corrupt: bool = False

    def member(self, rank: int, where: str | None) -> None:
        """Note a rank that is named, and its process where that is told."""
        if not 0 <= rank < self.size <= _MOST_RANKS:
            self.corrupt = True
            return
        member = self.members.setdefault(rank, _Member())
        match = _WHERE.match(where or "")
        if match:
            device, nvml, pid, host = match.groups()
            member.gpu = Gpu(host, int(pid), int(device), int(nvml or device))


def report_of(text: str, gpus: Gpus) -> Report:
    """The report that a text answer makes; at most the communicators that it names. Raises ReportError if it is none."""
    version = _VERSION.search(text)
    if version is None:
        raise ReportError(f"not a RAS answer: {text[:60]!r}")
    problems = [Problem(kind.TEXT_ONLY, "a text answer: counts are told only of communicators whose ranks differ")]
    sizes = {int(group[0]): min(int(group[4]), _MOST_RANKS + 1) for group in _GROUP.findall(text)}
    lines = text.splitlines()
    if "Warnings" not in lines:
        problems.append(Problem(kind.TRUNCATED, f"the answer breaks off after {len(text)} bytes"))
    comms = _comms(lines, sizes)
    _mark_dead(lines, comms)
    for comm in comms:
        comm.corrupt |= comm.size > _MOST_RANKS
    sound = [comm for comm in comms if not comm.corrupt and comm.size > 0 and _conclude(comm, problems)]
    if any(comm.corrupt for comm in comms):
        text_ = f"NCCL {version.group(1)} printed ranks that cannot be: it read past its own data (fixed in 2.29.2)"
        problems.append(Problem(kind.CORRUPT, text_))
    elif any(size == 0 for size in sizes.values()):
        problems.append(Problem(kind.EMPTY_COMMUNICATOR, "communicators without ranks: one is under construction"))
    head = Head(version.group(1), "", _first(_TIME, text), int(_first(_TIMEOUTS, text)))
    return _table(head, sound, gpus, problems)


def _first(pattern: re.Pattern[str], text: str) -> float:
    match = pattern.search(text)
    try:
        return float(match.group(1)) if match else 0.0
    except ValueError:
        return 0.0


def _comms(lines: list[str], sizes: dict[int, int]) -> list[_Comm]:
    """What each section says of its communicator; a communicator may have several."""
    comms: dict[str, _Comm] = {}
    comm: _Comm | None = None
    topic: Topic = ""
    for line in lines:
        section = _SECTION.match(line)
        if section:
            name = f"0x{int(section.group(2), 16):x}"
            comm = comms.setdefault(name, _Comm(CommKey(name, ""), sizes.get(int(section.group(1)), 0)))
            topic = ""
        elif not line.startswith(" "):
            comm = None
        elif comm is not None:
            topic = _take_line(comm, topic, line)
    return list(comms.values())


def _take_line(comm: _Comm, topic: Topic, line: str) -> Topic:
    """Take one line of a section into account; returns the topic of those that follow."""
    operation, missing = _OPERATION.match(line), _MISSING.match(line)
    statement, listed = _STATEMENT.match(line), _LISTED.match(line)
    if operation:
        return operation.group(1)
    if missing:
        comm.statements.append(_Statement("missing", ("missing", 1), int(missing.group(1))))
    elif statement:
        _take_statement(comm, topic, statement)
    elif listed and comm.statements:
        comm.member(int(listed.group(1)), listed.group(2))
        comm.statements[-1].ranks.append(int(listed.group(1)))
    return topic


def _take_statement(comm: _Comm, topic: Topic, match: re.Match[str]) -> None:
    count, status, error = match.group("count"), match.group("status"), match.group("error")
    value: Value = ("status", 0)
    if error:
        topic, value = "error", ("error", _RESULTS.get(error.strip(), _INTERNAL_ERROR))
    elif status:
        value = ("init", RESULT_IN_PROGRESS) if status == "INIT" else ("status", _STATUS.get(status, 0))
    else:
        value = ("count", int(count or 0))
    one = match.group("one")
    statement = _Statement(topic, value, int(match.group("many") or 1), [int(one)] if one else [])
    if one:
        comm.member(int(one), match.group("where"))
    comm.statements.append(statement)


def _mark_dead(lines: list[str], comms: list[_Comm]) -> None:
    """Processes listed under DEAD are so in every communicator that misses them."""
    dead: set[tuple[str, int]] = set()
    here = False
    for line in lines:
        if not line.startswith(" "):
            here = line.strip() == "DEAD"
        match = _PROCESS.match(line)
        if here and match:
            dead.add((match.group(2), int(match.group(1))))
    for comm in comms:
        for member in comm.members.values():
            if (member.gpu.host, member.gpu.pid) in dead:
                member.flags |= DEAD


def _conclude(comm: _Comm, problems: list[Problem]) -> bool:
    """Give each member what the statements say of it; False when they do not say of whom."""
    missing = {rank for s in comm.statements if s.topic == "missing" for rank in s.ranks}
    for topic in dict.fromkeys(statement.topic for statement in comm.statements):
        about = [statement for statement in comm.statements if statement.topic == topic]
        named = {rank for statement in about for rank in statement.ranks}
        others = set(range(comm.size)) - named - (missing if topic != "missing" else set())
        for statement in about:
            ranks: set[int] = set(statement.ranks)
            if not ranks and statement.count == len(others):
                ranks = others
            if len(ranks) != statement.count:
                text = f"{topic}: which {statement.count} ranks are meant is not told"
                problems.append(Problem(kind.BAD_ENTRY, text, comm.key))
                return False
            for rank in ranks:
                _apply(comm.members.setdefault(rank, _Member()), topic, statement.value)
        if topic not in (*OPERATIONS, "missing", "error", "status"):
            problems.append(Problem(kind.MERGED_COUNTS, "counts of all operations together", comm.key))
    for rank in range(comm.size):
        comm.members.setdefault(rank, _Member())
    return True


def _apply(member: _Member, topic: Topic, value: Value) -> None:
    what, number = value
    if what == "count":
        member.counts[OPERATIONS.index(topic) if topic in OPERATIONS else MERGED_COLUMN] = number
    elif what == "init":
        member.init_state = number
    elif what == "error":
        member.async_error = number
    else:
        member.flags |= MISSING | UNRESPONSIVE if what == "missing" else number


def _table(head: Head, comms: list[_Comm], gpus: Gpus, problems: list[Problem]) -> Report:
    members = [(c, rank, comm.members[rank]) for c, comm in enumerate(comms) for rank in sorted(comm.members)]
    size = np.array([comm.size for comm in comms], np.int64)
    rows = Rows(
        comm=np.array([c for c, _, _ in members], np.int64),
        rank=np.array([rank for _, rank, _ in members], np.int64),
        gpu=np.array([gpus.number(member.gpu) for _, _, member in members], np.int64),
        counts=np.array([member.counts for _, _, member in members], np.uint64).reshape(-1, len(OPERATIONS)),
        init_state=np.array([member.init_state for _, _, member in members], np.int16),
        async_error=np.array([member.async_error for _, _, member in members], np.int16),
        flags=np.array([member.flags for _, _, member in members], np.uint8),
    )
    nothing = np.zeros(len(comms), np.int64)
    return build(head, Comms(tuple(comm.key for comm in comms), size, size, nothing, size), rows, gpus, problems)
