"""Script of a test with TRITON_INTERPRET=1: MAHIA-X's fused paths equal the standard paths.

That variable must be set before Triton is imported, hence a process of its own. Ends with "agree".
"""

import torch

import kernels
from models import FAMILIES
from models.mahia import DynamicNeuroFabric, GraphDiffusionMemory, MetaAttentionKernel

PARTS = {
    MetaAttentionKernel: (2, 9, 16),
    GraphDiffusionMemory: (3, 16),
    DynamicNeuroFabric: (4, 16),
}


def result(module, compute, **choices):
    """Return the value of ``compute`` and all gradients, and which implementations ran."""
    module.zero_grad()
    kernels.reset_usage()
    with kernels.using(**choices):
        value = compute()
        value.square().sum().backward()
    gradients = [p.grad.clone() for p in module.parameters()]
    return [value.detach(), *gradients], kernels.usage()


def agree(module, compute, standard, fused):
    expected, used = result(module, compute, **standard)
    assert not any("triton" in implementations for implementations in used.values()), used
    actual, used = result(module, compute, **fused)
    for operator, implementation in fused.items():
        if operator != "all":
            assert list(used[operator]) == [implementation], used
    for first, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(first, other, rtol=2e-4, atol=2e-6)
    return used


def main():
    torch.manual_seed(0)
    for kind, shape in PARTS.items():
        module, x = kind(16), torch.randn(shape)
        agree(module, lambda module=module, x=x: module(x), kind.STANDARD, kind.FUSED)
    family = FAMILIES["mahia"]
    sizes = {"n_layers": 1, "max_layers": 2, "use_moe": True, "memory_size": 16, "text_seq_len": 8}
    config = family.configure("tiny", sizes)
    model = family.materialise(config, seed=1)
    inputs, targets = family.draw(config, 4, 8, torch.Generator().manual_seed(0))
    used = agree(
        model,
        lambda: model.loss(*inputs, *targets),
        {"all": "torch", "attention": "manual"},
        {"all": "triton", "attention": "triton", "fourier_mix": "matmul"},
    )
    assert {"moe_gating", "moe_experts", "rope", "token_router", "graph_diffusion"} <= set(used)
    print("agree")


if __name__ == "__main__":
    main()
