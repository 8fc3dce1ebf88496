"""Tasks that only a well-choosing router can solve, and that none solves with a planted fault.

The faults show what these tests can detect.
"""

import pytest
import torch
from learning import trained

import kernels
from models import FAMILIES

SCATTER, EXPERTS = kernels.token_scatter, kernels.moe_experts
RATE = 1e-2


@torch.no_grad()
def share_right(model, inputs_BS, targets_BS, asked_BS):
    return (model.eval()(inputs_BS).argmax(-1) == targets_BS)[asked_BS].float().mean().item()


EVERY, LETTERS = 4, 8


def scattered(generator, batch=32, length=16):
    """Draw a letter at every fourth position, from one of the first four on, among other signs.

    Each sign's target is itself, which its embedding gives. A letter's target is the letter before
    it, which a block can find if it computes both of them; it computes a quarter of the tokens.
    """
    letters, signs = (
        torch.randint(first, first + LETTERS, (batch, length), generator=generator)
        for first in (0, LETTERS)
    )
    place_S = torch.arange(length)
    first_B1 = torch.randint(0, EVERY, (batch, 1), generator=generator)
    marked_BS = (place_S - first_B1) % EVERY == 0
    tokens_BS = torch.where(marked_BS, letters, signs)
    asked_BS = marked_BS & (place_S >= EVERY)
    targets_BS = torch.where(asked_BS, tokens_BS.roll(EVERY, 1), tokens_BS)
    return tokens_BS, targets_BS, asked_BS


# A router may be right by luck from the start, or learn nothing: the worst of three counts.
SEEDS = (1, 3, 5)


def by_depths(seed):
    """Return the accuracy on what only the routed block can know; chance is 1/8."""
    sizes = {"dim": 64, "n_heads": 1, "n_kv_heads": 1, "n_layers": 1}
    routed = {"mixture_of_depths": True, "depth_every": 1, "depth_capacity": 1 / EVERY}
    family = FAMILIES["hydra"]
    model = family.materialise(family.configure("tiny", sizes | routed), seed=seed)
    generator = torch.Generator().manual_seed(0)
    trained(model, (scattered(generator)[:2] for _ in range(150)), RATE)
    return share_right(model, *scattered(generator, batch=128))


def test_depth_routing_learns_which_tokens_a_block_must_compute():
    assert min(map(by_depths, SEEDS)) > 0.95


@pytest.mark.parametrize(
    "weight",
    [torch.ones_like, torch.Tensor.detach, torch.zeros_like],
    ids=["not applied", "without a gradient", "nothing"],
)
def test_a_fault_in_the_weights_of_depth_routing_learns_it_hardly_better_than_guesses(
    weight, monkeypatch
):
    monkeypatch.setattr(kernels, "token_scatter", lambda x, y, w, at: SCATTER(x, y, weight(w), at))
    assert min(map(by_depths, SEEDS)) < 0.5


def by_experts():
    """Return loss and accuracy on a table that experts can hold only together."""
    sizes = {"input_dim": 32, "n_heads": 2, "n_kv_heads": 2, "n_layers": 1, "hidden_dim": 4}
    family = FAMILIES["moe"]
    model = family.materialise(
        family.configure("tiny", sizes | {"gating": "noisy_topk", "num_experts": 8, "top_k": 2})
    )
    generator = torch.Generator().manual_seed(0)
    table = torch.randperm(64, generator=generator)
    (block,) = model.blocks
    with torch.no_grad():  # only the experts know, and at first all tokens are alike to the router
        model.embedding.weight.normal_(0, 0.2, generator=generator).requires_grad_(False)
        for weight in block.attention.parameters():
            weight.zero_().requires_grad_(False)
        block.mixture.router.weight.zero_()
    torch.manual_seed(5)  # of the noise
    batches = (torch.randint(0, 64, (16, 16), generator=generator) for _ in range(150))
    loss = trained(model, ((tokens_BS, table[tokens_BS]) for tokens_BS in batches), RATE)
    every_BS = torch.arange(64).view(4, 16)
    return loss, share_right(model, every_BS, table[every_BS], torch.ones(4, 16, dtype=torch.bool))


def test_noisy_experts_learn_a_table_of_which_each_holds_a_part():
    loss, right = by_experts()
    assert loss < 0.3 and right > 0.95


FAULTS = {
    "weights not applied": lambda x, index, weight, *rest, **more: EXPERTS(
        x, index, torch.full_like(weight, 0.5), *rest, **more
    ),
    "weights without a gradient": lambda x, index, weight, *rest, **more: EXPERTS(
        x, index, weight.detach(), *rest, **more
    ),
    "the other expert's weight": lambda x, index, weight, *rest, **more: EXPERTS(
        x, index, weight.flip(-1), *rest, **more
    ),
    "another token's experts": lambda x, index, weight, *rest, **more: EXPERTS(
        x, index.roll(1, 1), weight, *rest, **more
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_combining_experts_learns_the_table_ten_times_worse(fault, monkeypatch):
    monkeypatch.setattr(kernels, "moe_experts", FAULTS[fault])
    loss, right = by_experts()
    assert loss > 1.5 and right < 0.9
