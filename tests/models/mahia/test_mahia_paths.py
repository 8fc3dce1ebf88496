"""Standard and fused paths of MAHIA-X's parts, and parts that cannot be built."""

import math

import pytest
import torch

import kernels
from models import ConfigurationError
from models.mahia import DynamicNeuroFabric, GraphDiffusionMemory, MetaAttentionKernel

WITHOUT_TRITON = kernels.OPS["graph_diffusion"].unavailable("triton", "cpu") is not None


def normal(*shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: MetaAttentionKernel(10, n_heads=4), "dim = 10 cannot be divided into n_heads = 4"),
        (lambda: MetaAttentionKernel(8, n_heads=0), "dim = 8 cannot be divided into n_heads = 0"),
        (lambda: GraphDiffusionMemory(8, 0), "memory_size = 0 must be at least 1"),
        (lambda: GraphDiffusionMemory(8, 4, top_k=5), "top_k = 5 from 0 to memory_size"),
        (lambda: DynamicNeuroFabric(8, 0), "max_layers = 0 must be at least 1"),
        (
            lambda: DynamicNeuroFabric(8, capacity=0.0),
            "capacity = 0.0 must be above 0 and at most 1",
        ),
        (
            lambda: DynamicNeuroFabric(8, capacity=math.nan),
            "capacity = nan must be above 0 and at most 1",
        ),
        (lambda: MetaAttentionKernel(8)(torch.zeros(2, 8)), r"expected (B, T, 8), got (2, 8)"),
        (lambda: GraphDiffusionMemory(8)(torch.zeros(2, 3, 8)), "expected (B, 8), got (2, 3, 8)"),
        (lambda: DynamicNeuroFabric(8)(torch.zeros(8)), "expected (B, 8) or (B, T, 8), got (8,)"),
    ],
)
def test_what_cannot_be_is_one_sentence(make, sentence):
    with pytest.raises(ConfigurationError) as caught:
        make()
    assert sentence in str(caught.value)


def test_parts_are_drawn_from_torchs_seed():
    made = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        made.append(GraphDiffusionMemory(8, 4).memory_ME.detach())
    assert torch.equal(made[0], made[1]) and not torch.equal(made[0], made[2])


PARTS = {
    MetaAttentionKernel: (2, 8, 16),
    GraphDiffusionMemory: (3, 16),
    DynamicNeuroFabric: (4, 16),
}


@pytest.mark.parametrize("kind", PARTS)
def test_the_standard_path_can_be_chosen_by_hand_and_runs(kind):
    module, x = kind(16), normal(*PARTS[kind], dtype=torch.float32)
    kernels.reset_usage()
    with kernels.using(**kind.STANDARD):
        expected = module(x)
    for operator, implementation in kind.STANDARD.items():
        assert list(kernels.usage()[operator]) == [implementation], operator
    torch.testing.assert_close(module(x), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.skipif(not WITHOUT_TRITON, reason="Triton runs here")
@pytest.mark.parametrize("kind", PARTS)
def test_the_fused_path_is_refused_by_a_sentence_where_it_cannot_run(kind):
    module, x = kind(16), normal(*PARTS[kind], dtype=torch.float32)
    with kernels.using(**kind.FUSED), pytest.raises(kernels.Unavailable, match="'triton' cannot"):
        module(x)
