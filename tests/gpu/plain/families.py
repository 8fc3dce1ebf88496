"""Plain PyTorch models of three families, as a user would write them, with our weights' names.

Each computes its loss from tokens and targets, or the logits of one token from a decode state. The
two other families (AdaAttn, MAHIA-X) have no public counterpart: ``run_whole_steps.py`` takes
their own modules with PyTorch's operators alone.

Shapes: B batch, S sequence, L length of the cache, E width, H heads, D head width, N states,
C channels or chunk, W taps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


def rotated(x_BHSD: Tensor, cos_SR: Tensor, sin_SR: Tensor) -> Tensor:
    """Turn the halves of each head by its position."""
    first, second = x_BHSD.float().chunk(2, -1)
    turned = (first * cos_SR - second * sin_SR, second * cos_SR + first * sin_SR)
    return torch.cat(turned, -1).to(x_BHSD.dtype)


class PlainAttention(nn.Module):
    """Causal attention with grouped heads and rotary positions."""

    def __init__(self, dim: int, heads: int, groups: int, length: int, theta: float) -> None:
        super().__init__()
        self.heads, self.groups, self.width = heads, groups, dim // heads
        self.qkv = nn.Linear(dim, (heads + 2 * groups) * self.width, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)
        steps = torch.arange(0, self.width, 2, dtype=torch.float64) / self.width
        angle = torch.arange(length)[:, None] * theta**-steps
        self.register_buffer("cos", angle.cos().float(), persistent=False)
        self.register_buffer("sin", angle.sin().float(), persistent=False)

    def new_state(self, batch: int, length: int, like: Tensor) -> tuple[Tensor, ...]:
        """Return empty keys and values, (B, G, L, D)."""
        shape = (batch, self.groups, length, self.width)
        return like.new_zeros(shape), like.new_zeros(shape)

    def forward(
        self, x_BSE: Tensor, state: tuple[Tensor, ...] = (), position: Tensor | None = None
    ) -> Tensor:
        """Attend within the sequence, or from the token at ``position`` to those in ``state``."""
        batch, length, dim = x_BSE.shape
        sizes = [n * self.width for n in (self.heads, self.groups, self.groups)]
        q, k, v = (
            t.view(batch, length, -1, self.width).transpose(1, 2)
            for t in self.qkv(x_BSE).split(sizes, -1)
        )
        if position is None:
            cos, sin = self.cos[:length], self.sin[:length]
            y = functional.scaled_dot_product_attention(
                rotated(q, cos, sin), rotated(k, cos, sin), v, is_causal=True, enable_gqa=True
            )
        else:
            cos, sin = self.cos[position[None]], self.sin[position[None]]
            keys, values = state
            keys.index_copy_(2, position[None], rotated(k, cos, sin).to(keys.dtype))
            values.index_copy_(2, position[None], v.to(values.dtype))
            seen = (torch.arange(keys.shape[2], device=keys.device) <= position)[None]
            y = functional.scaled_dot_product_attention(
                rotated(q, cos, sin), keys, values, attn_mask=seen, enable_gqa=True
            )
        return self.out(y.transpose(1, 2).reshape(batch, length, dim))


class PlainMLP(nn.Module):
    """SwiGLU."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.gate_up = nn.Linear(dim, 2 * hidden, bias=False)
        self.down = nn.Linear(hidden, dim, bias=False)

    def forward(self, x_BSE: Tensor) -> Tensor:
        """Compute the feed-forward layer."""
        gate, up = self.gate_up(x_BSE).chunk(2, -1)
        return self.down(functional.silu(gate) * up)


class Weights(nn.Module):
    """Router weights under the name that ours have."""

    def __init__(self, experts: int, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(experts, dim))


