"""Memory of attention whose backend writes its weights, estimated and counted.

``peak_bytes`` counts it on a CPU, as it would be on a GPU: PyTorch's own operators without their
numbers.
"""

import pytest
from peak_bytes import as_on_an_h200, estimate_and_peak

from models import FAMILIES

ROUTED = {"mixture_of_depths": True, "mixture_of_recursions": True, "n_layers": 2}
SHARED = {"mixture_of_recursions": True, "recursion_kv": "share"}
CASES = [
    ("hydra", {}, "manual", "half", "none", 0.05),
    ("hydra", {}, "chunked", "amp", "full", 0.05),
    ("hydra", {"n_kv_heads": 4}, "sdpa_math", "half", "full", 0.05),
    ("moe", {}, "sdpa_math", "amp", "none", 0.05),
    ("mahia", {"text_seq_len": 256}, "manual", "fp32", "none", 0.05),
]
MORE = [
    ("hydra", {}, "sdpa_math", "fp32", "none", 0.05),
    ("hydra", {"window": 32}, "manual", "fp32", "none", 0.05),
    ("hydra", ROUTED, "manual", "half", "none", 0.05),
    ("hydra", SHARED, "manual", "fp32", "none", 0.05),
    ("mamba2", {"attention_every": 1, "n_layers": 2}, "manual", "half", "none", 0.05),
    ("mahia", {"text_seq_len": 256}, "sdpa_math", "half", "full", 0.05),
    ("adaattn", {}, "manual", "half", "none", 0.05),
    ("adaattn", {}, "sdpa_math", "amp", "none", 0.1),
]
CASES += [pytest.param(*case, marks=pytest.mark.slow) for case in MORE]


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("name", "fields", "attention", "precision", "checkpointing", "off"), CASES
)
def test_attentions_weights_are_counted_in_a_training_step_whatever_holds_them(
    name, fields, attention, precision, checkpointing, off
):
    family = FAMILIES[name]
    config = family.configure("tiny", fields)
    # AdaAttn's fused kernel is one, whatever backend is asked for.
    step = {"batch": 4, "sequence": 256, "fused": name != "adaattn", "attention": attention}
    step |= {"precision": precision, "checkpointing": checkpointing}
    estimate, peak = estimate_and_peak(family, config, **step)
    with as_on_an_h200():
        without = family.footprint(config, workload="train", **step | {"attention": ""}).total
    assert estimate == pytest.approx(peak, rel=off)
    assert without < (1 - 2 * off) * peak


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("name", "workload", "attention", "precision"),
    [
        ("hydra", "prefill", "manual", "half"),
        ("hydra", "forward", "sdpa_math", "amp"),
        ("mamba2", "prefill", "chunked", "half"),
        ("moe", "forward", "manual", "fp32"),
        ("mahia", "forward", "manual", "half"),
        ("adaattn", "prefill", "chunked", "fp32"),
    ],
)
def test_attentions_weights_are_counted_in_inference_whatever_holds_them(
    name, workload, attention, precision
):
    family = FAMILIES[name]
    config = family.configure("tiny", {"text_seq_len": 256} if name == "mahia" else {})
    step = {"batch": 4, "sequence": 256, "precision": precision, "attention": attention}
    step |= {"workload": workload, "fused": name != "adaattn"}
    estimate, peak = estimate_and_peak(family, config, **step)
    with as_on_an_h200():
        without = family.footprint(config, **step | {"attention": ""}).total
    assert estimate == pytest.approx(peak, rel=0.05)
    assert without < 0.9 * peak


def test_chunks_hold_as_much_of_a_long_sequence_as_of_a_short_one():
    family = FAMILIES["hydra"]
    config = family.configure("tiny", {"max_sequence": 4096})
    step = {"batch": 1, "sequence": 2048, "precision": "half", "attention": "chunked"}
    estimate, peak = estimate_and_peak(family, config, **step)
    assert estimate == pytest.approx(peak, rel=0.05)
