"""MAHIA-X: equal to its equations, learnable, and refused by a sentence where it cannot be."""

import os
import subprocess
import sys
from pathlib import Path

import mahia_equations as equations
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from mahia_samples import MAHIA, SMALL, drawn, varied

from models import ConfigurationError
from models.hybrid_task import scores
from models.mahia import HybridEfficientModel


def gradients(model, loss, batch):
    model.zero_grad()
    value = loss(*batch)
    value.backward()
    return [value.detach(), *(parameter.grad.clone() for parameter in model.parameters())]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"use_moe": True, "capacity": 0.3},
        {"causal": True, "memory_top_k": 2, "capacity": 1.0},
        {"use_fourier": False, "task": "regression", "n_heads": 2},
    ],
)
def test_loss_and_gradients_equal_the_equations(fields):
    config = varied(**fields)
    head_dim = config.embed_dim // config.n_heads
    model = MAHIA.materialise(config, dtype=torch.float64, seed=5)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():  # away from gains of one and biases of zero
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    # The rotary table is FP32 by design; in FP64 nothing has to be forgiven.
    angles = torch.outer(
        torch.arange(9.0).double(), 1e4 ** -torch.arange(0, 1, 2 / head_dim).double()
    )
    rotary = model.blocks[0].attention.attention.rotary
    rotary.cos_SR, rotary.sin_SR = angles.cos(), angles.sin()
    (tokens_BS, tabular_BF), (targets,) = drawn(config)
    tabular_BF = tabular_BF.double()
    ours = gradients(model, model.loss, (tokens_BS, tabular_BF, targets))
    outputs, balance = equations.hybrid(config, model.weights(), tokens_BS, tabular_BF)
    close = {"rtol": 1e-8, "atol": 1e-10}
    torch.testing.assert_close(model(tokens_BS, tabular_BF), outputs, **close)
    if config.task == "classification":
        loss = -outputs.log_softmax(-1)[torch.arange(len(targets)), targets].mean()
    else:
        loss = (outputs - targets).square().sum() / targets.numel()
    loss = loss + 0.01 * balance
    theirs = torch.autograd.grad(loss, list(model.parameters()))
    for name, first, other in zip(
        ["loss", *dict(model.named_parameters())], ours, [loss, *theirs], strict=True
    ):
        assert other.abs().max() > 1e-7, f"{name} says nothing"
        torch.testing.assert_close(first, other.detach(), **close, msg=name)


def test_the_balancing_loss_is_one_where_experts_share_alike():
    model = MAHIA.materialise(varied(use_moe=True))
    with torch.no_grad():
        model.blocks[0].mlp.router.weight.zero_()
        _, balance, _ = model.blocks[0].mlp(torch.randn(2, 9, 16))
    assert balance.item() == pytest.approx(1)


@given(seed=st.integers(0, 1000), length=st.integers(1, 9))
def test_at_full_capacity_a_sample_does_not_depend_on_its_batch(seed, length):
    model = MAHIA.materialise(varied(capacity=1.0), seed=2)
    (tokens_BS, tabular_BF), _ = drawn(SMALL, 4, length, seed)
    with torch.no_grad():
        alone = [model(tokens_BS[i : i + 1], tabular_BF[i : i + 1]) for i in range(len(tokens_BS))]
        torch.testing.assert_close(model(tokens_BS, tabular_BF), torch.cat(alone))


def test_below_it_towers_and_memory_still_do_not():
    model = MAHIA.materialise(SMALL, seed=2)
    (tokens_BS, tabular_BF), _ = drawn(SMALL)
    with torch.no_grad():
        full = model.query(tokens_BS, tabular_BF)
        alone = torch.cat(
            [model.query(tokens_BS[i : i + 1], tabular_BF[i : i + 1]) for i in range(6)]
        )
        torch.testing.assert_close(full, alone)
        torch.testing.assert_close(
            model.memory(full), torch.cat([model.memory(row[None]) for row in full])
        )


def test_a_step_writes_to_metrics_alone_and_an_update_changes_what_is_answered():
    model = MAHIA.materialise(SMALL, seed=2)
    inputs, targets = drawn(SMALL)
    saved = {
        name: (tensor, tensor._version)
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]
        if not name.startswith("metric_")
    }
    model.loss(*inputs, *targets).backward()
    assert all(tensor._version == version for tensor, version in saved.values())
    with torch.no_grad():
        before = model(*inputs)
        model.memory.update(model.query(*inputs), rate=1.0)
        assert not torch.allclose(model(*inputs), before, atol=1e-6)


