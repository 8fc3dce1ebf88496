"""Comparison of a replacement with the original on small random inputs."""

from __future__ import annotations

import collections
import contextlib
import copy
import dis
import inspect
import itertools
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from workbench.runner.foreign.patches import INTERNAL, Call, NotCopyable, function_of
from workbench.runner.foreign.rebinding import reads_changing_globals

TOLERANCE = 1e-9  # share of the largest element, in FP64
_ROUNDED = 0.03  # likewise, of numbers in BF16
_SEED = 20
_NARROW = (torch.float32, torch.bfloat16, torch.float16)
_CASTS = (Tensor.float, Tensor.half, Tensor.bfloat16)
_CHANGEABLE = (list, dict, set, collections.deque, Tensor)


class InDouble(TorchFunctionMode):
    """Mode that computes in FP64 where code requests less, so that agreement can be exact."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Replace a requested narrow dtype."""
        if func in _CASTS:
            return args[0].double()
        wide = [torch.float64 if _is_narrow(arg) else arg for arg in args]
        named = {k: torch.float64 if _is_narrow(v) else v for k, v in (kwargs or {}).items()}
        return func(*wide, **named)


def _is_narrow(value: Any) -> bool:
    return isinstance(value, torch.dtype) and value in _NARROW


@contextlib.contextmanager
def exact() -> Iterator[None]:
    """Compute everything in FP64 on the CPU, with plain operators and a fixed random state."""
    import kernels

    plain = {name: "torch" for name, op in kernels.OPS.items() if "torch" in op.implementations}
    no_autocast = torch.autocast("cpu", enabled=False)
    with (
        torch.random.fork_rng(devices=[]),
        no_autocast,
        kernels.using(**plain),
        torch.enable_grad(),
    ):
        torch.default_generator.manual_seed(_SEED)
        yield


def agree_in_both_modes(
    original: nn.Module, other: Call, inputs: Sequence[Any], weights: Sequence[Tensor]
) -> bool:
    """Return True if outputs and gradients agree in training and in evaluation.

    A replacement stays while the mode changes.
    """
    for is_training in (False, True):
        for module in original.modules():  # a class may override train()
            module.training = is_training
        if not agree(original, other, inputs, weights):
            return False
    return True


def same_dtypes(original: Call, other: Call, inputs: Sequence[Any]) -> bool:
    """Return True if outputs agree in dtype, or the original refuses these inputs."""
    with exact(), torch.no_grad():
        try:
            first = _tensors(original(*inputs))
        except Exception:  # noqa: BLE001 - foreign code may raise anything
            return True
        try:
            return [x.dtype for x in first] == [x.dtype for x in _tensors(other(*inputs))]
        except Exception:  # noqa: BLE001
            return False


def agree(original: Call, other: Call, inputs: Sequence[Any], weights: Sequence[Tensor]) -> bool:
    """Return True if outputs and all gradients agree to the last digits of FP64."""
    try:
        with exact(), InDouble():
            first, repeated, second = (
                _outcome(call, inputs, weights) for call in (original, original, other)
            )
    except Exception:  # noqa: BLE001 - code of others may raise anything, which is no agreement
        return False
    return _close(first, repeated, 0.0) and _close(first, second, TOLERANCE)


def agree_rounded(original: Call, other: Call, inputs: Sequence[Any]) -> bool:
    """Return True if outputs agree in dtype, and up to rounding to BF16.

    What the original cannot compute in these dtypes is no difference.
    """
    with exact(), torch.no_grad():
        try:
            first = _tensors(original(*inputs))
        except Exception:  # noqa: BLE001
            return True
        try:
            second = _tensors(other(*inputs))
        except Exception:  # noqa: BLE001
            return False
    same = [x.dtype for x in first] == [x.dtype for x in second]
    return same and _close([x.double() for x in first], [x.double() for x in second], _ROUNDED)


def _outcome(call: Call, inputs: Sequence[Any], weights: Sequence[Tensor]) -> list[Tensor]:
    torch.default_generator.manual_seed(_SEED)
    arguments = [
        x.detach().clone().requires_grad_(x.is_floating_point()) if isinstance(x, Tensor) else x
        for x in inputs
    ]
    outputs = _tensors(call(*arguments))
    differentiated = [x for x in arguments if isinstance(x, Tensor) and x.requires_grad] + list(
        weights
    )
    total = sum(
        (x * torch.linspace(0.5, 1.5, x.numel(), dtype=x.dtype).view(x.shape)).sum()
        for x in outputs
    )
    gradients = torch.autograd.grad(total, differentiated, allow_unused=True)
    filled = [
        torch.zeros_like(x) if g is None else g
        for x, g in zip(differentiated, gradients, strict=True)
    ]
    return [x.detach() for x in (*outputs, *filled)]


def _tensors(output: Any) -> list[Tensor]:
    outputs = output if isinstance(output, tuple) else (output,)
    if not outputs or not all(isinstance(x, Tensor) for x in outputs):
        raise TypeError("it returns something else than tensors")
    return list(outputs)


