"""Script: a training step of a small AdaAttn by torch and by Triton; prints "alike" if equal.

It has its own process, because Triton's interpreter must be chosen before Triton is imported.
"""

import dataclasses
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

import kernels
from models import FAMILIES

ADAATTN = FAMILIES["adaattn"]
CONFIG = dataclasses.replace(
    ADAATTN.presets["tiny"], dim=64, n_heads=2, n_layers=1, max_sequence=32, refresh_every=1
)


def step(implementation, rank, bits):
    """Return loss, gradients and the choices made from them."""
    model = ADAATTN.materialise(CONFIG, seed=3)
    model.adaptation.rank_LH.copy_(torch.tensor([rank]))
    model.adaptation.bits_LH.copy_(torch.tensor([bits]))
    tokens_BS = torch.randint(0, 256, (1, 13), generator=torch.Generator().manual_seed(1))
    kernels.reset_usage()
    with kernels.using(adaptive_attention=implementation):
        loss = model.loss(tokens_BS[:, :-1], tokens_BS[:, 1:])
        loss.backward()
    used = kernels.usage()["adaptive_attention"]
    assert used == {implementation: 1}, used
    chosen = [buffer.float() for buffer in model.adaptation.buffers()]
    return [loss.detach(), *(p.grad for p in model.parameters()), *chosen]


RANK, BITS = [8, 32], [32, 16]
for by_torch, by_triton in zip(step("torch", RANK, BITS), step("triton", RANK, BITS), strict=True):
    torch.testing.assert_close(by_torch, by_triton, rtol=1e-3, atol=2e-5)
print("alike")
