"""The node's side on this machine's own processes: real py-spy, real /proc. What cannot be had here has a stand-in that says so."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Callable

import pytest

from slurm_ncclmon.evidence import flight, preflight, pyspy
from slurm_ncclmon.evidence.assemble import ras_addresses, rates, telling, visible_gpu
from slurm_ncclmon.evidence.bounded import Later, bounded_map, run_bounded
from slurm_ncclmon.evidence.counters import changes, read_counters
from slurm_ncclmon.evidence.gpu import read_gpus
from slurm_ncclmon.evidence.host import own_addresses
from slurm_ncclmon.evidence.kernel_log import pick
from slurm_ncclmon.evidence.listpids import parse_listpids, parse_sstat
from slurm_ncclmon.evidence.model import Attempt, Frame, NodeReport, Thread
from slurm_ncclmon.evidence.node import Ask, collect
from slurm_ncclmon.evidence.procfs import look, own_pids, read_memory
from slurm_ncclmon.evidence.stacks import NativeBudget, moved
from slurm_ncclmon.slurm.step import StepId

Start = Callable[..., "subprocess.Popen[bytes]"]
JOB = 900_000_000 + os.getpid()  # no other test run on this machine has it
SLEEPER = "import time\ndef stand():\n    while True: time.sleep(0.1)\nprint(flush=True)\nstand()"


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a Python program as a rank of step JOB.0 on node here, and waits for its first line."""
    children: list[subprocess.Popen[bytes]] = []

    def begin(code: str = SLEEPER, **environment: str) -> subprocess.Popen[bytes]:
        rank = {
            "SLURM_JOB_ID": str(JOB),
            "SLURM_STEP_ID": "0",
            "SLURMD_NODENAME": "here",
            "SLURM_PROCID": "0",
            "SLURM_GTIDS": "0,1",
        }
        child = subprocess.Popen(
            [sys.executable, "-c", code], env={**os.environ, **rank, **environment}, stdout=subprocess.PIPE
        )
        children.append(child)
        assert child.stdout
        child.stdout.readline()
        return child

    yield begin
    for child in children:
        child.kill()
        child.wait()
        assert child.stdout
        child.stdout.close()


class Kept:
    """A sink that keeps."""

    def __init__(self) -> None:
        self.reports: list[NodeReport] = []
        self.flights: dict[int, bytes] = {}

    def report(self, report: NodeReport) -> None:
        self.reports.append(report)

    def flight_record(self, rank: int, content: bytes) -> None:
        self.flights[rank] = content


def ask(**fields: Any) -> Ask:
    return Ask(StepId(JOB, 0), "here", **{"seconds": 8.0, "gap_s": 0.0, "gpus": False, **fields})


def test_a_rank_is_found_and_its_stack_taken(start: Start) -> None:
    child = start(NCCL_DEBUG="WARN", API_KEY="secret")
    sink = Kept()
    report = collect(ask(gap_s=0.6), sink)
    early, late = sink.reports
    assert [process.pid for process in early.processes] == [child.pid]
    assert not early.processes[0].threads
    process = late.processes[0]
    assert (process.rank, process.task, process.role, process.source, process.state) == (0, 0, "rank", "native", "S")
    assert "stand" in [frame.function for frame in process.threads[0].frames]
    assert process.threads[0].main
    assert process.moved is False
    assert process.environment["NCCL_DEBUG"] == "WARN"
    assert "API_KEY" not in process.environment
    assert (report.tasks, report.exited) == ((0, 1), (1,))


def test_a_stopped_rank_stays_as_it_is(start: Start) -> None:
    child = start()
    os.kill(child.pid, signal.SIGSTOP)
    time.sleep(0.1)
    process = collect(ask(), Kept()).processes[0]
    assert (process.state, process.phase, process.source) == ("T", "stopped", "nonblocking")
    assert look(child.pid).stat.state == "T"


def test_a_spinning_rank_has_a_rate(start: Start) -> None:
    start("print(flush=True)\nwhile True: pass")
    assert (collect(ask(), Kept()).processes[0].cpu_rate or 0) > 0.2


