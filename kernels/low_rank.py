"""Best low-rank row space of matrices: a projection of SVD quality, and how much it loses.

    x ~ (x V) V^T,    V [D, r] orthonormal,    residual = |x - x V V^T| / |x|  (Frobenius)

No V of r columns has a smaller residual than the first r right singular vectors (Eckart and Young
1936): ``torch`` gets these from a full SVD. ``subspace`` is randomised subspace iteration (Halko,
Martinsson and Tropp 2011, arXiv 0909.4061, algorithm 4.4) on the small matrix x^T x: random columns
are multiplied by it and orthonormalised again. With s the singular values, after k iterations the
angle to the wanted subspace is bounded by (Golub and Van Loan, theorem 8.2.2)

    tan angle_k <= (s_(r+1) / s_r)^(2 k) tan angle_0,

so a gap after s_r gives the singular vectors' own residual, and without a gap other vectors lose
hardly more. With ``start``, a basis of an earlier call on similar rows, angle_0 is small already
and one or two iterations are enough. The returned residual is that of the returned V, not an
estimate. No step waits for the GPU or loops over matrices. Nothing here has a gradient: a basis is
refreshed now and then, and gradients flow through what is projected by it.
"""

from __future__ import annotations

from random import Random

import torch
from torch import Tensor

from kernels.core.dispatch import run
from kernels.core.operator import (
    Case,
    Cost,
    Implementation,
    Inputs,
    Mistake,
    Operator,
    Work,
    accumulator,
    floating,
    random_tensor,
    same_device,
    tensor_bytes,
    without_autocast,
)


