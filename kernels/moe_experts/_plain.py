"""The experts in plain torch: four implementations, and which of them is the default.

``grouped``: the choices sorted by expert, multiplied by torch's grouped matrix product. On a GPU it
is one kernel in BF16 on compute capability 9.0 and 10.0; in any other dtype torch would loop over
the experts and wait for the host, which is refused here. On a CPU torch loops in C++, in 16 and 32
bits. Rows must be multiples of 16 bytes.

``padded``: the choices sorted by expert, each expert's rows padded to full blocks. The sizes alone
bound the number of blocks, so that the host never waits, and CUDA graphs and compilers see fixed
shapes. A block has the mean number of rows of an expert, so that at most about twice the chosen
rows are computed, in any dtype. Products copy the weights of the blocks' experts, which is about
twice all experts; the backward pass copies them again instead of keeping them.

``loop``: a product for each expert. The host has to know the expert's rows: it waits for a GPU, so
that no compiler traces it and no graph captures it.

``dense`` is the definition (``reference``): every expert computes every token.
"""

# Shapes: N tokens, K choices of a token, A = N K choices, P rows of the layout, E experts, D model
# width, F expert width, B blocks of the padded layout, R rows of a block.

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from kernels import hardware
from kernels.core.operator import accumulator, cdiv, traced_as_constant
from kernels.core.workspace import Workspace
from kernels.swiglu import reference as swiglu

_ALIGNMENT = 16  # bytes, of rows and of the first element
_ROWS = 16  # a block has a multiple of so many
ONE_KERNEL = (9, 10)  # major compute capabilities that torch's grouped product has a kernel for
_GROUPED = getattr(torch, "_grouped_mm", None)


class _Layout(NamedTuple):
    """Layout of the rows of the sorted choices."""

    source: Tensor  # [P], the token of each row
    row: Tensor  # [N, K], the row of each choice
    valid: Tensor  # [N, K], False for a choice of no expert
    filled: Tensor | None  # [P, 1], False for rows that only pad; None where there are none


def by_grouped_products(
    x: Tensor,
    index: Tensor,
    weight: Tensor,
    gate: Tensor,
    up: Tensor | None,
    down: Tensor,
    workspace: Workspace | None = None,
) -> Tensor:
    """Compute the mixture by torch's grouped matrix product."""
    n_experts, (x_ND, index_NK) = down.shape[0], _flat(x, index)
    valid_NK, _, order_A, end_E = _sort(index_NK, n_experts)
    layout = _Layout(
        order_A // index_NK.shape[1], _inverse(order_A).view_as(index_NK), valid_NK, None
    )
    ends_E = end_E.to(torch.int32)

    def product(rows: Tensor, matrices: Tensor) -> Tensor:
        return grouped_product(aligned(rows), aligned(matrices).transpose(1, 2), ends_E)

    hidden_PF = _hidden(product, _rows(x_ND, layout), gate, up)
    return _combine(product(hidden_PF, down), layout, weight).view(x.shape)


def grouped_product(a: Tensor, b: Tensor, ends_E: Tensor) -> Tensor:
    """Return torch's grouped product: rows [A, R] by [E, R, C], or [P, A] by [A, Q] for each E."""
    assert _GROUPED is not None
    product: Tensor = _GROUPED(a, b, offs=ends_E)
    return product


