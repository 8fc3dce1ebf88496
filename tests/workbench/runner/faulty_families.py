"""Families whose models misbehave in the ways that models do, at a call of one's choice."""

from __future__ import annotations

import ctypes
import dataclasses
import faulthandler
import os
import signal
import time
from collections import Counter
from dataclasses import dataclass

import torch

import models
from models import LanguageModel, hydra
from models.configs.setting import setting

print("a library greets on import")
os.write(1, b"and writes to descriptor 1\n")


def _print() -> None:
    print("printed in forward")
    os.write(1, b'{"type":"note","kind":"error","text":"forged"}\n')
    libc = ctypes.CDLL(None)
    libc.puts(b"printed by C in forward")
    libc.fflush(None)


def _raise() -> None:
    raise KeyError("a key\nand a second line")


def _out_of_gpu_memory() -> None:
    raise torch.OutOfMemoryError(
        "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 139.80 GiB "
        "of which 3.21 GiB is free.\nMore advice."
    )


def _out_of_host_memory() -> None:
    torch.empty(2**50)


def _lost_context() -> None:
    raise RuntimeError("CUDA error: an illegal memory access was encountered\nMore advice.")


def _fill_the_gpu() -> None:
    torch.empty(2**46, dtype=torch.uint8, device="cuda")


def _read_out_of_bounds() -> None:
    rows = torch.zeros(4, device="cuda")
    rows[torch.tensor([9], device="cuda")]


def _keep_the_gpu_busy() -> None:
    torch.cuda._sleep(2**50)  # cycles: some days


def _hang() -> None:
    time.sleep(3600)


def _hang_deafly() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(3600)


FAULTS = {
    "none": lambda: None,
    "print": _print,
    "raise": _raise,
    "surrogate": lambda: [][int("\udcff")],
    "gpu-memory": _out_of_gpu_memory,
    "host-memory": _out_of_host_memory,
    "lost-context": _lost_context,
    "fill-gpu": _fill_the_gpu,
    "out-of-bounds": _read_out_of_bounds,
    "busy-gpu": _keep_the_gpu_busy,
    "hang": _hang,
    "deaf": _hang_deafly,
    "exit": lambda: os._exit(7),
    "later": _raise,  # of a model that is not the first of its configuration
    "tight": _out_of_gpu_memory,  # of the second such model, and of no other
    "segfault": faulthandler._sigsegv,
    "slow": lambda: time.sleep(0.05),
}


_called: Counter[FaultyConfig] = Counter()  # models; others show what ranks can divide, say


@dataclass(frozen=True, kw_only=True)
class FaultyConfig(hydra.HydraConfig):
    """A very small HYDRA with a fault."""

    fault: str = setting("none", "Fault", "What goes wrong.", choices=tuple(FAULTS))
    call: int = setting(3, "Call", "The forward pass from which on it goes wrong.", minimum=1)


def _construct(config: FaultyConfig) -> LanguageModel:
    model = hydra.construct(config)
    calls, wrong = 0, True

    def misbehave(*_: object) -> None:
        nonlocal calls, wrong
        if not calls:
            _called[config] += 1
            number = _called[config]
            wrong = {"later": number > 1, "tight": number == 2}.get(config.fault, True)
        calls += 1
        if calls >= config.call and wrong:
            FAULTS[config.fault]()

    model.register_forward_pre_hook(misbehave)
    return model


FAMILY = dataclasses.replace(
    hydra.FAMILY,
    name="faulty",
    title="Faulty",
    help=__doc__,
    config=FaultyConfig,
    presets={
        "tiny": FaultyConfig(
            vocabulary=256, dim=16, n_layers=1, n_heads=2, n_kv_heads=1, max_sequence=64
        )
    },
    suggestions={"tiny": {"cpu": (1, 16), "cuda": (1, 16)}},
    construct=_construct,
    first_choice="tiny",
)
models.FAMILIES[FAMILY.name] = FAMILY
