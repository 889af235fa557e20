#!/usr/bin/env python3
"""Ranks that all stand in an all-reduce, but for one that is odd:  srun stand.py --odd stopped --rank 3

Every rank keeps ticking: it appends the time to progress/RANK ten times a second, from whichever thread still can. So whoever
looks at the ranks can show that they go on, and for how long they were held up. Runs with every Python from 3.6 on.
"""

import argparse
import ctypes
import os
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import distributed_c10d

RANK = int(os.environ["SLURM_PROCID"])


def tick():
    with open(f"progress/{RANK}", "a") as log:
        log.write(f"{time.time():.3f}\n")


def tick_for_ever():
    while True:
        tick()
        time.sleep(0.1)


def stopped(options):
    """Stops itself; goes on when somebody sends SIGCONT."""
    os.kill(os.getpid(), 19)
    all_reduce()


def asleep_in_kernel(options):
    """Sleeps in state D until somebody writes to the pipe: posix_spawn waits for its child as vfork does, and the child waits for
    a writer."""
    pipe = os.path.abspath("pipe")
    os.posix_spawn("/bin/true", ["true"], {}, file_actions=[(os.POSIX_SPAWN_OPEN, 9, pipe, os.O_RDONLY, 0)])
    all_reduce()


def main_thread_gone(options):
    """The main thread ends alone, so that the process is a zombie whose other thread ticks on."""
    threading.Thread(target=tick_for_ever, daemon=False).start()
    libc = ctypes.CDLL(None)
    libc.syscall(60, 0)  # exit, not exit_group


def zombie_child(options):
    """Waits for a child that has ended, but does not take up its exit."""
    if os.fork() == 0:
        os._exit(1)
    wait_for_worker()


def wait_for_worker():
    tick_for_ever()


def no_python(options):
    """Becomes a shell that ticks."""
    loop = f"while :; do date +%s.%3N >> progress/{RANK}; sleep 0.1; done"
    os.execv("/bin/bash", ["bash", "-c", loop])


def exited(options):
    """Ends with status 0."""
    sys.exit(0)


def traced(options):
    """Is traced by a child of its own that never stops it, as by a debugger that let it go on."""
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        ptrace = ctypes.CDLL(None, use_errno=True).ptrace
        ptrace.argtypes = [ctypes.c_long] * 4
        if ptrace(0x4206, parent, 0, 0) != 0:  # PTRACE_SEIZE
            os._exit(1)
        while True:
            time.sleep(60)
    wait_for_worker()


def many_threads(options):
    """200 threads more, all asleep."""
    for _ in range(200):
        threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
    wait_for_worker()


def hidden(options):
    """Takes itself out of reach of its user's other processes: nobody without CAP_SYS_PTRACE may look into it."""
    ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE
    wait_for_worker()


def armed(options):
    """Stands in for PyTorch with an armed flight recorder: writes a dump as soon as its pipe is written to."""
    pipe = os.environ["TORCH_NCCL_DEBUG_INFO_PIPE_FILE"] + str(RANK) + ".pipe"
    os.mkfifo(pipe)
    threading.Thread(target=dump_when_told, args=(pipe,), daemon=True).start()
    wait_for_worker()


def dump_when_told(pipe):
    with open(pipe) as told:
        told.read(1)
    with open(os.environ["TORCH_NCCL_DEBUG_INFO_TEMP_FILE"] + str(RANK), "w") as dump:
        dump.write(f"dump of rank {RANK}")


def lost(options):
    """Waits for data that never come."""
    wait_for_worker()


def all_reduce():
    distributed_c10d.all_reduce(tick)


ODD = {
    function.__name__: function
    for function in (
        stopped,
        asleep_in_kernel,
        main_thread_gone,
        zombie_child,
        no_python,
        exited,
        traced,
        many_threads,
        hidden,
        armed,
        lost,
    )
}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--odd", choices=sorted(ODD))
    parser.add_argument("--rank", type=int, default=3)
    options = parser.parse_args()
    tick()
    if options.odd and options.rank == RANK:
        ODD[options.odd](options)
    else:
        all_reduce()


if __name__ == "__main__":
    main()