def test_an_armed_flight_recorder_is_triggered(start: Start, tmp_path: Path) -> None:
    """The program stands in for PyTorch: a pipe, and a dump as soon as something is written to it."""
    code = (
        "import os, sys\nstem, out = sys.argv[1:] if len(sys.argv) > 1 else (os.environ['TORCH_NCCL_DEBUG_INFO_PIPE_FILE'],"
        " os.environ['TORCH_FR_DUMP_TEMP_FILE'])\nos.mkfifo(stem + '0.pipe')\nprint(flush=True)\n"
        "open(stem + '0.pipe').read(1)\nopen(out + '0', 'w').write('a dump')\nimport time; time.sleep(60)"
    )
    start(
        code,
        TORCH_NCCL_TRACE_BUFFER_SIZE="2000",
        TORCH_NCCL_DEBUG_INFO_PIPE_FILE=f"{tmp_path}/pipe_",
        TORCH_FR_DUMP_TEMP_FILE=f"{tmp_path}/dump_",
    )
    sink = Kept()
    report = collect(ask(flight=True), sink)
    assert sink.flights == {0: b"a dump"}
    assert report.flight_records["0"].endswith("/dump_0")


def test_flight_recorders_that_are_not_armed(tmp_path: Path) -> None:
    assert flight.armed(1, 0, {"TORCH_NCCL_DEBUG_INFO_PIPE_FILE": "/x"}) is None
    assert flight.armed(1, 0, {"TORCH_FR_BUFFER_SIZE": "0", "TORCH_FR_DEBUG_INFO_PIPE_FILE": "/x"}) is None
    armed = flight.armed(7, 3, {"TORCH_FR_BUFFER_SIZE": "9", "TORCH_FR_DEBUG_INFO_PIPE_FILE": "rel_", "HOME": "/h"})
    assert armed is not None
    assert str(armed.pipe) == "/proc/7/cwd/rel_3.pipe"
    assert str(armed.dumps[0]) == "/proc/7/root/h/.cache/torch/comm_lib_trace_rank_3"
    (tmp_path / "plain").write_text("")
    assert flight.trigger(flight.Recorder(0, tmp_path / "plain", ())) is False
    os.mkfifo(tmp_path / "nobody")
    assert flight.trigger(flight.Recorder(0, tmp_path / "nobody", ())) is False


# ---- py-spy


@pytest.mark.parametrize(
    ("states", "tracer", "native", "expected"),
    [
        ("S", 0, True, ("native", "plain", "nonblocking")),
        ("S", 0, False, ("plain", "nonblocking")),
        ("SD", 0, True, ("nonblocking",)),
        ("T", 0, True, ("nonblocking",)),
        ("S", 9, True, ("nonblocking",)),
    ],
)
def test_ways(states: str, tracer: int, native: bool, expected: tuple[str, ...]) -> None:
    assert pyspy.ways(states, tracer, native) == expected


def pretend(tmp_path: Path, body: str) -> str:
    path = tmp_path / "py-spy"
    path.write_text(f"#!/bin/bash\n{body}\n")
    path.chmod(0o755)
    return str(path)


def test_fallback_when_native_stacks_cannot_be_merged(tmp_path: Path, start: Start) -> None:
    """A stand-in for an old py-spy that cannot merge stacks of a new Python."""
    frame = '{"name":"f","filename":"x.py","module":null,"short_filename":null,"line":3,"locals":null}'
    thread = (
        f'[{{"pid":1,"thread_name":"MainThread","os_thread_id":1,"active":true,"owns_gil":false,"frames":[{frame}]}}]'
    )
    body = f"""if [ "$3" = --native ]; then echo 'Error: Failed to merge native and python frames (Have 3 native and 2 python)' >&2; exit 1
fi; echo '{thread}'"""
    dump = pyspy.dump(start().pid, ("native", "plain"), 5.0, pretend(tmp_path, body))
    assert dump.source == "plain"
    assert [attempt.rc for attempt in dump.attempts] == [1, 0]
    assert dump.threads[0].frames == (Frame("f", "x.py", 3),)


def test_a_py_spy_that_hangs_is_killed(tmp_path: Path, start: Start) -> None:
    begun = time.monotonic()
    dump = pyspy.dump(start().pid, ("native",), 1.0, pretend(tmp_path, "trap '' TERM; sleep 30"))
    assert time.monotonic() - begun < 3
    assert dump.attempts[0].rc is None
    assert "did not come back" in dump.note


