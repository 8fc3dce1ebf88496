"""MAHIA-X's model: a tower of text blocks, one for the table, a memory and a fabric of layers."""

# Shapes: B batch, S tokens, E text width, F tabular features, D fused width, M memory slots, C
# outputs.

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import kernels
from models.configs.mahia import MahiaConfig, check
from models.configs.setting import check_fields
from models.errors import ConfigurationError
from models.execution.compiled import compiled
from models.initialisation import started
from models.language_model import BlockOutput
from models.layers.attention import RotaryCache
from models.layers.basic import Embedding, Linear, RMSNorm, SwiGLUMLP, mlp_width, residual_std
from models.layers.expert_mlp import ExpertMLP
from models.layers.graph_memory import GraphDiffusionMemory, normalised_entropy
from models.layers.meta_attention import MetaAttentionKernel
from models.layers.neuro_fabric import DynamicNeuroFabric, depth_shares
from models.model import Model

BALANCE_WEIGHT = 0.01  # arXiv 2101.03961, section 2.2


class TextBlock(nn.Module):
    """Block ``x += meta_attention(norm(x)); x += mlp(norm(x))``, (B, S, E) -> (B, S, E)."""

    def __init__(self, config: MahiaConfig, rotary: RotaryCache) -> None:
        super().__init__()
        dim, hidden = config.embed_dim, mlp_width(config.embed_dim, config.mlp_ratio)
        std_out = residual_std(config.n_layers)
        self.attention_norm = RMSNorm(dim, config.norm_eps)
        self.attention = MetaAttentionKernel(
            dim,
            config.use_fourier,
            n_heads=config.n_heads,
            causal=config.causal,
            rotary=rotary,
            std_out=std_out,
        )
        self.mlp_norm = RMSNorm(dim, config.norm_eps)
        self.mlp: nn.Module
        if config.use_moe:
            self.mlp = ExpertMLP(dim, hidden, config.n_experts, config.expert_top_k, std_out)
        else:
            self.mlp = SwiGLUMLP(dim, hidden, std_out)

    def forward(self, x_BSE: Tensor) -> BlockOutput:
        """Return the tokens, the experts' balancing loss, the mean Fourier gate of each head."""
        y_BSE, gate_BSH = self.attention.gated(self.attention_norm(x_BSE))
        x_BSE = x_BSE + y_BSE
        loss, measured = None, {}
        if gate_BSH is not None:
            measured["fourier_gate"] = gate_BSH.detach().float().mean((0, 1))
        output = self.mlp(self.mlp_norm(x_BSE))
        if isinstance(self.mlp, ExpertMLP):
            output, balance, measured["expert_share"] = output
            loss = BALANCE_WEIGHT * balance
        return BlockOutput(x_BSE + output, loss, measured)


