"""Attention that sees the last tokens only: no further, and the same while decoding."""

import pytest
import torch
from halves import FORMS, LENGTH, PIECES, SIZES, in_pieces

from models import FAMILIES

WINDOW = 3
WINDOWED = (
    "hydra",
    "hydra, ccgqa depths recursions",
    "hydra, ccgqa recursions sharing keys",
    "hydra, recursions by token sharing keys",
    "mamba2",
    "moe",
)


def windowed(form, **fields):
    name, more = FORMS[form]
    family = FAMILIES[name]
    config = family.configure("tiny", SIZES[name] | more | {"window": WINDOW} | fields)
    return family.materialise(config, dtype=torch.float64, seed=3).eval()


def tokens():
    return torch.stack(
        [torch.randperm(256, generator=torch.Generator().manual_seed(s))[:LENGTH] for s in (1, 2)]
    )


@torch.no_grad()
@pytest.mark.parametrize("form", WINDOWED)
def test_decoding_with_a_window_gives_the_logits_of_the_whole(form):
    model, tokens_BS = windowed(form, n_layers=2), tokens()
    whole_BSV = model(tokens_BS)
    found_BSV = in_pieces(model, tokens_BS, PIECES, model.new_cache(2, LENGTH))
    torch.testing.assert_close(found_BSV, whole_BSV, rtol=1e-9, atol=1e-10)


@torch.no_grad()
@pytest.mark.parametrize("form", ["hydra", "moe"])
def test_a_block_sees_as_many_tokens_as_its_window_and_no_more(form):
    model, tokens_BS = windowed(form, n_layers=1), tokens()
    changed_BS = tokens_BS.clone()
    changed_BS[:, 4] = (changed_BS[:, 4] + 1) % 256
    moved_S = (model(tokens_BS) - model(changed_BS)).abs().amax((0, 2))
    assert (moved_S[4 : 4 + WINDOW] > 1e-6).all()
    assert (moved_S[:4] < 1e-12).all() and (moved_S[4 + WINDOW :] < 1e-12).all()
