"""Mamba-2's selective scan, as state-space duality computes it: in chunks, by matrix products.

For each head, with one number A < 0 per head and the state h [P, N] (h_0 the initial state),

    dt_t = softplus(dt_t + dt_bias),    h_t = exp(dt_t A) h_(t-1) + dt_t x_t B_t^T,
    y_t = h_t C_t + D x_t.

Dao and Gu, "Transformers are SSMs", 2024 (arXiv 2405.21060), equation 2 discretised, and the
algorithm of section 6: with a_t the running sum of dt A in a chunk,

    y_t = sum over s <= t of exp(a_t - a_s) (C_t . B_s) dt_s x_s + exp(a_t) h C_t + D x_t,
    h' = exp(a_last) h + sum over s of exp(a_last - a_s) dt_s x_s B_s^T

from the state h before the chunk to h' after it. Heads of one group share B and C. The backward
pass is the same walk from the end; see ``_kernels``. Matrix products take x's dtype and accumulate
in FP32; steps, decays and states are in FP32, and running sums in FP64.
"""

from __future__ import annotations

from random import Random
from typing import Any

import torch
from torch import Tensor

from kernels.core.autograd import applied
from kernels.core.dispatch import run
from kernels.core.operator import (
    Case,
    Cost,
    Huge,
    Implementation,
    Inputs,
    Mistake,
    Operator,
    Work,
    accumulator,
    alike,
    random_tensor,
    remembered,
    running_sum,
    tensor_bytes,
    without_autocast,
)
from kernels.core.triton_helpers import MAX_GRID, has_large_memory, missing, no_fp64
from kernels.measure import peers
from kernels.ssd_scan._division import CHUNK, chunks, tile
from kernels.ssd_scan._division import ScanMemory as ScanMemory
from kernels.ssd_scan._division import chunk_of as chunk_of
from kernels.ssd_scan._division import scan_memory as scan_memory
from kernels.ssd_scan._launch import Scan
from kernels.ssd_scan._plain import all_chunks, step_sizes

MAX_STATE = 16384  # elements of one head's state, which a program holds; half with little memory