class HybridEfficientModel(Model):
    """Model from text and table to outputs; ``models.mahia`` describes it.

    Parameters are the fields of ``MahiaConfig``. Built alone, it draws its weights from torch's
    global seed. Raises ``ConfigurationError``.
    """

    def __init__(
        self,
        vocab_size: int,
        text_seq_len: int,
        tab_dim: int,
        output_dim: int,
        embed_dim: int,
        tab_hidden_dim: int,
        fused_dim: int,
        use_moe: bool = False,
        **config_options: Any,
    ) -> None:
        super().__init__()
        self.config = config = MahiaConfig(
            vocab_size=vocab_size,
            text_seq_len=text_seq_len,
            tab_dim=tab_dim,
            output_dim=output_dim,
            embed_dim=embed_dim,
            tab_hidden_dim=tab_hidden_dim,
            fused_dim=fused_dim,
            use_moe=use_moe,
            **config_options,
        )
        check_fields("mahia", MahiaConfig, config)
        check(config)
        eps = config.norm_eps
        rotary = RotaryCache(embed_dim // config.n_heads, text_seq_len, config.rope_theta)
        self.embedding = Embedding(vocab_size, embed_dim)
        self.blocks = nn.ModuleList(TextBlock(config, rotary) for _ in range(config.n_layers))
        self.text_norm = RMSNorm(embed_dim, eps)
        # Unlike the blocks' input, a table's numbers are not normalised: its towers keep variance.
        self.table_in = Linear(tab_dim, tab_hidden_dim, tab_dim**-0.5, bias=True)
        self.table_out = Linear(tab_hidden_dim, tab_hidden_dim, tab_hidden_dim**-0.5, bias=True)
        self.table_norm = RMSNorm(tab_hidden_dim, eps)
        joined = embed_dim + tab_hidden_dim
        self.fuse = Linear(joined, fused_dim, joined**-0.5, bias=True)
        self.memory_norm = RMSNorm(fused_dim, eps)
        self.memory = GraphDiffusionMemory(
            fused_dim,
            config.memory_size,
            steps=config.diffusion_steps,
            alpha=config.diffusion_alpha,
            top_k=config.memory_top_k,
        )
        self.fabric = DynamicNeuroFabric(
            fused_dim,
            config.max_layers,
            capacity=config.capacity,
            mlp_ratio=config.mlp_ratio,
            norm_eps=eps,
        )
        self.norm = RMSNorm(fused_dim, eps)
        self.head = Linear(fused_dim, output_dim, bias=True)
        shapes = {
            "layers_used": (1, config.max_layers + 1),
            "fabric_gate": (1, config.max_layers),
            "memory_entropy": (1, 1),
        }
        if config.use_fourier:
            shapes["fourier_gate"] = (config.n_layers, config.n_heads)
        if config.use_moe:
            shapes["expert_share"] = (config.n_layers, config.n_experts)
        self.declare_metrics(shapes)
        started(self)

    def forward(self, tokens_BS: Tensor, tabular_BF: Tensor) -> Tensor:
        """Return class logits or predicted numbers (B, C) for (B, S) int64 and (B, F)."""
        return self._outputs(tokens_BS, tabular_BF)[0]

    def loss(self, tokens_BS: Tensor, tabular_BF: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss, [], in FP32 (FP64 for FP64), with the experts' balancing loss.

        Classification: cross-entropy of ``targets`` (B,) int64 in nats; regression: mean squared
        error of (B, C).
        """
        outputs_BC, balance = self._outputs(tokens_BS, tabular_BF)
        outputs_BC = outputs_BC.to(torch.promote_types(outputs_BC.dtype, torch.float32))
        if self.config.task == "classification":
            loss = functional.cross_entropy(outputs_BC, targets)
        else:
            loss = functional.mse_loss(outputs_BC, targets.to(outputs_BC.dtype))
        return loss if balance is None else loss + balance

    def query(self, tokens_BS: Tensor, tabular_BF: Tensor) -> Tensor:
        """Return the memory's query (B, D) for (B, S) int64 and (B, F).

        ``model.memory.update(model.query(tokens, tabular))`` writes a batch into the memory.
        """
        return self._towers(tokens_BS, tabular_BF)[1]

    def enable_torch_compile(
        self,
        mode: str = "max-autotune",
        *,
        batch: int = 2,
        backend: str | Callable[..., Any] = "inductor",
    ) -> Callable[[Tensor, Tensor], Tensor]:
        """Compile the forward pass as one graph: a function of tokens (B, S) and features (B, F).

        It is compiled here, for ``batch`` texts of full length, with the backward pass if gradients
        are on, so that a failure is raised here: ``CompilationFailed``, whose sentence names the
        fallback. The model itself stays uncompiled. Raises ``ConfigurationError`` for an unknown
        mode.
        """
        weight, config = self.embedding.weight, self.config
        shape, device = (batch, config.text_seq_len), weight.device
        tokens_BS = torch.zeros(shape, dtype=torch.int64, device=device)
        tabular_BF = torch.zeros(batch, config.tab_dim, dtype=weight.dtype, device=device)
        forward = types.MethodType(kernels.own_code(HybridEfficientModel.forward), self)
        return compiled(self, forward, (tokens_BS, tabular_BF), mode, backend)

    def _outputs(self, tokens_BS: Tensor, tabular_BF: Tensor) -> tuple[Tensor, Tensor | None]:
        x_BD, query_BD, balance = self._towers(tokens_BS, tabular_BF)
        y_BD, retrieval_BM = self.memory.read(query_BD)
        self.record("memory_entropy", 0, normalised_entropy(retrieval_BM))
        x_1BD, depth_1B, weights_L = self.fabric.routed((x_BD + y_BD)[None])
        self.record("layers_used", 0, depth_shares(depth_1B, self.config.max_layers))
        self.record("fabric_gate", 0, weights_L)
        return self.head(self.norm(x_1BD[0])), balance

    def _towers(
        self, tokens_BS: Tensor, tabular_BF: Tensor
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the fused vector, the same normalised, and the experts' balancing loss."""
        self._check_shapes(tokens_BS, tabular_BF)
        x_BSE, balance = self._text(tokens_BS)
        text_BE = self.text_norm(x_BSE.mean(1))
        hidden = functional.silu(self.table_in(tabular_BF.to(self.embedding.weight.dtype)))
        table_BH = self.table_norm(self.table_out(hidden).to(text_BE.dtype))
        x_BD = self.fuse(torch.cat([text_BE, table_BH], -1)).to(text_BE.dtype)
        return x_BD, self.memory_norm(x_BD), balance

    def _text(self, tokens_BS: Tensor) -> tuple[Tensor, Tensor | None]:
        x_BSE, balance = self.embedding(tokens_BS), None
        checkpointed = self.choose_checkpointed(len(self.blocks))
        for index, block in enumerate(self.blocks):
            output = self.recomputed(block, x_BSE) if checkpointed[index] else block(x_BSE)
            x_BSE = output.x
            if output.loss is not None:
                balance = output.loss if balance is None else balance + output.loss
            for name, values in output.measured.items():
                self.record(name, index, values)
        return x_BSE, balance

    def _check_shapes(self, tokens_BS: Tensor, tabular_BF: Tensor) -> None:
        config = self.config
        if (
            tokens_BS.dim() != 2
            or len(tokens_BS) < 1
            or not 1 <= tokens_BS.shape[1] <= config.text_seq_len
            or tabular_BF.shape != (tokens_BS.shape[0], config.tab_dim)
        ):
            raise ConfigurationError(
                f"mahia: expected tokens (B, T) with B at least 1 and T from 1 to text_seq_len = "
                f"{config.text_seq_len} and features (B, {config.tab_dim}), got "
                f"{tuple(tokens_BS.shape)} and {tuple(tabular_BF.shape)}"
            )
