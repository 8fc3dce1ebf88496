"""Mixture-of-experts layer: a router, SwiGLU experts, and a block of attention and experts.

    y = sum over the k chosen experts of w_e FFN_e(x)  (+ FFN_shared(x))

Routing and experts are ``kernels.moe_gating`` and ``kernels.moe_experts``, which state their
equations; the host never reads how many tokens an expert has. Further parts are

* the balancing loss, a E sum over e of f_e P_e, where f_e is the fraction of all choices for expert
  e and P_e the mean probability that the router gave it: Switch Transformers (arXiv 2101.03961),
  equations 4 to 6, over k choices as in GShard (arXiv 2006.16668). It is ``a`` for even use;
* noisy gating, logits + normal * softplus(x W_noise^T) in training: Shazeer et al. 2017
  (arXiv 1701.06538), equation 4;
* shared experts, one feed-forward network that is as wide as all of them together: DeepSeekMoE
  (arXiv 2401.06066), equation 9;
* a capacity, as an option: per sequence an expert computes only its first ceil(factor S k / E)
  choices in the tokens' order, so that no token depends on a later one, nor on another sequence.

Shapes: B batch, S sequence, E experts, K choices of a token, D model width, F expert width.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

import kernels
from models.configs.moe import MoEConfig
from models.errors import ConfigurationError
from models.initialisation import started
from models.language_model import BlockOutput
from models.layers.attention import Attention, KVState, RotaryCache
from models.layers.basic import INIT_STD, RMSNorm, SwiGLUMLP, residual_std, usable
from models.layers.token_fraction import TokenFraction
from models.parallel.context_parallel import FULL, Context
from models.parallel.expert_parallel import LOCAL, Exchange
from models.parallel.tensor_parallel_plan import WHOLE, Cut, Division, Region, experts_division


class Router(nn.Module):
    """Router of tokens to experts, always in FP32."""

    def __init__(self, config: MoEConfig) -> None:
        super().__init__()
        shape = (config.num_experts, config.input_dim)
        self.k, self.renormalise = config.active_experts, config.renormalise
        self.weight = nn.Parameter(torch.empty(shape))
        noisy = config.gating == "noisy_topk"
        self.noise_weight = nn.Parameter(torch.empty(shape)) if noisy else None

    def initial(self, name: str, shape: torch.Size, generator: Generator) -> Tensor:
        """Draw N(0, 0.02^2); the noise starts equal for all, as in appendix A of the paper."""
        if name == "noise_weight":
            return torch.zeros(shape)
        return torch.empty(shape, dtype=torch.float32).normal_(0.0, INIT_STD, generator=generator)

    def draw(self, x_BSD: Tensor) -> tuple[Tensor, ...]:
        """Draw normal numbers for the noise (B, S, E), from the device's generator.

        Draws none outside of training.
        """
        if self.noise_weight is None or not self.training:
            return ()
        shape = (*x_BSD.shape[:-1], self.noise_weight.shape[0])
        wide = torch.promote_types(x_BSD.dtype, torch.float32)
        return (torch.randn(shape, dtype=wide, device=x_BSD.device),)

    def forward(
        self, x_BSD: Tensor, normal_BSE: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return weights and experts (B, S, K), counts and mean probabilities (E,)."""
        noise_BSE = None
        if normal_BSE is not None:
            assert self.noise_weight is not None
            wide = normal_BSE.dtype
            with kernels.without_autocast(x_BSD):
                loudness_BSE = functional.linear(x_BSD.to(wide), self.noise_weight.to(wide))
                noise_BSE = normal_BSE * functional.softplus(loudness_BSE)
        return kernels.moe_gating(
            x_BSD, self.weight, self.k, renormalise=self.renormalise, noise=noise_BSE
        )


