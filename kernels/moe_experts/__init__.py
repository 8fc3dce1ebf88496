"""Experts of a mixture: for each token, the weighted sum of k chosen feed-forward networks.

    y_n = sum over j of weight[n, j] FFN_e(x_n),    e = index[n, j]
    FFN_e(x) = down_e (silu(gate_e x) * (up_e x))

Shazeer et al., "Outrageously Large Neural Networks", 2017 (arXiv 1701.06538), equation 1, with
SwiGLU experts as in Mixtral (Jiang et al. 2024, arXiv 2401.04088, section 2.1), and no capacity: no
token is dropped unless its index says so (MegaBlocks, Gale et al. 2022, arXiv 2211.15841). With
h = silu(g) * u of a choice, s = sigmoid(g) and dh = down^T dy, each choice gives

    dweight = h . dh,    ddown += (weight dy) h^T,    dg = weight dh u (s + g s (1 - s))
    du = weight dh g s,    dgate += dg x^T,    dup += du x^T,    dx += gate^T dg + up^T du.

The kernels sort the choices by expert on the GPU (``_order``), multiply blocks of rows of one
expert (``_products``) and add each token's rows up again. The host never reads how many rows an
expert has: the launches are sized for the largest possible number of blocks.
Products are in the inputs' dtype and accumulate in FP32.
"""

from __future__ import annotations

from random import Random
from typing import Any

import torch
from torch import Tensor

from kernels.core.autograd import applied, needs_gradient
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
    autocast_dtype,
    random_tensor,
    same_device,
    tensor_bytes,
    without_autocast,
)
from kernels.core.triton_helpers import missing, no_fp64
from kernels.core.workspace import Workspace
from kernels.moe_experts import _flops as _flops  # registers the formula
from kernels.moe_experts._autograd import Experts
from kernels.moe_experts._grouped import WIDE, GroupedExperts
from kernels.moe_experts._plain import (
    ONE_KERNEL,
    block_rows,
    by_grouped_products,
    by_loop,
    by_padded_blocks,
    halves,
    missing_grouped,
    refuses_grouped,
    refuses_loop,
    refuses_padded,
    refuses_workspace,
    standard,
)
from kernels.swiglu import reference as swiglu

__all__ = ["MAX_EXPERTS", "ONE_KERNEL", "OP", "block_rows", "moe_experts", "reference"]

MAX_EXPERTS = 512  # the sort holds one column per expert in the registers of one program


def moe_experts(
    x: Tensor,
    index: Tensor,
    weight: Tensor,
    gate_EFD: Tensor,
    up_EFD: Tensor | None,
    down_EDF: Tensor,
    *,
    impl: str | None = None,
    workspace: Workspace | None = None,
) -> Tensor:
    """Return [..., D] in x's dtype.

    ``x`` [..., D]; ``index`` [..., K] int64, the experts chosen, of which one outside [0, E) drops
    that choice; ``weight`` [..., K], the routing weights, of any floating dtype. ``gate_EFD``,
    ``up_EFD`` and ``down_EDF`` are laid out as ``torch.nn.Linear`` has them; with ``up_EFD`` None
    the first is [E, 2 F, D], the gates above the ups. All floating tensors get gradients. Under
    autocast x and the experts are in its dtype. ``impl``: auto, triton, triton_grouped
    (``_grouped``), torch (the best plain way for these inputs), or one of these by name: grouped,
    padded, loop, dense (``_plain``). With a ``workspace`` the result and all that is computed on
    the way lie there, until the next call with it: for inference, by triton or loop. Raises
    ``Mistake`` if shapes, dtypes or devices do not match, or gradients would need values of a
    workspace.
    """
    if workspace is not None and needs_gradient(x, weight, gate_EFD, up_EFD, down_EDF):
        raise Mistake(
            "moe_experts: the next call would overwrite values in the workspace that a backward "
            "pass needs; pass no workspace, or run under torch.no_grad()"
        )
    dtype = autocast_dtype(x)
    if dtype is not None:
        _check_shapes(x, index, weight, gate_EFD, up_EFD, down_EDF)
        x, gate_EFD, down_EDF = x.to(dtype), gate_EFD.to(dtype), down_EDF.to(dtype)
        up_EFD = up_EFD if up_EFD is None else up_EFD.to(dtype)
    rest = () if workspace is None else (workspace,)
    return run(OP, impl, x, index, weight, gate_EFD, up_EFD, down_EDF, *rest)