def by_padded_blocks(
    x: Tensor,
    index: Tensor,
    weight: Tensor,
    gate: Tensor,
    up: Tensor | None,
    down: Tensor,
    workspace: Workspace | None = None,
) -> Tensor:
    """Compute the mixture by batched products of blocks, each of rows of one expert."""
    n_experts, (x_ND, index_NK) = down.shape[0], _flat(x, index)
    n_choices = index_NK.numel()
    n_rows = block_rows(n_choices, n_experts)
    n_blocks = (n_choices + n_experts * (n_rows - 1)) // n_rows
    valid_NK, expert_A, order_A, end_E = _sort(index_NK, n_experts)
    start_E = functional.pad(end_E, (1, 0))[:-1]
    block_end_E = ((end_E - start_E + n_rows - 1) // n_rows).cumsum(0)
    first_E = functional.pad(block_end_E, (1, 0))[:-1] * n_rows
    # A row behind the last has no choices of any expert.
    n_padded = n_blocks * n_rows
    shift_E = functional.pad(first_E - start_E, (0, 1))
    at_A = torch.arange(n_choices, device=x.device) + shift_E[expert_A]
    at_A = torch.where(expert_A < n_experts, at_A, n_padded)
    source_P = torch.full((n_padded + 1,), -1, dtype=torch.int64, device=x.device)
    source_P = source_P.scatter(0, at_A, order_A // index_NK.shape[1])[:n_padded]
    place_A = torch.empty_like(order_A).scatter(0, order_A, at_A.clamp(max=n_padded - 1))
    layout = _Layout(
        source_P.clamp(min=0), place_A.view_as(index_NK), valid_NK, (source_P >= 0)[:, None]
    )
    block_B = torch.arange(n_blocks, device=x.device)
    expert_B = torch.searchsorted(block_end_E, block_B, right=True).clamp(max=n_experts - 1)

    def product(rows_BRD: Tensor, matrices: Tensor) -> Tensor:
        return _BlockProducts.apply(rows_BRD, matrices, expert_B)  # type: ignore[no-any-return]

    rows_BRD = _rows(x_ND, layout).view(n_blocks, n_rows, -1)
    out_BRD = product(_hidden(product, rows_BRD, gate, up), down)
    return _combine(out_BRD.view(n_padded, -1), layout, weight).view(x.shape)


def block_rows(n_choices: int, n_experts: int) -> int:
    """Return how many rows a padded block has: the mean of an expert, rounded up."""
    return max(_ROWS, cdiv(cdiv(n_choices, n_experts), _ROWS) * _ROWS)


def by_loop(
    x: Tensor,
    index: Tensor,
    weight: Tensor,
    gate: Tensor,
    up: Tensor | None,
    down: Tensor,
    workspace: Workspace | None = None,
) -> Tensor:
    """Compute the mixture expert by expert; the host has to know which tokens chose each."""
    if workspace is not None:
        return _in_workspace(x, index, weight, gate, up, down, workspace)
    wide = accumulator(x.dtype)
    gate_EFD, up_EFD = halves(gate, up)
    x_ND, index_NK = _flat(x, index)
    weight_NK = weight.reshape(index_NK.shape)
    y = torch.zeros(x_ND.shape, dtype=wide, device=x.device)
    for e in range(down.shape[0]):
        token, choice = (index_NK == e).nonzero(as_tuple=True)
        rows = x_ND[token]
        out = swiglu(rows @ gate_EFD[e].T, rows @ up_EFD[e].T) @ down[e].T
        y = y.index_add(0, token, weight_NK[token, choice, None].to(wide) * out.to(wide))
    return y.to(x.dtype).view(x.shape)


def _in_workspace(
    x: Tensor,
    index: Tensor,
    weight: Tensor,
    gate: Tensor,
    up: Tensor | None,
    down: Tensor,
    workspace: Workspace,
) -> Tensor:
    """Multiply by expert, the choices (rows R) sorted; the host has to know where experts end."""
    wide, (n_experts, dim, width) = accumulator(x.dtype), down.shape
    gate_EFD, up_EFD = halves(gate, up)
    x_ND, choices = x.reshape(-1, dim), index.reshape(-1)
    n_rows = len(choices)

    def empty(role: str, *shape: int, dtype: torch.dtype = x.dtype) -> Tensor:
        return workspace.empty(role, shape, dtype, x.device)

    expert_R, token_R = (empty(role, n_rows, dtype=torch.int64) for role in ("expert", "token"))
    torch.sort(choices, stable=True, out=(expert_R, token_R))
    weight_R = empty("weight", n_rows, dtype=weight.dtype)
    torch.index_select(weight.reshape(-1), 0, token_R, out=weight_R)
    token_R.div_(index.shape[-1], rounding_mode="floor")
    x_RD = torch.index_select(x_ND, 0, token_R, out=empty("permuted", n_rows, dim))
    gate_RF, up_RF, hidden_RF = (empty(role, n_rows, width) for role in ("gate", "up", "hidden"))
    # Choices of no expert stand before the first's, or behind the last's.
    ends = torch.searchsorted(expert_R, torch.arange(n_experts + 1, device=x.device)).tolist()
    mine = slice(ends[0], ends[-1])
    spans = [slice(*ends[e : e + 2]) for e in range(n_experts)]
    for e, rows in enumerate(spans):
        torch.mm(x_RD[rows], gate_EFD[e].T, out=gate_RF[rows])
        torch.mm(x_RD[rows], up_EFD[e].T, out=up_RF[rows])
    wide_RF = gate_RF if wide == x.dtype else empty("gate wide", n_rows, width, dtype=wide)
    wide_RF[mine].copy_(gate_RF[mine])
    functional.silu(wide_RF[mine], inplace=True).mul_(up_RF[mine])
    hidden_RF[mine].copy_(wide_RF[mine])
    out_RD = empty("rows", n_rows, dim)
    for e, rows in enumerate(spans):
        torch.mm(hidden_RF[rows], down[e].T, out=out_RD[rows])
    wide_RD = empty("rows wide", n_rows, dim, dtype=wide)
    wide_RD[mine].copy_(out_RD[mine]).mul_(weight_R[mine, None])
    y_ND = empty("out wide", len(x_ND), dim, dtype=wide).zero_()
    y_ND.index_add_(0, token_R[mine], wide_RD[mine])
    y_ND = y_ND if wide == x.dtype else empty("out", len(x_ND), dim).copy_(y_ND)
    return y_ND.view(x.shape)


def halves(gate: Tensor, up: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the gates and the ups, which may come as one tensor."""
    if up is not None:
        return gate, up
    return gate.chunk(2, 1)


def standard(
    x: Tensor,
    index: Tensor,
    weight: Tensor,
    gate: Tensor,
    up: Tensor | None,
    down: Tensor,
    workspace: Workspace | None = None,
) -> tuple[str, str]:
    """Return the best implementation in plain torch for these inputs, and why no better one."""
    given = x, index, weight, gate, up, down, workspace
    if not index.numel() or not down.numel():
        return "dense", ""  # empty
    if _is_eager_on_host(x) and workspace is not None:
        return "loop", "grouped: allocates its own memory and does not support a workspace"
    why = missing_grouped(x.device.type) or refuses_grouped(*given[:6])
    if why is None:
        return "grouped", ""
    return "loop" if _is_eager_on_host(x) else "padded", f"grouped: {why}"


def _on_host(x: Tensor) -> bool:
    return x.device.type == "cpu"


def _is_eager_on_host(x: Tensor) -> bool:
    """Return True if a loop over experts never waits."""
    return _on_host(x) and not torch.compiler.is_compiling()


def missing_grouped(device_type: str) -> str | None:
    """Return why torch has no grouped matrix product for this type of device."""
    return (
        "this torch has no grouped matrix product; versions from 2.9 on have it"
        if _GROUPED is None
        else None
    )


def refuses_grouped(
    x: Tensor,
    index: Tensor,
    weight: Tensor,
    gate: Tensor,
    up: Tensor | None,
    down: Tensor,
    workspace: Workspace | None = None,
) -> str | None:
    """Return why torch's grouped product is not one kernel for these inputs."""
    if workspace is not None:
        return "allocates its own memory and does not support a workspace"
    if not index.numel() or not down.numel():
        return "does not support empty tensors"
    if x.dtype == torch.float64:
        return "does not support float64"
    if torch.compiler.is_compiling() and not compiles(x.dtype):
        return f"cannot be compiled in {str(x.dtype)[6:]} by torch {torch.__version__}"
    dim, width = down.shape[1], down.shape[2]
    for size in (dim, width):
        if size * x.element_size() % _ALIGNMENT:
            return (
                f"needs rows of a multiple of {_ALIGNMENT} bytes, but {size} numbers of "
                f"{str(x.dtype)[6:]} have {size * x.element_size()}"
            )
    if not _on_host(x) and not (x.dtype == torch.bfloat16 and _has_one_kernel()):
        return (
            "is one kernel only in bfloat16 on compute capability 9.0 and 10.0; elsewhere torch "
            "loops over the experts and waits for the host"
        )
    return None


@traced_as_constant
def compiles(dtype: torch.dtype) -> bool:
    """Return True if torch traces its grouped product in this dtype; 2.11 does in BF16 alone."""
    a, b = torch.empty(16, 16, dtype=dtype, device="meta"), torch.empty(1, 16, 16, device="meta")
    try:
        grouped_product(a, b.to(dtype), torch.empty(1, dtype=torch.int32, device="meta"))
    except RuntimeError:
        return False
    return True


def refuses_padded(x: Tensor, index: Tensor, *rest: Any) -> str | None:
    """Return why padded blocks do not support these inputs."""
    return refuses_workspace(x, index, *rest) or (
        None if index.numel() and rest[3].numel() else "does not support empty tensors"
    )


def refuses_workspace(*inputs: Any) -> str | None:
    """Return why a path that allocates does not support a workspace."""
    has_workspace = len(inputs) > 6 and inputs[6] is not None
    return "allocates its own memory and does not support a workspace" if has_workspace else None


def refuses_loop(x: Tensor, *inputs: Any) -> str | None:
    """Return why a loop that waits for the host cannot run here."""
    if torch.compiler.is_compiling():
        return "waits for the host, which torch.compile cannot trace"
    return None


@traced_as_constant
def _has_one_kernel() -> bool:
    """Return True if the current GPU runs torch's grouped product as one kernel."""
    return hardware.has_gpu() and hardware.of("cuda").capability[0] in ONE_KERNEL


def _flat(x: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    return x.reshape(-1, x.shape[-1]), index.reshape(-1, index.shape[-1])


def _sort(index_NK: Tensor, n_experts: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Sort the choices by expert, those of no expert last.

    Returns which choices are valid [N, K], experts and choices in order [A], and where each expert
    ends [E].
    """
    valid_NK = (index_NK >= 0) & (index_NK < n_experts)
    key_A = torch.where(valid_NK, index_NK, n_experts).reshape(-1)
    expert_A, order_A = key_A.sort(stable=True)
    number_E = torch.arange(n_experts, device=index_NK.device)
    return valid_NK, expert_A, order_A, torch.searchsorted(expert_A, number_E, right=True)


def _inverse(order_A: Tensor) -> Tensor:
    at_A = torch.arange(order_A.numel(), device=order_A.device)
    return torch.empty_like(order_A).scatter(0, order_A, at_A)


def aligned(x: Tensor) -> Tensor:
    """Return ``x`` as torch's grouped product needs it."""
    x = x.contiguous()
    if torch.compiler.is_compiling():  # Dynamo does not trace offsets
        return x
    return x.clone() if x.storage_offset() * x.element_size() % _ALIGNMENT else x


def _rows(x_ND: Tensor, layout: _Layout) -> Tensor:
    """Return the rows [P, D] of the layout; those that only pad are zero."""
    rows: Tensor = _Rows.apply(x_ND, *layout)
    return rows


def _hidden(
    product: Callable[[Tensor, Tensor], Tensor], rows: Tensor, gate: Tensor, up: Tensor | None
) -> Tensor:
    """Return the activations of the experts' hidden layers for their rows."""
    if up is None:
        return swiglu(*product(rows, gate).chunk(2, -1))
    return swiglu(product(rows, gate), product(rows, up))


def _combine(out_PD: Tensor, layout: _Layout, weight: Tensor) -> Tensor:
    """Return the weighted sum [N, D] of each token's rows."""
    valid_NK1, shape = layout.valid[..., None], layout.row.shape
    rows_NKD = out_PD.index_select(0, layout.row.reshape(-1)).view(*shape, out_PD.shape[-1])
    wide = accumulator(out_PD.dtype)
    # Rows of no expert hold what memory held.
    rows_NKD = torch.where(valid_NK1, rows_NKD.to(wide), 0)
    return (rows_NKD * weight.reshape(*shape, 1).to(wide)).sum(1).to(out_PD.dtype)


class _Rows(torch.autograd.Function):
    """Gathered tokens, whose gradient is gathered too: no sum depends on the order of threads."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        x_ND: Tensor,
        source_P: Tensor,
        place_NK: Tensor,
        valid_NK: Tensor,
        filled_P: Tensor | None,
    ) -> Tensor:
        rows_PD = x_ND.index_select(0, source_P)
        return rows_PD if filled_P is None else rows_PD.masked_fill(~filled_P, 0)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, _, place_NK, valid_NK, _ = inputs
        ctx.save_for_backward(place_NK, valid_NK)

    @staticmethod
    def backward(ctx: Any, grad_PD: Tensor) -> Any:
        place_NK, valid_NK = ctx.saved_tensors
        rows_AD = grad_PD.index_select(0, place_NK.reshape(-1))
        rows_NKD = rows_AD.view(*place_NK.shape, grad_PD.shape[-1])
        return rows_NKD.masked_fill(~valid_NK[..., None], 0).sum(1), None, None, None, None


class _BlockProducts(torch.autograd.Function):
    """``rows [B, R, I] @ matrices[expert_B] [B, O, I]^T``; no copy of the matrices is kept."""

    generate_vmap_rule = True

    @staticmethod
    def forward(rows_BRI: Tensor, matrices_EOI: Tensor, expert_B: Tensor) -> Tensor:
        return rows_BRI @ matrices_EOI.index_select(0, expert_B).mT

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad_BRO: Tensor) -> Any:
        rows_BRI, matrices_EOI, expert_B = ctx.saved_tensors
        d_rows = d_matrices = None
        if ctx.needs_input_grad[0]:
            d_rows = grad_BRO @ matrices_EOI.index_select(0, expert_B)
        if ctx.needs_input_grad[1]:
            wide = accumulator(grad_BRO.dtype)
            zeros_EOI = torch.zeros_like(matrices_EOI, dtype=wide)
            d_matrices = zeros_EOI.index_add(0, expert_B, (grad_BRO.mT @ rows_BRI).to(wide))
            d_matrices = d_matrices.to(matrices_EOI.dtype)
        return d_rows, d_matrices, None
