"""Stacks as a stack dump of a training job shows them, by what the host is at; innermost frame first."""

from __future__ import annotations

from slurm_ncclmon.evidence.model import Frame

OPERATION_CALLS = ("broadcast", "reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "all_reduce")

_C10D, _LOGGER = "torch/distributed/distributed_c10d.py", "torch/distributed/c10d_logger.py"
_CUDA, _TORCH, _C, _PYTHON = "libcuda.so.1", "libtorch_cuda.so", "libc.so.6", "python3.11"


def _native(function: str, library: str) -> Frame:
    return Frame(function, library, 0, native=True)


_TRAIN = (Frame("train", "train.py", 340), Frame("main", "train.py", 401), Frame("<module>", "train.py", 420))
_STEP = (Frame("train_step", "train.py", 231), *_TRAIN)

_STACKS: dict[str, tuple[Frame, ...]] = {
    "item": (_native("cuStreamSynchronize", _CUDA), _native("at::native::_local_scalar_dense_cuda", _TORCH), *_STEP),
    "synchronize": (_native("cuCtxSynchronize", _CUDA), Frame("synchronize", "torch/cuda/__init__.py", 985), *_STEP),
    "barrier": (
        _native("cuStreamSynchronize", _CUDA),
        Frame("barrier", _C10D, 4628),
        Frame("wrapper", _LOGGER, 81),
        Frame("end_of_epoch", "train.py", 310),
        *_TRAIN,
    ),
    "launch": (
        _native("cuLaunchKernel", _CUDA),
        Frame("forward", "torch/nn/modules/linear.py", 125),
        Frame("forward", "model.py", 77),
        *_STEP,
    ),
    "init": (
        _native("bootstrapAllGather", "libnccl.so.2"),
        _native("ncclCommInitRankConfig", "libnccl.so.2"),
        Frame("_new_process_group_helper", _C10D, 1850),
        Frame("new_group", _C10D, 5100),
        Frame("setup", "train.py", 60),
        *_TRAIN[1:],
    ),
    "dataload": (
        _native("futex_wait", _C),
        Frame("wait", "threading.py", 331),
        Frame("get", "queue.py", 180),
        Frame("_try_get_data", "torch/utils/data/dataloader.py", 1251),
        Frame("__next__", "torch/utils/data/dataloader.py", 708),
        *_TRAIN,
    ),
    "checkpoint": (
        _native("write", _C),
        Frame("_save", "torch/serialization.py", 1148),
        Frame("save", "torch/serialization.py", 864),
        Frame("save_checkpoint", "train.py", 301),
        *_TRAIN,
    ),
    "evaluation": (Frame("forward", "model.py", 77), Frame("evaluate", "train.py", 260), *_TRAIN),
    "evaluation_gpu": (
        _native("cuStreamSynchronize", _CUDA),
        _native("at::native::_local_scalar_dense_cuda", _TORCH),
        Frame("evaluate", "train.py", 262),
        *_TRAIN,
    ),
    "compile": (
        _native("read", _C),
        Frame("ast_to_ttir", "triton/compiler/code_generator.py", 1300),
        Frame("compile_fx", "torch/_inductor/compile_fx.py", 1500),
        *_STEP,
    ),
    "sleep": (
        _native("clock_nanosleep", _C),
        Frame("refresh_token", "storage_client.py", 88),
        Frame("log_metrics", "train.py", 199),
        *_TRAIN,
    ),
    "exception": (_native("clock_nanosleep", _C), Frame("wait_for_restart", "train.py", 377), *_TRAIN[1:]),
    "python": (Frame("tokenize", "text/bpe.py", 88), Frame("build_batch", "train.py", 140), *_TRAIN),
    "lock": (
        _native("futex_wait", _C),
        Frame("acquire", "threading.py", 168),
        Frame("flush", "metrics.py", 52),
        *_TRAIN,
    ),
    "queue": (
        _native("futex_wait", _C),
        Frame("wait", "threading.py", 331),
        Frame("get", "queue.py", 180),
        Frame("next_rollout", "trainer.py", 66),
        Frame("main", "trainer.py", 120),
    ),
    "input": (
        _native("read", _C),
        Frame("readline", "code.py", 270),
        Frame("interact", "code.py", 240),
        Frame("<module>", "shell.py", 3),
    ),
    "download": (
        _native("recvfrom", _C),
        Frame("readinto", "socket.py", 706),
        Frame("read", "http/client.py", 473),
        Frame("fetch_dataset", "prepare.py", 30),
        Frame("main", "train.py", 395),
    ),
    "storage": (_native("read", _C), Frame("readinto", "tarfile.py", 520), Frame("shard", "train.py", 150), *_TRAIN),
    "debugger": (Frame("interaction", "pdb.py", 430), Frame("set_trace", "bdb.py", 350), *_STEP),
    "teardown": (
        _native("futex_wait", _C),
        Frame("shutdown", "logging/__init__.py", 2100),
        Frame("main", "train.py", 410),
    ),
}


def stack(label: str, operation: int = -1) -> tuple[Frame, ...]:
    """Frames of a host at `label`; for `collective` the operation that it waits for (-1: one of point to point)."""
    if label != "collective":
        return _STACKS[label]
    if operation < 0:
        return (
            _native("cuStreamSynchronize", _CUDA),
            Frame("batch_isend_irecv", _C10D, 2700),
            Frame("_communicate", "megatron/core/pipeline_parallel/p2p_communication.py", 330),
            *_STEP,
        )
    call = OPERATION_CALLS[operation]
    return (
        _native("cuStreamSynchronize", _CUDA),
        Frame(call, _C10D, 2800 + operation),
        Frame("wrapper", _LOGGER, 81),
        Frame("train_step", "train.py", 240 + operation),
        *_TRAIN,
    )


WAITING = frozenset({"item", "synchronize", "barrier", "launch", "init", "collective"})
"""Labels of a host that only waits for others."""
MOVING = frozenset({"checkpoint", "evaluation", "evaluation_gpu", "compile", "python", "download", "dataload"})
"""Labels whose host gets on with its work, unless it is stuck."""
WRITING = frozenset({"checkpoint"})
IDLE_GPU = frozenset(
    {
        "checkpoint",
        "compile",
        "sleep",
        "exception",
        "python",
        "lock",
        "queue",
        "input",
        "download",
        "storage",
        "debugger",
        "dataload",
        "teardown",
    }
)
