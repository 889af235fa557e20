"""What can be wrong in the training job. One function a fault; the table at the end is the list of all of them.

A fault strikes at one point of one step: right before the group's main collective. Its function gets the training and
the group; it returns True if it took the collective's place.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Callable

from . import distributed_c10d as dist
from . import ras
from .compile_fx import compile_fx
from .serialization import save

if TYPE_CHECKING:
    from .train import Training

    Act = Callable[[Training, dist.ProcessGroup], bool]

MAIN_OPERATION = {"world": "AllReduce", "tp": "AllReduce", "dp": "ReduceScatter", "pp": "Send", "late": "Init"}


def none(training: Training, group: dist.ProcessGroup) -> bool:
    """Nothing is wrong."""
    return False


# ---- the culprit does not enter


def not_entered(training: Training, group: dist.ProcessGroup) -> bool:
    """Sits in the program, by --variant: data (a data loader's worker is lost), lock (a lock is held), sleep."""
    waits = {"data": training.loader.wait_for_lost_worker, "lock": acquire_tokenizer_lock, "sleep": poll_license_server}
    waits[training.options.variant]()
    return True


def acquire_tokenizer_lock() -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()  # the holder never gives it back


def poll_license_server() -> None:
    while True:
        time.sleep(1)


def exit_early(training: Training, group: dist.ProcessGroup) -> bool:
    """Leaves with status 0 while the others go on."""
    sys.exit(0)


def swallowed(training: Training, group: dist.ProcessGroup) -> bool:
    """An exception is caught by a handler that goes on waiting."""
    try:
        raise RuntimeError("CUDA out of memory. Tried to allocate 20.00 MiB")
    except RuntimeError as error:
        retry_after_error(error)
    return True


def retry_after_error(error: RuntimeError) -> None:
    print(f"warning: {error}; will retry", file=sys.stderr, flush=True)
    while True:
        time.sleep(1)


def killed(training: Training, group: dist.ProcessGroup) -> bool:
    """Dies by SIGKILL, as by the kernel's memory killer."""
    os.kill(os.getpid(), signal.SIGKILL)
    return True


def stopped(training: Training, group: dist.ProcessGroup) -> bool:
    """Is stopped by SIGSTOP; goes on if somebody sends SIGCONT."""
    os.kill(os.getpid(), signal.SIGSTOP)
    return False


# ---- the culprit enters something else


def wrong_op(training: Training, group: dist.ProcessGroup) -> bool:
    """Calls broadcast where the others call the group's collective."""
    dist.broadcast(training.world, training.options.bytes, group)
    return True


def wrong_size(training: Training, group: dist.ProcessGroup) -> bool:
    """Calls the right collective with half the size."""
    dist._collective(training.world, group, MAIN_OPERATION[group.kind], training.options.bytes // 2)
    return True


def extra_op(training: Training, group: dist.ProcessGroup) -> bool:
    """Calls one collective more than the others, before the right one."""
    dist.broadcast(training.world, 8, group)
    return False


def wrong_order(training: Training, group: dist.ProcessGroup) -> bool:
    """Calls the world's collective before the group's; the others of the group call the group's first."""
    dist.all_reduce(training.world, training.options.bytes, training.world.groups["world"])
    return False


# ---- the communicator


def destroyed(training: Training, group: dist.ProcessGroup) -> bool:
    """Destroys the communicator early: two seconds of flags, then it is gone; the process stays."""
    group.communicator.set("finalizeCalled", 1)
    group.communicator.set("destroyFlag", 1)
    time.sleep(2)
    dist.destroy_process_group(training.world, group)
    wait_for_end_of_job()
    return True


def wait_for_end_of_job() -> None:
    while True:
        time.sleep(1)


def aborted(training: Training, group: dist.ProcessGroup) -> bool:
    """Aborts the communicator and stays."""
    group.communicator.set("abortFlag", 1)
    wait_for_end_of_job()
    return True


def async_error(training: Training, group: dist.ProcessGroup) -> bool:
    """Gets a remote error on the communicator and never launches on it again."""
    group.communicator.set("asyncResult", ras.REMOTE_ERROR)
    wait_for_end_of_job()
    return True


def symmetric(training: Training, group: dist.ProcessGroup) -> bool:
    """All ranks enter and none returns, like a stuck network."""
    operation = MAIN_OPERATION[group.kind]
    dist.launch_that_never_ends(training.world, group, operation, training.options.bytes)
    return True


def device_stall(training: Training, group: dist.ProcessGroup) -> bool:
    """Launches everything, but its device never starts what it launched: by counts nobody lags."""
    dist.launch_that_never_starts(training.world, group, MAIN_OPERATION[group.kind], training.options.bytes)
    return True


def torn_link(training: Training, group: dist.ProcessGroup) -> bool:
    """All ranks enter; traffic from --rank to the next rank of the group's ring is no longer delivered."""
    source = training.culprits[0]
    if source not in group.ranks:
        return False
    operation, size = MAIN_OPERATION[group.kind], training.options.bytes
    dist.launch_that_never_ends(training.world, group, operation, size, torn_after=group.ranks.index(source))
    return True


def init_stall(training: Training, group: dist.ProcessGroup) -> bool:
    """Never joins a communicator that the others are making (--group late: at --step; else when the job starts)."""
    wait_for_peers_to_join()
    return True


def wait_for_peers_to_join() -> None:
    while True:
        time.sleep(1)


# ---- it looks wrong but passes


def checkpoint(training: Training, group: dist.ProcessGroup) -> bool:
    """Writes a checkpoint for --pause seconds; with --rank all, everyone does."""
    save_checkpoint(training)
    return False


def save_checkpoint(training: Training) -> None:
    save({"step": 0}, "checkpoint.pt", training.options.pause)


def compiling(training: Training, group: dist.ProcessGroup) -> bool:
    """Compiles for --pause seconds."""
    compile_fx(training.options.pause)
    return False


def data_stall(training: Training, group: dist.ProcessGroup) -> bool:
    """Gets its next batch --pause seconds late."""
    training.loader.next_batch(delay_s=training.options.pause)
    return False


def slow(training: Training, group: dist.ProcessGroup) -> bool:
    """Is --pause seconds late in every step from --step on."""
    compute_on_slow_device(training.options.pause)
    return False


def compute_on_slow_device(seconds: float) -> None:
    time.sleep(seconds)


def churn(training: Training, group: dist.ProcessGroup) -> bool:
    """Makes, uses and destroys a communicator of the same ranks in every step from --step on."""
    index = training.world.next_dynamic_index()
    fresh = dist.new_group(training.world, "churn", f"churn-{group.name}", group.ranks, index, joins_mesh=False)
    dist.all_reduce(training.world, training.options.bytes, fresh)
    training.world.stream.synchronize()
    dist.destroy_process_group(training.world, fresh)
    return False


@dataclass(frozen=True)
class Fault:
    """One entry of the table."""

    act: Act
    hangs: bool  # the job never goes on by itself
    everyone: bool = False  # strikes all ranks whatever --rank says
    repeats: bool = False  # in every step from --step on
    collective: bool = False  # is about a collective, which pp has none of
    link: bool = False  # its culprits are --rank and the next rank of the group


FAULTS = {
    "none": Fault(none, hangs=False),
    "not_entered": Fault(not_entered, hangs=True),
    "exit": Fault(exit_early, hangs=True),
    "swallowed": Fault(swallowed, hangs=True),
    "killed": Fault(killed, hangs=True),
    "stopped": Fault(stopped, hangs=True),
    "wrong_op": Fault(wrong_op, hangs=True, collective=True),
    "wrong_size": Fault(wrong_size, hangs=True, collective=True),
    "extra_op": Fault(extra_op, hangs=True, collective=True),
    "wrong_order": Fault(wrong_order, hangs=True, collective=True),
    "destroyed": Fault(destroyed, hangs=True),
    "aborted": Fault(aborted, hangs=True),
    "async_error": Fault(async_error, hangs=True),
    "symmetric": Fault(symmetric, hangs=True, everyone=True, collective=True),
    "device_stall": Fault(device_stall, hangs=True, collective=True),
    "torn_link": Fault(torn_link, hangs=True, everyone=True, collective=True, link=True),
    "init_stall": Fault(init_stall, hangs=True),
    "checkpoint": Fault(checkpoint, hangs=False),
    "compile": Fault(compiling, hangs=False),
    "data_stall": Fault(data_stall, hangs=False),
    "slow": Fault(slow, hangs=False, repeats=True),
    "churn": Fault(churn, hangs=False, everyone=True, repeats=True),
}