class MixtureOfExperts(nn.Module):
    """Router, experts and shared experts: (B, S, D) -> (B, S, D) with loss and measurements.

    Built alone, it draws its weights from torch's global seed.
    """

    def __init__(self, config: MoEConfig) -> None:
        super().__init__()
        n_experts, dim, width = config.num_experts, config.input_dim, config.hidden_dim
        self.std_out = residual_std(config.n_layers)
        # If every expert computes every token, the balancing loss is a constant.
        self.balance_weight = 0 if config.gating == "dense" else config.load_balance_weight
        factor = config.capacity_factor
        self.capacity = TokenFraction.nearest(factor) if factor else None  # even use is 1
        self.router = Router(config)
        self.gate_up = nn.Parameter(torch.empty(n_experts, 2 * width, dim))
        self.down = nn.Parameter(torch.empty(n_experts, dim, width))
        shared = config.num_shared_experts * width
        self.shared = SwiGLUMLP(dim, shared, self.std_out) if shared else None
        self.measures = {
            "expert_load": n_experts,
            "load_balance": 1,
            "load_entropy": 1,
            "dropped_share": 1,
        }
        # Memory for inference, if it is set; overwritten by each layer that has the same.
        self.workspace: kernels.Workspace | None = None
        self.region: Region = WHOLE
        self.context: Context = FULL
        self.exchange: Exchange = LOCAL
        started(self)

    @property
    def unstaged(self) -> str:
        """Reason why micro-batches would train a different model; empty if they would not."""
        if self.router.noise_weight is not None:
            return "each micro-batch would draw different router noise"
        if self.balance_weight:
            return "the experts' balancing loss needs the full batch, not a mean over micro-batches"
        return ""

    @property
    def unsplit(self) -> str:
        """Reason why ranks cannot split the sequence; empty if they can."""
        if self.router.noise_weight is not None:
            return "each rank would draw different router noise"
        if self.capacity is not None:
            return "an expert's capacity counts the choices of a full sequence"
        return ""

    def division(self) -> Division:
        """Shard by columns of each expert; the router is replicated."""
        return experts_division(self.down, self.router.k)

    def expert_division(self) -> Division:
        """Divide the experts; the router is replicated.

        Per choice of a token a rank saves the row that it sent, the experts' result for it, and the
        same in the order of the tokens.
        """
        n_experts, dim, _ = self.down.shape
        cuts = {"gate_up": Cut(0, (n_experts,)), "down": Cut(0, (n_experts,))}
        return Division("experts", n_experts, cuts, 0, added=3 * self.router.k * dim)

    def initial(self, name: str, shape: torch.Size, generator: Generator) -> Tensor:
        """Draw initial values like those of a dense feed-forward network."""
        std = self.std_out if name == "down" else INIT_STD
        return torch.empty(shape, dtype=torch.float32).normal_(0.0, std, generator=generator)

    def forward(self, x_BSD: Tensor, *drawn: Tensor) -> BlockOutput:
        """Run the layer; ``drawn`` is from the router's ``draw``, which runs here if empty."""
        drawn = drawn or self.router.draw(x_BSD)
        weight_BSK, index_BSK, counts_E, mean_E = self.router(x_BSD, *drawn)
        share_E = self.context.mean(counts_E.to(mean_E.dtype) / index_BSK.numel())
        mean_E = self.context.mean(mean_E)
        balance = len(share_E) * (share_E * mean_E).sum()
        measured = _measured(share_E.detach(), balance.detach())
        if self.training and self.capacity is not None:
            index_BSK = within_capacity(index_BSK, len(share_E), self.capacity)
            measured["dropped_share"] = (index_BSK < 0).float().mean()[None]
        y_BSD = self.exchange.run(
            self._experts, self.region.enter(x_BSD), index_BSK, self.region.common(weight_BSK)
        )
        y_BSD = self.region.leave(y_BSD)
        if self.shared is not None:
            y_BSD = y_BSD + self.shared(x_BSD)
        loss = self.balance_weight * balance if self.balance_weight else None
        return BlockOutput(y_BSD, loss, measured)

    def _experts(self, x: Tensor, index: Tensor, weight: Tensor) -> Tensor:
        """Return the weighted sum of the outputs of this rank's experts."""
        workspace = usable(self.workspace)
        return kernels.moe_experts(
            x, index, weight, self.gate_up, None, self.down, workspace=workspace
        )


def _measured(share_E: Tensor, balance: Tensor) -> dict[str, Tensor]:
    entropy = torch.special.entr(share_E).sum() / math.log(max(len(share_E), 2))
    return {
        "expert_load": share_E,
        "load_balance": balance[None],
        "load_entropy": entropy[None] if len(share_E) > 1 else torch.ones_like(balance)[None],
        "dropped_share": torch.zeros_like(balance)[None],
    }


