"""Counts the work of a step, call by call: bytes and FLOPs of operators on fake tensors.

The cost of a fused kernel comes from its descriptor in the library. Plain torch is counted by aten
operator: each one reads its inputs from memory and writes its outputs there. Savings by caches are
not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch.utils.flop_counter import flop_registry

from kernels import Cost, Operator, Work, hardware, watched
from kernels.measure.eight_bit import UNITS
from sessions.tracing import kinds
from workbench.runner.roofline import flop_formulas
from workbench.runner.roofline.moved_bytes import moved_bytes, reads_and_writes
from workbench.runner.roofline.optimizer_update import OptimizerUpdate

# Implementations that are made of several torch operators; each operator is counted.
PLAIN = frozenset({
    "torch", "manual", "chunked", "sdpa_math", "subspace", "dequantize", "grouped", "padded",
    "loop", "dense",
})  # fmt: skip
# Matrix units that compute in another dtype than their tensors show, by implementation.
_UNITS = {unit.implementation: name for name, unit in UNITS.items()}
_FREE = frozenset({"_unsafe_view", "_reshape_alias", "empty", "empty_like", "new_empty", "detach"})
# Operators whose reference asks the device for numbers: what they return looks like this.
_OUTPUTS: dict[str, Callable[..., Any]] = {"moe_experts": lambda x, *_: torch.empty_like(x)}


class NotCounted(Exception):  # noqa: N818 - a finding, and no error
    """Something in the step cannot be counted: why, in a clause."""


@dataclass(frozen=True)
class Call:
    """One call: of an operator of the library by its name, otherwise of an operator class."""

    name: str
    bytes: int
    flops: int
    dtype: str  # the matrix rate of this dtype limits the FLOPs

    @property
    def work(self) -> Work:
        """Bytes and FLOPs."""
        return Work(self.bytes, self.flops)


@dataclass(frozen=True)
class _Range:
    """The nodes of autograd that an operator of the library made, by their sequence numbers."""

    first: int
    last: int  # exclusive
    name: str
    backward: list[Call]  # least work of its backward pass; empty once that has run


class Tally:
    """The counted work of a step.

    ``calls``: as the step runs. ``least``: library operators with the work that their mathematics
    needs, however they run; an optimizer's update with the memory that it needs in any case
    (``OptimizerUpdate``); the others as in ``calls``. ``filled`` is the part of a cache, 0 to 1,
    that queries with a position see on average. ``saves`` returns True in a checkpointed block that
    does not compute an operator again.
    """

    def __init__(
        self,
        device: torch.device,
        filled: float = 1.0,
        saves: Callable[[str], bool] = lambda _: False,
    ) -> None:
        flop_formulas.register()
        self.calls: list[Call] = []
        self.least: list[Call] = []
        self.unknown = ""  # why ``calls`` are incomplete, in a clause
        self.unknown_least = ""  # why ``least`` is incomplete, in a clause
        self.plain: set[str] = set()  # operators of the library that ran as several of torch
        self._device, self._filled, self._saves = device, filled, saves
        self._paused = 1  # until ``counting``
        self._label = ""
        self._update = OptimizerUpdate()  # the work of the current optimizer step
        self._ranges: list[_Range] = []

    def looking(self) -> AbstractContextManager[None]:
        """Launch no kernel inside the block, and count nothing yet."""
        return watched(self._operator)

    @contextmanager
    def counting(self, optimizer: torch.optim.Optimizer | None) -> Iterator[None]:
        """Count all inside the block, within ``looking``; an optimizer's step by its own name."""
        self._paused -= 1
        hooks = []
        if optimizer is not None:
            hooks.append(optimizer.register_step_pre_hook(lambda *_: self._begin_update()))
            hooks.append(optimizer.register_step_post_hook(lambda *_: self._end_update()))
        try:
            with _Mode(self._aten):
                yield
        finally:
            self._paused += 1
            for hook in hooks:
                hook.remove()

    def _begin_update(self) -> None:
        self._label, self._update = kinds.OPTIMIZER, OptimizerUpdate()

    def _end_update(self) -> None:
        self._label = ""
        self.least += [
            Call(kinds.OPTIMIZER, moved, flops, dtype)
            for moved, flops, dtype in self._update.least_work()
        ]

    # Operators of the library

    def _operator(self, op: Operator, impl: str, args: tuple[Any, ...]) -> Any:
        if self._paused:
            return self._outputs(op, args)
        cost = self._cost(op, args)
        dtype = _UNITS.get(impl) or _dtype(args)
        learned = [leaf for leaf in tree_flatten(args)[0] if _needs_gradient(leaf)]
        trains = bool(learned) and torch.is_grad_enabled()
        works = () if cost is None else (cost.forward, cost.backward if trains else None)
        calls = [Call(op.name, work.bytes, work.flops, dtype) for work in works if work is not None]
        is_saved = _is_recomputing() and self._saves(op.name)
        forward, backward = calls[: 0 if is_saved else 1], calls[1:]
        # Inside another operator it is part of the work that is counted there.
        needed = [] if self._label else backward
        if not self._label:
            self.least += forward
        if impl in PLAIN and (outputs := self._plainly(op, impl, args, needed)) is not None:
            self.plain.add(op.name)
            return outputs[0]
        if cost is None:
            self.unknown = self.unknown_least
        self.calls += forward
        with self._silent(), torch.no_grad():
            like = self._outputs(op, args)
        if not trains or (cost is not None and cost.backward is None):
            return like
        leaves, spec = tree_flatten(like)
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]

        def report() -> None:
            self.calls.extend(backward)
            self.least.extend(needed)

        results = iter(_Fused.apply(report, self._silent, tensors, *learned))
        return tree_unflatten(
            [next(results) if isinstance(leaf, Tensor) else leaf for leaf in leaves], spec
        )

    def _plainly(
        self, op: Operator, impl: str, args: tuple[Any, ...], backward: list[Call]
    ) -> tuple[Any] | None:
        """Run the implementation and count its operators; return None if it needs real numbers.

        ``backward`` are the calls of its backward pass, if it runs.
        """
        count = len(self.calls)
        first, before = torch._C._autograd._get_sequence_nr(), self._label
        self._label = op.name
        try:
            return (op.implementations[impl].call(*args),)
        except _asks_for_numbers():
            del self.calls[count:]
            self.unknown = f"the work of {op.name} in plain torch depends on values of a real step"
            return None
        finally:
            self._label = before
            last = torch._C._autograd._get_sequence_nr()
            self._ranges.append(_Range(first, last, op.name, [*backward]))

    def _cost(self, op: Operator, args: tuple[Any, ...]) -> Cost | None:
        inputs = op.named(args)
        with self._silent(), torch.no_grad():
            try:
                return op.cost(**inputs)
            except _asks_for_numbers():
                if op.name != "attention":
                    why = f"the work of {op.name} depends on values that only a real step has"
                    self.unknown_least = why
                    return None
                return op.cost(**inputs | self._seen(**inputs))

    def _seen(self, q_BHSD: Tensor, k_BGTD: Tensor, v_BGTD: Tensor, **_: Any) -> dict[str, Any]:
        """Return the keys and values of a cache that queries see on average."""
        n_keys = max(round(self._filled * k_BGTD.shape[2]), q_BHSD.shape[2])
        k_BGTD, v_BGTD = (cache[:, :, :n_keys] for cache in (k_BGTD, v_BGTD))
        return {"k_BGTD": k_BGTD, "v_BGTD": v_BGTD, "kv_length": None}

    def _outputs(self, op: Operator, args: tuple[Any, ...]) -> Any:
        if op.name in _OUTPUTS:
            return _OUTPUTS[op.name](*args)
        return (op.large_reference or op.reference)(*args)

    # Operators of torch

    def _aten(self, function: Any, args: Any, kwargs: Any, out: Any) -> None:
        if self._paused or function.namespace != "aten":
            return
        name = function._schema.name.removeprefix("aten::")
        is_free = name in _FREE or name.startswith("new_empty") or is_view(function)
        if is_free and self._label != kinds.OPTIMIZER:
            return
        tensors = [leaf for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, Tensor)]
        outputs = [leaf for leaf in tree_flatten(out)[0] if isinstance(leaf, Tensor)]
        tensors, outputs = (
            [leaf for leaf in leaves if leaf.device.type == self._device.type]
            for leaves in (tensors, outputs)
        )
        if is_free:
            self._update.add_temporaries(outputs, tensors)
        if is_free or not (tensors or outputs):
            return
        moved = moved_bytes(function, args, kwargs, tensors, outputs)
        formula = flop_registry.get(function._overloadpacket)
        flops = int(formula(*args, **kwargs, out_val=out)) if formula else 0
        label = self._label or self._of_node()
        kind = label or kinds.kind_of(f"aten::{name}")
        call = Call(kind, moved, flops, _dtype(tensors))
        self.calls.append(call)
        if label == kinds.OPTIMIZER:
            read, written = reads_and_writes(function, args, kwargs, tensors, outputs)
            self._update.add(read, written, tensors, flops, call.dtype)
        elif not label:
            self.least.append(call)

    def _of_node(self) -> str:
        """Return the library's operator that the running node of autograd comes from, if any.

        Its backward pass then counts.
        """
        node = torch._C._current_autograd_node()
        if node is None or _is_recomputing():
            return ""
        number = node._sequence_nr()
        for nodes in reversed(self._ranges):
            if nodes.first <= number < nodes.last:
                self.least += nodes.backward
                nodes.backward.clear()
                return nodes.name
        return ""

    @contextmanager
    def _silent(self) -> Iterator[None]:
        self._paused += 1
        try:
            yield
        finally:
            self._paused -= 1


