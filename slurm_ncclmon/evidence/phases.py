"""What a process is doing, by its stack and state: a table of patterns, tried on frames from the innermost outwards.

Of the patterns that match anywhere, the innermost says what is going on, with two exceptions. Waiting (for the GPU, a lock, a
pipe) inside a collective's own code is being in that collective. And weak patterns (sleep, lock, plain reading) count only
where no other matches, for nearly everything sleeps on a lock in the end.

A site adds its own lines by `[phases]` in its configuration; they are tried first, on the same text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from slurm_ncclmon.evidence.model import Frame, Thread

COLLECTIVE, P2P, GPU, INIT = "collective", "p2p", "gpu", "init"
CHECKPOINT, EVALUATION, DATA, COMPILE, IO = "checkpoint", "evaluation", "data", "compile", "io"
LOCK, SLEEP, PYTHON = "lock", "sleep", "python"
STOPPED, TRACED, KERNEL, EXITED, NO_STACK = "stopped", "traced", "kernel", "exited", "no_stack"

LABELS: dict[str, str] = {
    COLLECTIVE: "in a collective",
    P2P: "in send/recv",
    GPU: "waiting for the GPU",
    INIT: "setting up communicators",
    CHECKPOINT: "saving or loading a checkpoint",
    EVALUATION: "evaluating",
    DATA: "loading data",
    COMPILE: "compiling",
    IO: "reading or writing",
    LOCK: "waiting for a lock or another thread",
    SLEEP: "sleeping",
    PYTHON: "computing in Python",
    STOPPED: "stopped by a signal",
    TRACED: "held by a debugger",
    KERNEL: "asleep in the kernel, cannot be interrupted",
    EXITED: "exited",
    NO_STACK: "no stack",
}
"""Phase -> the words for people."""

WAITING = frozenset({COLLECTIVE, P2P, GPU, INIT})
"""Phases of a rank that waits for others (or for its own device, which waits for others)."""
BUSY = frozenset({CHECKPOINT, EVALUATION, DATA, COMPILE})
"""Phases that take long without anything being wrong."""

_COLLECTIVES = (
    "all_reduce|all_reduce_coalesced|reduce|all_gather|all_gather_into_tensor|all_gather_object|_all_gather_base|all_gather_coalesced"
    "|reduce_scatter|reduce_scatter_tensor|_reduce_scatter_base|broadcast|broadcast_object_list|gather|gather_object|scatter"
    "|scatter_object_list|all_to_all|all_to_all_single|barrier|monitored_barrier|_broadcast_coalesced|_sync_params_and_buffers"
    "|_collective|_launch|_run_collective"
)

_POINT_TO_POINT = "send|recv|isend|irecv|batch_isend_irecv|_point_to_point|send_object_list|recv_object_list"
_GROUPS = r"init_process_group|new_group|_new_process_group_helper|_wait_for_members|new_subgroups\w*|split_group"

_PYTHON_TABLE: tuple[tuple[str, str], ...] = (
    (rf"^({_COLLECTIVES}) \(.*distributed_c10d\.py\)", COLLECTIVE),
    (rf"^({_POINT_TO_POINT}) \(.*distributed_c10d\.py\)", P2P),
    (rf"^({_GROUPS}) \(.*distributed_c10d\.py\)", INIT),
    (r"\(.*torch/distributed/(rendezvous|elastic/rendezvous/.*)\.py\)", INIT),
    (r"\(.*torch/distributed/_functional_collectives\.py\)", COLLECTIVE),
    (r"\(.*megatron/core/pipeline_parallel/p2p_communication\.py\)", P2P),
    (r"\(.*deepspeed/runtime/pipe/p2p\.py\)", P2P),
    (r"\(.*deepspeed/comm/(comm|torch)\.py\)", COLLECTIVE),
    (r"^(synchronize|current_stream_synchronize|wait_stream) \(.*torch/cuda/.*\)", GPU),
    (r"\(.*torch/distributed/checkpoint/.*\)|^(save|_save|_legacy_save) \(.*serialization\.py\)", CHECKPOINT),
    (r"^(load|_load|_legacy_load) \(.*serialization\.py\)", CHECKPOINT),
    (r"\(.*(megatron/core/dist_checkpointing|safetensors|orbax/checkpoint)/.*\)", CHECKPOINT),
    (r"^\w*(save|write|load|restore)_?\w*(checkpoint|ckpt|state_dict)\w* ", CHECKPOINT),
    (r"\(.*torch/utils/data/.*\)|\((.*/)?data_?loaders?\.py\)", DATA),
    (r"\(.*(webdataset|datasets|streaming|litdata|nvidia/dali|tensorflow_datasets|megatron/core/datasets)/.*\)", DATA),
    (r"\(.*(torch/_inductor|torch/_dynamo|triton/(compiler|runtime|backends)|torch/utils/cpp_extension).*\)", COMPILE),
    (r"\((.*/)?compile_fx\.py\)|\(.*torch/fx/.*\)|\(.*jax/_src/(compiler|interpreters/pxla)\.py\)", COMPILE),
    (r"^\w*(evaluate|evaluation|validate|validation|eval_step|eval_loop|run_eval)\w* ", EVALUATION),
)

_NCCL_CALLS = "AllReduce|AllGather|ReduceScatter|Broadcast|Reduce|GroupEnd|GroupEndInternal|EnqueueCheck|LaunchKernel"

_NATIVE_TABLE: tuple[tuple[str, str], ...] = (
    (rf"^p?nccl({_NCCL_CALLS})", COLLECTIVE),
    (r"^p?nccl(Send|Recv)", P2P),
    (r"^p?nccl(CommInit|CommSplit|Transport\w*Setup)|^(commInit|bootstrap|initTransportsRank)", INIT),
    (r"^c10d::ProcessGroup.*(barrier|allreduce|allgather|reduce_scatter|broadcast|wait)", COLLECTIVE),
    (r"^c10d::.*(send|recv)", P2P),
    (r"^(cuda|cu|hip)\w*(Synchronize|EventQuery|StreamWait)|^at::native::(item|_local_scalar_dense)", GPU),
    (r"^(cuda|cu|hip)(LaunchKernel\w*|Memcpy\w*|Malloc\w*|Free\w*) ", GPU),
)

_FUTEX = r"pthread_cond_\w*|pthread_mutex_lock|__lll_lock_wait|futex_\w*|sem_wait\w*|PyThread_acquire_lock\w*|lock_PyThread\w*"
_CALLS = "read|pread64|write|pwrite64|open64|openat|fsync|fdatasync|connect|recvfrom|recvmsg|epoll_wait|poll|select"

_WEAK_TABLE: tuple[tuple[str, str], ...] = (
    (
        r"\((.*/)?(threading|queue|multiprocessing/(connection|queues|popen_fork|process)|concurrent/futures/.*)\.py\)",
        LOCK,
    ),
    (rf"^(acquire_\w*|lock_\w*|wait_for_\w*|{_FUTEX}) ", LOCK),
    (r"^(clock_nanosleep|nanosleep|time_sleep|pysleep) ", SLEEP),
    (r"\((.*/)?(tarfile|gzip|zipfile|shutil|socket|ssl|subprocess)\.py\)", IO),
    (rf"^(__)?(libc_)?({_CALLS}) ", IO),
)

_INSIDE = frozenset({GPU})
"""Phases that give way to a collective further out: the collective's own way of waiting."""

