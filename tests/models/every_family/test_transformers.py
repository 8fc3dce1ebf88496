"""With equal weights our models equal Llama, Mixtral and Mamba-2 in ``transformers``.

Optional: the extra ``peers`` brings the package (``uv run --extra peers pytest tests/models``).
"""

import dataclasses

import pytest
import torch

from models import FAMILIES

pytest.importorskip("transformers", reason="transformers is not installed (the extra 'peers')")

from transformers_peers import peer, theirs

SMALL = {"n_layers": 2, "tie_embeddings": False, "rope_theta": 500.0, "max_sequence": 64}
LLAMA = dataclasses.replace(FAMILIES["hydra"].presets["tiny"], **SMALL)
MIXTRAL = dataclasses.replace(FAMILIES["moe"].presets["tiny"], **SMALL, load_balance_weight=0.0)
MAMBA2 = dataclasses.replace(FAMILIES["mamba2"].presets["tiny"], attention_every=0)
# Both make their rotary tables in FP32, each in its own way, and transformers its scan.
CASES = {
    "Llama": ("hydra", LLAMA, torch.float64, 1e-5),
    "Mixtral": ("moe", MIXTRAL, torch.float64, 1e-5),
    "Mixtral of one expert": (
        "moe",
        dataclasses.replace(MIXTRAL, num_experts=1, top_k=1),
        torch.float64,
        1e-5,
    ),
    "Mamba-2": ("mamba2", MAMBA2, torch.float32, 1e-4),
}


@pytest.fixture(params=CASES)
def pair(request):
    """Return our model and theirs, with weights far enough from their initial values."""
    family, config, dtype, tolerance = CASES[request.param]
    model = FAMILIES[family].materialise(config, dtype=dtype, seed=3)
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            scale = 20 if "router" in name else 1
            parameter.mul_(scale * (1 + 0.5 * torch.rand(parameter.shape, generator=generator)))
    more = {"chunk_size": 32} if family == "mamba2" else {"attn_implementation": "eager"}
    if family == "moe":
        more["experts_implementation"] = "eager"  # the other ones know no FP64
    return model, peer(model, config, **more), config, tolerance


def test_logits_and_gradients_are_those_of_transformers(pair):
    model, other, config, tolerance = pair
    tokens_BS = torch.randint(0, 256, (2, 45), generator=torch.Generator().manual_seed(1))
    actual, expected = model(tokens_BS), other(tokens_BS).logits
    assert (actual - expected).norm() < tolerance * expected.norm()
    assert actual.abs().max() > 0.05
    for logits in (actual, expected):
        logits.square().mean().backward()
    # By all parameters' names: one that had no gradient here would be missing there.
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    wanted = {name: parameter.grad for name, parameter in other.named_parameters()}
    named = theirs(config, gradients)
    assert named.keys() == wanted.keys()
    for name, gradient in named.items():
        error = (gradient - wanted[name]).norm()
        assert error <= tolerance * wanted[name].norm(), name
        assert wanted[name].abs().max() > 0 or name.endswith("gate.weight"), name