def test_what_a_stack_dump_left_stopped_is_continued(start: Start) -> None:
    child = start()
    os.kill(child.pid, signal.SIGSTOP)
    time.sleep(0.1)
    assert "was continued" in pyspy.continue_if_stopped(child.pid)[0]
    time.sleep(0.2)
    assert look(child.pid).stat.state in "SR"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        ("Permission Denied: Try running again with elevated permissions", "not permitted"),
        ("Error: Failed to get process executable name.; 1: Permission denied (os error 13)", "not permitted"),
        ("Error: Failed to get process executable name.; 1: No such file or directory (os error 2)", "ended while"),
        ("Error: Failed to find python version from target process", "not a Python program"),
        ("Error: Unsupported version of Python: 3.15.0", "newer py-spy"),
        ("something new", "py-spy: something new"),
        ("", "no time was left"),
    ],
)
def test_sentences(error: str, words: str) -> None:
    assert words in pyspy.explain([Attempt("native", 1, 0.1, error)])


def test_pools_of_equal_threads_are_told_in_short() -> None:
    entry = {"thread_name": "w", "os_thread_id": 5, "active": False, "owns_gil": False}
    frames = [{"name": "wait", "filename": "t.py", "module": None, "line": 3}]
    text = json.dumps([{**entry, "os_thread_id": number, "frames": frames} for number in range(200)])
    assert len(pyspy.parse(text)) == 3


def test_moved() -> None:
    def at(line: int) -> tuple[Thread, ...]:
        return (Thread("m", 1, False, False, (Frame("x", "libc.so", 0, True), Frame("f", "a.py", line)), main=True),)

    assert moved(at(3), at(4)) is True
    assert moved(at(3), at(3)) is False
    assert moved(at(3), ()) is None


def test_native_stacks_are_given_up_when_time_runs_out() -> None:
    budget = NativeBudget(waiting=100, deadline=time.monotonic() + 4.0)
    assert budget.grant()
    budget.cost(1.0)
    assert not budget.grant()
    assert not NativeBudget(1, time.monotonic() + 9, wanted=False).grant()


# ---- permissions


def test_all_is_well(start: Start) -> None:
    child = start()
    assert preflight.may_attach(Path(f"/proc/{child.pid}"))
    version, threaded = preflight.target_python(Path(f"/proc/{child.pid}"))
    assert (version, threaded) == (sys.version_info[:2], False)


def fake_proc(root: Path, **files: str) -> Path:
    """A stand-in for /proc on a machine of another make: Yama and seccomp are not to be had here."""
    (root / "7").mkdir()
    (root / "7" / "environ").write_text("")
    for name, content in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (
            {"sys__kernel__yama__ptrace_scope": "1\n"},
            ("ptrace_scope is 1", "sysctl kernel.yama.ptrace_scope=0", "setcap"),
        ),
        ({"sys__kernel__yama__ptrace_scope": "2\n"}, ("ptrace_scope is 2", "CAP_SYS_PTRACE", "setcap")),
        ({"sys__kernel__yama__ptrace_scope": "3\n"}, ("ptrace_scope is 3", "rebooted")),
        ({"self__status": "Name:\tx\nSeccomp:\t2\n"}, ("seccomp", "--cap-add SYS_PTRACE")),
        ({"self__status": "Name:\tx\nSeccomp:\t0\n"}, ("security module",)),
    ],
)
def test_reasons_with_their_remedies(tmp_path: Path, files: dict[str, str], words: tuple[str, ...]) -> None:
    sentence = preflight.why_not(tmp_path / "7", fake_proc(tmp_path, **files))
    assert all(word in sentence for word in words), sentence


def test_a_container_with_a_user_namespace(tmp_path: Path) -> None:
    proc = fake_proc(tmp_path, self__status="")
    for folder, name in (("7", "user:[2]"), ("self", "user:[1]")):
        (proc / folder / "ns").mkdir()
        (proc / folder / "ns" / "user").symlink_to(name)
    assert "--cap-add SYS_PTRACE" in preflight.why_not(proc / "7", proc)


