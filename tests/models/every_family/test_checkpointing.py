"""Checkpointed blocks, alone and compiled: the same gradients, and what they save."""

import pytest
import torch
from torch import nn

from models.execution import checkpointing


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    checkpointing.reset_kept_operators()
    yield
    torch._dynamo.reset()


def slopes(run, block, x):
    return torch.autograd.grad(run(x).square().sum(), [x, *block.parameters()])


@pytest.mark.parametrize("mode", [mode for mode in checkpointing.CHECKPOINTING if mode != "none"])
def test_a_compiled_checkpoint_gives_the_gradients_of_the_block_and_keeps_what_it_says(mode):
    torch.manual_seed(0)
    block = nn.Sequential(nn.Linear(6, 9), nn.GELU(), nn.Linear(9, 6)).double()
    x = torch.randn(4, 6, dtype=torch.float64, requires_grad=True)

    def run(x):
        return checkpointing.recomputed(mode, block, x)

    expected = slopes(block, block, x)
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    for call in (run, compiled):
        checkpointing.reset_kept_operators()
        torch.testing.assert_close(slopes(call, block, x), expected)
        saved = checkpointing.kept_operators()
        assert set(saved) == ({"addmm"} if mode == "operators" else set())
        assert call is compiled or saved.get("addmm", 2) == 2


class TooLargeError(Exception):
    """Error like a failed allocation in the middle of a block."""


@pytest.mark.parametrize("mode", ["full", "operators"])
def test_a_block_that_fails_is_no_part_of_later_steps_while_its_error_is_held(mode):
    layer = nn.Linear(6, 6)
    x = torch.randn(4, 6, requires_grad=True)

    def failing(x):
        layer(x).relu()
        raise TooLargeError

    expected = slopes(layer, layer, x)
    with pytest.raises(TooLargeError) as raised:
        checkpointing.recomputed(mode, failing, x)
    actual = slopes(layer, layer, x)
    assert raised.tb is not None
    assert all(map(torch.equal, actual, expected))
