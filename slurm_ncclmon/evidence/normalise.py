"""Frames as people want to read and programs to compare them: short paths, no versions, no glue. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

from slurm_ncclmon.evidence.model import Frame

_PREFIXES = (
    re.compile(r"^.*/(?:site-packages|dist-packages)/"),
    re.compile(r"^.*/lib(?:64)?/python[23]\.\d+t?/"),
    re.compile(r"^.*\.zip/"),
)
_LIBRARY = re.compile(r"^(?:.*/)?([^/]+?\.so)(?:\.[0-9.]+)?$")
_ANONYMOUS = "(anonymous namespace)"

_GLUE_NATIVE = re.compile(
    r"^(_?Py[A-Z_]\w*|py_\w+|_?PyEval\w*|method_vectorcall\w*|cfunction_\w*|vectorcall\w*|slot_tp_\w*|object_vacall|pybind11::.*|"
    r"ffi_\w*|_ctypes_\w*|thread_run|pythread_wrapper|_start|main|__libc_start\w*|start_thread|clone3?|__clone3?|run_mod|run_eval\w*|"
    r"builtin_exec\w*|\?\?|c10::Dispatcher::.*|c10::impl::.*|at::_ops::.*|torch::autograd::THPFunction.*)$"
)
_GLUE_PYTHON = (
    (re.compile(r"^(_call_impl|_wrapped_call_impl|_fn|inner)$"), "torch/nn/modules/module.py"),
    (re.compile(r"^wrapper$"), "torch/distributed/c10d_logger.py"),
    (re.compile(r"^(decorate_context|_?no_grad_wrapper)$"), "torch/utils/_contextlib.py"),
    (re.compile(r"^_fn$"), "torch/_dynamo/eval_frame.py"),
    (re.compile(r"^(inner|wrapper)$"), "contextlib.py"),
    (re.compile(r"^(_run_code|run_path|_run_module_code|_run_module_as_main)$"), "<frozen runpy>"),
    (re.compile(r"^(_bootstrap|_bootstrap_inner|run)$"), "threading.py"),
)


@lru_cache(maxsize=65536)
def normalised(frame: Frame) -> Frame | None:
    """The frame with its file shortened; None for glue, which stands between nearly every two frames and says nothing."""
    if frame.native:
        function = _native_name(frame.function)
        return None if _GLUE_NATIVE.match(function) else Frame(function, library(frame.file), 0, True)
    file = short_path(frame.file)
    name = frame.function.rpartition(".")[2]
    if any(function.match(name) and file == where for function, where in _GLUE_PYTHON):
        return None
    return Frame(frame.function, file, frame.line, False)


def short_path(path: str) -> str:
    """Without the place where packages are installed, which differs between nodes, containers and releases; of the user's own
    files the last two parts."""
    for prefix in _PREFIXES:
        shorter = prefix.sub("", path)
        if shorter != path:
            return shorter
    parts = [part for part in path.split("/") if part]
    return "/".join(parts[-2:]) if parts else path


def library(path: str) -> str:
    """`libc.so` of /usr/lib/x86_64-linux-gnu/libc.so.6."""
    match = _LIBRARY.match(path)
    return match.group(1) if match else path.rsplit("/", 1)[-1]


def _native_name(name: str) -> str:
    """A C++ name without its arguments."""
    name = name.removeprefix("__GI_")
    start = name.find("(", len(_ANONYMOUS) if name.startswith(_ANONYMOUS) else 1)
    while start > 0 and name.startswith(_ANONYMOUS, start):
        start = name.find("(", start + len(_ANONYMOUS))
    return name[:start] if start > 0 else name


def stack(frames: Iterable[Frame]) -> tuple[Frame, ...]:
    """Normalised frames, innermost first, without glue."""
    return tuple(frame for frame in map(normalised, frames) if frame is not None)


def text(frame: Frame) -> str:
    """`train_step (train.py:412)`, `sched_yield (libc.so)`."""
    where = frame.file if frame.native or not frame.line else f"{frame.file}:{frame.line}"
    return f"{frame.function} ({where})" if where else frame.function