class PlainMixture(nn.Module):
    """Top-k experts by torch's grouped product; returns the balancing loss as well."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        experts, dim, width = config.num_experts, config.input_dim, config.hidden_dim
        self.k, self.balance = config.top_k, config.load_balance_weight
        self.router = Weights(experts, dim)
        self.gate_up = nn.Parameter(torch.empty(experts, 2 * width, dim))
        self.down = nn.Parameter(torch.empty(experts, dim, width))

    def forward(self, x_BSE: Tensor) -> tuple[Tensor, Tensor]:
        """Route each token to its experts and add them up."""
        x_TE = x_BSE.flatten(0, 1)
        with torch.autocast(x_TE.device.type, enabled=False):
            p = functional.linear(x_TE.float(), self.router.weight.float()).softmax(-1)
        weight, index = p.topk(self.k, -1)
        weight = weight / weight.sum(-1, keepdim=True)
        order = index.flatten().argsort(stable=True)
        token = order // self.k
        counts = (index.flatten()[:, None] == torch.arange(len(p[0]), device=p.device)).sum(0)
        ends = counts.cumsum(0).to(torch.int32)
        dtype = torch.bfloat16 if x_TE.is_cuda else x_TE.dtype
        rows = x_TE[token].to(dtype)
        both = torch._grouped_mm(rows, self.gate_up.to(dtype).transpose(1, 2), offs=ends)
        gate, up = both.chunk(2, -1)
        hidden = functional.silu(gate) * up
        rows = torch._grouped_mm(hidden, self.down.to(dtype).transpose(1, 2), offs=ends)
        rows = rows * weight.flatten()[order, None].to(dtype)
        y = torch.zeros_like(x_TE, dtype=dtype).index_add(0, token, rows)
        share = counts / index.numel()
        return y.view(x_BSE.shape), self.balance * len(share) * (share * p.mean(0)).sum()


class PlainMixer(nn.Module):
    """Mamba-2's mixer; the scan in chunks of matrix products, as its authors' short listing.

    With ``published`` the scan and its recurrent step are the Triton kernels of ``mamba_ssm``.
    """

    def __init__(self, size: Any, eps: float, published: bool, chunk: int = 256) -> None:
        super().__init__()
        self.size, self.eps, self.published, self.chunk = size, eps, published, chunk
        self.in_proj = nn.Linear(size.dim, size.projected, bias=False)
        self.conv_weight = nn.Parameter(torch.empty(size.convolved, size.d_conv))
        self.conv_bias = nn.Parameter(torch.empty(size.convolved))
        for name in ("dt_bias", "A_log", "D"):
            setattr(self, name, nn.Parameter(torch.empty(size.n_heads)))
        self.norm_weight = nn.Parameter(torch.empty(size.inner))
        self.out_proj = nn.Linear(size.inner, size.dim, bias=False)

    def new_state(self, batch: int, length: int, like: Tensor) -> tuple[Tensor, ...]:
        """Return the convolution's empty window (B, C, W) and FP32 states (B, H, D, N)."""
        size = self.size
        states = torch.zeros(batch, size.n_heads, size.head_dim, size.d_state, device=like.device)
        return like.new_zeros(batch, size.convolved, size.d_conv), states

    def forward(
        self, u_BSE: Tensor, state: tuple[Tensor, ...] = (), position: Tensor | None = None
    ) -> Tensor:
        """Mix the sequence, or advance ``state`` by a token."""
        size, (batch, length, _) = self.size, u_BSE.shape
        z, xbc, dt = self.in_proj(u_BSE).split((size.inner, size.convolved, size.n_heads), -1)
        weight, bias = self.conv_weight.to(xbc.dtype), self.conv_bias.to(xbc.dtype)
        if position is None:
            padded = functional.pad(xbc.transpose(1, 2), (size.d_conv - 1, 0))
            xbc = functional.conv1d(padded, weight[:, None], bias, groups=size.convolved)
            xbc = xbc.transpose(1, 2)
        else:
            window = state[0]
            window.copy_(torch.cat([window[:, :, 1:], xbc.transpose(1, 2)], -1))
            xbc = ((window * weight).sum(-1) + bias)[:, None]
        xbc = functional.silu(xbc)
        states = size.n_groups * size.d_state
        x, b, c = xbc.split((size.inner, states, states), -1)
        x = x.unflatten(-1, (size.n_heads, size.head_dim))
        b, c = (t.unflatten(-1, (size.n_groups, size.d_state)) for t in (b, c))
        compute = self.published_scan if self.published else self.plain_scan
        y = compute(x, dt, b, c) if position is None else self.advance(state[1], x, dt, b, c)
        gated = y.reshape(batch, length, -1).float() * functional.silu(z.float())
        group = gated.unflatten(-1, (size.n_groups, -1))
        group = group * torch.rsqrt(group.square().mean(-1, keepdim=True) + self.eps)
        return self.out_proj((group.flatten(-2) * self.norm_weight.float()).to(u_BSE.dtype))

    def published_scan(self, x: Tensor, dt: Tensor, b: Tensor, c: Tensor) -> Tensor:
        """Return the outputs by ``mamba_ssm``: x (B, S, H, D), dt (B, S, H), b and c by group."""
        from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined

        return mamba_chunk_scan_combined(
            x, dt, -self.A_log.float().exp(), b, c, chunk_size=self.chunk, D=self.D.float(),
            dt_bias=self.dt_bias.float(), dt_softplus=True,
        )  # fmt: skip

    def plain_scan(self, x: Tensor, dt: Tensor, b: Tensor, c: Tensor) -> Tensor:
        """Return the same by PyTorch's operators."""
        b, c = (t.repeat_interleave(self.size.n_heads // self.size.n_groups, 2) for t in (b, c))
        dt = functional.softplus(dt.float() + self.dt_bias.float())
        return self.scan(x, dt, b, c) + self.D.float()[:, None] * x.float()

    def advance(self, state_BHDN: Tensor, x: Tensor, dt: Tensor, b: Tensor, c: Tensor) -> Tensor:
        """Return the outputs of one token, and replace the states."""
        x, dt, b, c = (t[:, 0] for t in (x, dt, b, c))
        falls = -self.A_log.float().exp()
        if self.published:
            from mamba_ssm.ops.triton.selective_state_update import selective_state_update

            wide = (self.size.head_dim, self.size.d_state)
            heads = (x.shape[0], self.size.n_heads, wide[0])
            return selective_state_update(
                state_BHDN, x, dt[..., None].expand(heads), falls[:, None, None].expand(-1, *wide),
                b, c, D=self.D.float()[:, None].expand(-1, wide[0]),
                dt_bias=self.dt_bias.float()[:, None].expand(-1, wide[0]), dt_softplus=True,
            )[:, None]  # fmt: skip
        b, c = (t.repeat_interleave(self.size.n_heads // self.size.n_groups, 1) for t in (b, c))
        dt = functional.softplus(dt.float() + self.dt_bias.float())
        added = (dt[..., None] * x.float())[..., None] * b.float()[:, :, None]
        state_BHDN.copy_(state_BHDN * (dt * falls).exp()[..., None, None] + added)
        y = (state_BHDN * c.float()[:, :, None]).sum(-1)
        return (y + self.D.float()[:, None] * x.float())[:, None]

    def scan(self, x_BSHD: Tensor, dt_BSH: Tensor, b_BSHN: Tensor, c_BSHN: Tensor) -> Tensor:
        """Return the outputs of the state space in FP32."""
        chunk, length = self.chunk, x_BSHD.shape[1]
        pad = -length % chunk
        parts = [
            functional.pad(t, (0, 0) * (t.dim() - 2) + (0, pad)).unflatten(1, (-1, chunk))
            for t in (x_BSHD, dt_BSH, b_BSHN, c_BSHN)
        ]
        x, dt, b, c = parts
        xdt = (x.float() * dt[..., None]).to(x.dtype)
        falls = (dt * -self.A_log.float().exp()).transpose(2, 3)  # B, chunks, H, C
        # In two parts: torch 2.11 cannot compile a sum of more than 128 broadcast terms.
        first, second = (half.cumsum(-1) for half in falls.split(max(chunk // 2, 1), -1))
        log = torch.cat([first, first[..., -1:] + second], -1)
        gap = log[..., :, None] - log[..., None, :]
        lower = torch.ones(chunk, chunk, dtype=torch.bool, device=x.device).tril()
        decay = torch.where(lower, gap, -torch.inf).exp()
        scores = torch.einsum("bzlhn,bzshn->bzhls", c, b) * decay.to(x.dtype)
        y = torch.einsum("bzhls,bzshp->bzlhp", scores, xdt).float()
        left = (log[..., -1:] - log).exp().transpose(2, 3)[..., None]
        states = torch.einsum("bzshn,bzshp->bzhpn", (b * left.to(b.dtype)), xdt).float()
        carried, before = torch.zeros_like(states[:, 0]), []
        for number in range(states.shape[1]):
            before.append(carried)
            carried = carried * log[:, number, :, -1, None, None].exp() + states[:, number]
        start = torch.stack(before, 1).to(c.dtype)
        y = (
            y
            + torch.einsum("bzlhn,bzhpn->bzlhp", c, start).float()
            * log.exp().transpose(2, 3)[..., None]
        )
        return y.flatten(1, 2)[:, :length]


class AttentionBlock(nn.Module):
    """Attention behind a norm; subclasses add a second layer."""

    def __init__(self, config: Any, dim: int) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(dim, config.norm_eps)
        self.attention = attention_of(config, dim)

    def states(self) -> list[nn.Module]:
        """Return the layers that have a decode state."""
        return [self.attention]

    def attended(self, x: Tensor, state: tuple[Tensor, ...], position: Tensor | None) -> Tensor:
        """Add the attention to the stream."""
        return x + self.attention(self.attention_norm(x), state, position)


class HydraBlock(AttentionBlock):
    """Attention and MLP."""

    def __init__(self, config: Any, hidden: int) -> None:
        super().__init__(config, config.dim)
        self.mlp_norm = nn.RMSNorm(config.dim, config.norm_eps)
        self.mlp = PlainMLP(config.dim, hidden)

    def forward(
        self, x: Tensor, states: Sequence[tuple[Tensor, ...]], position: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Add both to the stream."""
        x = self.attended(x, states[0], position)
        return x + self.mlp(self.mlp_norm(x)), None


class ExpertBlock(AttentionBlock):
    """Attention and experts."""

    def __init__(self, config: Any) -> None:
        super().__init__(config, config.input_dim)
        self.mixture_norm = nn.RMSNorm(config.input_dim, config.norm_eps)
        self.mixture = PlainMixture(config)

    def forward(
        self, x: Tensor, states: Sequence[tuple[Tensor, ...]], position: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Add both to the stream."""
        x = self.attended(x, states[0], position)
        y, loss = self.mixture(self.mixture_norm(x))
        return x + y, loss


class MixerBlock(nn.Module):
    """A mixer, and in some blocks attention beside it, weighted by a gate."""

    def __init__(self, config: Any, attends: bool, published: bool) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(config.dim, config.norm_eps)
        self.mixer = PlainMixer(config.mixer, config.norm_eps, published)
        self.attention = attention_of(config, config.dim) if attends else None
        self.gate = nn.Linear(config.dim, 1) if attends else None

    def states(self) -> list[nn.Module]:
        """Return the layers that have a decode state."""
        return [self.mixer] if self.attention is None else [self.mixer, self.attention]

    def forward(
        self, x: Tensor, states: Sequence[tuple[Tensor, ...]], position: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Add the branches to the stream."""
        u = self.norm(x)
        y = self.mixer(u, states[0], position)
        if self.attention is not None and self.gate is not None:
            attended = self.attention(u, states[1], position)
            y = attended + self.gate(u).float().sigmoid().to(y.dtype) * (y - attended)
        return x + y, None


def attention_of(config: Any, dim: int) -> PlainAttention:
    """Return the attention of a configuration."""
    return PlainAttention(
        dim, config.n_heads, config.n_kv_heads, config.max_sequence, config.rope_theta
    )


class PlainModel(nn.Module):
    """Embedding, blocks, norm, tied or own head; the loss in FP32."""

    def __init__(self, config: Any, dim: int, blocks: list[nn.Module]) -> None:
        super().__init__()
        self.embedding = nn.Embedding(config.rows, dim)
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.RMSNorm(dim, config.norm_eps)
        self.head = None if config.tie_embeddings else nn.Linear(dim, config.rows, bias=False)

    def new_states(self, batch: int, length: int) -> list[list[tuple[Tensor, ...]]]:
        """Return an empty decode state; a compiler knows that its addresses never change."""
        like = self.norm.weight
        made = [
            [layer.new_state(batch, length, like) for layer in block.states()]
            for block in self.blocks
        ]
        for tensor in (tensor for block in made for state in block for tensor in state):
            torch._dynamo.mark_static_address(tensor)
        return made

    def forward(
        self,
        tokens: Tensor,
        targets: Tensor | None = None,
        states: list[list[tuple[Tensor, ...]]] | None = None,
        position: Tensor | None = None,
    ) -> Tensor:
        """Return the loss, or the logits without targets: of one token with a decode state."""
        x, losses = self.embedding(tokens), []
        given = [[(), ()]] * len(self.blocks) if states is None else states
        for block, own in zip(self.blocks, given, strict=True):
            x, loss = block(x, own, position)
            losses += [loss] if loss is not None else []
        table = self.embedding.weight if self.head is None else self.head.weight
        logits = functional.linear(self.norm(x), table)
        if targets is None:
            return logits
        loss = functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())
        return loss + sum(losses) if losses else loss


def plain_model(
    family: str, config: Any, ours: nn.Module, published: bool = False
) -> PlainModel | None:
    """Return the plain model with the weights of ours; None for a family that has none.

    With ``published`` its operators are public kernels where there are any.
    """
    if family == "hydra":
        hidden = ours.blocks[0].mlp.down.in_features
        made = PlainModel(
            config, config.dim, [HydraBlock(config, hidden) for _ in range(config.n_layers)]
        )
    elif family == "moe":
        made = PlainModel(
            config, config.input_dim, [ExpertBlock(config) for _ in range(config.n_layers)]
        )
    elif family == "mamba2":
        blocks = [
            MixerBlock(config, config.attends(index), published) for index in range(config.n_layers)
        ]
        made = PlainModel(config, config.dim, blocks)
    else:
        return None
    weights = dict(ours.named_parameters())
    copies = {name: weights[name].detach().clone() for name, _ in made.named_parameters()}
    made.load_state_dict(copies, assign=True)  # in their dtypes
    return made.to(next(iter(weights.values())).device)
