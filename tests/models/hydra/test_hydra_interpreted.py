"""HYDRA's routings with Triton kernels equal torch's, in Triton's interpreter.

TRITON_INTERPRET must be set before Triton is imported and makes every process that inherits it
crawl: a child process runs ``compare``.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

OPERATORS = ("token_router", "token_scatter", "causal_conv1d", "qk_norm_rope", "rope", "rms_norm")


@pytest.mark.skipif(torch.cuda.is_available(), reason="here the kernels run on the GPU itself")
def test_triton_kernels_give_the_loss_gradients_and_decoding_of_torch():
    call = "import test_hydra_interpreted as t; t.compare()"
    done = subprocess.run(
        [sys.executable, "-c", call],
        cwd=Path(__file__).parent,
        env=os.environ
        | {
            "TRITON_INTERPRET": "1",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(Path(__file__).parents[1]),
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "the same" in done.stdout


def compare():
    from routed import routed_model, some_tokens

    import kernels

    used = set()
    for combination in ("ccgqa depths recursions", "depths recursions by token"):
        fields = {"recursions": 2, "n_layers": 1, "depth_every": 1}
        model = routed_model(combination, dtype=torch.float32, **fields)
        tokens_BS = some_tokens(length=9)
        result = []
        for choice in ("torch", "triton"):
            kernels.reset_usage()
            model.zero_grad()
            with kernels.using(all=choice, attention="manual"):
                loss = model.train().loss(tokens_BS, tokens_BS)
                loss.backward()
                gradients = [parameter.grad.clone() for parameter in model.parameters()]
                model.eval()
                cache = model.new_cache(2, 9)
                with torch.no_grad():
                    parts = [model(tokens_BS[:, :7], cache=cache)]
                    for i in (7, 8):
                        step = {"cache": cache, "position": torch.tensor(i)}
                        parts.append(model(tokens_BS[:, i : i + 1], **step))
            result.append([loss.detach(), *gradients, *parts])
        for first, other in zip(*result, strict=True):
            torch.testing.assert_close(first, other, rtol=1e-3, atol=1e-4)
        used |= {name for name, by in kernels.usage().items() if "triton" in by}
    assert used >= set(OPERATORS), f"only {used} ran in Triton"
    print("the same")
