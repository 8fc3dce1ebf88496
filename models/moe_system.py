"""Stack of mixture-of-experts blocks for vectors instead of tokens.

Shapes: B batch, T sequence, I input width, O output width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.configs.moe import MoEConfig, check_blocks
from models.configs.setting import check_fields
from models.errors import ConfigurationError
from models.initialisation import initialise
from models.layers.basic import Linear, RMSNorm
from models.layers.mixture import make_blocks
from models.model import Model


def validate(config: MoEConfig) -> None:
    """Raise ``ConfigurationError`` unless a system of this configuration can be built."""
    check_fields("moe", MoEConfig, config)
    check_blocks(config)


class MixtureOfExpertsSystem(Model):
    """Blocks of causal attention and experts, (B, T, input_dim) -> (B, T, output_dim).

    Weights are drawn from torch's global seed, on the current default device. The blocks' balancing
    losses are in ``loss``, and ``forward_with_loss`` gives their sum beside the result. Raises
    ``ConfigurationError`` before anything is allocated.
    """

    def __init__(self, config: MoEConfig) -> None:
        validate(config)
        super().__init__()
        self.config = config
        device = torch.empty(0).device
        output_dim = config.output_dim or config.input_dim
        with torch.device("meta"):
            self.blocks = nn.ModuleList(make_blocks(config))
            self.norm = RMSNorm(config.input_dim, config.norm_eps)
            project = output_dim != config.input_dim
            self.out = Linear(config.input_dim, output_dim) if project else None
        columns = self.blocks[0].measures
        self.declare_metrics({name: (config.n_layers, count) for name, count in columns.items()})
        if device.type != "meta":
            seed = int(torch.randint(2**62, (), device="cpu"))
            initialise(self, device, torch.get_default_dtype(), seed)
        for module in self.modules():
            if hasattr(module, "rebuild_buffers"):
                module.rebuild_buffers(device)

    def forward(self, x_BTI: Tensor) -> Tensor:
        """Compute (B, T, I) -> (B, T, O)."""
        return self.forward_with_loss(x_BTI)[0]

    def forward_with_loss(self, x_BTI: Tensor) -> tuple[Tensor, Tensor]:
        """Return the result (B, T, O), and the sum of the blocks' balancing losses, [] in FP32.

        Raises ``ConfigurationError`` for another shape, or nothing to compute.
        """
        width = self.config.input_dim
        if x_BTI.dim() != 3 or x_BTI.shape[2] != width or 0 in x_BTI.shape:
            raise ConfigurationError(
                f"moe: expected (B, T, {width}) with B and T at least 1, got {tuple(x_BTI.shape)}"
            )
        total = x_BTI.new_zeros((), dtype=torch.promote_types(x_BTI.dtype, torch.float32))
        chosen = self.choose_checkpointed(len(self.blocks))
        for row, block in enumerate(self.blocks):
            drawn = block.draw(x_BTI)
            run = self.recomputed if chosen[row] else nn.Module.__call__
            x_BTI, loss, measured = run(block, x_BTI, None, None, *drawn)
            total = total if loss is None else total + loss
            for name, values in measured.items():
                self.record(name, row, values)
        y_BTI = self.norm(x_BTI)
        return y_BTI if self.out is None else self.out(y_BTI), total

    def loss(self, x_BTI: Tensor, target_BTO: Tensor) -> Tensor:
        """Return the mean squared error plus the balancing losses, []."""
        y_BTO, auxiliary = self.forward_with_loss(x_BTI)
        return functional.mse_loss(y_BTO.to(auxiliary.dtype), target_BTO) + auxiliary
