"""HYDRA with its routings written out plainly, one sequence, token and head at a time, in FP64.

It shares nothing with the models: routed tokens keep their positions, and comparing two positions
decides whether a query sees a key.
"""

import dataclasses
import math
from fractions import Fraction

import torch
from torch.nn import functional


@dataclasses.dataclass
class Token:
    """Token with its position in the sequence and its row of the residual stream."""

    position: int
    x: torch.Tensor  # (E,)


def matrix(tokens):
    return torch.stack([token.x for token in tokens])


def replaced(tokens, rows):
    return [Token(token.position, row) for token, row in zip(tokens, rows, strict=True)]


class Reference:
    def __init__(self, config, weights, training):
        self.config, self.training = config, training
        self.weights = weights
        self.losses = []
        self.chosen = []  # how many tokens every choice took

    def logits_and_loss(self, tokens_BS, targets_BS):
        """Return (B, S, V), and the loss of all sequences with the routers' losses."""
        weights, config = self.weights, self.config
        head = weights.get("head.weight", weights["embedding.weight"])
        rows = []
        for tokens_S in tokens_BS:
            tokens = [Token(i, weights["embedding.weight"][t]) for i, t in enumerate(tokens_S)]
            for i in range(3 if config.mixture_of_recursions else config.n_layers):
                tokens = self.top_block(i, tokens)
            rows.append(self.norm("norm", matrix(tokens)) @ head.T)
        logits = torch.stack(rows)
        loss = functional.cross_entropy(logits.flatten(0, 1), targets_BS.flatten())
        return logits, loss + config.router_loss * self.auxiliary()

    def auxiliary(self):
        """Return the routers' losses; each entry of ``losses`` is one sequence of one router."""
        if not self.training or not self.losses:
            return 0
        total = 0
        for name in dict.fromkeys(name for name, _ in self.losses):
            values = [value for other, value in self.losses if other == name]
            if name == "token":
                n = len(values[0][0])
                wanted = torch.stack([share for share, _ in values]).mean(0)
                total = (
                    total + n * (wanted * torch.stack([gate for _, gate in values]).mean(0)).sum()
                )
            else:
                total = total + torch.cat(values).mean()  # over the tokens of all sequences
        return total

    def top_block(self, i, tokens):
        if not self.config.mixture_of_recursions:
            return self.layer(f"blocks.{i}", i, tokens, Fraction(1), len(tokens), None, str(i))
        if i == 1:
            return self.recursions("blocks.1", tokens)
        return self.block(f"blocks.{i}", tokens, None)

    def layer(self, name, index, tokens, share, length, shared, router):
        config = self.config
        if config.mixture_of_depths and (index + 1) % config.depth_every == 0:
            return self.depths(name, tokens, share, length, router)
        return self.block(name, tokens, shared)

    def block(self, name, tokens, shared):
        return replaced(tokens, matrix(tokens) + self.change(name, tokens, shared))

    def change(self, name, tokens, shared=None):
        x = matrix(tokens)
        normed = replaced(tokens, self.norm(f"{name}.attention_norm", x))
        attend = self.ccgqa if self.config.ccgqa else self.attention
        attended = attend(f"{name}.attention", normed, shared)
        y = self.norm(f"{name}.mlp_norm", x + attended)
        gate, up = (y @ self.weights[f"{name}.mlp.gate_up.weight"].T).chunk(2, -1)
        return (
            attended + (gate * torch.sigmoid(gate) * up) @ self.weights[f"{name}.mlp.down.weight"].T
        )

    def norm(self, name, x):
        mean_square = x.pow(2).mean(-1, keepdim=True)
        return x / torch.sqrt(mean_square + self.config.norm_eps) * self.weights[f"{name}.weight"]

    def rotated(self, vector, position):
        half = len(vector) // 2
        frequency = self.config.rope_theta ** (-torch.arange(half).double() / half)
        first, second = vector.chunk(2)
        angle = position * frequency
        # The model's tables are in FP32 whatever its weights are; rounded like them, everything
        # else is exact.
        turn = torch.complex(angle.cos().float().double(), angle.sin().float().double())
        turned = torch.complex(first, second) * turn
        return torch.cat([turned.real, turned.imag])

    def weigh(self, queries, keys, values, tokens, key_places):
        """Compute softmax(q k / sqrt(D)) v per query head over the keys that are not later."""
        heads, groups = len(queries[0]), len(keys[0])
        rows = []
        for token, query in zip(tokens, queries, strict=True):
            seen = [j for j, position in enumerate(key_places) if position <= token.position]
            outputs = []
            for h in range(heads):
                g = h * groups // heads
                scores = torch.stack([query[h] @ keys[j][g] for j in seen])
                weights = (scores / math.sqrt(len(query[h]))).softmax(0)
                outputs.append(sum(w * values[j][g] for w, j in zip(weights, seen, strict=True)))
            rows.append(torch.cat(outputs))
        return torch.stack(rows)

    def shared_or_own(self, shared, tokens, keys, values):
        """Return keys, values and their positions: the own ones, or the first of ``shared``."""
        own = keys, values, [token.position for token in tokens]
        if shared is None:
            return own
        shared.setdefault("first", own)
        return shared["first"]

    def attention(self, name, tokens, shared):
        config = self.config
        sizes = [config.n_heads, config.n_kv_heads, config.n_kv_heads]
        queries, keys, values = [], [], []
        for token in tokens:
            heads = (self.weights[f"{name}.qkv.weight"] @ token.x).view(-1, config.head_dim)
            q, k, v = heads.split(sizes)
            queries.append([self.rotated(x, token.position) for x in q])
            keys.append([self.rotated(x, token.position) for x in k])
            values.append(list(v))
        keys, values, places = self.shared_or_own(shared, tokens, keys, values)
        out = self.weigh(queries, keys, values, tokens, places)
        return out @ self.weights[f"{name}.out.weight"].T

    def ccgqa(self, name, tokens, shared):
        config, w = self.config, self.weights
        heads, groups, dim = config.n_heads, config.n_kv_heads, config.head_dim
        width, copies = config.conv_width, config.n_heads // config.n_kv_heads
        n_all, x = heads + groups, matrix(tokens)
        before = x @ w[f"{name}.qk.weight"].T
        padded = torch.cat([torch.zeros(2 * (width - 1), n_all * dim).double(), before])
        first = []  # depthwise
        for t in range(len(padded) - width + 1):
            columns = sum(padded[t + i] * w[f"{name}.column_weight"][:, i] for i in range(width))
            first.append((columns + w[f"{name}.column_bias"]).view(n_all, dim))
        queries, keys = [], []
        for t, token in enumerate(tokens):
            mixed = []  # grouped by head
            for head in range(n_all):
                kernel = w[f"{name}.head_weight"][head].view(width, dim, dim)
                taps = sum(first[t + i][head] @ kernel[i] for i in range(width))
                mixed.append(taps + w[f"{name}.head_bias"][head])
            raw = before[t].view(n_all, dim)
            means = [(raw[h] + raw[heads + h // copies]) / 2 for h in range(heads)]
            q = [mixed[h] + means[h] for h in range(heads)]
            k = [
                mixed[heads + g] + sum(means[g * copies : (g + 1) * copies]) / copies
                for g in range(groups)
            ]
            temperature = w[f"{name}.temperature"].exp()
            queries.append([self.rotated(self.unit(v), token.position) for v in q])
            keys.append(
                [
                    self.rotated(self.unit(v) * temperature[g], token.position)
                    for g, v in enumerate(k)
                ]
            )
        v1, v2 = w[f"{name}.v.weight"].chunk(2)
        values = []
        for t in range(len(tokens)):
            late = v2 @ x[t - 1] if t else torch.zeros(len(v2)).double()
            values.append(list(torch.cat([v1 @ x[t], late]).view(groups, dim)))
        keys, values, places = self.shared_or_own(shared, tokens, keys, values)
        out = self.weigh(queries, keys, values, tokens, places)
        return out @ w[f"{name}.out.weight"].T

    def unit(self, vector):
        """Compute sqrt(D) v / |v|, with the epsilon that keeps a vector of zeros finite."""
        norm = torch.sqrt(vector @ vector + len(vector) * self.config.norm_eps)
        return vector * math.sqrt(len(vector)) / norm

    def choose(self, tokens, scores, share, length, router):
        """Return which of the tokens are chosen, in their order, and the loss of the choice."""
        if self.training:
            best = sorted(range(len(tokens)), key=lambda i: -scores[i].item())
            chosen = sorted(best[: math.ceil(share * length)])
            target = torch.zeros(len(tokens)).double()
            target[chosen] = 1
            # log(1 - sigmoid(r)) = log(sigmoid(-r)), which does not lose a large r.
            log_yes, log_no = functional.logsigmoid(scores), functional.logsigmoid(-scores)
            self.losses.append((router, -(target * log_yes + (1 - target) * log_no)))
        else:
            chosen = self.within_budget(tokens, [s.sigmoid().item() > 0.5 for s in scores], share)
        self.chosen.append(len(chosen))
        return chosen

    def within_budget(self, tokens, asks, share):
        chosen = []
        for i, token in enumerate(tokens):
            if asks[i] and len(chosen) + 1 <= math.ceil(share * (token.position + 1)):
                chosen.append(i)
        return chosen

    def depths(self, name, tokens, share, length, router):
        scores = torch.stack([self.weights[f"{name}.router.weight"][0] @ t.x for t in tokens])
        share = share * Fraction(self.config.depth_capacity).limit_denominator(1000)
        chosen = self.choose(tokens, scores, share, length, router)
        result = list(tokens)
        if chosen:
            change = self.change(f"{name}.block", [tokens[i] for i in chosen])
            for i, row in zip(chosen, change, strict=True):
                result[i] = Token(tokens[i].position, tokens[i].x + scores[i] * row)
        return result

    def recursions(self, name, tokens):
        config = self.config
        n, router = config.recursions, self.weights[f"{name}.router.weight"]
        shared = [{} if config.recursion_kv == "share" else None for _ in range(config.n_layers)]
        state = {token.position: token for token in tokens}  # H^r of every token
        first = dict(state)
        active = [token.position for token in tokens]
        if config.recursion_routing == "token":
            gates = {position: (router @ token.x).softmax(0) for position, token in state.items()}
            depth = self.wanted_depths(tokens, gates, n)
        for r in range(n):
            share = Fraction(n - r, n)
            if config.recursion_routing == "expert":
                scores = torch.stack([router[r] @ state[p].x for p in active])
                if r:
                    rows = [state[p] for p in active]
                    chosen = self.choose(rows, scores, share, len(tokens), f"recursion {r}")
                    active, scores = [active[i] for i in chosen], scores[chosen]
            else:
                active = [p for p in active if depth[p] > r]
            if not active:
                break
            rows = [state[p] for p in active]
            for i in range(config.n_layers):
                label = f"{r}.{i}"
                rows = self.layer(
                    f"{name}.layers.{i}", i, rows, share, len(tokens), shared[i], label
                )
            for j, (p, row) in enumerate(zip(active, rows, strict=True)):
                if config.recursion_routing == "expert":
                    x = state[p].x + config.recursion_alpha * scores[j].sigmoid() * row.x
                else:
                    x = gates[p][r] * row.x
                    if depth[p] == r + 1:
                        x = x + first[p].x
                state[p] = Token(p, x)
        return [state[token.position] for token in tokens]

    def wanted_depths(self, tokens, gates, n):
        """Return each token's number of recursions, and the balancing loss's two means."""
        wanted = {position: int(gate.argmax()) + 1 for position, gate in gates.items()}
        counts = torch.tensor([sum(w == r + 1 for w in wanted.values()) for r in range(n)])
        mean_gate = torch.stack(list(gates.values())).mean(0)
        self.losses.append(("token", (counts.double() / len(tokens), mean_gate)))
        depth = dict.fromkeys(wanted, 1)
        going = list(tokens)
        for r in range(1, n):
            asks = [wanted[token.position] > r for token in going]
            going = [going[i] for i in self.within_budget(going, asks, Fraction(n - r, n))]
            for token in going:
                depth[token.position] = r + 1
        return depth
