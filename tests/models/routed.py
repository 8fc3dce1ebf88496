"""Small models with every combination of HYDRA's routings, for exact comparisons in FP64."""

import dataclasses

import torch

from models import FAMILIES

HYDRA = FAMILIES["hydra"]
PLAIN = dataclasses.replace(
    HYDRA.presets["tiny"],
    dim=32,
    n_layers=2,
    n_heads=4,
    n_kv_heads=2,
    max_sequence=32,
    router_loss=0.3,
    depth_capacity=0.4,
    recursions=3,
    recursion_alpha=0.7,
)
CCGQA = {"ccgqa": True, "conv_width": 3}
DEPTHS = {"mixture_of_depths": True}
RECURSIONS = {"mixture_of_recursions": True}
TOKEN, SHARE = {"recursion_routing": "token"}, {"recursion_kv": "share"}
COMBINATIONS = {
    "ccgqa": CCGQA,
    "depths": DEPTHS,
    "ccgqa depths": CCGQA | DEPTHS | {"depth_every": 1},
    "recursions": RECURSIONS,
    "ccgqa recursions sharing keys": CCGQA | RECURSIONS | SHARE,
    "recursions by token sharing keys": RECURSIONS | TOKEN | SHARE,
    "depths recursions by token": DEPTHS | RECURSIONS | TOKEN,
    "ccgqa depths recursions": CCGQA | DEPTHS | RECURSIONS,
}


def config_of(combination):
    return dataclasses.replace(PLAIN, **COMBINATIONS[combination])


def routed_model(combination, seed=5, dtype=torch.float64, **fields):
    """Make a model with weights large enough that the routers' scores differ between tokens."""
    config = dataclasses.replace(config_of(combination), **fields)
    model = HYDRA.materialise(config, dtype=dtype, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            if "router" in name:
                parameter.copy_(drawn)
            elif "embedding" in name:
                parameter.copy_(0.5 * drawn)
            elif "norm" in name or "temperature" in name:
                parameter.add_(0.3 * drawn)
            else:
                parameter.copy_(0.2 * drawn)
    return model


def some_tokens(batch=2, length=13, seed=1):
    """Return distinct tokens: of two equal ones with equal scores, rounding could choose either."""
    generator = torch.Generator().manual_seed(seed)
    return torch.stack([torch.randperm(256, generator=generator)[:length] for _ in range(batch)])
