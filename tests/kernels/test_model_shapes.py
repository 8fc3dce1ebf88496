"""Shapes of public models: every case can be built, and models that share one share its case."""

import dataclasses

import pytest
import torch

from kernels import OPS, Mistake
from kernels.measure.model_shapes import DECODING, LONG, MODELS, shape_cases

CPU = torch.device("cpu")


def test_at_least_sixteen_models_from_one_token_to_64k():
    assert len(MODELS) >= 16
    assert {"1", "16", "256", "2K", "8K", "16K", "64K"} == {*DECODING, *LONG}
    for name in MODELS:
        assert shape_cases([name]), name


def test_each_case_is_of_an_operator_that_can_make_its_inputs():
    """The smallest of each operator here; ``meta`` tensors would need every operator's draw."""
    cases = shape_cases(tokens=["1", "16", "2K", "64x128"])
    smallest = {shape.op: shape for shape in sorted(cases, key=lambda s: -size(s))}
    for shape in smallest.values():
        if size(shape) < 1 << 24:
            inputs = OPS[shape.op].inputs(shape.case, CPU, torch.float32, 0)
            assert OPS[shape.op].cost(**inputs).forward.bytes > 0, shape


def size(shape) -> int:
    product = 1
    for value in shape.case.sizes.values():
        product *= value if type(value) is int and value > 1 else 1
    return product


def test_a_shape_of_several_models_is_one_case_that_names_them():
    cases = shape_cases(["Llama 3.1 8B", "mixtral 8x7b"], ["rms_norm"], ["8K"])
    (case,) = cases
    assert case.models == ("Llama 3.1 8B", "Mixtral 8x7B")
    assert case.case.sizes == {"rows": 8192, "dim": 4096}
    assert case.case.name == "8192 D4096 (Llama 3.1 8B, Mixtral 8x7B)"
    names = [(c.op, c.case.name) for c in shape_cases()]
    assert len(names) == len(set(names))


def test_decoding_has_no_backward_pass_and_longer_windows_than_the_cache_none_at_all():
    cases = shape_cases(["Mistral 7B v0.1"], ["attention"])
    assert {c.tokens for c in cases if c.case.forward_only} == set(DECODING)
    assert {c.tokens for c in cases if c.case.sizes["window"]} == {"64K"}


def test_an_unknown_model_is_a_mistake_that_names_what_there_is():
    with pytest.raises(Mistake, match=r"unknown model 'GPT-5'; expected one of .*, Phi-4,"):
        shape_cases(["GPT-5"])


def test_models_are_data():
    for shape in MODELS.values():
        assert dataclasses.asdict(shape)["hidden"] > 0
