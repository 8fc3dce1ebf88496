"""The attention-free model gives what transformers' Mamba2 gives with the same weights.

Not part of the environment, so mostly skipped: ``uv run --with transformers pytest`` runs it.
"""

import dataclasses

import pytest
import torch

from models import FAMILIES

transformers = pytest.importorskip("transformers")

MAMBA2 = FAMILIES["mamba2"]
CONFIG = dataclasses.replace(MAMBA2.presets["tiny"], attention_every=0)


def renamed(name):
    """Our name of a weight as theirs."""
    name = name.replace("embedding.weight", "backbone.embeddings.weight")
    name = name.replace("blocks.", "backbone.layers.").replace("mixer.conv_", "mixer.conv1d.")
    name = name.replace("norm_weight", "norm.weight").replace("head.weight", "lm_head.weight")
    return "backbone.norm_f.weight" if name == "norm.weight" else name


@pytest.fixture
def pair():
    model = MAMBA2.materialise(CONFIG, seed=5)
    size = CONFIG.mixer
    peer = transformers.Mamba2ForCausalLM(
        transformers.Mamba2Config(
            vocab_size=CONFIG.rows,
            hidden_size=CONFIG.dim,
            num_hidden_layers=CONFIG.n_layers,
            num_heads=size.n_heads,
            head_dim=size.head_dim,
            state_size=size.d_state,
            n_groups=size.n_groups,
            expand=CONFIG.expand,
            conv_kernel=size.d_conv,
            layer_norm_epsilon=CONFIG.norm_eps,
            chunk_size=32,
            tie_word_embeddings=False,
        )
    )
    weights = {}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.mul_(1 + 0.5 * torch.rand_like(parameter))
            taps = name.endswith("conv_weight")  # theirs are [C, 1, W]
            weights[renamed(name)] = parameter[:, None] if taps else parameter
    peer.load_state_dict(weights)
    return model, peer


def test_logits_and_gradients_equal_those_of_transformers(pair):
    model, peer = pair
    tokens_BS = torch.randint(0, 256, (2, 150), generator=torch.Generator().manual_seed(1))
    ours, theirs = model(tokens_BS), peer(tokens_BS).logits
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    for logits in (ours, theirs):
        logits.square().mean().backward()
    grads = {name: parameter.grad for name, parameter in peer.named_parameters()}
    for name, parameter in model.named_parameters():
        wanted = grads[renamed(name)].view_as(parameter)
        error = (parameter.grad - wanted).norm() / wanted.norm()
        assert error < 1e-4, name
