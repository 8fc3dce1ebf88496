"""Mamba-2 hybrid written out plainly: one token after the other, one head after the other."""

import math

import torch


def norm(x, weight, eps):
    return x / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def silu(x):
    return x * torch.sigmoid(x)


def mixer(config, weights, u_BSE):
    """Compute the recurrence of arXiv 2405.21060, equation 2, and the block of its figure 6."""
    inner, heads = config.expand * config.dim, config.expand * config.dim // config.head_dim
    states, groups = config.d_state, config.n_groups
    projected = u_BSE @ weights["in_proj.weight"].T
    z, x, b, c, dt = projected.split(
        (inner, inner, groups * states, groups * states, heads), dim=-1
    )
    xbc = torch.cat([x, b, c], -1)
    padded = torch.nn.functional.pad(xbc, (0, 0, config.d_conv - 1, 0))
    convolved = weights["conv_bias"].expand_as(xbc)
    for k in range(config.d_conv):
        convolved = convolved + padded[:, k : k + xbc.shape[1]] * weights["conv_weight"][:, k]
    x, b, c = silu(convolved).split((inner, groups * states, groups * states), dim=-1)
    dt = torch.log1p(torch.exp(dt + weights["dt_bias"]))
    outputs = []
    for head in range(heads):
        group = head * groups // heads
        x_h = x[..., head * config.head_dim : (head + 1) * config.head_dim]
        b_h, c_h = (m[..., group * states : (group + 1) * states] for m in (b, c))
        a = -torch.exp(weights["A_log"][head])
        h = torch.zeros(len(u_BSE), config.head_dim, states, dtype=u_BSE.dtype)
        steps = []
        for t in range(u_BSE.shape[1]):
            dt_t = dt[:, t, head, None, None]
            h = torch.exp(dt_t * a) * h + dt_t * x_h[:, t, :, None] * b_h[:, t, None, :]
            steps.append((h * c_h[:, t, None, :]).sum(-1) + weights["D"][head] * x_h[:, t])
        outputs.append(torch.stack(steps, 1))
    gated = torch.cat(outputs, -1) * silu(z)
    parts = zip(gated.chunk(groups, -1), weights["norm_weight"].chunk(groups), strict=True)
    normed = torch.cat([norm(part, weight, config.norm_eps) for part, weight in parts], -1)
    return normed @ weights["out_proj.weight"].T


def attention(config, weights, u_BSE):
    """Attend head by head, with rotary positions as multiplication by complex numbers."""
    n_tokens, head_dim = u_BSE.shape[1], config.dim // config.n_heads
    frequencies = config.rope_theta ** (-torch.arange(0, head_dim, 2).double() / head_dim)
    angles = torch.outer(torch.arange(n_tokens).double(), frequencies)
    # The tables are in FP32 whatever the model computes in.
    turns = torch.complex(angles.cos().float().double(), angles.sin().float().double())

    def turn(x):
        first, second = x.chunk(2, -1)
        turned = torch.complex(first, second) * turns
        return torch.cat([turned.real, turned.imag], -1)

    heads = (u_BSE @ weights["qkv.weight"].T).split(head_dim, -1)
    future = torch.ones(n_tokens, n_tokens).triu(1).bool()
    results = []
    for head in range(config.n_heads):
        group = head * config.n_kv_heads // config.n_heads
        k, v = heads[config.n_heads + group], heads[config.n_heads + config.n_kv_heads + group]
        scores = turn(heads[head]) @ turn(k).transpose(-1, -2) / math.sqrt(head_dim)
        results.append(scores.masked_fill(future, -math.inf).softmax(-1) @ v)
    return torch.cat(results, -1) @ weights["out.weight"].T


def logits(config, weights, tokens_BS):
    """Compute (B, S) -> (B, S, V); ``weights`` by name, in FP64."""

    def below(prefix):
        return {n.removeprefix(prefix): w for n, w in weights.items() if n.startswith(prefix)}

    x = weights["embedding.weight"][tokens_BS]
    for index in range(config.n_layers):
        block = below(f"blocks.{index}.")
        u = norm(x, block["norm.weight"], config.norm_eps)
        y = mixer(config, below(f"blocks.{index}.mixer."), u)
        if config.attention_every and (index + 1) % config.attention_every == 0:
            share = torch.sigmoid(u @ block["gate.weight"].T + block["gate.bias"])
            attended = attention(config, below(f"blocks.{index}.attention."), u)
            y = share * y + (1 - share) * attended
        x = x + y
    head = weights.get("head.weight", weights["embedding.weight"])
    return norm(x, weights["norm.weight"], config.norm_eps) @ head.T
