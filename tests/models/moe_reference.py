"""A mixture-of-experts language model written out plainly: loops over heads, tokens, choices."""

import math

import torch


def reference_loss(config, weights, tokens_BS, targets_BS, seed=None):
    """Return the training loss, and each block's fraction of choices per expert.

    ``weights`` are FP64 tensors by name. With ``seed``, the noise of noisy gating is drawn from it.
    """
    if seed is not None:
        torch.manual_seed(seed)
    x_BSD = weights["embedding.weight"][tokens_BS]
    total, loads = 0.0, []
    for i in range(config.n_layers):
        part = {
            name.removeprefix(f"blocks.{i}."): weight
            for name, weight in weights.items()
            if name.startswith(f"blocks.{i}.")
        }
        normal_BSE = None
        if seed is not None and config.gating == "noisy_topk":
            shape = (*tokens_BS.shape, config.num_experts)
            normal_BSE = torch.randn(shape, dtype=torch.float64)
        x_BSD = x_BSD + attention(config, part, norm(config, x_BSD, part["attention_norm.weight"]))
        y_BSD = norm(config, x_BSD, part["mixture_norm.weight"])
        y_BSD, balance, load_E = mixture(config, part, y_BSD, normal_BSE)
        x_BSD, total = x_BSD + y_BSD, total + config.load_balance_weight * balance
        loads.append(load_E)
    head = weights.get("head.weight", weights["embedding.weight"])
    logits_BSV = norm(config, x_BSD, weights["norm.weight"]) @ head.T
    entropy = -logits_BSV.log_softmax(-1).gather(-1, targets_BS[..., None]).mean()
    return entropy + (0 if config.gating == "dense" else total), torch.stack(loads)


def norm(config, x, gain):
    return x / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + config.norm_eps) * gain


def attention(config, part, x_BSD):
    n_tokens, width = x_BSD.shape[1], config.input_dim // config.n_heads
    angle = torch.outer(
        torch.arange(n_tokens).double(),
        config.rope_theta ** (-torch.arange(0, width, 2).double() / width),
    )
    cos, sin = angle.cos(), angle.sin()

    def turn(x):
        first, second = x.chunk(2, -1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)

    heads = (x_BSD @ part["attention.qkv.weight"].T).split(width, -1)
    past = torch.ones(n_tokens, n_tokens).tril().bool()
    results = []
    for h in range(config.n_heads):
        group = h * config.n_kv_heads // config.n_heads
        q, k = turn(heads[h]), turn(heads[config.n_heads + group])
        scores = torch.where(past, q @ k.transpose(-1, -2) / math.sqrt(width), -math.inf)
        results.append(scores.softmax(-1) @ heads[config.n_heads + config.n_kv_heads + group])
    return torch.cat(results, -1) @ part["attention.out.weight"].T


def feed_forward(x, gate_up, down):
    gate, up = (x @ gate_up.T).chunk(2, -1)
    return (gate * torch.sigmoid(gate) * up) @ down.T


def mixture(config, part, x_BSD, normal_BSE=None):
    """Return the layer's result, its balance (1 is even), and the load of each expert."""
    n_experts = config.num_experts
    k = n_experts if config.gating == "dense" else config.top_k
    counts, mean_E = torch.zeros(n_experts).double(), 0
    batch, n_tokens, _ = x_BSD.shape
    capacity = math.inf
    if config.capacity_factor:
        capacity = math.ceil(config.capacity_factor * n_tokens * k / n_experts)
    sequences = []
    for b in range(batch):
        taken, rows = [0] * n_experts, []
        for s in range(n_tokens):
            x = x_BSD[b, s]
            logits = part["mixture.router.weight"] @ x
            if normal_BSE is not None:
                loudness = torch.log1p(torch.exp(part["mixture.router.noise_weight"] @ x))
                logits = logits + normal_BSE[b, s] * loudness
            p = torch.exp(logits) / torch.exp(logits).sum()
            chosen = sorted(range(n_experts), key=lambda e, p=p: -p[e].item())[:k]
            scale = sum(p[e] for e in chosen) if config.renormalise else 1
            y = torch.zeros_like(x)
            for e in chosen:
                counts[e] += 1
                taken[e] += 1
                if taken[e] <= capacity:
                    gate_up, down = part["mixture.gate_up"][e], part["mixture.down"][e]
                    y = y + p[e] / scale * feed_forward(x, gate_up, down)
            if config.num_shared_experts:
                shared = (part[f"mixture.shared.{name}.weight"] for name in ("gate_up", "down"))
                y = y + feed_forward(x, *shared)
            rows.append(y)
            mean_E = mean_E + p / (batch * n_tokens)
        sequences.append(torch.stack(rows))
    load_E = counts / (batch * n_tokens * k)
    return torch.stack(sequences), n_experts * (load_E * mean_E).sum(), load_E
