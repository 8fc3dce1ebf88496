"""Initial weights that depend only on the seed, not on device, dtype or order of drawing.

Every parameter has its own generator, seeded by the seed and its name, on the CPU in FP32; it is
cast and moved afterwards. Independent generators also let the drawing use all cores.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

MARKS = ("no_weight_decay",)  # attributes of a parameter that outlive its tensor


def keep_marks(old: nn.Parameter, new: nn.Parameter) -> nn.Parameter:
    """Copy the marks of the replaced parameter to ``new``."""
    for mark in MARKS:
        if hasattr(old, mark):
            setattr(new, mark, getattr(old, mark))
    return new


class Sparing(nn.Module):
    """Module with parameters, named by ``spared``, that an optimizer must not decay.

    They are marked again whenever other parameters replace them: in a copy, a file, a load that
    assigns.
    """

    spared: ClassVar[tuple[str, ...]] = ()

    def register_parameter(self, name: str, param: nn.Parameter | None) -> None:
        """Register like torch, and mark it; every assignment of a parameter comes here."""
        super().register_parameter(name, param)
        if name in self.spared and param is not None:
            param.no_weight_decay = True  # type: ignore[attr-defined]

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for name in self.spared:
            self._parameters[name].no_weight_decay = True  # type: ignore[union-attr]


def keep_dtypes(module: nn.Module, before: Mapping[str, Tensor]) -> None:
    """Restore the dtypes and values ``before`` a cast to the buffers of a module."""
    for name, original in before.items():
        moved = getattr(module, name)
        if moved.dtype != original.dtype:
            setattr(module, name, original.to(moved.device))


def started(module: nn.Module) -> None:
    """Draw the parameters of a module that is built alone, from torch's global seed.

    A part of a family's model is built on the meta device and drawn with the model: nothing happens
    here.
    """
    first = next(module.parameters())
    if not first.is_meta:
        seed = int(torch.randint(2**62, (), device="cpu"))
        initialise(module, first.device, first.dtype, seed)


# Returns the replacement of a parameter, given its name in the state dict and the parameter.
Take = Callable[[str, nn.Parameter], nn.Parameter]


def initialise(
    model: nn.Module,
    device: torch.device,
    dtype: torch.dtype,
    seed: int,
    take: Take = lambda name, parameter: parameter,
) -> None:
    """Replace the parameters of ``model`` by new ones on ``device``.

    ``take`` gets each one as soon as it is drawn, from any thread, and returns what to keep. Raises
    ``TypeError`` if a module owns parameters but has no initial values for them.
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
        old = getattr(module, name)
        value = module.initial(name, old.shape, generator)
        new = keep_marks(old, nn.Parameter(value.to(device=device, dtype=dtype)))
        return take(qualified.removeprefix("."), new)

    # Drawing releases the interpreter lock; more threads than this only hold more FP32 copies.
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        for (module, name, _), parameter in zip(owners, pool.map(draw, owners), strict=True):
            setattr(module, name, parameter)