def _check(
    x: Tensor,
    index: Tensor,
    weight: Tensor,
    gate: Tensor,
    up: Tensor | None,
    down: Tensor,
    workspace: Workspace | None = None,
) -> None:
    _check_shapes(x, index, weight, gate, up, down)
    dtypes = [t.dtype for t in (x, gate, down, up) if t is not None]
    if len(set(dtypes)) > 1:
        raise Mistake(
            f"moe_experts: x and the experts must have one dtype, but have "
            f"{', '.join(str(dtype) for dtype in dtypes)}"
        )


def _check_shapes(
    x: Tensor, index: Tensor, weight: Tensor, gate: Tensor, up: Tensor | None, down: Tensor
) -> None:
    alike("moe_experts", "x weight gate up down", x, weight, gate, up, down)
    same_device("moe_experts", x, index=index)
    shape, chosen = x.shape, index.shape
    if not shape or chosen[:-1] != shape[:-1] or len(chosen) != len(shape):
        raise Mistake(
            f"moe_experts: expected x [..., D] and index [..., K], but got {tuple(x.shape)} and "
            f"{tuple(index.shape)}"
        )
    if weight.shape != chosen or index.dtype != torch.int64:
        raise Mistake(
            f"moe_experts: index must be torch.int64 and weight of its shape, but are "
            f"{tuple(index.shape)} {index.dtype} and {tuple(weight.shape)}"
        )
    packed = 2 if up is None else 1
    experts, dim, width = down.shape if down.dim() == 3 else (0, 0, 0)
    if dim != shape[-1] or gate.shape != (experts, packed * width, dim):
        raise Mistake(
            f"moe_experts: for x [..., {x.shape[-1]}] expected gate "
            f"[E, {'2 F' if up is None else 'F'}, {x.shape[-1]}] and down [E, {x.shape[-1]}, F], "
            f"but got {tuple(gate.shape)} and {tuple(down.shape)}"
        )
    if up is not None and up.shape != gate.shape:
        raise Mistake(
            f"moe_experts: gate and up must have one shape, but are {tuple(gate.shape)} and "
            f"{tuple(up.shape)}; pass None for up if both are in gate"
        )
    if not 1 <= chosen[-1] <= experts:
        raise Mistake(
            f"moe_experts: a token must choose from 1 to the number of experts, {experts}, but "
            f"index has {index.shape[-1]}"
        )


def reference(
    x: Tensor,
    index: Tensor,
    weight: Tensor,
    gate_EFD: Tensor,
    up_EFD: Tensor | None,
    down_EDF: Tensor,
    workspace: Workspace | None = None,
) -> Tensor:
    """Compute the definition: every token through every expert, times its weight, mostly zero."""
    wide = accumulator(x.dtype)
    gate_EFD, up_EFD = halves(gate_EFD, up_EFD)
    experts = torch.arange(down_EDF.shape[0], device=x.device)
    x_ND = x.reshape(-1, x.shape[-1])
    chosen = index.reshape(-1, index.shape[-1])[..., None] == experts
    weight_NE = (chosen * weight.reshape(-1, weight.shape[-1], 1).to(wide)).sum(1)
    hidden_ENF = swiglu(x_ND @ gate_EFD.transpose(1, 2), x_ND @ up_EFD.transpose(1, 2))
    out_END = hidden_ENF @ down_EDF.transpose(1, 2)
    with without_autocast(x):
        y = torch.einsum("ne,end->nd", weight_NE, out_END.to(wide))
    return y.to(x.dtype).view(x.shape)


