"""Table of choices on any GPU, chain of fallbacks, and memory budgets."""

import dataclasses
import gc
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hang_limit import HANG_S

import kernels
from kernels import GENERATIONS, OPS, Implementation, Mistake, hardware
from kernels.attention import _chunked, _flash, _sdpa, memory
from kernels.core.dispatch import _candidates_once
from kernels.core.triton_helpers import DISABLED, INSTALLED, INTERPRETED

pytestmark = pytest.mark.skipif(INTERPRETED, reason="nothing here runs a kernel")

FP32, FP16, BF16 = torch.float32, torch.float16, torch.bfloat16

# Capability: precision, scaled loss, TF32, FP8, KiB of shared memory, the fused backends that need
# no package, and the tile of our own attention in the generation's precision and in FP32.
EFFICIENT = ["sdpa_efficient"]
OURS = ["sdpa_efficient", "triton", "flex"]
FLASH = ["sdpa_cudnn", "sdpa_flash", *OURS]
SMALL, LARGE = ((128, 64, 4, 3), (32, 32, 4, 1)), ((128, 64, 4, 3), (64, 32, 4, 2))
EXPECTED = {
    (0, 0): (FP32, False, False, False, 48, [], (None, None)),
    (3, 7): (FP32, False, False, False, 48, [], (None, None)),
    (5, 2): (FP32, False, False, False, 48, EFFICIENT, (None, None)),
    (6, 1): (FP32, False, False, False, 48, EFFICIENT, (None, None)),
    (7, 0): (FP16, True, False, False, 96, OURS, SMALL),
    (7, 2): (FP16, True, False, False, 96, OURS, SMALL),
    (7, 5): (FP16, True, False, False, 64, OURS, SMALL),
    (8, 0): (BF16, False, True, False, 163, FLASH, LARGE),
    (8, 6): (BF16, False, True, False, 99, FLASH, SMALL),
    (8, 9): (BF16, False, True, True, 99, FLASH, SMALL),
    (9, 0): (BF16, False, True, True, 227, FLASH, LARGE),
    (10, 0): (BF16, False, True, True, 227, FLASH, LARGE),
    (12, 0): (BF16, False, True, True, 99, FLASH, SMALL),
    (13, 0): (BF16, False, True, True, 99, FLASH, SMALL),
}
needs_triton = pytest.mark.skipif(
    bool(DISABLED) or not INSTALLED, reason="the table is one with Triton"
)


@needs_triton
@pytest.mark.parametrize("capability", EXPECTED)
def test_every_row_of_the_table(capability):
    precision, scales, tf32, fp8, shared_kib, fused, tiles = EXPECTED[capability]
    policy = kernels.policy(capability)
    known = policy.generation
    assert (known.precision, known.scales_loss) == (precision, scales)
    assert (known.tf32, known.fp8, known.shared_bytes) == (tf32, fp8, shared_kib << 10)
    assert known.threads_per_block == 1024
    able = [name for name, why in policy.attention.items() if why is None]
    optional = {"flash2", "flash3", "flash4", "xformers"}  # installed here or not
    assert [name for name in able if name not in optional] == [
        *fused,
        *("chunked", "manual", "sdpa_math", "sdpa"),
    ]
    assert (policy.tile, policy.tile_fp32) == tiles
    adaptive = ["triton", "torch", "manual"] if tiles[0] else ["torch", "manual"]
    assert [name for name, why in policy.adaptive_attention.items() if why is None] == adaptive
    assert known.name in str(policy) and str(precision)[6:] in str(policy)


def test_the_table_has_a_row_for_each_generation_in_order():
    capabilities = [row.capability for row in GENERATIONS]
    assert capabilities == sorted(set(capabilities))
    assert [policy.generation for policy in kernels.policies()] == list(GENERATIONS)
    assert {kernels.generation(capability) for capability in EXPECTED} == set(GENERATIONS)


def test_what_a_backend_lacks_is_said_with_the_capability():
    why = kernels.policy((7, 5)).attention["sdpa_flash"]
    assert why == "SDPA's flash backend needs compute capability 8.0, not 7.5"
    assert kernels.policy((9, 0)).attention["sdpa_flash"] is None
    assert re.match(
        r"flash-attn 4 (needs compute|is not inst)", kernels.policy((8, 0)).attention["flash4"]
    )


def test_imagining_a_gpu_leaves_nothing_behind():
    before = kernels.status("cuda"), hardware.has_gpu()
    with pytest.raises(RuntimeError), hardware.imagined((9, 0), 1 << 30) as gpu:
        assert hardware.of("cuda") is gpu and gpu.total_bytes == 1 << 30
        raise RuntimeError
    assert (kernels.status("cuda"), hardware.has_gpu()) == before


@pytest.mark.gpu
def test_the_policy_of_the_gpu_here_is_what_it_says_of_itself():
    facts = hardware.of("cuda")
    policy = kernels.policy(facts.capability, total_bytes=facts.total_bytes)
    assert facts.threads_per_block == policy.generation.threads_per_block
    assert facts.shared_bytes >= policy.generation.shared_bytes
    for name, why in policy.attention.items():
        assert why == OPS["attention"].implementations[name].missing("cuda"), name


def inputs(length=12, dtype=torch.float32, batch=2):
    generator = torch.Generator().manual_seed(0)
    make = (torch.randn(batch, 2, length, 16, generator=generator).to(dtype) for _ in range(3))
    return tuple(make)


