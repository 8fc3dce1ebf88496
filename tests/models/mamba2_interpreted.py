"""Script with TRITON_INTERPRET=1: the hybrid by torch and by Triton, and what they used."""

import dataclasses
import json

import torch

import kernels
from models import FAMILIES

MAMBA2 = FAMILIES["mamba2"]
CONFIG = dataclasses.replace(
    MAMBA2.presets["tiny"], dim=32, n_layers=2, head_dim=16, d_state=8, max_sequence=32
)


def results():
    """Return loss, gradients, and the logits of a prefill, a second piece and a decoded token."""
    model = MAMBA2.materialise(CONFIG, seed=5)
    model.set_fused_add_norm(True)
    tokens_BS = torch.randint(0, 256, (1, 21), generator=torch.Generator().manual_seed(1))
    loss = model.loss(tokens_BS[:, :-1], tokens_BS[:, 1:])
    loss.backward()
    result = {"loss": loss.detach()} | {n: p.grad for n, p in model.named_parameters()}
    with torch.no_grad():
        cache = model.new_cache(1, 21)
        result["prefill"] = model(tokens_BS[:, :5], cache=cache)
        result["piece"] = model(tokens_BS[:, 5:20], cache=cache, position=torch.tensor(5))
        result["step"] = model(tokens_BS[:, 20:], cache=cache, position=torch.tensor(20))
    return result | {f"state {i}": tensor for i, tensor in enumerate(cache.tensors())}


with kernels.using(all="torch", attention="manual"):
    expected = results()
kernels.reset_usage()
with kernels.using(all="triton", attention="triton"):
    actual = results()
for name, value in expected.items():
    torch.testing.assert_close(
        actual[name], value, rtol=1e-3, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}"
    )
print(json.dumps(kernels.usage()))
