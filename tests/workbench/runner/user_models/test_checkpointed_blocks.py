"""Checkpointed blocks of a user's model train as without checkpointing, or are left alone."""

from __future__ import annotations

import pytest
import torch
from built import collect_evidence, owned, stepped

FILE = """
import random
import torch
from torch import nn

of_file = torch.Generator()

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(16, 64), nn.Linear(64, 16)
        self.norm = nn.{norm}
        self.dropout = nn.Dropout({dropout})
        self.own, self.calls, self.seen = torch.Generator(), 0, []

    def forward(self, x, *, scale=1.0):
        {before}
        return x + scale * self.dropout(self.down(torch.tanh(self.up(self.norm(x)))))

class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        self.unused = nn.ModuleList([nn.Linear(1, 1)])

    def forward(self, x):
        for block in self.blocks:
            x = block(x, scale=x.new_full((1,), 0.5))
        return x

def build():
    return Own(), lambda batch: torch.randn(batch, 16), lambda y, x: (y - 1).square().mean()
"""


@pytest.fixture
def file(tmp_path):
    def written(norm="LayerNorm(16)", dropout=0.0, before="pass"):
        path = tmp_path / "own.py"
        path.write_text(FILE.format(norm=norm, dropout=dropout, before=before))
        return path

    return written


def trained(path, checkpointing="none", **toggles):
    """Return a variant after four steps on other batches each, from the same seed."""
    return stepped(owned(path), steps=4, checkpointing=checkpointing, **toggles)


def weights(arm):
    return torch.cat([x.detach().reshape(-1) for x in arm.model.parameters()])


@pytest.mark.parametrize(
    ("mode", "count"), [("full", 4), ("selective", 2), ("fourth", 1), ("operators", 4)]
)
def test_the_chosen_blocks_are_recomputed_and_save_less(file, mode, count):
    status, text = collect_evidence(trained(file(), mode))["checkpointing"]
    assert status == "effective", text
    assert text.startswith(f"the backward pass recomputes {count} block"), text
    assert "of 5; for a short call autograd saves" in text


def saved_bytes(arm):
    """Return the bytes that autograd saves in a step, without the weights."""
    own = {parameter.data_ptr() for parameter in arm.model.parameters()}
    sizes = []

    def pack(x):
        sizes.append(0 if x.data_ptr() in own else x.nbytes)
        return x

    with arm.entered(), torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        arm.compute(*arm.batches.inputs)
    return sum(sizes)


DRAWS = "draws numbers of a generator that torch does not repeat"
COMPILED = [{}, {"compile": "default"}, {"compile": "default", "compile_scope": "blocks"}]


@pytest.mark.parametrize("toggles", COMPILED)
def test_steps_train_as_without_checkpointing_and_save_less(file, toggles):
    plain, checkpointed = (trained(file(), mode, **toggles) for mode in ("none", "full"))
    torch.testing.assert_close(weights(checkpointed), weights(plain), rtol=1e-5, atol=1e-6)
    assert saved_bytes(checkpointed) < 0.7 * saved_bytes(plain)


@pytest.mark.parametrize("toggles", COMPILED[::2])
def test_a_recomputed_block_drops_the_numbers_that_it_dropped_before(file, toggles):
    arm, seen = trained(file(dropout=0.3), "full", **toggles), []
    *_, last = arm.model.module.blocks
    last.register_forward_hook(lambda block, inputs, output: seen.append((inputs[0], output)))
    last.down.bias.grad = None
    with arm.entered():
        arm.compute(*arm.batches.inputs).backward()
    (x, y), *_ = [(x.detach(), y.detach()) for x, y in seen]
    factor = 0.5 / 0.7 * (y != x)  # of the numbers that were not dropped
    of_outputs = 2 * (y - 1) / y.numel()
    torch.testing.assert_close(last.down.bias.grad, (of_outputs * factor).sum(0))


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ({"norm": "BatchNorm1d(16)"}, "changes its buffer norm.num_batches_tracked"),
        ({"before": "x.mul_(0.9)"}, "changes its input 1"),
        ({"before": "x = x * random.random()"}, DRAWS),
        ({"before": "x = x + torch.rand(16, generator=self.own)"}, DRAWS),
        ({"before": "x = x + torch.rand(16, generator=of_file)"}, DRAWS),
        ({"before": "self.calls += 1; x = x * self.calls"}, "changes its attribute calls"),
        ({"before": "self.seen.append(1); x = x * len(self.seen)"}, "changes its attribute seen"),
    ],
)
def test_blocks_that_would_not_compute_the_same_again_are_left_alone(file, parts, reason):
    path = file(**parts)
    toggles = COMPILED[2] if "norm" in parts else {}
    arm = trained(path, "full", **toggles)
    assert torch.equal(weights(arm), weights(trained(path, **toggles)))
    assert saved_bytes(arm) == saved_bytes(trained(path, **toggles))
    status, text = collect_evidence(arm)["checkpointing"]
    assert status == "no effect", text
    assert text.startswith(
        f"no block is checkpointed; left out: module.blocks.0, which {reason}"
    ), text


def test_a_model_without_blocks_has_no_effect_and_says_what_blocks_are(tmp_path):
    path = tmp_path / "own.py"
    path.write_text(
        "import torch\n"
        "def build(): return torch.nn.Linear(2, 2), lambda batch: torch.randn(batch, 2), "
        "lambda y, x: y.mean()"
    )
    status, text = collect_evidence(trained(path, "full"))["checkpointing"]
    assert status == "no effect"
    assert text.endswith("the model has no nn.ModuleList, whose entries would be its blocks")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("mode", ["full", "operators"])
def test_a_captured_step_recomputes_the_blocks_that_draw_no_random_numbers(file, mode):
    toggles = {"device": "cuda", "cuda_graphs": "on", "adamw": "fused"}
    arm = trained(file(), mode, **toggles)
    status, text = collect_evidence(arm)["checkpointing"]
    assert status == "effective" and "recomputes 4 blocks of 5;" in text, text
    torch.testing.assert_close(weights(arm), weights(trained(file(), **toggles)))
    status, text = collect_evidence(trained(file(dropout=0.3), mode, **toggles))["checkpointing"]
    assert status == "no effect", text
    assert "module.blocks.0, which draws random numbers that a captured step cannot" in text