def test_the_chain_of_attention_never_ends(monkeypatch):
    """One backend after the other is taken away; what is left gives the same."""
    op = OPS["attention"]
    q, k, v = inputs()
    expected = op.reference(q, k, v)
    left, ran = dict(op.implementations), []
    try:
        while left:
            _candidates_once.cache_clear()
            kernels.reset_usage()
            torch.testing.assert_close(kernels.attention(q, k, v), expected)
            ((name, _),) = kernels.usage()["attention"].items()
            ran.append(name)
            gone = Implementation(left[name].call, missing=lambda _: "was taken away")
            monkeypatch.setitem(op.implementations, name, gone)
            del left[name]
            if name == "sdpa_math":
                break
        assert ran == ["sdpa_flash", "manual", "sdpa_math"]
        _candidates_once.cache_clear()
        with pytest.raises(kernels.Unavailable, match=r"no implementation can run on cpu: .*taken"):
            kernels.attention(q, k, v)
    finally:
        monkeypatch.undo()
        _candidates_once.cache_clear()


def test_threads_that_attend_at_once_leave_the_switches_as_they_were(monkeypatch):
    began = threading.Event()

    def slowly(q, *_, **__):
        began.set()
        time.sleep(0.05)
        return q

    monkeypatch.setattr(_sdpa, "scaled_dot_product_attention", slowly)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(kernels.attention, *inputs(4), backend="sdpa_flash")
        began.wait(HANG_S)
        second = pool.submit(kernels.attention, *inputs(4), backend="sdpa_flash")
        assert first.result() is not second.result()
    try:
        assert torch.backends.cuda.math_sdp_enabled()
    finally:
        torch.backends.cuda.enable_math_sdp(True)


def without_flash(monkeypatch, total_bytes):
    """Simulate a machine without a fused backend and with that much memory."""
    small = dataclasses.replace(hardware.of("cpu"), total_bytes=total_bytes)
    monkeypatch.setattr(hardware, "_cpu", lambda: small)
    gone = Implementation(lambda *_: None, missing=lambda _: "was taken away")
    monkeypatch.setitem(OPS["attention"].implementations, "sdpa_flash", gone)
    _candidates_once.cache_clear()


@pytest.mark.parametrize(
    ("length", "total_bytes", "expected"),
    [(2047, 1 << 40, "manual"), (2048, 1 << 40, "chunked"), (256, 1 << 20, "chunked")],
)
def test_chunks_are_taken_by_length_and_by_budget_and_the_reason_says_which(
    monkeypatch, length, total_bytes, expected
):
    without_flash(monkeypatch, total_bytes)
    q, k, v = inputs(length, batch=1)
    try:
        kernels.reset_usage()
        kernels.attention(q, k, v)
        name, reason = kernels.reasons()["attention"]
    finally:
        monkeypatch.undo()
        _candidates_once.cache_clear()
    assert name == expected
    if expected == "manual":
        assert "is used only from 4194304 weights per head on, not for 4190209" in reason
        assert "or if all weights need more than 131072 MiB, not" in reason


@pytest.mark.parametrize(
    ("batch", "heads", "budget", "chunk"),
    [(1, 1, 1 << 40, 1024), (1, 8, 100 << 20, 1024), (8, 32, 1 << 30, 512), (64, 64, 1, 64)],
)
def test_a_chunk_s_weights_fit_the_budget(batch, heads, budget, chunk):
    assert memory.chunk_length(batch, heads, 4, budget) == chunk
    if chunk > memory.LEAST_CHUNK:
        assert memory.weights_bytes(batch, heads, chunk, chunk) <= budget
    if chunk < memory.CHUNK:
        assert memory.weights_bytes(batch, heads, 2 * chunk, 2 * chunk) > budget


def test_the_length_of_a_chunk_changes_nothing(monkeypatch):
    q, k, v = (x.requires_grad_() for x in inputs(300))
    results = []
    for chunk in (64, 128, 1024):
        monkeypatch.setattr(_chunked, "chunk_of", lambda _, chunk=chunk: chunk)
        out = kernels.attention(q, k, v, window=90, backend="chunked")
        results.append([out.detach(), *torch.autograd.grad(out.square().sum(), (q, k, v))])
    for other in results[1:]:
        torch.testing.assert_close(results[0], other, rtol=1e-4, atol=1e-5)


def test_chunks_never_hold_anything_of_the_length_squared():
    q, k, v = inputs(4096, batch=1)
    largest = 0

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            nonlocal largest
            result = function(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor):
                largest = max(largest, result.numel())
            return result

    gc.collect()
    with Watch():
        kernels.attention(q, k, v, backend="chunked")
    assert largest <= 2 * 1024 * 1024  # two heads' weights of one chunk


def test_a_tile_fits_the_shared_memory_of_its_generation():
    """Queries, and keys and values of every stage, in the dtype's bytes."""
    for policy in kernels.policies():
        for tile, wide in ((policy.tile, False), (policy.tile_fp32, True)):
            if tile is None:
                continue
            rows, keys, _, stages = tile
            size = 4 if wide else policy.generation.precision.itemsize
            assert (rows + 2 * keys * stages) * 64 * size <= policy.generation.shared_bytes
    assert _flash.tile(128, True, False, 4096)[3] == 1


def test_a_start_of_another_shape_is_refused():
    with pytest.raises(Mistake, match=r"start must have the basis's shape \(2, 8, 3\), but has"):
        kernels.low_rank(torch.ones(2, 9, 8), 3, start=torch.ones(2, 8, 4))
