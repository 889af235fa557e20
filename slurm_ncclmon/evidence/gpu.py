"""What the GPUs of a node say of themselves, through NVML (nvidia-ml-py, an optional package).

A stuck driver lets NVML calls sleep for ever, so they are made in a child process that is left behind when it does not answer.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from pathlib import Path
from typing import Any, Callable

import msgspec

from slurm_ncclmon.evidence.bounded import run_bounded
from slurm_ncclmon.evidence.model import GpuReport

DEVICE_FILE = Path("/dev/nvidiactl")

_THROTTLES = (
    ("nvmlClocksThrottleReasonHwSlowdown", "hardware slowdown"),
    ("nvmlClocksThrottleReasonHwThermalSlowdown", "hardware thermal slowdown"),
    ("nvmlClocksThrottleReasonHwPowerBrakeSlowdown", "hardware power brake"),
    ("nvmlClocksThrottleReasonSwThermalSlowdown", "thermal slowdown"),
    ("nvmlClocksThrottleReasonSwPowerCap", "power cap"),
    ("nvmlClocksThrottleReasonSyncBoost", "sync boost"),
)


def ask_gpus(seconds: float) -> tuple[tuple[GpuReport, ...], tuple[str, ...]]:
    """The node's GPUs as far as this step may see them, and sentences on what went wrong."""
    if not DEVICE_FILE.exists():
        return (), ()
    try:
        ran = run_bounded([sys.executable, "-I", "-m", "slurm_ncclmon.evidence.gpu"], seconds, grace_s=0.2)
    except OSError as error:
        return (), (f"GPUs: {error}",)
    if ran.rc is None:
        return (), (
            f"GPUs: no answer from the NVIDIA driver in {seconds:.0f} s; it may be stuck (look for Xid in dmesg)",
        )
    if ran.rc != 0:
        return (), (f"GPUs: {ran.stderr.strip().splitlines()[-1] if ran.stderr.strip() else 'NVML failed'}",)
    with contextlib.suppress(msgspec.MsgspecError):
        return tuple(msgspec.json.decode(ran.stdout, type=list[GpuReport])), ()
    return (), ("GPUs: NVML's answer could not be read",)


def read_gpus(nvml: Any) -> list[GpuReport]:
    """Every GPU through `nvml`, the module pynvml or an object like it. Raises its NVMLError when it has no driver."""
    nvml.nvmlInit()
    try:
        return [_read_gpu(nvml, index) for index in range(nvml.nvmlDeviceGetCount())]
    finally:
        nvml.nvmlShutdown()


def _read_gpu(nvml: Any, index: int) -> GpuReport:
    problems: list[str] = []

    def value(function: Callable[..., Any], *arguments: Any, scale: float = 1.0) -> float | None:
        answer = _attempt(nvml, function, arguments, problems)
        return None if answer is None else round(float(answer) * scale, 3)

    try:
        gpu = nvml.nvmlDeviceGetHandleByIndex(index)
    except nvml.NVMLError as error:  # "GPU is lost"
        return GpuReport(index=index, uuid="", name="", problem=str(error))
    utilisation = _attempt(nvml, nvml.nvmlDeviceGetUtilizationRates, (gpu,), problems)
    uncorrected = value(
        nvml.nvmlDeviceGetTotalEccErrors, gpu, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
    )
    return GpuReport(
        index=index,
        uuid=_word(_attempt(nvml, nvml.nvmlDeviceGetUUID, (gpu,), problems)),
        name=_word(_attempt(nvml, nvml.nvmlDeviceGetName, (gpu,), problems)),
        utilisation=None if utilisation is None else float(utilisation.gpu),
        power_w=value(nvml.nvmlDeviceGetPowerUsage, gpu, scale=0.001),
        power_limit_w=value(nvml.nvmlDeviceGetEnforcedPowerLimit, gpu, scale=0.001),
        sm_clock_mhz=value(nvml.nvmlDeviceGetClockInfo, gpu, nvml.NVML_CLOCK_SM),
        temperature_c=value(nvml.nvmlDeviceGetTemperature, gpu, nvml.NVML_TEMPERATURE_GPU),
        throttle=_throttle(nvml, _attempt(nvml, nvml.nvmlDeviceGetCurrentClocksThrottleReasons, (gpu,), problems)),
        ecc_uncorrected=None if uncorrected is None else int(uncorrected),
        pids=tuple(
            sorted(
                process.pid
                for process in _attempt(nvml, nvml.nvmlDeviceGetComputeRunningProcesses, (gpu,), problems) or ()
            )
        ),
        problem="; ".join(dict.fromkeys(problems)),
    )


def _attempt(nvml: Any, function: Callable[..., Any], arguments: tuple[Any, ...], problems: list[str]) -> Any:
    """The call's answer; None where this GPU has no such value, with a word among the problems where it should have one."""
    try:
        return function(*arguments)
    except nvml.NVMLError as error:
        if getattr(error, "value", None) not in (nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_NO_PERMISSION):
            problems.append(str(error))
        return None


def _throttle(nvml: Any, reasons: int | None) -> tuple[str, ...]:
    return tuple(text for name, text in _THROTTLES if (reasons or 0) & getattr(nvml, name, 0))


def _word(text: Any) -> str:
    return text.decode(errors="replace") if isinstance(text, bytes) else str(text or "")


def main() -> int:
    """The child process: GpuReports as JSON on standard output."""
    try:
        pynvml = importlib.import_module("pynvml")  # optional, and only in this child
    except ImportError:
        sys.stderr.write(
            "nvidia-ml-py is not installed beside ncclmon: no GPU facts (pip install 'slurm-ncclmon[gpu]')\n"
        )
        return 1
    try:
        sys.stdout.write(msgspec.json.encode(read_gpus(pynvml)).decode())
    except pynvml.NVMLError as error:
        sys.stderr.write(f"NVML: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