def test_metrics_tell_what_the_parts_did():
    model = MAHIA.materialise(varied(use_moe=True), seed=2)
    inputs, _ = drawn(SMALL)
    with torch.no_grad():
        model(*inputs)
        query = model.query(*inputs)
        h_BM = model.memory.retrieval(query)
    metrics = model.metrics()
    assert set(metrics) == {metric.name for metric in MAHIA.metrics}
    assert metrics["layers_used"].sum().item() == pytest.approx(1)
    mean_depth = (metrics["layers_used"] @ torch.arange(4.0)).item()
    assert mean_depth == pytest.approx(1.5)  # half of three layers, whoever took them
    entropy = -(h_BM * h_BM.log()).sum(-1).mean() / torch.tensor(6.0).log()
    torch.testing.assert_close(metrics["memory_entropy"][0, 0], entropy)
    for name in ("fourier_gate", "fabric_gate"):
        assert ((metrics[name] > 0.2) & (metrics[name] < 0.8)).all(), name
    assert metrics["fourier_gate"].shape == (2, 4)
    torch.testing.assert_close(metrics["expert_share"].sum(-1), torch.ones(2))
    with torch.no_grad():
        model.blocks[0].attention.gate.bias.fill_(20.0)
        model(*inputs)
    torch.testing.assert_close(metrics["fourier_gate"][0], torch.ones(4))
    assert "fourier_gate" not in MAHIA.materialise(varied(use_fourier=False)).metrics()


def test_the_task_is_one_for_all_seeds_and_needs_both_inputs():
    (tokens_BS, tabular_BF), (targets_B,) = drawn(SMALL, 2000, seed=1)
    again = drawn(SMALL, 2000, seed=1)
    assert torch.equal(again[0][0], tokens_BS) and torch.equal(again[1][0], targets_B)
    assert not torch.equal(drawn(SMALL, 2000, seed=2)[0][0], tokens_BS)
    assert tokens_BS.dtype == targets_B.dtype == torch.int64
    assert (tokens_BS.shape, tabular_BF.shape) == ((2000, 9), (2000, 5))
    text_BC, table_BC = scores(20, 3, tokens_BS, tabular_BF)
    assert torch.equal((text_BC + table_BC).argmax(-1), targets_B)
    for first in (text_BC, table_BC):
        assert first.std().item() == pytest.approx(1, abs=0.1)
        assert 0.4 < (first.argmax(-1) == targets_B).float().mean() < 0.8
    (_, _), (numbers_BC,) = drawn(varied(task="regression"), 2000, seed=1)
    torch.testing.assert_close(numbers_BC, text_BC + table_BC)


@pytest.mark.parametrize("use_moe", [False, True])
def test_it_learns_the_task_better_than_either_input_could_tell(use_moe):
    sizes = {"vocab_size": 64, "output_dim": 4, "text_seq_len": 16, "max_layers": 4, "n_experts": 4}
    config = MAHIA.configure("tiny", sizes | {"use_moe": use_moe})
    model = MAHIA.materialise(config, seed=1)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    generator = torch.Generator().manual_seed(0)
    for _ in range(90):
        inputs, targets = MAHIA.draw(config, 64, 16, generator)
        optimizer.zero_grad()
        model.loss(*inputs, *targets).backward()
        optimizer.step()
    inputs, (targets_B,) = drawn(config, 1024, seed=77)  # not seen before
    alone = [(first.argmax(-1) == targets_B).float().mean() for first in scores(64, 4, *inputs)]
    with torch.no_grad():
        accuracy = (model(*inputs).argmax(-1) == targets_B).float().mean()
    assert accuracy > max(alone) + 0.05 > 0.25 + 0.3


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_training_on_one_batch_learns_it(task):
    config = varied(task=task)
    model = MAHIA.materialise(config, seed=1)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    inputs, targets = drawn(config, 8)
    first = model.loss(*inputs, *targets).item()
    for _ in range(80):
        optimizer.zero_grad()
        loss = model.loss(*inputs, *targets)
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.05 < 0.5 < first


