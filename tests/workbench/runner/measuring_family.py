"""A family whose inputs are no tokens, that measures itself, and whose parts can be left out.

Two inputs, features (B, S, E) and one scale a sample (B); the targets are classes (B).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from models import ConfigurationError, Costs, Family, Metric, Model
from models.configs.setting import setting
from models.layers.basic import Linear

CLASSES = 3


@dataclass(frozen=True, kw_only=True)
class MeasuringConfig:
    """The sizes; ``use_fourier`` is a field that a toggle of the runner sets."""

    dim: int = setting(8, "Width", "Features.", minimum=2, maximum=1024)
    n_layers: int = setting(2, "Layers", "Linears.", minimum=1, maximum=8)
    use_fourier: bool = setting(False, "Fourier", "One more linear.")
    attention_every: int = setting(0, "Attention", "One more bias, unless 0.", minimum=0, maximum=4)


class MeasuringModel(Model):
    """``mean`` is the mean of each linear's input features, ``calls`` counts the calls."""

    def __init__(self, config: MeasuringConfig) -> None:
        super().__init__()
        width = config.dim
        self.linears = torch.nn.ModuleList(Linear(width, width) for _ in range(config.n_layers))
        self.fourier = Linear(width, width) if config.use_fourier else None
        self.attention = Linear(width, width) if config.attention_every else None
        self.head = Linear(width, CLASSES)
        self.declare_metrics({"mean": (config.n_layers, width), "calls": (1, 1)})

    def forward(self, x_BSE: Tensor, scale_B: Tensor) -> Tensor:
        """(B, S, E), (B) -> (B, 3)."""
        x_BSE = x_BSE * scale_B[:, None, None]
        for row, linear in enumerate(self.linears):
            self.record("mean", row, x_BSE.float().mean((0, 1)))
            x_BSE = x_BSE + linear(x_BSE)
        if self.fourier is not None:
            x_BSE = x_BSE + self.fourier(x_BSE)
        if self.attention is not None:
            x_BSE = x_BSE + self.attention(x_BSE)
        self.record("calls", 0, self.metrics()["calls"][0] + 1)
        return self.head(x_BSE.mean(1))

    def loss(self, x_BSE: Tensor, scale_B: Tensor, class_B: Tensor) -> Tensor:
        """Cross-entropy, []."""
        return functional.cross_entropy(self(x_BSE, scale_B).float(), class_B)


def _check(config: MeasuringConfig) -> None:
    if config.attention_every > config.n_layers:
        raise ConfigurationError(
            f"measuring: attention_every = {config.attention_every} is more than n_layers = "
            f"{config.n_layers}"
        )


def _costs(config: MeasuringConfig) -> Costs:
    square = config.dim**2
    linears = config.n_layers + config.use_fourier + bool(config.attention_every)
    numbers: Mapping[str, int] = dict.fromkeys(
        (
            "score_width", "cached_per_token", "saved_stream_per_token", "saved_fp32_per_token",
            "unfused_per_token", "table_bytes",
        ),
        0,
    )  # fmt: skip
    return Costs(
        parameters=linears * square + CLASSES * config.dim,
        n_layers=config.n_layers,
        dim=config.dim,
        rows=CLASSES,
        matmul_per_token=linears * square,
        saved_per_token=config.dim,
        **numbers,
    )


def _draw(
    config: MeasuringConfig, batch: int, sequence: int, generator: torch.Generator
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Features around their own number, so that ``mean`` is known; the first tells the class."""
    noise_BSE = 0.01 * torch.randn(batch, sequence, config.dim, generator=generator)
    class_B = torch.randint(CLASSES, (batch,), generator=generator)
    x_BSE = noise_BSE + torch.arange(config.dim)
    x_BSE[..., 0] += 10 * (class_B[:, None] - 1)
    return (x_BSE, torch.ones(batch)), (class_B,)


FAMILY = Family(
    name="measuring",
    title="Measuring",
    help=__doc__ or "",
    config=MeasuringConfig,
    presets={"tiny": MeasuringConfig()},
    suggestions={"tiny": {"cpu": (4, 3)}},
    construct=MeasuringModel,
    check=_check,
    costs=_costs,
    workloads=("forward", "train"),
    first_choice="tiny",
    metrics=(
        Metric(
            name="mean",
            title="Mean input",
            unit="",
            help="The mean of each feature, which is its number.",
            rows="linear",
            columns="feature",
        ),
        Metric(name="calls", title="Calls", unit="calls", help="Forward passes so far.", rows=""),
    ),
    draw=_draw,
)
