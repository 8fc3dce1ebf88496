"""Operators of the library compute inside models of others: in FP64 the same, and reversibly."""

from __future__ import annotations

import copy
import importlib.util

import pytest
import torch
from foreign_models import (
    PATCHES,
    PLAIN,
    assert_agree,
    built,
    contents,
    patch,
    results,
    unpatch,
)

from workbench.runner.user_models import hf_model

HAS_TRANSFORMERS = importlib.util.find_spec("transformers") is not None
needs_transformers = pytest.mark.skipif(
    not HAS_TRANSFORMERS, reason="transformers is not installed (the extra 'hf')"
)
HF = [pytest.param(f"hf:{name}:tiny", marks=needs_transformers) for name in hf_model.bundled()]
SOURCES = [str(PLAIN), *HF]
# How many modules of the tiny models each toggle replaces.
EXPECTED = {
    "bert-base": {"patch_attention": 1},
    "gemma-3-1b": {"patch_attention": 1, "patch_geglu": 2, "patch_loss": 1, "patch_rms_norm": 13,
                   "patch_rope": 2},
    "gpt2": {"patch_attention": 1, "patch_loss": 1},
    "llama-3.1-8b": {"patch_attention": 1, "patch_loss": 1, "patch_rms_norm": 5, "patch_rope": 2,
                     "patch_swiglu": 2},
    "mamba2-780m": {"patch_causal_conv1d": 2, "patch_gated_rms_norm": 2, "patch_loss": 1,
                    "patch_rms_norm": 3, "patch_ssd_scan": 2},
    "mixtral-8x7b": {"patch_attention": 1, "patch_experts": 2, "patch_loss": 1,
                     "patch_rms_norm": 5, "patch_rope": 2},
    "olmoe-1b-7b": {"patch_attention": 1, "patch_experts": 2, "patch_loss": 1,
                    "patch_rms_norm": 9, "patch_rope": 2},
    "qwen3-0.6b": {"patch_attention": 1, "patch_loss": 1, "patch_rms_norm": 9, "patch_rope": 2,
                   "patch_swiglu": 2},
    "qwen3-8b": {"patch_attention": 1, "patch_loss": 1, "patch_rms_norm": 9, "patch_rope": 2,
                 "patch_swiglu": 2},
    "own_plain.py": dict.fromkeys(PATCHES, 1) | {"patch_rms_norm": 5},
}  # fmt: skip


@pytest.mark.parametrize("source", SOURCES)
def test_a_patched_model_equals_the_original_in_fp64_and_is_restored(source):
    model, batch = built(source)
    expected, before = results(model, batch), contents(model.module)
    model.zero_grad()
    patch(model, *PATCHES)
    replaced = {name: len(p.sites) for name, p in model.patches.items() if p.sites}
    name = source.removeprefix("hf:").removesuffix(":tiny").rpartition("/")[2]
    assert replaced == EXPECTED[name]
    assert_agree(expected, results(model, batch))
    unpatch(model)
    assert "loss" not in vars(model)
    assert contents(model.module) == before, "something stayed behind"
    again = results(model, batch)
    assert all(torch.equal(x, y) for x, y in zip(expected, again, strict=True))


def test_patches_in_any_order_replace_the_same_modules():
    sites = []
    for names in (PATCHES, PATCHES[::-1], PATCHES[1::2] + PATCHES[::2]):
        model, _ = built(str(PLAIN))
        patch(model, *names)
        sites.append({name: model.patches[name].sites for name in PATCHES})
    assert sites[0] == sites[1] == sites[2]


@pytest.mark.parametrize("name", PATCHES)
def test_each_patch_alone_equals_the_original(name):
    model, batch = built(str(PLAIN))
    expected = results(model, batch)
    patch(model, name)
    assert model.patches[name].sites
    assert_agree(expected, results(model, batch))


def test_other_models_of_the_same_classes_stay_as_they_are():
    model, batch = built(str(PLAIN))
    twin = copy.deepcopy(model.module)
    before = contents(twin)
    patch(model, *PATCHES)
    results(model, batch)
    assert contents(twin) == before
    assert not any("forward" in vars(module) for module in twin.modules())


def test_a_copy_of_a_patched_model_computes_with_its_own_weights():
    model, batch = built(str(PLAIN))
    patch(model, *(name for name in PATCHES if name != "patch_loss"))
    twin = copy.deepcopy(model.module)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
        assert not bool(twin(*batch).any())
        assert bool(model.module(*batch).any())


def test_hooks_of_a_replaced_module_still_run():
    model, batch = built(str(PLAIN))
    seen: list[torch.Size] = []
    norm = model.module.norms[0]
    norm.register_forward_hook(lambda module, args, output: seen.append(output.shape))
    patch(model, "patch_rms_norm")
    assert "norms.0" in " ".join(model.patches["patch_rms_norm"].sites)
    model(*batch)
    assert len(seen) == 1


def test_a_loss_that_looks_at_logits_gets_them():
    model, batch = built(str(PLAIN))
    own_loss = model.own_loss

    def smoothed(logits, tokens):
        extra = logits.square().mean() + (2 * logits[0, -1]).logsumexp(0) + logits.std()
        return own_loss(logits, tokens) + 1e-3 * extra

    model.own_loss = smoothed
    expected = results(model, batch)
    patch(model, "patch_loss")
    assert_agree(expected, results(model, batch))
