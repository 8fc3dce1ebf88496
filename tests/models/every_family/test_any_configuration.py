"""Any requested sizes give a model that runs and has the counted size, or one sentence.

Its decoding steps that fuse operators equal separate ones.
"""

import random

import pytest
import torch
from halves import in_pieces
from peak_bytes import drawn

import kernels
from models import FAMILIES, ConfigurationError, language_model

VALUES = {
    int: (0, 1, 2, 3, 4, 6, 8, 12, 16, 17, 24, 64, 256),
    float: (0.0, 0.001, 0.01, 0.125, 0.3, 0.5, 1.0, 2.0, 4.0),
    bool: (False, True),
    str: ("",),
}
LARGEST = 2_000_000  # parameters of a model that is built here
WANTED = 30  # models of each family


def some_fields(family, rng):
    """Choose two to five fields, each with a choice or a value of its kind."""
    fields = rng.sample(family.fields(), rng.randint(2, 5))
    return {field.name: rng.choice(field.choices or VALUES[field.kind]) for field in fields}


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_any_fields_together_make_a_model_that_trains_and_answers_or_one_sentence(name):
    family, rng = FAMILIES[name], random.Random(name)
    built = refused = 0
    while built < WANTED:
        fields = some_fields(family, rng)
        try:
            config = family.configure("tiny", fields)
            length = min(5, family.longest(config))
            step = {"batch": 2, "sequence": length, "memory_bytes": 10**10}
            for workload in family.workloads:
                family.check_memory(config, workload=workload, **step)
        except ConfigurationError as refusal:
            assert str(refusal).startswith(f"{name}: ") and "\n" not in str(refusal), fields
            refused += 1
            continue
        if family.parameter_count(config) > LARGEST:
            continue
        built += 1
        model = family.materialise(config)
        assert sum(p.numel() for p in model.parameters()) == family.parameter_count(config), fields
        given = drawn(family, config, 2, length, torch.float32)
        loss = model.train().loss(*given)
        loss.backward()
        assert loss.isfinite(), fields
        with torch.no_grad():
            answer = model.eval()(*given[:-1])
            assert answer.isfinite().all(), fields
            if "decode" in family.workloads:
                result = model(given[0], cache=model.new_cache(2, length))
                assert result.shape == answer.shape, fields
    assert refused > built / 2  # a sentence was asked for as well


@pytest.mark.parametrize("field", ["in_place", "reuse_buffers"])
def test_what_overwrites_memory_is_refused_in_training_before_anything_is_allocated(field):
    family = FAMILIES["moe"]
    config = family.configure("tiny", {field: True})
    step = {"batch": 1, "sequence": 8, "memory_bytes": 10**10}
    with pytest.raises(ConfigurationError) as caught:
        family.check_memory(config, workload="train", **step)
    assert str(caught.value) == (
        f"moe: {field} overwrites values that a backward pass needs; switch it off to train, or "
        "choose an inference workload"
    )
    family.check_memory(config, workload="prefill", **step)


SWITCHES = {  # of a model, and the operators that they make it call
    "set_fused_cache": "rope_to_cache",
    "set_fused_linear": "fused_linear",
    "set_fused_add_norm": "add_rms_norm",
}
FIELDS = {
    "hydra": {
        "window": (0, 1, 3, 100),
        "mixture_of_depths": (False, False, True),
        "depth_every": (1, 2),
        "depth_capacity": (0.2, 1.0),
        "mixture_of_recursions": (False, False, True),
        "recursions": (2,),
        "recursion_routing": ("expert", "token"),
        "recursion_kv": ("share", "recursion"),
        "ccgqa": (False, False, False, True),
    },
    "mamba2": {
        "head_dim": (1, 2, 4),
        "d_state": (1, 5, 16),
        "n_groups": (1, 2),
        "d_conv": (2, 3, 4),
        "attention_every": (0, 1, 2),
        "window": (0, 1, 3),
    },
    "adaattn": {
        "adaptive_rank": (False, True),
        "adaptive_precision": (False, True),
        "allow_fp8": (False, True),
    },
    "moe": {
        "hidden_dim": (4, 16),
        "num_experts": (3,),
        "top_k": (1, 2),
        "gating": ("topk", "noisy_topk", "dense"),
        "num_shared_experts": (0, 1),
        "in_place": (False, True),
        "reuse_buffers": (False, True),
        "window": (0, 1, 3),
    },
}
LENGTH, PIECES = 7, (1, 2, 1, 1, 2)
STEPPED = 25  # models of each family


def draw_config(family, rng):
    """Draw a small configuration, also with heads of two elements; None if it is refused."""
    heads, width = rng.choice((1, 2, 3, 6)), rng.choice((2, 4, 6, 10))
    fields = {name: rng.choice(values) for name, values in FIELDS[family.name].items()}
    fields |= {"n_layers": rng.choice((1, 2, 3)), "n_heads": heads}
    fields["input_dim" if family.name == "moe" else "dim"] = heads * width
    if family.name != "adaattn":
        fields["n_kv_heads"] = rng.choice([n for n in (1, 2, 3, 6) if heads % n == 0])
    try:
        return family.configure("tiny", fields)
    except ConfigurationError:
        return None


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", FIELDS)
def test_fused_steps_decode_the_same_for_any_sizes(name, monkeypatch):
    monkeypatch.setattr(language_model, "is_for_few_rows", lambda x: True)  # also for FP64
    family, rng, built = FAMILIES[name], random.Random(0), 0
    while built < STEPPED:
        config = draw_config(family, rng)
        if config is None:
            continue
        built += 1
        model = family.materialise(config, dtype=torch.float64, seed=3).eval()
        batch, mode = rng.choice((1, 3)), rng.choice((torch.no_grad, torch.inference_mode))
        tokens_BS = torch.randint(0, 256, (batch, LENGTH))
        first = rng.choice((None, torch.tensor(0)))  # a prefill, or a step with an empty cache
        with mode():
            caches = [model.new_cache(batch, LENGTH) for _ in range(2)]
            separate_BSV = in_pieces(model, tokens_BS, PIECES, caches[0], first)
            offered = family.operators(config, "decode")
            switched = [switch for switch, operator in SWITCHES.items() if operator in offered]
            for switch in switched:
                getattr(model, switch)(True)
            kernels.reset_usage()
            fused_BSV = in_pieces(model, tokens_BS, PIECES, caches[1], first)
        torch.testing.assert_close(fused_BSV, separate_BSV, rtol=1e-9, atol=1e-9, msg=str(config))
        for ours, theirs in zip(*(cache.tensors() for cache in caches), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9, msg=str(config))
        if "set_fused_cache" in switched and name != "adaattn":  # which rounds keys in FP64
            assert "rope_to_cache" in kernels.usage(), config
