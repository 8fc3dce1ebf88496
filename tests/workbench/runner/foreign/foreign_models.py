"""Models of other libraries and of users, what they compute in FP64, and what they hold."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from workbench.runner.foreign.probe import InDouble
from workbench.runner.toggles import all_toggles
from workbench.runner.user_models import user_model
from workbench.runner.user_models.user_model import OwnConfig, OwnModel
from workbench.runner.variants.build import Precedence

PLAIN = Path(__file__).parents[3] / "examples" / "own_plain.py"
PATCHES = [name for name, toggle in all_toggles().items() if toggle.brings]


def built(source: str) -> tuple[OwnModel, list[Any]]:
    """Return a model in FP64 with other weights than its initial ones, and a batch for it."""
    config = OwnConfig(source=source)
    parts = user_model.load(config, 1)
    model = OwnModel(parts.module.double(), parts.loss, parts.sources)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
            parameter.add_(noise, alpha=0.05)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return model, [parts.make_inputs(2)]


class _Patched:
    """Stands for a build that collects transforms."""

    def __init__(self) -> None:
        self.transforms: list[Any] = []
        self.kernel_choices: dict[str, str] = {}

    def choose_kernel(self, operator: str, implementation: str, precedence: Precedence) -> None:
        self.kernel_choices[operator] = implementation


def patch(model: OwnModel, *names: str) -> None:
    """Apply toggles to a model in the given order."""
    build: Any = _Patched()
    for name in names:
        all_toggles()[name].apply("on", build)
    for transform in build.transforms:
        transform(model)


def unpatch(model: OwnModel) -> None:
    """Undo all patches, the last one first."""
    for name in reversed(list(model.patches)):
        model.patches.pop(name).undo()


@contextlib.contextmanager
def in_double() -> Iterator[None]:
    """Compute in FP64 also where code asks for FP32; experts of transformers by their own code."""
    with InDouble():
        yield


def results(model: OwnModel, batch: list[Any]) -> list[Tensor]:
    """Return all outputs, the loss and all gradients."""
    for module in model.modules():
        config = getattr(module, "config", None)
        if hasattr(config, "_experts_implementation"):
            config._experts_implementation = "eager"  # grouped products know no FP64
    model.zero_grad(set_to_none=True)
    with in_double():
        output = model(*batch)
        loss = model.own_loss(output, *batch) if "loss" not in vars(model) else model.loss(*batch)
    loss.backward()
    first = output if isinstance(output, Tensor) else output.logits
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    return [first.detach(), loss.detach(), *gradients]


def assert_agree(first: list[Tensor], second: list[Tensor], tolerance: float = 1e-9) -> None:
    assert len(first) == len(second)
    for x, y in zip(first, second, strict=True):
        assert x.dtype == y.dtype == torch.float64 and x.shape == y.shape
        size = float(x.abs().max()) if x.numel() else 0.0
        assert float((x - y).abs().max()) <= tolerance * max(size, 1e-3), (x, y)


def contents(model: nn.Module) -> dict[str, Any]:
    """Return everything that modules and their configurations hold, by path, as identities."""
    values: dict[str, Any] = {}
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            key = f"{path}:{name}"
            values[key] = list(value.items()) if isinstance(value, dict) else value
        values[f"{path}:class"] = (type(module), dict(vars(type(module))))
        config = getattr(module, "config", None)
        if hasattr(config, "__dict__"):
            values[f"{path}:config"] = (id(config), dict(vars(config)))
    return values
