"""Memory of a training step with options that save memory or need it: estimated and counted."""

from __future__ import annotations

from typing import Any

import pytest
from peak_bytes import FORMATS, estimate_and_peak

from models import FAMILIES

PRESETS = {"mamba2": "96M"}
SEQUENCES = {"mahia": 256}
FEW_WORDS = {"vocabulary": 2048}  # otherwise logits would hide what blocks hold
LAYERS = {"n_layers": 4}


def assert_estimated(name: str, fields: dict[str, Any], *, error: float, **step: Any) -> None:
    """Check that the estimate is at most ``error`` off the counted peak, as a fraction."""
    family = FAMILIES[name]
    words = fields.get("vocabulary")
    if name == "mahia" and words:
        fields = {key: value for key, value in fields.items() if key != "vocabulary"}
        fields |= {"vocab_size": words}
    config = family.configure(PRESETS.get(name, "base"), fields)
    step = {"batch": 8, "sequence": SEQUENCES.get(name, 512), **step}
    estimate, peak = estimate_and_peak(family, config, **step)
    assert estimate == pytest.approx(peak, rel=error)


@pytest.mark.sample(3)
@pytest.mark.parametrize("precision", FORMATS)
@pytest.mark.parametrize("loss", ["triton", "triton_small", "chunked"])
@pytest.mark.parametrize("words", [2048, 200_000])
def test_a_loss_without_all_logits_is_estimated_as_counted(words, loss, precision):
    fields = {"n_layers": 1, "vocabulary": words}
    step = {"loss": loss, "precision": precision}
    assert_estimated("hydra", fields, error=0.03, sequence=1024, **step)


@pytest.mark.parametrize("precision", FORMATS)
@pytest.mark.parametrize("fields", [{}, {"tie_embeddings": False}], ids=str)
@pytest.mark.parametrize("name", ["hydra", "moe"])
def test_a_few_tokens_need_the_gradient_of_a_tied_embedding_twice(name, fields, precision):
    step = {"batch": 1, "sequence": 64, "precision": precision}
    assert_estimated(name, fields | {"n_layers": 2}, error=0.03, **step)


@pytest.mark.sample(3)
@pytest.mark.parametrize("update", ["loop", "foreach"])
@pytest.mark.parametrize("name", ["hydra", "moe", "mahia"])
def test_what_an_update_holds_besides_is_estimated_as_counted(name, update):
    step = {"batch": 1, "precision": "amp", "checkpointing": "full", "update": update}
    if name != "mahia":
        step |= {"sequence": 256, "loss": "triton_small"}
    assert_estimated(name, LAYERS, error=0.02, **step)


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("precision", "fused"), [pytest.param("fp32", True, marks=pytest.mark.slow), ("amp", False)]
)
@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("hydra", {}),
        ("hydra", {"ccgqa": True}),
        ("hydra", {"mixture_of_depths": True}),
        ("hydra", {"mixture_of_recursions": True, "recursions": 2}),
        ("moe", {"num_shared_experts": 1}),
        pytest.param("mamba2", {}, marks=pytest.mark.slow),
        ("adaattn", {}),
        ("mahia", {}),
        ("mahia", {"use_moe": True}),
    ],
    ids=str,
)
def test_outputs_that_checkpointing_saves_are_estimated_as_counted(name, fields, precision, fused):
    step = {"checkpointing": "operators", "precision": precision, "fused": fused}
    step["attention"] = "triton"  # it is an operator of torch, like SDPA's kernels on a GPU
    assert_estimated(name, LAYERS | FEW_WORDS | fields, error=0.05, **step)


@pytest.mark.sample(3)
@pytest.mark.parametrize("precision", FORMATS)
@pytest.mark.parametrize("checkpointing", ["none", "full"])
@pytest.mark.parametrize("name", ["hydra", "moe", "adaattn", "mahia"])
def test_what_the_device_has_of_offloaded_activations_is_estimated_as_counted(
    name, checkpointing, precision
):
    step = {"offloaded": True, "checkpointing": checkpointing, "precision": precision}
    assert_estimated(name, LAYERS | FEW_WORDS, error=0.05, sequence=256, **step)


@pytest.mark.parametrize(("name", "fields"), [("hydra", {}), ("hydra", {"ccgqa": True})], ids=str)
def test_logits_stay_on_the_device_if_activations_are_offloaded(name, fields):
    for step in (
        {"precision": "amp"},
        {"precision": "half"},
        {"precision": "amp", "loss": "triton"},
    ):
        assert_estimated(name, LAYERS | fields, error=0.02, offloaded=True, **step)


@pytest.mark.parametrize("precision", FORMATS)
@pytest.mark.parametrize("batch", [1, 4])
def test_gradients_of_states_at_segments_are_estimated_as_counted(batch, precision):
    """A scan of few sequences is divided into segments, so that all multiprocessors have work."""
    fields = LAYERS | FEW_WORDS
    assert_estimated("mamba2", fields, error=0.03, batch=batch, precision=precision)


@pytest.mark.sample(2)
@pytest.mark.parametrize("checkpointing", ["none", "full"])
@pytest.mark.parametrize("precision", FORMATS)
@pytest.mark.parametrize(
    ("name", "fields"),
    [("moe", {}), ("moe", {"num_shared_experts": 1}), ("mahia", {"use_moe": True})],
    ids=str,
)
def test_the_gradients_of_a_blocks_experts_are_computed_together(
    name, fields, precision, checkpointing
):
    step = {"precision": precision, "checkpointing": checkpointing}
    assert_estimated(name, LAYERS | FEW_WORDS | fields, error=0.03, **step)


@pytest.mark.sample(2)
@pytest.mark.parametrize("precision", FORMATS)
@pytest.mark.parametrize(
    ("name", "checkpointing"),
    [("hydra", "none"), ("hydra", "full"), ("moe", "none"), ("moe", "full"), ("mamba2", "none")],
)
def test_rounded_copies_of_weights_are_estimated_as_counted(name, checkpointing, precision):
    step = {"rounded": True, "precision": precision, "checkpointing": checkpointing}
    assert_estimated(name, LAYERS | FEW_WORDS, error=0.04, **step)


@pytest.mark.sample(2)
@pytest.mark.parametrize("precision", ["fp32", "amp", "half"])
@pytest.mark.parametrize("fields", [{}, {"adaptive_rank": False}], ids=str)
def test_the_norms_of_adaptive_heads_copy_what_is_not_in_fp32(fields, precision):
    step = {"precision": precision, "fused": False, "attention": "triton"}
    assert_estimated("adaattn", LAYERS | FEW_WORDS | fields, error=0.02, **step)