def _close(first: Sequence[Tensor], second: Sequence[Tensor], tolerance: float) -> bool:
    if [x.shape for x in first] != [x.shape for x in second]:
        return False
    for x, y in zip(first, second, strict=True):
        size = float(x.abs().max()) if x.numel() else 0.0
        if not bool(((x - y).abs() <= tolerance * size).all()):  # NaN is no agreement
            return False
    return True


def small_sizes(large: Iterable[int]) -> dict[int, int]:
    """Return small dimensions for large ones: different ones for different ones, twice of twice."""
    small: dict[int, int] = {}
    unused = itertools.count(5, 2)
    for size in sorted(set(large)):
        half = small.get(size // 2) if size % 2 == 0 else None
        small[size] = next(unused) if half is None else 2 * half
    return small


def miniature(
    module: nn.Module,
    sizes: Mapping[int, int],
    children: Mapping[str, nn.Module],
    dtype: torch.dtype = torch.float64,
) -> nn.Module:
    """Return a copy on the CPU with random parameters, whose dimensions are replaced by ``sizes``.

    Whole numbers among its attributes that are such a dimension are replaced too. ``children`` take
    the place of the module's own. The original is not changed.
    """
    kind: Any = type(module)
    small: nn.Module = kind.__new__(kind)
    small.__dict__.update(
        {
            name: _internal(name, value) if name in INTERNAL else _shrunk(value, sizes)
            for name, value in vars(module).items()
            if not isinstance(value, types.MethodType)
        }
    )
    for name, value in vars(module).items():
        if isinstance(value, types.MethodType) and value.__self__ is module:
            small.__dict__[name] = types.MethodType(value.__func__, small)
    small.__dict__["_parameters"] = {
        name: None if x is None else nn.Parameter(_random(x.shape, sizes, dtype))
        for name, x in module._parameters.items()
    }
    small.__dict__["_buffers"] = {
        name: None if x is None else _copied(x, dtype) for name, x in module._buffers.items()
    }
    small.__dict__["_modules"] = dict(children)
    return small


def _internal(name: str, value: Any) -> Any:
    """Return a copy of what torch keeps in a module; no hooks, which would see the probes."""
    return type(value)() if name.endswith("_hooks") else copy.copy(value)


def _random(shape: Sequence[int], sizes: Mapping[int, int], dtype: torch.dtype) -> Tensor:
    return torch.randn([sizes.get(size, size) for size in shape], dtype=dtype)


def _shrunk(value: Any, sizes: Mapping[int, int]) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        return sizes.get(value, value)
    if isinstance(value, tuple) and all(isinstance(size, int) for size in value):
        return tuple(sizes.get(size, size) for size in value)
    return duplicate(value)


def duplicate(value: Any) -> Any:
    """Return a deep copy; raises ``NotCopyable``."""
    try:
        return copy.deepcopy(value)
    except Exception as error:  # noqa: BLE001 - of locks, streams, tensors within a graph
        raise NotCopyable(f"{type(value).__name__}: {error}") from None


def _copied(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x.detach().to("cpu", dtype if x.is_floating_point() else x.dtype, copy=True)


def parameters_of(module: nn.Module) -> int:
    """Return how many arguments a module's ``forward`` takes; 0 for any number."""
    try:
        parameters = inspect.signature(module.forward).parameters.values()
    except (TypeError, ValueError):
        return 0
    return len(parameters) if all(p.kind <= p.POSITIONAL_OR_KEYWORD for p in parameters) else 0


def keeps_state(module: nn.Module) -> bool:
    """Return True if a module's calls may be observed otherwise than by its output.

    Hooks of its children would not run in a replacement, and global variables would not be set.
    Buffers may change later, by calls or by the training, and a replacement does not read them.
    """
    attributes = (value for name, value in vars(module).items() if name not in INTERNAL)
    if any(isinstance(value, _CHANGEABLE) for value in attributes) or has_buffers(module):
        return True
    if any(_has_hooks(child) for child in module.modules() if child is not module):
        return True
    function = function_of(module, "forward")
    return function is None or any(
        _writes(part) or reads_changing_globals(part) for part in _functions(function)
    )


def has_tensors(module: nn.Module) -> bool:
    """Return True if a module or a child has parameters or buffers."""
    return any(True for tensors in (module.parameters(), module.buffers()) for _ in tensors)


def has_buffers(module: nn.Module) -> bool:
    """Return True if a module itself has buffers."""
    return any(x is not None for x in module._buffers.values())


def _functions(function: types.FunctionType) -> Iterator[types.FunctionType]:
    """Yield a function and those that it decorates."""
    yield function
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # an empty cell
            inner = cell.cell_contents
            if isinstance(inner, types.FunctionType) and inner is not function:
                yield inner


def _writes(function: types.FunctionType) -> bool:
    return any(i.opname in ("STORE_GLOBAL", "STORE_ATTR") for i in dis.get_instructions(function))


def _has_hooks(module: nn.Module) -> bool:
    return any(
        hooks
        for name, hooks in vars(module).items()
        if name.endswith("_hooks")
        and isinstance(hooks, dict)
        and not name.startswith("_state_dict")
    )
