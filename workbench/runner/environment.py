"""The environment that a session records: hardware, driver, versions."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import shutil

import torch

from kernels import hardware
from sessions.model import SAMPLING
from workbench.runner.instruments.host_facts import cpu_name, host_facts
from workbench.runner.instruments.host_facts import host as host
from workbench.runner.instruments.samplers import sensors

OPTIONAL = (
    "flash-attn",
    "flash-attn-4",
    "xformers",
    "torchao",
    "bitsandbytes",
    "liger-kernel",
    "fla-core",
    "quack-kernels",
    "mamba-ssm",
    "transformers",
)


def environment(device: torch.device) -> dict[str, str]:
    """Return the facts of this machine that a measurement may depend on, as text by name."""
    facts = {
        "device": device_name(device),
        "torch": str(torch.__version__),
        "torch_threads": str(torch.get_num_threads()),
        **host_facts(),
    }
    for package in ("triton", "numpy", *OPTIONAL):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            facts[package] = importlib.metadata.version(package)
    if path := compiler(device):
        facts["compiler"] = path
    if device.type == "cuda":
        facts |= _gpu_facts(device)
    return facts | {f"{SAMPLING}{name}": sampling for name, sampling in sensors(device).items()}


def device_name(device: torch.device) -> str:
    """Return the model of the GPU, or of the CPU."""
    return cpu_name() if device.type == "cpu" else hardware.of(device).name


def compiler(device: torch.device) -> str:
    """Return the compiler of Triton (C) or, on the CPU, of torch.compile (C++); empty if none."""
    gpu = device.type == "cuda"
    names = (os.environ.get("CC", ""), "gcc", "clang") if gpu else ("g++", "clang++", "c++")
    return next(filter(None, map(shutil.which, names)), "")


def driver(device: torch.device) -> str:
    """Return the version of the GPU's driver; empty on the CPU, and if it is unknown."""
    if device.type != "cuda":
        return ""
    import pynvml

    with contextlib.suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    return ""


def _gpu_facts(device: torch.device) -> dict[str, str]:
    gpu = hardware.of(device)
    facts = {
        "gpu": gpu.name,
        "capability": ".".join(map(str, gpu.capability)),
        "gpu_memory_bytes": str(gpu.total_bytes),
        "cuda": torch.version.cuda or "none",
        "cudnn": str(torch.backends.cudnn.version()),
    }
    import pynvml

    with contextlib.suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        facts["driver"] = driver(device)
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        clock = pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_SM)
        facts["gpu_max_sm_clock_mhz"] = str(clock)
        limit = pynvml.nvmlDeviceGetEnforcedPowerLimit(handle)
        facts["gpu_power_limit_w"] = f"{limit / 1000:.0f}"
    return facts