class _Mode(TorchDispatchMode):
    """Calls ``count`` for every operator that torch runs."""

    def __init__(self, count: Callable[[Any, Any, Any, Any], None]) -> None:
        super().__init__()
        self._count = count

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self._count(func, args, kwargs or {}, out)
        return out


class _Fused(torch.autograd.Function):
    """Tensors like those that a fused kernel gives, and a backward pass that is only reported."""

    @staticmethod
    def forward(ctx: Any, report: Any, silent: Any, like: Any, *learned: Tensor) -> Any:
        ctx.report, ctx.silent = report, silent
        ctx.save_for_backward(*learned)
        with silent():
            outputs = tuple(torch.empty_like(tensor) for tensor in like)
        ctx.mark_non_differentiable(
            *(tensor for tensor in outputs if not tensor.is_floating_point())
        )
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        ctx.report()
        with ctx.silent():
            return (None, None, None, *(torch.empty_like(tensor) for tensor in ctx.saved_tensors))


def _is_recomputing() -> bool:
    """Return True while a checkpoint computes a block again, because a backward node needs it.

    A node itself runs without recording gradients.
    """
    return torch._C._current_autograd_node() is not None and torch.is_grad_enabled()


def _asks_for_numbers() -> tuple[type[Exception], ...]:
    from torch._subclasses import fake_tensor  # slow to load

    return fake_tensor.DataDependentOutputException, fake_tensor.DynamicOutputShapeException


def _needs_gradient(value: Any) -> bool:
    return isinstance(value, Tensor) and value.requires_grad


def is_view(function: Any) -> bool:
    """Return True if an operator returns only views, so that it computes nothing."""
    returned = [returned_value.alias_info for returned_value in function._schema.returns]
    return bool(returned) and all(alias is not None and not alias.is_write for alias in returned)


def _dtype(values: Any) -> str:
    """Return the name of the matrix rate that limits a product of these tensors."""
    dtypes = [
        tensor.dtype
        for tensor in values
        if isinstance(tensor, Tensor) and tensor.is_floating_point()
    ]
    name = str(dtypes[0] if dtypes else torch.float32).removeprefix("torch.")
    if name == "float32" and hardware.product_precision() != "highest":
        return "tf32"
    return name
