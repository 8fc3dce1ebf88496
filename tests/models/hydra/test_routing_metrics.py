"""HYDRA's routing metrics against the routers' scores, observed from outside."""

import pytest
import torch
from routed import routed_model, some_tokens

from models.layers.depth import MixtureOfDepths
from models.layers.recursion import MixtureOfRecursions

COMBINATION = "ccgqa depths recursions"


def scores_of(model):
    """Collect the scores of every router from here on, by module; the recursions' by recursion."""
    scores = {}

    def look(owner):
        def hook(module, given, score_BKN):
            scores.setdefault(owner, []).append(score_BKN.detach()[..., 0].clone())

        return hook

    for module in model.modules():
        if isinstance(module, (MixtureOfDepths, MixtureOfRecursions)):
            module.router.register_forward_hook(look(type(module)))
    return scores


def depths_taken(model):
    """Collect how many tokens a block with mixture of depths computed, call by call."""
    counts = []
    for module in model.modules():
        if isinstance(module, MixtureOfDepths):
            change = module.block.change

            def counted(x_BCE, state, position, rows, change=change):
                count = x_BCE.shape[0] * x_BCE.shape[1]
                counts.append(count if rows.count is None else rows.count.sum().item())
                return change(x_BCE, state, position, rows)

            module.block.change = counted
    return counts


def test_training_tells_the_means_of_all_scores_and_the_shares_that_were_computed():
    model, tokens_BS = routed_model(COMBINATION).train(), some_tokens()
    scores, taken = scores_of(model), depths_taken(model)
    model.loss(tokens_BS, tokens_BS)
    metrics = model.metrics()
    every = torch.cat([score_BK.flatten() for score_BK in scores[MixtureOfDepths]])
    assert len(scores[MixtureOfDepths]) == 3  # recursions, of ever fewer tokens
    assert len({score_BK.shape for score_BK in scores[MixtureOfDepths]}) == 3
    assert metrics["depth_router"].item() == pytest.approx(every.sigmoid().mean().item(), rel=1e-6)
    share = sum(taken) / 3 / tokens_BS.numel()
    assert metrics["depth_share"].item() == pytest.approx(share, rel=1e-6)
    gates = [score_BK.sigmoid().mean().item() for score_BK in scores[MixtureOfRecursions]]
    assert metrics["recursion_router"][0].tolist() == pytest.approx(gates, rel=1e-6)


@torch.no_grad()
def test_decoding_tells_of_the_recursions_that_a_token_reached_alone():
    model, tokens_BS = routed_model(COMBINATION).eval(), some_tokens(1, 8)
    cache, scores = model.new_cache(1, 8), scores_of(model)
    reached = set()
    for at in range(8):
        scores.clear()
        model(tokens_BS[:, at : at + 1], cache=cache, position=torch.tensor(at))
        metrics = model.metrics()
        (left,) = metrics["recursion_share"][0].nonzero().flatten().tolist()
        reached.add(left)
        given = torch.cat(scores[MixtureOfDepths]).flatten()[: left + 1].sigmoid().mean().item()
        assert metrics["depth_router"].item() == pytest.approx(given, rel=1e-6)
    assert len(reached) > 1  # some went further than others
