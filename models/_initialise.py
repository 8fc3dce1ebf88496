"""The same starting weights for a seed, whatever the device, the dtype and the order of drawing.

Every parameter has a generator of its own, seeded by the seed and its name, on the CPU in FP32;
only then it is cast and moved. Independent generators also let the drawing use all cores.
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
    """``new`` with the marks of the parameter whose place it takes."""
    for mark in MARKS:
        if hasattr(old, mark):
            setattr(new, mark, getattr(old, mark))
    return new


class Sparing(nn.Module):
    """A module of which an optimizer shall not decay the parameters that ``spared`` names.

    They are marked again wherever others take their place: in a copy, a file, a load that assigns.
    """

    spared: ClassVar[tuple[str, ...]] = ()

    def register_parameter(self, name: str, param: nn.Parameter | None) -> None:
        """As torch's, which every assignment of a parameter goes through."""
        super().register_parameter(name, param)
        if name in self.spared and param is not None:
            param.no_weight_decay = True  # type: ignore[attr-defined]

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for name in self.spared:
            self._parameters[name].no_weight_decay = True  # type: ignore[union-attr]


def keep_dtypes(module: nn.Module, before: Mapping[str, Tensor]) -> None:
    """Give the buffers of a module that was cast the dtypes and values that they had ``before``."""
    for name, held in before.items():
        moved = getattr(module, name)
        if moved.dtype != held.dtype:
            setattr(module, name, held.to(moved.device))


def started(module: nn.Module) -> None:
    """Draw the parameters of a module that is built by itself, from torch's global seed.

    A part of a family's model is built on the meta device and drawn with the whole: nothing here.
    """
    first = next(module.parameters())
    if not first.is_meta:
        seed = int(torch.randint(2**62, (), device="cpu"))
        initialise(module, first.device, first.dtype, seed)


# Of a parameter's name in the state dict and the parameter: the one to stand in its place.
Take = Callable[[str, nn.Parameter], nn.Parameter]


def initialise(
    model: nn.Module,
    device: torch.device,
    dtype: torch.dtype,
    seed: int,
    take: Take = lambda name, parameter: parameter,
) -> None:
    """Replace the parameters of ``model``, whatever they hold, by new ones on ``device``.

    ``take`` is handed each as soon as it is drawn, from any thread, and decides what stays. Raises
    ``TypeError`` where a module owns parameters but does not say how they start.
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
