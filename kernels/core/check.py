"""Check of an implementation against the reference, for tests, benchmark and GPU check.

Every output and gradient is compared with the reference in FP64. The error that the reference
itself makes in the tested dtype sets the scale: an implementation may lose twice that.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from kernels.core import replay
from kernels.core.operator import Huge, Implementation, Inputs, Operator

# Added to twice the reference's error, in units in the last place of the largest value (of 1, if
# terms cancel to zero throughout). Another order of the same sums moves a result by that much.
# If the reference equals the exact value by chance, twice its error is 0.
ULPS = 4.0
RMS_ULPS = 2.0


@dataclass(frozen=True)
class Comparison:
    """Largest and root mean square error of one output or gradient, with the allowed errors.

    Integers are right or wrong: an error is 1 or 0, and none is allowed. ``mean_error`` is the mean
    absolute error, which has no bound.
    """

    name: str
    error: float
    allowed: float
    rms_error: float
    rms_allowed: float
    mean_error: float = 0.0

    @property
    def right(self) -> bool:
        """True if both errors are within their limits (NaN is not)."""
        return self.error <= self.allowed and self.rms_error <= self.rms_allowed

    def __str__(self) -> str:
        return (
            f"{self.name}: largest error {self.error:.3g} (allowed {self.allowed:.3g}), "
            f"rms {self.rms_error:.3g} (allowed {self.rms_allowed:.3g})"
        )


class Exact:
    """One set of inputs with its exact results, against which any implementation is compared.

    ``large``: compute them with the operator's ``large_reference``, if it has one.
    """

    def __init__(self, op: Operator, inputs: Inputs, *, large: bool = False, seed: int = 1) -> None:
        self.op = op
        self.inputs = inputs
        self.gradients = op.differentiable(inputs)
        reference = op.large_reference if large and op.large_reference else op.reference
        self.upstream: list[Tensor] | None = None
        self.baseline = self.results(reference)
        self.upstream = self._random_upstream(seed)
        self.exact = self.results(reference, torch.float64)
        self.baseline = self.results(reference)

    def results(
        self, call: Callable[..., Any], dtype: torch.dtype | None = None
    ) -> dict[str, Tensor]:
        """Return outputs and gradients of ``call`` by name, computed in ``dtype`` if given.

        They include inputs that the call writes into; it gets copies of them.
        """
        leaves = [
            _leaf(value, dtype, name in self.gradients) if isinstance(value, Tensor) else value
            for name, value in self.inputs.items()
        ]
        arguments = dict(zip(self.inputs, self.op.with_copies(leaves), strict=True))
        result = call(*arguments.values())
        outputs = as_tuple(self.op.comparable(result) if self.op.comparable else result)
        named = {f"output {i}": y.detach() for i, y in enumerate(outputs)}
        written = self.op.written(*arguments.values())
        named |= {_after(name): arguments[name] for name in written}
        if self.upstream is not None and self.gradients:
            differentiable_inputs = [arguments[name] for name in self.gradients]
            upstream = [u.to(y.dtype) for u, y in zip(self.upstream, outputs, strict=True)]
            differentiable = [
                (y, u) for y, u in zip(outputs, upstream, strict=True) if y.requires_grad
            ]
            grads = torch.autograd.grad(
                [y for y, _ in differentiable],
                differentiable_inputs,
                [u for _, u in differentiable],
            )
            named |= {f"gradient of {n}": g for n, g in zip(self.gradients, grads, strict=True)}
        return named

    def compare(self, call: Callable[..., Any], *, poison: bool = True) -> list[Comparison]:
        """Compare every output and gradient of ``call`` with the exact one."""
        with poisoned() if poison else contextlib.nullcontext():
            results = self.results(call)
        stated = _stated(call, next(iter(results.values())))
        return [self.compare_result(name, results[name], stated) for name in self.exact]

    def judge(self, results: dict[str, Tensor]) -> list[Comparison]:
        """Compare results from any source with the exact ones."""
        return [self.compare_result(name, results[name]) for name in self.exact]

    def compare_result(self, name: str, result: Tensor, stated_ulps: float = 0.0) -> Comparison:
        """Compare one result with the exact one.

        Raises ``AssertionError`` on a wrong shape or dtype.
        """
        exact, baseline = self.exact[name], self.baseline[name]
        if result.shape != baseline.shape or result.dtype != baseline.dtype:
            raise AssertionError(
                f"{self.op.name}, {name}: expected {tuple(baseline.shape)} {baseline.dtype}, "
                f"got {tuple(result.shape)} {result.dtype}"
            )
        if not exact.numel():
            return Comparison(name, 0.0, 0.0, 0.0, 0.0)
        if not result.is_floating_point():
            deviation = (result != exact).double()
            return Comparison(
                name, float(deviation.max()), 0.0, _rms(deviation), 0.0, float(deviation.mean())
            )
        deviation, lost = (result.double() - exact), (baseline.double() - exact)
        ulp = torch.finfo(result.dtype).eps
        stated = stated_ulps * torch.finfo(torch.float32).eps
        return Comparison(
            name,
            error=float(deviation.abs().max()),
            allowed=2 * float(lost.abs().max())
            + (ULPS * ulp + stated) * (float(exact.abs().max()) or 1.0),
            rms_error=_rms(deviation),
            rms_allowed=2 * _rms(lost) + (RMS_ULPS * ulp + stated) * (_rms(exact) or 1.0),
            mean_error=float(deviation.abs().mean()),
        )

    def _random_upstream(self, seed: int) -> list[Tensor]:
        outputs = [y for name, y in self.baseline.items() if name.startswith("output")]
        generator = torch.Generator("cpu").manual_seed(seed)
        return [
            torch.randn(y.shape, generator=generator).to(y)
            if y.numel() < 1 << 22
            else torch.randn(y.shape, dtype=y.dtype, device=y.device)
            for y in outputs
        ]


def end_of_huge(
    op: Operator, inputs: Inputs, call: Callable[..., Any], huge: Huge
) -> list[Comparison]:
    """Compare the last results of huge inputs, and every gradient that depends on them.

    If offsets of a kernel overflow 32 bits, these are wrong. A reference of all results would not
    fit in memory. Results that combine all entries are left out, unless they are one number.
    """
    first = next(iter(inputs.values()))
    count = first.shape[0]
    names = op.differentiable(inputs)
    leaves = {n: inputs[n].detach().requires_grad_() for n in names}
    ends = huge.end(inputs) if huge.end else _last_two(inputs, count)
    ends = dict(zip(ends, op.with_copies(tuple(ends.values())), strict=True))
    outputs = as_tuple(call(*(inputs | leaves).values()))
    compared = [i for i, y in enumerate(outputs) if not y.dim() or y.shape[0] == count]
    exact = Exact(
        dataclasses.replace(
            op, comparable=lambda result: tuple(as_tuple(result)[i] for i in compared)
        ),
        ends,
    )
    assert exact.upstream is not None
    results, live, upstream = {}, [], []
    for number, (i, part) in enumerate(zip(compared, exact.upstream, strict=True)):
        results[f"output {number}"] = _last(outputs[i].detach(), part)
        if outputs[i].requires_grad:
            live.append(outputs[i])
            upstream.append(torch.zeros_like(outputs[i]))
            _last(upstream[-1], part).copy_(part)
    gradients = torch.autograd.grad(live, list(leaves.values()), upstream) if names else ()
    for name, gradient in zip(names, gradients, strict=True):
        result_name = f"gradient of {name}"
        results[result_name] = _last(gradient, exact.exact[result_name])
    for name in op.written(*inputs.values()):
        results[_after(name)] = _last(inputs[name], exact.exact[_after(name)])
    stated = _stated(call, first)
    return [exact.compare_result(name, value, stated) for name, value in results.items()]


def _after(name: str) -> str:
    return f"{name} after the call"


def _last_two(inputs: Inputs, count: int) -> Inputs:
    return {
        name: x[-2:] if isinstance(x, Tensor) and x.dim() and x.shape[0] == count else x
        for name, x in inputs.items()
    }


def _last(x: Tensor, like: Tensor) -> Tensor:
    """Return the last entries of ``x`` along every dimension, as many as ``like`` has."""
    return x[tuple(slice(x.shape[dim] - n, None) for dim, n in enumerate(like.shape))]


def _stated(call: Callable[..., Any], result: Tensor) -> float:
    stated = call.stated_ulps if isinstance(call, Implementation) else {}
    return stated.get(result.device.type, 0.0)


@contextlib.contextmanager
def poisoned() -> Iterator[None]:
    """Fill memory from ``torch.empty`` and its kin with NaN, so that unwritten results show.

    This affects real memory only: tensors that a compiler traces have none, and the poison would
    stay in the compiled code.
    """

    def poison(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def made(*args: Any, **kwargs: Any) -> Tensor:
            tensor = make(*args, **kwargs)
            if torch.compiler.is_compiling() or type(tensor) is not Tensor:
                return tensor
            return tensor.fill_(torch.nan) if tensor.is_floating_point() else tensor

        return made

    with contextlib.ExitStack() as stack:
        for name in ("empty", "empty_like", "empty_strided"):
            stack.enter_context(mock.patch.object(torch, name, poison(getattr(torch, name))))
        stack.enter_context(mock.patch.object(Tensor, "new_empty", poison(Tensor.new_empty)))
        stack.callback(replay.forget)  # forget that some calls could not be recorded meanwhile
        yield


def stretched(inputs: Inputs) -> Inputs:
    """Return the same values in tensors whose elements are apart, so that none is contiguous."""
    return {
        name: _stretch(value) if isinstance(value, Tensor) and value.dim() else value
        for name, value in inputs.items()
    }


def as_tuple(result: Any) -> tuple[Tensor, ...]:
    """Return an operator's result, one tensor or several, as a tuple of tensors."""
    return result if isinstance(result, tuple) else (result,)


def _stretch(x: Tensor) -> Tensor:
    strided = x.new_zeros((*x.shape[:-1], 2 * x.shape[-1]))[..., ::2]
    return strided.copy_(x)


def _leaf(x: Tensor, dtype: torch.dtype | None, gradient: bool) -> Tensor:
    x = x.detach()
    if dtype is not None and x.is_floating_point():
        x = x.to(dtype)
    return x.requires_grad_() if gradient else x


def _rms(x: Tensor) -> float:
    return float(x.square().mean().sqrt())