@pytest.mark.parametrize(
    ("maps", "expected"),
    [
        ("7f r-xp 0 08:01 1 /opt/conda/lib/libpython3.14t.so.1.0\n", ((3, 14), True)),
        ("7f r-xp 0 08:01 1 /usr/bin/python3.9\n", ((3, 9), False)),
        ("7f r-xp 0 08:01 1 /usr/bin/bash\n", ((), False)),
    ],
)
def test_python_of_a_process(tmp_path: Path, maps: str, expected: object) -> None:
    (tmp_path / "maps").write_text(maps)
    assert preflight.target_python(tmp_path) == expected


def test_version_of_py_spy(tmp_path: Path) -> None:
    assert preflight.pyspy_version(pretend(tmp_path, "echo py-spy 0.3.14")) == (0, 3, 14)
    assert preflight.pyspy_version("/nowhere/py-spy") == ()
    assert preflight.pyspy_version(pyspy.find_program()) >= (0, 4, 1)


# ---- the machine


class FakeNvml:
    """A stand-in for pynvml on a machine without a GPU: two GPUs, the second one lost."""

    NVML_ERROR_NOT_SUPPORTED, NVML_ERROR_NO_PERMISSION = 3, 4
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = NVML_VOLATILE_ECC = NVML_CLOCK_SM = NVML_TEMPERATURE_GPU = 0
    nvmlClocksThrottleReasonHwThermalSlowdown = 0x40
    nvmlClocksThrottleReasonSwPowerCap = 0x4

    class NVMLError(Exception):
        def __init__(self, value: int, text: str) -> None:
            super().__init__(text)
            self.value = value

    def nvmlInit(self) -> None: ...
    def nvmlShutdown(self) -> None: ...

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        if index == 1:
            raise self.NVMLError(15, "GPU is lost")
        return index

    def nvmlDeviceGetUtilizationRates(self, gpu: int) -> Any:
        return SimpleNamespace(gpu=100)

    def nvmlDeviceGetTotalEccErrors(self, gpu: int, kind: int, counter: int) -> int:
        raise self.NVMLError(3, "Not Supported")

    def nvmlDeviceGetPowerUsage(self, gpu: int) -> int:
        return 251_500

    def nvmlDeviceGetEnforcedPowerLimit(self, gpu: int) -> int:
        return 700_000

    def nvmlDeviceGetClockInfo(self, gpu: int, clock: int) -> int:
        return 1950

    def nvmlDeviceGetTemperature(self, gpu: int, sensor: int) -> int:
        raise self.NVMLError(999, "Unknown Error")

    def nvmlDeviceGetUUID(self, gpu: int) -> bytes:
        return b"GPU-1"

    def nvmlDeviceGetName(self, gpu: int) -> str:
        return "NVIDIA H200"

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, gpu: int) -> int:
        return 0x44

    def nvmlDeviceGetComputeRunningProcesses(self, gpu: int) -> list[Any]:
        return [SimpleNamespace(pid=9), SimpleNamespace(pid=4)]


def test_gpus_by_a_stand_in_for_nvml() -> None:
    first, second = read_gpus(FakeNvml())
    assert (first.utilisation, first.power_w, first.power_limit_w, first.sm_clock_mhz) == (100.0, 251.5, 700.0, 1950.0)
    assert first.throttle == ("hardware thermal slowdown", "power cap")
    assert (first.uuid, first.pids, first.ecc_uncorrected) == ("GPU-1", (4, 9), None)
    assert (first.temperature_c, first.problem) == (None, "Unknown Error")
    assert (second.index, second.problem) == (1, "GPU is lost")


def test_network_counters(tmp_path: Path) -> None:
    port = tmp_path / "infiniband" / "mlx5_0" / "ports" / "1"
    (tmp_path / "net" / "eth0" / "statistics").mkdir(parents=True)
    (tmp_path / "net" / "eth0" / "device").mkdir()
    (tmp_path / "net" / "lo" / "statistics").mkdir(parents=True)
    for path, text in {
        port / "counters" / "port_xmit_data": "0\n",
        port / "counters" / "symbol_error": "7\n",
        port / "counters" / "link_downed": "0\n",
        port / "hw_counters" / "packet_seq_err": "4830\n",
        port / "hw_counters" / "something_new": "5\n",
        tmp_path / "net" / "eth0" / "statistics" / "rx_bytes": "12\n",
        tmp_path / "net" / "eth0" / "statistics" / "rx_errors": "0\n",
        tmp_path / "net" / "lo" / "statistics" / "rx_bytes": "12\n",
    }.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    now = read_counters(tmp_path)
    assert now == {
        "mlx5_0/1/port_xmit_data": 0,
        "mlx5_0/1/symbol_error": 7,
        "mlx5_0/1/packet_seq_err": 4830,
        "eth0/rx_bytes": 12,
    }
    assert changes({"mlx5_0/1/symbol_error": 5}, now) == {
        "mlx5_0/1/symbol_error": 2,
        "mlx5_0/1/packet_seq_err": 4830,
        "eth0/rx_bytes": 12,
    }