def _torch(*inputs: Any) -> Tensor:
    """Compute by the way that is standard for these inputs."""
    name, _ = standard(*inputs)
    made: Tensor = OP.implementations[name].call(*inputs)
    return made


def _triton(
    x: Tensor,
    index: Tensor,
    weight: Tensor,
    gate: Tensor,
    up: Tensor | None,
    down: Tensor,
    workspace: Workspace | None = None,
) -> Tensor:
    learns = needs_gradient(x, weight, gate, up, down)
    return applied(Experts, x, index, weight, gate, up, down, learns, workspace)


def _triton_grouped(*inputs: Any) -> Tensor:
    return applied(GroupedExperts, *inputs[:6])  # without the workspace, which gradients exclude


def _grouped_missing(device_type: str) -> str | None:
    return missing(device_type) or missing_grouped(device_type)


def _grouped_refuses(*inputs: Any) -> str | None:
    return _refuses(*inputs) or refuses_grouped(*inputs)


def _prefer(able: tuple[str, ...], *inputs: Any) -> tuple[str, str] | None:
    width = inputs[5].shape[2]
    if "triton_grouped" not in able or width < WIDE or _grouped_refuses(*inputs) is not None:
        return None
    why = f"experts of width {width} are wide enough for the tiles of torch's grouped product"
    return "triton_grouped", why


def _refuses(
    x: Tensor,
    index: Tensor,
    weight: Tensor,
    gate: Tensor,
    up: Tensor | None,
    down: Tensor,
    workspace: Workspace | None = None,
) -> str | None:
    if down.shape[0] > MAX_EXPERTS:
        return f"supports up to {MAX_EXPERTS} experts, not {down.shape[0]}"
    if not index.numel() or not down.numel():
        return "does not support empty tensors"
    return no_fp64(x) or no_fp64(weight)


def _inputs(case: Case, device: torch.device, dtype: torch.dtype, seed: int) -> Inputs:
    rows, dim, width = (case.sizes[n] for n in ("rows", "dim", "width"))
    experts, k = case.sizes["experts"], case.sizes["k"]
    generator = torch.Generator("cpu").manual_seed(seed + 4)
    index = torch.rand(rows, experts, generator=generator).argsort(-1)[:, :k]
    if case.sizes.get("routing") == "first":  # all to the same; most experts are empty
        index = torch.arange(k).expand(rows, k).contiguous()
    if case.sizes.get("routing") == "last":
        index = torch.arange(experts - k, experts).expand(rows, k).contiguous()
    if case.sizes.get("routing") == "dropped":
        index[torch.rand(rows, k, generator=generator) < 0.3] = -1
    make = {"device": device, "dtype": dtype}
    packed = case.sizes.get("packed", False)
    scale = dim**-0.5
    gate = random_tensor(
        experts, 2 * width if packed else width, dim, seed=seed + 1, scale=scale, **make
    )
    weight = random_tensor(rows, k, device=device, dtype=torch.float32, seed=seed + 3).softmax(-1)
    return {
        "x": random_tensor(rows, dim, seed=seed, **make),
        "index": index.to(device),
        "weight": weight if case.sizes.get("wide") else weight.to(dtype),
        "gate_EFD": gate,
        "up_EFD": None
        if packed
        else random_tensor(experts, width, dim, seed=seed + 5, scale=scale, **make),
        "down_EDF": random_tensor(experts, dim, width, seed=seed + 2, scale=width**-0.5, **make),
    }


def _cost(
    x: Tensor,
    index: Tensor,
    weight: Tensor,
    gate_EFD: Tensor,
    up_EFD: Tensor | None,
    down_EDF: Tensor,
    workspace: Workspace | None = None,
) -> Cost:
    experts = tensor_bytes(gate_EFD, up_EFD, down_EDF)
    # A choice reads one expert, so that few choices read few experts.
    read = experts * min(index.numel(), len(down_EDF)) // len(down_EDF)
    routing = tensor_bytes(index, weight)
    product = 2 * index.numel() * down_EDF.shape[1] * down_EDF.shape[2]
    return Cost(
        Work(2 * tensor_bytes(x) + routing + read, 3 * product),
        Work(3 * tensor_bytes(x) + routing + tensor_bytes(weight) + read + experts, 6 * product),
    )


