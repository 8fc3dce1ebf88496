"""MAHIA-X's equations transcribed plainly for FP64: loops over samples, heads, steps and experts.

It shares nothing with the package: the Fourier filter is a sum of complex exponentials, the router
sorts in Python. ``w`` maps parameter names to tensors, ``at`` is the prefix of a part.
"""

import math

import torch


def norm(w, name, x, eps):
    return x / torch.sqrt(x.square().mean(-1, keepdim=True) + eps) * w[name + ".weight"]


def silu(x):
    return x / (1 + torch.exp(-x))


def swiglu(w, at, x):
    gate, up = (x @ w[at + "gate_up.weight"].T).chunk(2, -1)
    return (silu(gate) * up) @ w[at + "down.weight"].T


def impulse(n, cutoff=0.25, damping=0.1):
    """Return the filter's response c[0 ... n-1] to a single one, frequency by frequency."""
    index = torch.arange(n, dtype=torch.float64)
    c = torch.zeros(n, dtype=torch.complex128)
    for k in range(n):
        frequency = min(k, n - k)  # above n / 2 are negative frequencies
        gain = 1.0 if frequency <= cutoff * n else damping
        angle = 2 * math.pi * k * index / n
        c += gain * torch.complex(angle.cos(), angle.sin()) / n
    assert c.imag.abs().max() < 1e-12
    return c.real


def fourier(x_SD, causal):
    n = x_SD.shape[0]
    c = impulse(n)
    rows = []
    for t in range(n):
        sources = range(t + 1) if causal else range(n)
        rows.append(sum(c[(t - s) % n] * x_SD[s] for s in sources))
    return torch.stack(rows)


def turned(x_SD, theta):
    """Rotate by positions, as multiplication by a complex number."""
    n, dim = x_SD.shape
    frequency = theta ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    angle = torch.outer(torch.arange(n, dtype=torch.float64), frequency)
    first, second = x_SD.chunk(2, -1)
    z = torch.complex(first, second) * torch.polar(torch.ones_like(angle), angle)
    return torch.cat([z.real, z.imag], -1)


def attention_maps(w, at, x_SE, n_heads, causal, theta):
    """Return, for every head, its weights (S, S) and its values (S, D)."""
    head_dim, n = x_SE.shape[-1] // n_heads, x_SE.shape[0]
    parts = (x_SE @ w[at + "attention.qkv.weight"].T).split(head_dim, -1)
    for h in range(n_heads):
        q, k, v = parts[h], parts[n_heads + h], parts[2 * n_heads + h]
        if theta is not None:
            q, k = turned(q, theta), turned(k, theta)
        scores = q @ k.T / math.sqrt(head_dim)
        if causal:
            scores = scores.masked_fill(torch.ones(n, n).triu(1).bool(), -math.inf)
        yield scores.softmax(-1), v


def meta_attention(w, at, x_BSE, n_heads, causal=False, theta=None):
    batch = []
    for x_SE in x_BSE:
        heads = []
        for h, (map_SS, v) in enumerate(attention_maps(w, at, x_SE, n_heads, causal, theta)):
            head = map_SS @ v
            if at + "gate.weight" in w:
                logit = x_SE @ w[at + "gate.weight"][h] + w[at + "gate.bias"][h]
                g = 1 / (1 + torch.exp(-logit))[:, None]
                head = (1 - g) * head + g * fourier(v, causal)
            heads.append(head)
        batch.append(torch.cat(heads, -1) @ w[at + "attention.out.weight"].T)
    return torch.stack(batch)


def transitions(w, at, top_k):
    rows = []
    for row in w[at + "graph_MM"]:
        largest = sorted(range(len(row)), key=lambda j: -row[j].item())[: top_k or len(row)]
        total = sum(torch.exp(row[j]) for j in largest)
        zero = torch.zeros((), dtype=row.dtype)
        rows.append(
            torch.stack(
                [torch.exp(row[j]) / total if j in largest else zero for j in range(len(row))]
            )
        )
    return torch.stack(rows)


