"""Half-precision forms of every decoding family, each with its FP64 twin, to measure rounding."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from routed import COMBINATIONS
from torch import Tensor

import kernels
from models import FAMILIES
from models.layers.mixture import Router as ExpertRouter
from models.layers.routing import Router

LENGTH = 12
PIECES = (5, 1, 1, 3, 2)
SIZES: dict[str, dict[str, Any]] = {
    "hydra": {"dim": 64, "depth_capacity": 0.4, "recursions": 3},
    "mamba2": {"dim": 64, "attention_every": 2},
    "adaattn": {"dim": 64},
    "moe": {},
}
FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "hydra": ("hydra", {}),
    **{f"hydra, {name}": ("hydra", fields) for name, fields in COMBINATIONS.items()},
    "mamba2": ("mamba2", {}),
    "mamba2, attention-free": ("mamba2", {"attention_every": 0}),
    "adaattn": ("adaattn", {}),
    "adaattn, narrow": ("adaattn", {}),
    "moe": ("moe", {}),
    "moe, noisy and shared": ("moe", {"gating": "noisy_topk", "num_shared_experts": 1}),
}
CANDIDATES = 48


class Twins(NamedTuple):
    """One model in two precisions, and tokens for which rounding does not change the routing."""

    model: Any
    exact: Any  # FP64, the same weights
    tokens_BS: Tensor


@torch.no_grad()
def twins(form: str, dtype: torch.dtype, seed: int = 3, length: int = LENGTH, **fields) -> Twins:
    """Make the form with weights in ``dtype``, in evaluation mode."""
    name, more = FORMS[form]
    family = FAMILIES[name]
    config = family.configure("tiny", {"n_layers": 2} | SIZES[name] | more | fields)
    model = family.materialise(config, dtype=dtype, seed=seed).eval()
    if form == "adaattn, narrow":
        model.adaptation.rank_LH.fill_(config.dim // config.n_heads // 2)
        model.adaptation.bits_LH.fill_(16)
    exact = family.materialise(config, dtype=torch.float64, seed=seed).eval()
    for ours, theirs in ((model.weights(), exact.weights()), (model.adapted(), exact.adapted())):
        for name, tensor in theirs.items():
            tensor.copy_(ours[name])
    return Twins(model, exact, clearest(exact, length))


def clearest(exact: Any, length: int, count: int = 2) -> Tensor:
    """Return the sequences whose routing choices are furthest from a tie, [count, length]."""
    generator = torch.Generator().manual_seed(1)
    tokens_BS = torch.stack(
        [torch.randperm(256, generator=generator)[:length] for _ in range(CANDIDATES)]
    )
    gaps: list[Tensor] = []

    def look(module: Any, given: Any, scores: Any) -> None:
        # In a mixture of depths, and in expert choice, the sign of one score decides.
        score_BSN, chosen = scores, 1
        if isinstance(module, ExpertRouter):
            score_BSN, chosen = given[0] @ module.weight.T, module.k
        falling_BSN = score_BSN.sort(-1, descending=True).values
        single = score_BSN.shape[-1] == 1
        gap_BS = falling_BSN[..., chosen - 1] - (0 if single else falling_BSN[..., chosen])
        gaps.append((gap_BS.abs() / score_BSN.std()).amin(1))

    routers = [part for part in exact.modules() if isinstance(part, (ExpertRouter, Router))]
    hooks = [router.register_forward_hook(look) for router in routers]
    cache = exact.new_cache(CANDIDATES, length)  # a call with a cache adapts nothing
    exact(tokens_BS, cache=cache)
    for hook in hooks:
        hook.remove()
    if not routers:
        return tokens_BS[:count]
    return tokens_BS[torch.stack(gaps).amin(0).argsort(descending=True)[:count]]


def in_pieces(
    model: Any,
    tokens_BS: Tensor,
    pieces: tuple[int, ...],
    cache: Any,
    position_of_first: Tensor | None = None,
) -> Tensor:
    """Return the logits of consecutive pieces of these lengths, processed with ``cache``."""
    done, parts = 0, []
    for piece in pieces:
        position = torch.tensor(done) if done else position_of_first
        parts.append(model(tokens_BS[:, done : done + piece], cache=cache, position=position))
        done += piece
    return torch.cat(parts, 1)


def worst(found_BSV: Tensor, exact_BSV: Tensor) -> float:
    """Return the largest relative error of a position's logits: Euclidean."""
    error_BS = (found_BSV.double() - exact_BSV).norm(dim=-1) / exact_BSV.norm(dim=-1)
    return float(error_BS.max())


def compare_in_the_interpreter() -> None:
    """Check one small form of each family in FP16: Triton's error is at most twice torch's."""
    narrow = {"n_layers": 1, "dim": 32, "n_heads": 2}
    attends, routed = {"n_kv_heads": 1}, {"n_heads": 4, "recursions": 2, "depth_every": 1}
    small: dict[str, dict[str, Any]] = {
        "hydra, ccgqa depths recursions": narrow | routed,
        "mamba2": narrow | attends | {"head_dim": 16, "d_state": 8, "attention_every": 1},
        "adaattn, narrow": narrow,
        "moe, noisy and shared": attends | {"n_layers": 1, "input_dim": 32, "hidden_dim": 16},
    }
    for form, fields in small.items():
        model, exact, tokens_BS = twins(form, torch.float16, length=7, **fields)
        # Triton's attention has no lengths for single rows, which HYDRA's routings need.
        attention = "manual" if "hydra" in form else "triton"
        errors = []
        with torch.no_grad():
            exact_BSV = exact(tokens_BS, cache=exact.new_cache(2, 7))
            for choice in ("torch", "triton"):
                kernels.reset_usage()
                with kernels.using(all=choice, attention=attention):
                    found_BSV = in_pieces(model, tokens_BS, (4, 1, 2), model.new_cache(2, 7))
                errors.append(worst(found_BSV, exact_BSV))
        used = kernels.usage()
        assert used.pop("attention").keys() == {attention}, used
        assert len(used) >= 4 and all(by.keys() == {"triton"} for by in used.values()), used
        assert errors[1] <= 2 * errors[0], (form, errors)
        print(FORMS[form][0])
