"""The class of a stack, by real PyTorch names."""

from __future__ import annotations

import pytest

from slurm_ncclmon.evidence import phases
from slurm_ncclmon.evidence.model import Frame, Thread
from slurm_ncclmon.evidence.normalise import normalised, short_path, stack
from slurm_ncclmon.evidence.phases import classify, classify_frames
from tests.evidence.make import IN_ALL_REDUCE, IN_LOADER, SITE, TRAIN


def py(function: str, file: str) -> Frame:
    return Frame(function, f"{SITE}/{file}", 10)


def native(function: str, file: str = "/usr/lib/libc.so.6") -> Frame:
    return Frame(function, file, 0, True)


@pytest.mark.parametrize(
    ("frames", "phase"),
    [
        (IN_ALL_REDUCE, phases.COLLECTIVE),
        (IN_LOADER, phases.DATA),
        (
            (py("barrier", "torch/distributed/distributed_c10d.py"), py("save_checkpoint", "megatron/training.py")),
            phases.COLLECTIVE,
        ),
        ((native("cudaStreamSynchronize", "libcudart.so.12"), *IN_ALL_REDUCE[2:]), phases.COLLECTIVE),
        ((native("cudaStreamSynchronize", "libcudart.so.12"), *TRAIN), phases.GPU),
        ((native("at::native::item", "libtorch_cpu.so"), *TRAIN), phases.GPU),
        ((py("recv", "torch/distributed/distributed_c10d.py"),), phases.P2P),
        ((py("batch_isend_irecv", "torch/distributed/distributed_c10d.py"),), phases.P2P),
        ((py("new_group", "torch/distributed/distributed_c10d.py"),), phases.INIT),
        ((native("write"), py("save", "torch/serialization.py"), *TRAIN), phases.CHECKPOINT),
        ((py("_write_item", "torch/distributed/checkpoint/filesystem.py"),), phases.CHECKPOINT),
        ((native("read"), py("compile_fx", "torch/_inductor/compile_fx.py")), phases.COMPILE),
        ((py("forward", "model.py"), py("evaluate", "trainer.py")), phases.EVALUATION),
        ((py("MultiProcessingDataLoaderIter._try_get_data", "torch/utils/data/dataloader.py"),), phases.DATA),
        ((py("Condition.wait", "threading.py"), *TRAIN), phases.LOCK),
        ((native("clock_nanosleep"), *TRAIN), phases.SLEEP),
        ((native("read"), *TRAIN), phases.IO),
        (TRAIN, phases.PYTHON),
        ((), phases.PYTHON),
    ],
)
def test_classes(frames: tuple[Frame, ...], phase: str) -> None:
    assert classify_frames(frames) == phase


def test_the_sites_own_patterns_come_first() -> None:
    site = ((r"^tokenise ", "data"), (r"train_step \(.*train\.py\)", "evaluation"))
    assert classify_frames(TRAIN, site) == "evaluation"
    assert classify_frames((Frame("tokenise", "x.py", 3), *TRAIN), site) == "data"


def test_no_thread_is_no_stack() -> None:
    assert classify("S", 0, {}, ()) == phases.NO_STACK
    assert classify("S", 0, {}, (Thread("t", 1, False, False, TRAIN),)) == phases.PYTHON


def test_every_phase_has_words() -> None:
    names = {
        value for name, value in vars(phases).items() if name.isupper() and name[0] != "_" and isinstance(value, str)
    }
    assert names == set(phases.LABELS)


@pytest.mark.parametrize(
    ("path", "short"),
    [
        (f"{SITE}/torch/nn/modules/linear.py", "torch/nn/modules/linear.py"),
        ("/usr/lib/python3.11/threading.py", "threading.py"),
        ("/usr/lib/python3/dist-packages/numpy/core.py", "numpy/core.py"),
        ("/home/anna/llm/src/train.py", "src/train.py"),
        ("train.py", "train.py"),
        ("<string>", "<string>"),
    ],
)
def test_short_paths(path: str, short: str) -> None:
    assert short_path(path) == short


def test_native_names_lose_arguments_and_versions() -> None:
    frame = Frame("c10d::ProcessGroupNCCL::barrier(c10d::BarrierOptions const&)", "/x/libtorch_cuda.so.2.8", 0, True)
    assert normalised(frame) == Frame("c10d::ProcessGroupNCCL::barrier", "libtorch_cuda.so", 0, True)
    anonymous = Frame("(anonymous namespace)::poll(int)", "/x/liba.so", 0, True)
    assert normalised(anonymous) == Frame("(anonymous namespace)::poll", "liba.so", 0, True)


def test_glue_is_left_out() -> None:
    glue = (
        py("Module._call_impl", "torch/nn/modules/module.py"),
        py("wrapper", "torch/distributed/c10d_logger.py"),
        Frame("Thread.run", "/usr/lib/python3.11/threading.py", 1),
        native("_PyEval_EvalFrameDefault", "/usr/lib/libpython3.11.so.1.0"),
        native("??"),
    )
    assert stack((*glue, *TRAIN)) == stack(TRAIN)