def low_rank(
    x: Tensor,
    rank: int,
    *,
    iterations: int = 8,
    start: Tensor | None = None,
    impl: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the basis V [..., D, rank] in x's dtype and the residual [...] in FP32, from 0 to 1.

    ``x`` [..., N, D]; a zero matrix has residual 0. ``iterations`` and ``start`` [..., D, rank],
    the initial columns, concern subspace alone. ``impl``: auto, subspace or torch. Raises
    ``Mistake`` for a rank that x cannot have, or a start of another shape.
    """
    floating("low_rank", x=x)
    if x.dim() < 2:
        raise Mistake(f"low_rank: x must be [..., N, D], but has shape {tuple(x.shape)}")
    if not 1 <= rank <= min(x.shape[-2:]):
        raise Mistake(
            f"low_rank: rank must be from 1 to {min(x.shape[-2:])}, the smaller dimension of x "
            f"{tuple(x.shape)}, but is {rank}"
        )
    if start is not None:
        expected = (*x.shape[:-2], x.shape[-1], rank)
        if tuple(start.shape) != expected:
            raise Mistake(
                f"low_rank: start must have the basis's shape {expected}, but has "
                f"{tuple(start.shape)}"
            )
        same_device("low_rank", x, start=start)
        start = start.detach()
    return run(OP, impl, x.detach(), rank, iterations, start)


def reference(
    x: Tensor, rank: int, iterations: int = 8, start: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Compute the definition, by a full SVD."""
    wide = x.detach().to(accumulator(x.dtype))
    _, s, v = torch.linalg.svd(wide, full_matrices=False)
    lost = s[..., rank:].square().sum(-1) / s.square().sum(-1).clamp_min(_tiny(wide))
    return v[..., :rank, :].mT.to(x.dtype), lost.sqrt().to(accumulator(x.dtype))


def _subspace(x: Tensor, rank: int, iterations: int, start: Tensor | None) -> tuple[Tensor, Tensor]:
    with torch.no_grad(), without_autocast(x):
        wide = x.to(accumulator(x.dtype))
        # FP64 from here on, where all matrices are small: the condition of the columns below is
        # that of x^T x and squares again in their own products.
        square = (wide.mT @ wide).double()
        columns = _start(x.shape[-1], rank, x.device)
        if start is None:
            basis = columns.expand(*x.shape[:-2], *columns.shape)
        else:
            # A start without any component in a direction would never find it.
            basis = torch.add(start, columns, alpha=1e-3)  # in FP64, as columns are
        for _ in range(max(iterations, 1)):
            basis = _orthonormal(square @ basis)
        basis = basis.to(wide.dtype)
        if rank == x.shape[-1]:  # a complete basis loses nothing
            return basis.to(x.dtype), torch.zeros(x.shape[:-2], dtype=wide.dtype, device=x.device)
        lost = (wide - (wide @ basis) @ basis.mT).square().sum((-2, -1))
        lost = lost / wide.square().sum((-2, -1)).clamp_min(_tiny(wide))
        return basis.to(x.dtype), lost.sqrt()


def _start(dim: int, rank: int, device: torch.device) -> Tensor:
    """Compute pseudo-random columns on the device: a generator would be state."""
    index = torch.arange(1, dim * rank + 1, dtype=torch.float64, device=device)
    return ((index * 12.9898).sin() * 43758.5453).frac().view(dim, rank)


def _orthonormal(columns: Tensor) -> Tensor:
    """Apply Cholesky QR three times, the first shifted (Fukaya et al. 2020, arXiv 1809.11085).

    Unlike Householder's QR it consists of products, which are batched, and waits for nothing.
    """
    eye = torch.eye(columns.shape[-1], dtype=columns.dtype, device=columns.device)
    for shift in (1e-12, 0.0, 0.0):
        gram = columns.mT @ columns
        # For zeros only the shift is left, which 1e-15 must not take below the smallest number.
        scale = gram.diagonal(dim1=-2, dim2=-1).amax(-1).clamp_min(1e-280)[..., None, None]
        factor, _ = torch.linalg.cholesky_ex(torch.addcmul(gram, scale, eye, value=shift + 1e-15))
        columns = torch.linalg.solve_triangular(factor.mT, columns, upper=True, left=False)
    return columns


def _tiny(x: Tensor) -> float:
    return torch.finfo(x.dtype).tiny


def _comparable(result: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Return the projection, which is unique where the basis is not, and the residual."""
    basis, residual = result
    return basis @ basis.mT, residual


def _few(x: Tensor, rank: int, iterations: int, start: Tensor | None) -> str | None:
    if x.is_cuda or start is not None:
        return None
    return "is faster only with a start, or on a GPU, whose SVD computes one matrix at a time"


def _inputs(case: Case, device: torch.device, dtype: torch.dtype, seed: int) -> Inputs:
    size = case.sizes
    batch, rows, dim, rank = size["batch"], size["rows"], size["dim"], size["rank"]
    make = {"device": device, "dtype": torch.float32}
    # A spectrum with a gap after the rank; without one the subspace itself would not be unique.
    index = torch.arange(dim, device=device)
    spectrum = torch.where(index < rank, 1 - 0.5 * index / rank, 0.02)
    mix = random_tensor(dim, dim, seed=seed + 1, scale=dim**-0.5, **make)
    x = random_tensor(batch, rows, dim, seed=seed, **make) * spectrum @ mix
    start = None
    if size.get("start"):
        start = random_tensor(batch, dim, rank, seed=seed + 2, **make)
    return {
        "x": x.to(dtype),
        "rank": rank,
        "iterations": size.get("iterations", 40),
        "start": start,
    }


def _cost(x: Tensor, rank: int, iterations: int, start: Tensor | None) -> Cost:
    n, dim = x.numel(), x.shape[-1]
    small = n // max(x.shape[-2], 1) * dim * rank * 2 * iterations
    lost = 4 * n * rank if rank < dim else 0  # a complete basis loses nothing
    return Cost(Work(2 * tensor_bytes(x), 2 * n * dim + lost + small))


def _size(batch: int, rows: int, dim: int, rank: int, **more: int) -> dict[str, int]:
    return {"batch": batch, "rows": rows, "dim": dim, "rank": rank} | more


def _sizes(random: Random) -> dict[str, int]:
    rank = random.randint(1, 8)
    return _size(
        random.randint(0, 4), rank * random.randint(6, 10), 2 * rank + random.randint(0, 30), rank
    )


OP = Operator(
    name="low_rank",
    function=low_rank,
    reference=reference,
    implementations={
        "subspace": Implementation(_subspace, avoid=_few),
        "torch": Implementation(reference),
    },
    inputs=_inputs,
    cost=_cost,
    sizes=_sizes,
    comparable=_comparable,
    cases=(
        Case("B3 63x20 r5", _size(3, 63, 20, 5)),
        Case("B1 1x1 r1", _size(1, 1, 1, 1)),
        Case("B2 100x33 r8", _size(2, 100, 33, 8)),
        Case("B2 40x24 r24 full", _size(2, 40, 24, 24)),
        Case("B0 9x8 r2", _size(0, 9, 8, 2)),
        Case("B2 50x12 r4 start", _size(2, 50, 12, 4, start=1)),
        Case("B32 4096x128 r32", _size(32, 4096, 128, 32, iterations=8), bench=True),
        Case("B96 2048x64 r16", _size(96, 2048, 64, 16, iterations=8), bench=True),
    ),
)