def test_kernel_messages() -> None:
    records = [
        "6,1,1000000,-;usb 1-1: new device\n",
        "3,2,90000000,-;NVRM: Xid (PCI:0000:19:00): 79, pid=1, GPU has fallen off the bus.\n SUBSYSTEM=pci\n",
        "no record at all",
    ]
    assert pick(records, 100.0) == ("10 s ago: NVRM: Xid (PCI:0000:19:00): 79, pid=1, GPU has fallen off the bus.",)


def test_own_addresses(tmp_path: Path) -> None:
    (tmp_path / "fib_trie").write_text(
        "Local:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 10.1.2.3\n        /32 host LOCAL\n     |-- 127.0.0.1\n        /32 host LOCAL\n"
        "     |-- 10.1.2.255\n        /32 link BROADCAST\n"
    )
    (tmp_path / "if_inet6").write_text(
        "00000000000000000000000000000001 01 80 10 80 lo\nfe800000000000000000000000000002 02 40 20 80 eth0\n"
        "fd000000000000000000000000000002 02 40 00 80 eth0\n"
    )
    assert own_addresses(tmp_path) == ("10.1.2.3", "fd00::2")


def test_second_sources() -> None:
    text = "PID      JOBID    STEPID   LOCALID GLOBALID\n11954    1        0        0       4\n11999    1        0        -       -\n"
    assert parse_listpids(text) == {11954: 4, 11999: None}
    assert parse_sstat("1.batch|n1|7\n1.0|n1|11,12\n1.0|n2|13\n", StepId(1, 0), "n1") == [11, 12]


def test_facts_of_this_process() -> None:
    me = os.getpid()
    assert me in own_pids(os.geteuid())
    assert look(me).stat.ppid == os.getppid()
    assert read_memory(me).has_python


def test_small_rules() -> None:
    assert visible_gpu({"CUDA_VISIBLE_DEVICES": "4,5,6"}, 1) == "5"
    assert visible_gpu({"CUDA_VISIBLE_DEVICES": "GPU-x"}, 3) == "GPU-x"
    assert visible_gpu({}, 0) is None
    assert ras_addresses({}) == ("localhost:28028",)
    assert ras_addresses({"NCCL_RAS_ADDR": "127.0.0.1:9"}) == ("127.0.0.1:9",)
    assert ras_addresses({"NCCL_RAS_ENABLE": "0"}) == ()
    assert telling({"NCCL_DEBUG": "INFO", "NCCL_SECRET_KEY": "x", "PATH": "/"}) == {"NCCL_DEBUG": "INFO"}
    one = look(os.getpid())
    assert rates(one, None, 1.0) == (None, None)
    assert rates(one, one, 1.0)[0] == 0.0


# ---- what may never come back


def test_bounded_map_leaves_behind_what_hangs() -> None:
    gate = threading.Event()

    def work(item: int) -> int:
        if item == 3:
            gate.wait()
        if item == 4:
            raise ProcessLookupError
        return item * 2

    assert bounded_map(work, range(6), 0.3, workers=3) == {0: 0, 1: 2, 2: 4, 5: 10}
    gate.set()


def test_later() -> None:
    gate = threading.Event()
    assert Later(lambda: 5).get(1.0) == 5
    assert Later(gate.wait).get(0.05) is None
    gate.set()


def test_a_program_that_ignores_term_is_killed() -> None:
    ran = run_bounded(["bash", "-c", "trap '' TERM; echo started; sleep 30"], 0.3, grace_s=0.3)
    assert ran.rc is None
    assert ran.seconds < 2
