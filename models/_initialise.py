"""The same starting weights for a seed, whatever the device, the dtype and the order of drawing.

Every parameter has a generator of its own, seeded by the seed and its name, on the CPU in FP32;
only then it is cast and moved. Independent generators also let the drawing use all cores.
"""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn


def started(module: nn.Module) -> None:
    """Draw the parameters of a module that is built by itself, from torch's global seed.

    A part of a family's model is built on the meta device and drawn with the whole: nothing here.
    """
    first = next(module.parameters())
    if not first.is_meta:
        seed = int(torch.randint(2**62, (), device="cpu"))
        initialise(module, first.device, first.dtype, seed)


def initialise(model: nn.Module, device: torch.device, dtype: torch.dtype, seed: int) -> None:
    """Replace the parameters of ``model``, whatever they hold, by new ones on ``device``.

    Raises ``TypeError`` where a module owns parameters but does not say how they start.
    """
    owners = [
        (module, name, f"{prefix}.{name}")
        for prefix, module in model.named_modules()
        for name, _ in module.named_parameters(recurse=False)
    ]

    def draw(owner: tuple[nn.Module, str, str]) -> nn.Parameter:
        module, name, qualified = owner
        if not hasattr(module, "initial"):
            kind = type(module).__name__
            raise TypeError(f"{kind} owns the parameter {qualified} but has no initial() for it")
        digest = hashlib.blake2b(f"{seed}:{qualified}".encode(), digest_size=8).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest, "big") >> 1)
        value = module.initial(name, getattr(module, name).shape, generator)
        return nn.Parameter(value.to(device=device, dtype=dtype))

    # Drawing releases the interpreter lock; more threads than this only hold more FP32 copies.
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        for (module, name, _), parameter in zip(owners, pool.map(draw, owners), strict=True):
            setattr(module, name, parameter)