def graph_memory(w, at, x_BE, steps, alpha, top_k=0):
    memory, p = w[at + "memory_ME"], transitions(w, at, top_k)
    results = []
    for x_E in x_BE:
        h_0 = h = (memory @ x_E).softmax(0)
        for _ in range(steps):
            h = (1 - alpha) * h_0 + alpha * (p @ h)
        results.append(w[at + "out.weight"] @ torch.cat([x_E, h_0 @ memory, h @ memory]))
    return torch.stack(results)


def fabric(w, at, x_SE, n_layers, k, eps):
    """Run one group of competing samples; also return how many layers each took."""
    depth = [0] * len(x_SE)
    for layer in range(n_layers):
        here = f"{at}layers.{layer}."
        scores = x_SE @ w[here + "gate.weight"][0]
        chosen = sorted(range(len(x_SE)), key=lambda i: -scores[i].item())[:k]
        rows = []
        for i, x_E in enumerate(x_SE):
            if i in chosen:
                depth[i] += 1
                update = swiglu(w, here + "mlp.", norm(w, here + "norm", x_E, eps))
                x_E = x_E + update / (1 + torch.exp(-scores[i]))
            rows.append(x_E)
        x_SE = torch.stack(rows)
    return x_SE, depth


def experts(w, at, x_NE, top_k):
    """Run every token by itself; also return the balancing loss."""
    router = w[at + "router.weight"]
    counts, shares, rows = [0] * len(router), 0, []
    for x_E in x_NE:
        p = (router @ x_E).softmax(0)
        shares = shares + p / len(x_NE)
        chosen = sorted(range(len(p)), key=lambda e: -p[e].item())[:top_k]
        y = 0
        for e in chosen:
            counts[e] += 1
            gate, up = (w[at + "gate_up"][e] @ x_E).chunk(2)
            y = y + p[e] / sum(p[j] for j in chosen) * (w[at + "down"][e] @ (silu(gate) * up))
        rows.append(y)
    loss = len(p) * sum(
        n / (len(x_NE) * top_k) * share for n, share in zip(counts, shares, strict=True)
    )
    return torch.stack(rows), loss


def hybrid(config, w, tokens_BS, tabular_BF):
    """Run the complete model: outputs (B, C), and the sum of the balancing losses."""
    eps, balance = config.norm_eps, 0
    x = w["embedding.weight"][tokens_BS]
    for i in range(config.n_layers):
        at = f"blocks.{i}."
        y = norm(w, at + "attention_norm", x, eps)
        x = x + meta_attention(
            w, at + "attention.", y, config.n_heads, config.causal, config.rope_theta
        )
        y = norm(w, at + "mlp_norm", x, eps)
        if config.use_moe:
            y, loss = experts(w, at + "mlp.", y.flatten(0, 1), config.expert_top_k)
            x, balance = x + y.view_as(x), balance + loss
        else:
            x = x + swiglu(w, at + "mlp.", y)
    text = norm(w, "text_norm", x.mean(1), eps)
    table = silu(tabular_BF @ w["table_in.weight"].T + w["table_in.bias"])
    table = norm(w, "table_norm", table @ w["table_out.weight"].T + w["table_out.bias"], eps)
    x = torch.cat([text, table], -1) @ w["fuse.weight"].T + w["fuse.bias"]
    x = x + graph_memory(
        w,
        "memory.",
        norm(w, "memory_norm", x, eps),
        config.diffusion_steps,
        config.diffusion_alpha,
        config.memory_top_k,
    )
    k = max(1, round(config.capacity * len(x)))
    x, _ = fabric(w, "fabric.", x, config.max_layers, k, eps)
    return norm(w, "norm", x, eps) @ w["head.weight"].T + w["head.bias"], balance