_SIMPLE = {"Z": EXITED, "X": EXITED, "t": TRACED}


def classify(
    state: str,
    tracer_pid: int,
    thread_states: Mapping[str, int],
    threads: Sequence[Thread],
    site: tuple[tuple[str, str], ...] = (),
) -> str:
    """The phase of a process. `site` are the site's own (pattern, phase) pairs.

    States of the kernel come first: a stopped or sleeping process does nothing, whatever it was about to do. What it was about
    to do is still in its stack.
    """
    if state == "T":
        return STOPPED
    if state == "D" or thread_states.get("D"):
        return KERNEL
    if state in _SIMPLE and (state != "t" or tracer_pid):
        return _SIMPLE[state]
    main = main_thread(threads)
    if main is None:
        return NO_STACK
    return classify_frames(main.frames, site)


def main_thread(threads: Sequence[Thread]) -> Thread | None:
    """The main thread, else the first."""
    return next((thread for thread in threads if thread.main), threads[0] if threads else None)


def classify_frames(frames: Iterable[Frame], site: tuple[tuple[str, str], ...] = ()) -> str:
    """The phase by frames alone, innermost first."""
    found, weak = "", ""
    for frame in frames:
        phase = _match(frame.function, frame.file, frame.native, site)
        if not found:
            found = phase
        elif found in _INSIDE and phase in (COLLECTIVE, P2P, INIT):
            return phase
        weak = weak or _weak(frame.function, frame.file)
    return found or weak or PYTHON


@lru_cache(maxsize=4096)
def _match(function: str, file: str, native: bool, site: tuple[tuple[str, str], ...]) -> str:
    for pattern, phase in _compiled(site):
        if pattern.search(f"{function} ({file})"):
            return phase
    # Python 3.11 and later name a method with its class, earlier ones do not.
    text = f"{function if native else function.rpartition('.')[2]} ({file})"
    return next((phase for pattern, phase in (_NATIVE if native else _PYTHON) if pattern.search(text)), "")


@lru_cache(maxsize=4096)
def _weak(function: str, file: str) -> str:
    text = f"{function.rpartition('.')[2]} ({file})"
    return next((phase for pattern, phase in _WEAK if pattern.search(text)), "")


@lru_cache(maxsize=8)
def _compiled(table: tuple[tuple[str, str], ...]) -> tuple[tuple[re.Pattern[str], str], ...]:
    return tuple((re.compile(pattern), phase) for pattern, phase in table)


_PYTHON = _compiled(_PYTHON_TABLE)
_NATIVE = _compiled(_NATIVE_TABLE)
_WEAK = _compiled(_WEAK_TABLE)