def ssd_scan(
    x_BLHP: Tensor,
    dt_BLH: Tensor,
    A_H: Tensor,
    B_BLGN: Tensor,
    C_BLGN: Tensor,
    D_H: Tensor | None = None,
    dt_bias_H: Tensor | None = None,
    initial_state_BHPN: Tensor | None = None,
    *,
    dt_softplus: bool = True,
    chunk: int | None = None,
    impl: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Scan the sequence ``x_BLHP`` of L steps: y [B, L, H, P] and the final state [B, H, P, N].

    ``B_BLGN`` and ``C_BLGN`` have x's dtype and G groups, which divide the heads: head i is in
    group i // (H / G). ``dt_BLH`` is in units of the discretisation's step, before bias and
    softplus; ``dt_softplus=False`` skips the softplus. ``D_H``, ``dt_bias_H`` and
    ``initial_state_BHPN`` may be None for zeros; they, dt and A may have other floating dtypes. y
    has x's dtype, under autocast too, and the final state is in FP32. Processing a sequence in
    pieces, each with the final state of the piece before, gives the results of the complete
    sequence. ``chunk``, a power of two, is how many steps form one product, whose scores are chunk
    x chunk; None leaves it to the implementation, and results do not depend on it. ``impl``: auto,
    torch or triton. Raises ``Mistake`` if the arguments do not fit together.
    """
    return run(
        OP,
        impl,
        x_BLHP,
        dt_BLH,
        A_H,
        B_BLGN,
        C_BLGN,
        D_H,
        dt_bias_H,
        initial_state_BHPN,
        dt_softplus,
        chunk,
    )


def _check(
    x: Tensor,
    dt: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    d: Tensor | None,
    bias: Tensor | None,
    initial: Tensor | None,
    softplus: bool,
    chunk: int | None,
) -> None:
    if chunk is not None and (chunk < 1 or chunk & (chunk - 1)):
        raise Mistake(f"ssd_scan: chunk must be a power of two, but is {chunk}")
    validate("ssd_scan", 4, x, dt, a, b, c, d, bias, initial)


def validate(
    op: str,
    dims: int,
    x: Tensor,
    dt: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    d: Tensor | None,
    dt_bias: Tensor | None,
    state: Tensor | None,
) -> None:
    """Raise ``Mistake`` unless the inputs fit together; ``dims``: of x, 4 or, without L, 3."""
    alike(op, "x dt A B C D dt_bias state", x, dt, a, b, c, d, dt_bias, state)
    # Slicing a tuple takes a fifth of the time of slicing a torch.Size.
    shape, of_b = tuple(x.shape), tuple(b.shape)
    if len(shape) != dims or dt.shape != shape[:-1]:
        raise Mistake(
            f"{op}: expected x {_layout(dims, 'H', 'P')} and dt {_layout(dims, 'H')}, but got "
            f"{shape} and {tuple(dt.shape)}"
        )
    if len(of_b) != dims or c.shape != of_b or of_b[:-2] != shape[:-2]:
        raise Mistake(
            f"{op}: B and C must both be {_layout(dims, 'G', 'N')} with x's {shape[:-2]} first, "
            f"but are {of_b} and {tuple(c.shape)}"
        )
    heads, dim = shape[-2:]
    groups, n_states = of_b[-2:]
    if groups == 0 or heads % groups:
        raise Mistake(f"{op}: the groups of B, {groups}, must divide the heads of x, {heads}")
    if not x.dtype == b.dtype == c.dtype:
        raise Mistake(
            f"{op}: x, B and C must have one dtype, but are {x.dtype}, {b.dtype}, {c.dtype}"
        )
    for name, tensor in (("A", a), ("D", d), ("dt_bias", dt_bias)):
        if tensor is not None and tensor.shape != (heads,):
            raise Mistake(f"{op}: {name} must be [{heads}], but is {tuple(tensor.shape)}")
    expected = (shape[0], heads, dim, n_states)
    if state is not None and state.shape != expected:
        raise Mistake(
            f"{op}: the state must be [B, H, P, N], here {expected}, but is {tuple(state.shape)}"
        )


def _layout(dims: int, *last: str) -> str:
    return f"[{', '.join((*('B', 'L')[: dims - 2], *last))}]"


def reference(
    x_BLHP: Tensor,
    dt_BLH: Tensor,
    A_H: Tensor,
    B_BLGN: Tensor,
    C_BLGN: Tensor,
    D_H: Tensor | None = None,
    dt_bias_H: Tensor | None = None,
    initial_state_BHPN: Tensor | None = None,
    dt_softplus: bool = True,
    chunk: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Run the chunked algorithm, chunk by chunk; heads are [G, R], with R heads in a group.

    A test shows that it equals one step after the other.
    """
    (batch, length, heads, dim), (groups, n_states) = x_BLHP.shape, B_BLGN.shape[2:]
    narrow, wide = x_BLHP.dtype, accumulator(x_BLHP.dtype)
    per_group = (groups, heads // groups)
    dt = step_sizes(dt_BLH, dt_bias_H, dt_softplus, wide).unflatten(2, per_group)
    fall = dt.double() * A_H.double().view(per_group)
    x = x_BLHP.unflatten(2, per_group)
    if initial_state_BHPN is None:
        h = x.new_zeros(batch, *per_group, dim, n_states, dtype=wide)
    else:
        h = initial_state_BHPN.to(wide).unflatten(1, per_group)
    outputs = []
    with without_autocast(x):
        for start in range(0, length, chunk or CHUNK):
            part = slice(start, start + (chunk or CHUNK))
            x_q, dt_q, b_q, c_q = x[:, part], dt[:, part], B_BLGN[:, part], C_BLGN[:, part]
            a = running_sum(fall[:, part])
            y = torch.einsum("btgn,bgrpn->btgrp", c_q, h.to(narrow)) * a.exp().to(wide)[..., None]
            earlier = torch.ones(a.shape[1], a.shape[1], dtype=torch.bool, device=x.device).tril()
            gaps = (a[:, :, None] - a[:, None]).masked_fill(~earlier[..., None, None], -torch.inf)
            scores = torch.einsum("btgn,bsgn->btsg", c_q, b_q)[..., None]
            weights = (scores * gaps.exp().to(wide) * dt_q[:, None]).to(narrow)
            y = y + torch.einsum("btsgr,bsgrp->btgrp", weights, x_q)
            left = (dt_q * (a[:, -1:] - a).exp().to(wide))[..., None]
            h = h * a[:, -1].exp().to(wide)[..., None, None]
            h = h + torch.einsum("bsgrp,bsgn->bgrpn", (x_q * left).to(narrow), b_q)
            outputs.append(y.flatten(2, 3))
    y = torch.cat(outputs, 1) if outputs else x_BLHP.new_zeros(x_BLHP.shape, dtype=wide)
    if D_H is not None:
        y = y + x_BLHP * D_H.to(wide)[:, None]
    return y.to(narrow), h.flatten(1, 2)


def _triton(*arguments: Any) -> tuple[Tensor, Tensor]:
    return applied(Scan, *arguments)


def _refuses(x: Tensor, dt: Tensor, a: Tensor, b: Tensor, *rest: Any) -> str | None:
    if not x.numel() or not b.numel():
        return "does not support empty tensors"
    batch, _, heads, dim = x.shape
    too_large = _too_large(batch, heads, dim, b.shape[3], x.dtype, rest[-1], has_large_memory(x))
    return too_large or no_fp64(x)


@remembered
def _too_large(
    batch: int,
    heads: int,
    dim: int,
    n_states: int,
    dtype: torch.dtype,
    chunk: int | None,
    large_memory: bool,
) -> str | None:
    if max(batch, heads) > MAX_GRID:
        return f"supports up to {MAX_GRID} samples and heads, not {batch} and {heads}"
    block_p, block_n = tile(dim, n_states, dtype.itemsize)
    most = MAX_STATE if large_memory else MAX_STATE // 2
    if block_p * block_n > most:
        return (
            f"supports states of at most {most} elements per head after rounding up to powers of "
            f"two, not {dim} x {n_states}, rounded up to {block_p} x {block_n}"
        )
    least, longest = chunks(dim, n_states, dtype)
    if chunk is not None and not least <= chunk <= longest:
        return (
            f"supports chunks of {least} to {longest} tokens for these sizes in {str(dtype)[6:]}, "
            f"not {chunk}"
        )
    return None


def random_inputs(
    case: Case, device: torch.device, dtype: torch.dtype, seed: int, middle: tuple[int, ...]
) -> Inputs:
    """Draw inputs of a case as in a model: steps of 0.001 to 0.1, decays -A of 1 to 16."""
    size = case.sizes
    batch, heads, dim, groups, states = (
        size[n] for n in ("batch", "heads", "dim", "groups", "states")
    )
    make = {"device": device, "dtype": dtype}
    wide = {"device": device, "dtype": torch.float32 if size.get("wide", True) else dtype}
    generator = torch.Generator("cpu").manual_seed(seed)
    spread = torch.rand(2, heads, generator=generator)
    step = torch.exp(-6.9 + 4.6 * spread[0])
    bias: Tensor | None = (step + torch.log(-torch.expm1(-step))).to(**wide)
    state = random_tensor(batch, heads, dim, states, seed=seed + 5, **wide)
    dt = random_tensor(batch, *middle, heads, seed=seed + 2, **make)
    if not size.get("softplus", True):
        dt, bias = dt.sigmoid() * 0.1, None
    return {
        "x": random_tensor(batch, *middle, heads, dim, seed=seed + 1, **make),
        "dt": dt,
        "A": -(4 + 4 * spread[1] if size.get("even") else 1 + 15 * spread[1]).to(**wide),
        "B": random_tensor(batch, *middle, groups, states, seed=seed + 3, **make),
        "C": random_tensor(batch, *middle, groups, states, seed=seed + 4, **make),
        "D": 1 + random_tensor(heads, seed=seed + 6, scale=0.3, **wide)
        if size.get("d", True)
        else None,
        "dt_bias": bias if size.get("bias", True) else None,
        "state": state if size.get("state", True) else None,
    }


def _inputs(case: Case, device: torch.device, dtype: torch.dtype, seed: int) -> Inputs:
    drawn = random_inputs(case, device, dtype, seed, (case.sizes["length"],))
    named = dict(zip(NAMES, drawn.values(), strict=True))
    sizes = case.sizes
    return named | {"dt_softplus": sizes.get("softplus", True), "chunk": sizes.get("chunk")}


NAMES = (
    "x_BLHP",
    "dt_BLH",
    "A_H",
    "B_BLGN",
    "C_BLGN",
    "D_H",
    "dt_bias_H",
    "initial_state_BHPN",
)


def _cost(
    x_BLHP: Tensor,
    dt_BLH: Tensor,
    A_H: Tensor,
    B_BLGN: Tensor,
    C_BLGN: Tensor,
    D_H: Tensor | None,
    dt_bias_H: Tensor | None,
    initial_state_BHPN: Tensor | None,
    dt_softplus: bool,
    chunk: int | None = None,
) -> Cost:
    (batch, length, heads, dim), n_states = x_BLHP.shape, B_BLGN.shape[3]
    read = tensor_bytes(x_BLHP, dt_BLH, A_H, B_BLGN, C_BLGN, D_H, dt_bias_H, initial_state_BHPN)
    x_bytes = tensor_bytes(x_BLHP)
    state_bytes = 4 * batch * heads * dim * n_states
    # One step after the other would need three products of the state's size, and six backward.
    flops = 6 * batch * length * heads * dim * n_states
    return Cost(
        Work(read + x_bytes + state_bytes, flops),
        Work(2 * read + x_bytes + state_bytes, 2 * flops),
    )


def _sizes(random: Random) -> dict[str, Any]:
    # dA and d dt_bias have one number per head, each a sum that may happen to cancel. There are
    # many heads with the same decay, and A and dt_bias have x's dtype, so that the scale of the
    # allowed error does not depend on chance.
    groups = random.choice((1, 2, 4))
    return {
        "batch": 1,
        "length": random.randint(1, 70),
        "heads": 12,
        "dim": random.randint(1, 20),
        "groups": groups,
        "states": random.randint(1, 20),
        "d": random.random() < 0.7,
        "bias": random.random() < 0.7,
        "state": random.random() < 0.7,
        "softplus": random.random() < 0.7,
        "wide": False,
        "even": True,
    }


def _case(
    batch: int, length: int, heads: int, dim: int, groups: int, states: int, **more: Any
) -> dict[str, Any]:
    return {
        "batch": batch, "length": length, "heads": heads, "dim": dim, "groups": groups,
        "states": states,
    } | more  # fmt: skip


OP = Operator(
    name="ssd_scan",
    function=ssd_scan,
    reference=reference,
    check=_check,
    implementations={
        "triton": Implementation(_triton, missing, _refuses, replayed=True),
        "torch": Implementation(reference),
        **peers.options("ssd_scan"),
    },
    plain=all_chunks,
    inputs=_inputs,
    cost=_cost,
    sizes=_sizes,
    huge=(Huge(_case((1 << 9) + 3, 4096, 16, 64, 1, 16, state=False)),),
    gradients=NAMES,
    cases=(
        Case("B1 L67 H8 P12 G2 N20", _case(1, 67, 8, 12, 2, 20)),
        Case("B1 L1 H8 P1 N1", _case(1, 1, 8, 1, 1, 1, wide=False)),
        Case("B1 L150 H1 P17 N33 segments", _case(1, 150, 1, 17, 1, 33, wide=False)),
        Case(
            "B2 L33 H8 P16 G8 N16 bare",
            _case(2, 33, 8, 16, 8, 16, d=False, bias=False, state=False, softplus=False),
        ),
        Case("B8 S4096 H80 P64 N128", _case(8, 4096, 80, 64, 1, 128, state=False), bench=True),
        Case("B1 S65536 H80 P64 N128", _case(1, 65536, 80, 64, 1, 128, state=False), bench=True),
    ),
)