def _sizes(random: Random) -> dict[str, Any]:
    # Each weight's gradient is a sum that may cancel, and in FP32 beside halves all noise: of few
    # numbers the errors are luck.
    experts = random.randint(1, 7)
    return {
        "rows": random.randint(30, 60),
        "dim": random.randint(8, 70),
        "width": random.randint(8, 40),
        "experts": experts,
        "k": random.randint(1, min(experts, 4)),
        "packed": random.random() < 0.5,
        "routing": random.choice(("", "", "first", "dropped")),
    }


def _last_experts(inputs: Inputs) -> Inputs:
    gate, down = inputs["gate_EFD"], inputs["down_EDF"]
    index = inputs["index"] - (down.shape[0] - 2)
    return inputs | {"index": index, "gate_EFD": gate[-2:], "down_EDF": down[-2:]}


OP = Operator(
    name="moe_experts",
    function=moe_experts,
    reference=reference,
    check=_check,
    implementations={
        "triton": Implementation(_triton, missing, _refuses, replayed=True),
        "triton_grouped": Implementation(_triton_grouped, _grouped_missing, _grouped_refuses),
        "torch": Implementation(_torch),
        "grouped": Implementation(by_grouped_products, missing_grouped, refuses_grouped),
        "padded": Implementation(by_padded_blocks, refuses=refuses_padded),
        "loop": Implementation(by_loop, refuses=refuses_loop, last_resort=True),
        "dense": Implementation(reference, refuses=refuses_workspace, last_resort=True),
    },
    inputs=_inputs,
    cost=_cost,
    sizes=_sizes,
    huge=(
        Huge(
            {
                "rows": (1 << 21) + 3, "dim": 1024, "width": 512, "experts": 4, "k": 1,
                "packed": True,
            }
        ),
        Huge(
            {
                "rows": 40, "dim": 4096, "width": 4096, "experts": 66, "k": 2, "packed": True,
                "routing": "last",
            },
            _last_experts,
        ),
    ),
    gradients=("x", "weight", "gate_EFD", "up_EFD", "down_EDF"),
    large_reference=by_loop,
    standard=standard,
    prefer=_prefer,
    cases=(
        Case("63x20x36 E5 k2", {"rows": 63, "dim": 20, "width": 36, "experts": 5, "k": 2}),
        Case("1x1x1 E1 k1", {"rows": 1, "dim": 1, "width": 1, "experts": 1, "k": 1}),
        Case(
            "19x70x80 E3 k3 packed",
            {"rows": 19, "dim": 70, "width": 80, "experts": 3, "k": 3, "packed": True},
        ),
        Case(
            "40x33x17 E20 k3 to the first",
            {"rows": 40, "dim": 33, "width": 17, "experts": 20, "k": 3, "routing": "first"},
        ),
        Case(
            "50x16x16 E4 k2 dropped",
            {
                "rows": 50, "dim": 16, "width": 16, "experts": 4, "k": 2, "routing": "dropped",
                "packed": True, "wide": True,
            },
        ),
        Case(
            "40x32x48 E8 k2 to the first packed",
            {
                "rows": 40, "dim": 32, "width": 48, "experts": 8, "k": 2, "packed": True,
                "routing": "first",
            },
        ),
        Case("0x8x8 E4 k2", {"rows": 0, "dim": 8, "width": 8, "experts": 4, "k": 2}),
        Case(
            "16384x2048x1024 E64 k8",
            {
                "rows": 16384, "dim": 2048, "width": 1024, "experts": 64, "k": 8, "packed": True,
            },
            bench=True,
        ),
    ),
)  # fmt: skip