def within_capacity(index_BSK: Tensor, n_experts: int, factor: TokenFraction) -> Tensor:
    """Return the choices (B, S, K) with -1 where the expert was full."""
    batch, n_tokens, k = index_BSK.shape
    capacity = max(1, factor.times(TokenFraction(k, n_experts)).of(n_tokens))
    index_BA1 = index_BSK.reshape(batch, n_tokens * k, 1)
    chosen_BAE = index_BA1 == torch.arange(n_experts, device=index_BSK.device)
    place_BAE = kernels.running_sum(chosen_BAE, torch.int32)
    place_BSK = place_BAE.gather(2, index_BA1).view_as(index_BSK)
    return torch.where(place_BSK <= capacity, index_BSK, -1)


class StreamBuffer:
    """Memory for the residual stream in inference, allocated once for the largest seen so far."""

    def __init__(self) -> None:
        self._memory = kernels.Workspace()

    def total(self, x: Tensor, y: Tensor) -> Tensor:
        """Compute ``x + y`` in the buffer, where ``x`` may already be."""
        dtype = torch.promote_types(x.dtype, y.dtype)
        return torch.add(x, y, out=self._memory.empty("stream", x.shape, dtype, x.device))


class Block(nn.Module):
    """Block ``x += attention(norm(x)); x += mixture(norm(x))``."""

    def __init__(
        self, config: MoEConfig, rotary: RotaryCache, buffer: StreamBuffer | None = None
    ) -> None:
        super().__init__()
        std_out = residual_std(config.n_layers)
        self.in_place, self.buffer = config.in_place, buffer
        self.placed = 0  # additions so far that used no new memory
        self.attention_norm = RMSNorm(config.input_dim, config.norm_eps)
        self.attention = Attention(
            config.input_dim, config.n_heads, config.n_kv_heads, rotary, std_out, config.window
        )
        self.mixture_norm = RMSNorm(config.input_dim, config.norm_eps)
        self.mixture = MixtureOfExperts(config)
        self.measures = self.mixture.measures

    def new_state(
        self, batch: int, length: int, device: torch.device, dtype: torch.dtype
    ) -> KVState:
        """Return the attention's keys and values."""
        return self.attention.new_state(batch, length, device, dtype)

    def draw(self, x_BSD: Tensor) -> tuple[Tensor, ...]:
        """Draw the random numbers that ``forward`` takes last."""
        return self.mixture.router.draw(x_BSD)

    def forward(
        self,
        x_BSD: Tensor,
        state: KVState | None = None,
        position: Tensor | None = None,
        *drawn: Tensor,
    ) -> BlockOutput:
        """Return (B, S, D) for (B, S, D), the balancing loss, and the measurements."""
        x_BSD = self._add(x_BSD, self.attention(self.attention_norm(x_BSD), state, position))
        output = self.mixture(self.mixture_norm(x_BSD), *drawn)
        return BlockOutput(self._add(x_BSD, output.x), output.loss, output.measured)

    def _add(self, x_BSD: Tensor, y_BSD: Tensor) -> Tensor:
        """Compute ``x + y``, where only this call uses ``y``; a compiler plans memory itself."""
        if torch.compiler.is_compiling() or (self.buffer is None and not self.in_place):
            return x_BSD + y_BSD
        if torch.is_grad_enabled():
            name = "in_place" if self.in_place else "reuse_buffers"
            raise ConfigurationError(
                f"moe: {name} overwrites values that a backward pass needs; switch it off, or "
                "run under torch.no_grad()"
            )
        if self.buffer is None and y_BSD.dtype != x_BSD.dtype:
            return x_BSD + y_BSD
        self.placed += 1
        return y_BSD.add_(x_BSD) if self.buffer is None else self.buffer.total(x_BSD, y_BSD)


class Reuse(NamedTuple):
    """Counts of the calls of a model so far that reused memory."""

    additions: int  # additions to the residual stream in place
    requests: int  # requests of workspace tensors


def count_reuse(model: nn.Module) -> Reuse:
    """Return how often a model has reused memory so far, in steps and in all other calls."""
    modules = list(model.modules())
    mixtures = [module for module in modules if isinstance(module, MixtureOfExperts)]
    workspaces = {id(mixture.workspace): mixture.workspace for mixture in mixtures}
    return Reuse(
        sum(module.placed for module in modules if isinstance(module, Block)),
        sum(workspace.requests for workspace in workspaces.values() if workspace is not None),
    )


def make_blocks(config: MoEConfig) -> list[Block]:
    """Make the blocks of one model, which share a rotary table and, on request, a buffer."""
    rotary = RotaryCache(config.head_dim, config.max_sequence, config.rope_theta)
    buffer = StreamBuffer() if config.reuse_buffers else None
    return [Block(config, rotary, buffer) for _ in range(config.n_layers)]
