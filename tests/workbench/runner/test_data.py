"""Inputs of steps: fixed tensors, filled from a ring, for every family."""

from __future__ import annotations

import measuring_family
import pytest
import torch

from models import hydra
from workbench.runner.batches import RING
from workbench.runner.data import make_batches


def batches(family, source="synthetic", seed=0, dtype=torch.float32):
    return make_batches(
        source,
        family=family,
        config=family.presets["tiny"],
        batch=3,
        sequence=24,
        seed=seed,
        device=torch.device("cpu"),
        dtype=dtype,
    )


@pytest.mark.parametrize("family", [hydra.FAMILY, measuring_family.FAMILY], ids=lambda f: f.name)
def test_batches_come_in_turn_at_fixed_addresses_and_the_seed_decides(family):
    made, again, other = batches(family), batches(family), batches(family, seed=1)
    tensors = made.inputs + made.targets
    addresses = [tensor.data_ptr() for tensor in tensors]
    seen = []
    for _ in range(RING + 1):
        made.advance(), again.advance(), other.advance()
        seen.append([tensor.clone() for tensor in tensors])
        for mine, same in zip(tensors, again.inputs + again.targets, strict=True):
            assert torch.equal(mine, same)
    assert [tensor.data_ptr() for tensor in tensors] == addresses
    assert all(map(torch.equal, seen[0], seen[RING]))
    assert not torch.equal(seen[0][0], seen[1][0])
    assert not torch.equal(tensors[0], other.inputs[0])


def test_targets_of_tokens_are_the_tokens_that_follow():
    made = batches(hydra.FAMILY)
    made.advance()
    (tokens_BS,), (targets_BS,) = made.inputs, made.targets
    assert tokens_BS.shape == targets_BS.shape == (3, 24)
    assert torch.equal(tokens_BS[:, 1:], targets_BS[:, :-1])
    assert torch.equal(made.few[0], tokens_BS[:1, :16])


def test_drawn_inputs_take_the_dtype_of_the_weights_and_targets_stay():
    made = batches(measuring_family.FAMILY, dtype=torch.bfloat16)
    assert [tensor.dtype for tensor in made.inputs] == [torch.bfloat16, torch.bfloat16]
    assert made.targets[0].dtype == torch.int64
    assert made.few is made.inputs, "a model may take no other number of rows"


def test_a_family_that_draws_takes_no_file():
    with pytest.raises(ValueError, match="measuring generates its own inputs") as refusal:
        batches(measuring_family.FAMILY, source="/some/text.txt")
    assert "/some/text.txt" in str(refusal.value) and "\n" not in str(refusal.value)