@pytest.mark.parametrize("precision", ["amp", "half"])
@pytest.mark.parametrize("use_moe", [False, True])
def test_bfloat16_stays_close_to_single_precision(precision, use_moe):
    # At full capacity: below it, rounding may let another sample win a place.
    config = varied(use_moe=use_moe, capacity=1.0)
    dtype = torch.bfloat16 if precision == "half" else torch.float32
    wide, narrow = (MAHIA.materialise(config, dtype=d, seed=2) for d in (torch.float32, dtype))
    inputs, targets = drawn(config)
    with torch.no_grad():
        expected = wide(*inputs)
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "amp"):
        outputs, loss = narrow(*inputs), narrow.loss(*inputs, *targets)
    assert outputs.dtype == torch.bfloat16 and loss.dtype == torch.float32
    assert (outputs.float() - expected).norm() < 0.05 * expected.norm()
    loss.backward()
    for name, parameter in narrow.named_parameters():
        assert parameter.grad.dtype == parameter.dtype, name
        assert parameter.grad.isfinite().all() and parameter.grad.any(), name
    assert all(values.dtype == torch.float32 for values in narrow.metrics().values())


@pytest.mark.skipif(
    torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET") == "1",
    reason="for a CPU without the interpreter",
)
def test_the_fused_paths_agree_with_the_standard_ones_in_the_interpreter():
    here = Path(__file__).parents[1]
    done = subprocess.run(
        [sys.executable, str(here / "mahia_in_interpreter.py")],
        env=os.environ
        | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(here.parents[1])},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and done.stdout.strip() == "agree", done.stderr[-3000:]


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        ({"n_heads": 5}, "mahia: embed_dim = 32 cannot be divided into n_heads = 5 heads"),
        ({"embed_dim": 12, "n_heads": 4}, "mahia: embed_dim / n_heads = 3 is odd"),
        ({"memory_top_k": 65}, "mahia: memory_top_k = 65 exceeds memory_size = 64"),
        ({"expert_top_k": 9}, "mahia: expert_top_k = 9 exceeds n_experts = 8"),
        ({"output_dim": 1}, "mahia: classification needs an output_dim of at least 2, not 1"),
        ({"capacity": 0}, "mahia: capacity = 0.0 is outside of 0.001 to 1"),
        ({"max_layers": -1}, "mahia: max_layers = -1 is outside of 1 to 1024"),
        ({"text_seq_len": 0}, "mahia: text_seq_len = 0 is outside of 1 to 1048576"),
        ({"task": "poetry"}, "mahia: task = 'poetry' is not one of ('classification', "),
    ],
)
def test_sizes_that_cannot_be_built_are_refused_by_a_sentence(overrides, sentence):
    with pytest.raises(ConfigurationError) as caught:
        MAHIA.configure("tiny", overrides)
    assert str(caught.value).startswith(sentence)


def test_it_can_be_built_by_the_documents_parameters_alone():
    torch.manual_seed(0)
    model = HybridEfficientModel(
        vocab_size=1000,
        text_seq_len=32,
        tab_dim=20,
        output_dim=2,
        embed_dim=32,
        tab_hidden_dim=32,
        fused_dim=64,
        use_moe=True,
    )
    outputs = model(torch.randint(1000, (3, 32)), torch.randn(3, 20))
    assert outputs.shape == (3, 2) and outputs.isfinite().all()
    with pytest.raises(ConfigurationError, match="mahia: n_heads = 0 is outside of 1"):
        HybridEfficientModel(10, 4, 2, 2, 8, 8, 8, n_heads=0)


@pytest.mark.parametrize(
    ("tokens", "tabular"),
    [
        ((2, 10), (2, 5)),
        ((2, 0), (2, 5)),
        ((0, 9), (0, 5)),
        ((2, 9), (3, 5)),
        ((9,), (2, 5)),
    ],
)
def test_inputs_that_do_not_go_together_are_refused_by_a_sentence(tokens, tabular):
    model = MAHIA.materialise(SMALL)
    with pytest.raises(ConfigurationError, match=r"mahia: expected tokens \(B, T\) .* = 9 and fea"):
        model(torch.zeros(tokens, dtype=torch.int64), torch.zeros(tabular))


def test_variants_share_one_set_of_weights_and_the_memory_with_it():
    model = MAHIA.materialise(SMALL, seed=2)
    other = MAHIA.share(SMALL, model.weights())
    inputs, _ = drawn(SMALL)
    with torch.no_grad():
        model.memory.update(model.query(*inputs), rate=1.0)
        assert torch.equal(model(*inputs), other(*inputs))
    assert MAHIA.build(SMALL).memory.memory_ME.no_weight_decay  # or what was written would fade
    other.share_rope_cache(False)
    assert other.rope_cache_bytes() == 2 * model.rope_cache_bytes()
    assert torch.equal(model(*inputs), other(*inputs))
