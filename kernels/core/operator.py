"""Descriptor of an operator, which dispatch, tests, benchmark and status all read.

An operator's inputs are a dict of named arguments (tensors and plain values) in the order of the
reference's signature. The reference and every implementation can be called with its values. The
first is a tensor and decides the device.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeVar

import torch
from torch import Tensor

Inputs = dict[str, Any]
T = TypeVar("T")
COMPILED_TERMS = 128  # terms of a running sum that Inductor compiles at once
MOST_REMEMBERED = 4096  # entries per function; more of them are sizes that change at every call


class Mistake(ValueError):  # noqa: N818
    """Invalid request: one sentence with the values, raised before any launch."""


class Unavailable(Mistake):
    """A named implementation cannot run here, or not on these inputs."""


@dataclass(frozen=True)
class Work:
    """Least work that the mathematics needs: bytes moved to and from memory, and FLOPs."""

    bytes: int
    flops: int
    unit: str = ""  # 8-bit matrix units ("float8", "int8") that suit the products


@dataclass(frozen=True)
class Cost:
    """Work of one call; ``backward`` is None where nothing is differentiable."""

    forward: Work
    backward: Work | None = None


@dataclass(frozen=True)
class Case:
    """Named set of sizes. ``bench``: large enough to be worth timing on a GPU.

    ``forward_only``: sizes that only decoding has, where no gradient is timed.
    """

    name: str
    sizes: Mapping[str, Any]
    bench: bool = False
    forward_only: bool = False


def _anywhere(device_type: str) -> str | None:
    return None


def _unchecked(*inputs: Any) -> None:
    pass


def always(*inputs: Any) -> bool:
    """Return True for any inputs."""
    return True


def never(*inputs: Any) -> bool:
    """Return False for any inputs."""
    return False


def no_inputs(*inputs: Any) -> tuple[str, ...]:
    """Return no names: the call writes into none of its inputs."""
    return ()


@dataclass(frozen=True)
class Implementation:
    """One way to compute an operator.

    ``call`` takes the operator's inputs by position. ``missing`` returns why it cannot run on a
    type of device ("cpu", "cuda") at all, ``refuses`` why it cannot run on these inputs: one clause
    without a full stop, or None if it can. ``avoid`` returns in the same way why ``auto`` skips
    it although it could run. ``stated_ulps``: by type of device, the additional error of one
    of its steps that plain torch does not make, in units in the last place of FP32. ``replayed``:
    calls without gradients may be replayed (``replay``), because its refusals and its work depend
    only on the layout of its inputs. ``last_resort``: ``auto`` uses it only if nothing else can
    run, and does not time it.
    """

    call: Callable[..., Any]
    missing: Callable[[str], str | None] = _anywhere
    refuses: Callable[..., str | None] | None = None
    avoid: Callable[..., str | None] | None = None
    stated_ulps: Mapping[str, float] = field(default_factory=dict)
    replayed: bool = False
    last_resort: bool = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the implementation."""
        return self.call(*args, **kwargs)


@dataclass(frozen=True)
class Huge:
    """Sizes at which one tensor has over 2^31 elements: kernels are checked at the end of it.

    ``end(inputs)`` are inputs that give the last results along every dimension, and all gradients
    that depend on these. None means the last two entries of every tensor that has as many entries
    along its first dimension as the first input. ``dtype`` is one of 16 bits that the operator's
    own kernel takes.
    """

    sizes: Mapping[str, Any]
    end: Callable[[Inputs], Inputs] | None = None
    dtype: torch.dtype = torch.float16


@dataclass(frozen=True, kw_only=True)
class Operator:
    """One operator of the library.

    ``function`` is the public function, ``reference`` the definition in plain torch (it computes in
    FP64 when given FP64). ``implementations`` are in the order in which ``auto`` tries them.
    ``inputs(case, device, dtype, seed)`` makes random inputs, ``gradients`` names those that get a
    gradient, and ``cost(**inputs)`` counts the work. ``sizes(random)`` draws valid small sizes for
    ``inputs``. ``large_reference`` replaces the reference where that would not fit in memory.
    ``comparable`` turns results that are unique only up to a choice into ones that can be compared.
    ``gradients_in_forward``: gradients are computed in the forward pass if they will be needed, so
    that timing the backward pass alone is useless. ``huge`` are sizes at which 32-bit offsets
    overflow. ``check`` takes the inputs by position and raises ``Mistake`` if they do not
    match. ``prefer`` takes the names of the implementations that can run on the device, and the
    inputs by position. It returns the implementation that ``auto`` uses first for such
    inputs, with the reason; or None.
    ``standard`` takes the inputs by position if plain torch has several implementations. It
    returns the one that "torch" means, and why no better one is used (empty if it is the best).
    ``fused_by_compiler`` takes the inputs by position and returns True if ``auto`` uses "torch"
    under ``torch.compile``, because Inductor fuses it with its neighbours: a separate kernel reads
    and writes again what a fusion keeps in registers.
    ``written`` takes the inputs by position and returns the names of the tensors that this call
    writes into, in the reference and in every implementation. Such a call has no gradients. Code
    that runs a call only to compare or time it passes ``with_copies``. ``plain`` is the
    function that the benchmark compiles for comparison, if that is not the reference: plain torch,
    if the reference multiplies matrices in a wider dtype than the inputs have, or its loop would
    take minutes to compile.
    """

    name: str
    function: Callable[..., Any]
    reference: Callable[..., Any]
    implementations: Mapping[str, Implementation]
    inputs: Callable[[Case, torch.device, torch.dtype, int], Inputs]
    cost: Callable[..., Cost]
    cases: tuple[Case, ...]
    sizes: Callable[[Random], Mapping[str, Any]]
    gradients: tuple[str, ...] = ()
    large_reference: Callable[..., Any] | None = None
    comparable: Callable[[Any], Any] | None = None
    gradients_in_forward: bool = False
    huge: tuple[Huge, ...] = ()
    check: Callable[..., None] = _unchecked
    prefer: Callable[..., tuple[str, str] | None] | None = None
    standard: Callable[..., tuple[str, str]] | None = None
    fused_by_compiler: Callable[..., bool] = never
    written: Callable[..., tuple[str, ...]] = no_inputs
    plain: Callable[..., Any] | None = None

    # Names of the inputs in the order of the reference's signature.
    input_names: tuple[str, ...] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        """Read the names now: Dynamo cannot trace a cached property of Python 3.11, which locks."""
        names = tuple(inspect.signature(self.reference).parameters)
        object.__setattr__(self, "input_names", names)

    def named(self, args: Sequence[Any]) -> dict[str, Any]:
        """Return the positional arguments of one call by the names that ``cost`` takes."""
        return dict(zip(self.input_names, args, strict=False))

    def differentiable(self, inputs: Inputs) -> tuple[str, ...]:
        """Return the names of the inputs that get a gradient."""
        if self.written(*inputs.values()):
            return ()
        return tuple(name for name in self.gradients if inputs.get(name) is not None)

    def written_tensors(self, args: Sequence[Any]) -> dict[str, Tensor]:
        """Return the tensors that a call with these arguments writes into, by name."""
        if self.written is no_inputs:
            return {}
        return {name: args[self.input_names.index(name)] for name in self.written(*args)}

    def with_copies(self, args: Sequence[Any]) -> tuple[Any, ...]:
        """Return the arguments of a call with copies of the tensors that it writes into.

        A copy has the layout of its original.
        """
        written = {id(x): _copy(x) for x in self.written_tensors(args).values()}
        return tuple(written.get(id(x), x) for x in args)

    def unavailable(self, impl: str, device_type: str) -> str | None:
        """Return why ``impl`` cannot run on devices of this type; None if it can."""
        return self.implementation(impl).missing(device_type)

    def implementation(self, impl: str) -> Implementation:
        """Return the implementation of that name; raises ``Mistake`` if there is none."""
        try:
            return self.implementations[impl]
        except KeyError:
            raise Mistake(
                f"{self.name}: unknown implementation {impl!r}; "
                f"expected one of {('auto', *self.implementations)}"
            ) from None


def _copy(x: Tensor) -> Tensor:
    copy = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)
    return copy.copy_(x.detach())


OPS: dict[str, Operator] = {}  # all operators, by name


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """Return the precision that a reference computes in: FP32, or FP64 for FP64."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def random_tensor(
    *shape: int, device: torch.device, dtype: torch.dtype, seed: int, scale: float = 1.0
) -> Tensor:
    """Draw normal values, on the CPU in FP32 so that a seed gives the same on every device.

    Tensors of more than 2^22 elements are drawn on their device, where values differ.
    """
    if math.prod(shape) > 1 << 22:
        generator = torch.Generator(device).manual_seed(seed)
        return torch.randn(shape, generator=generator, device=device, dtype=dtype).mul_(scale)
    generator = torch.Generator("cpu").manual_seed(seed)
    return torch.randn(shape, generator=generator).mul_(scale).to(device=device, dtype=dtype)


def tensor_bytes(*tensors: Tensor | None) -> int:
    """Sum the bytes of all elements; a tensor that is None counts nothing."""
    return sum(t.numel() * t.element_size() for t in tensors if t is not None)


def unit_stride(x: Tensor) -> Tensor:
    """Return ``x``, copied only if its last dimension is not contiguous."""
    return x if x.is_contiguous() or x.stride()[-1] == 1 else x.contiguous()


def blank(x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Allocate contiguous memory of x's shape and device; ``dtype`` None is x's.

    ``torch.empty`` takes a quarter longer, and twice as long if sizes come as one tuple.
    """
    if x.is_contiguous():
        return torch.empty_like(x, dtype=dtype)
    return torch.empty_like(x, dtype=dtype, memory_format=torch.contiguous_format)


def by_tokens(q_BHSD: Tensor) -> Tensor:
    """Allocate like q, but laid out [B, S, H, D] as the next projection reads it.

    The layout of q does not matter: with another one the projection's input would have to be
    copied.
    """
    _, heads, length, dim = q_BHSD.shape
    strides = (length * heads * dim, dim, heads * dim, 1)
    return torch.empty_strided(q_BHSD.shape, strides, dtype=q_BHSD.dtype, device=q_BHSD.device)


def cdiv(n: int, d: int) -> int:
    """Return ``n / d`` rounded up; ``triton.cdiv`` takes as long as an allocation."""
    return -(-n // d)


def same_device(op: str, first: Tensor, **named: Tensor | None) -> None:
    """Raise ``Mistake`` unless all tensors are on the device of the first."""
    device = first.device
    for name, tensor in named.items():
        if tensor is not None and tensor.device != device:
            raise Mistake(
                f"{op}: all tensors must be on one device, but the first is on {device} "
                f"and {name} on {tensor.device}"
            )


def floating(op: str, **tensors: Tensor | None) -> None:
    """Raise ``Mistake`` unless all tensors hold FP16, BF16, FP32 or FP64."""
    for name, tensor in tensors.items():
        if tensor is not None and tensor.dtype not in _FLOATING:
            raise Mistake(
                f"{op}: {name} must be float16, bfloat16, float32 or float64, not {tensor.dtype}"
            )


def alike(op: str, names: str, first: Tensor, *rest: Tensor | None) -> None:
    """Raise ``Mistake`` unless all tensors are floating and on the device of the first.

    Checks both in one pass, because every call of every operator begins with it. ``names``: names
    of the tensors, separated by blanks.
    """
    device = first.device
    if first.dtype in _FLOATING:
        for tensor in rest:
            if tensor is not None and (tensor.dtype not in _FLOATING or tensor.device != device):
                break
        else:
            return
    named = dict(zip(names.split(), (first, *rest), strict=True))
    floating(op, **named)
    same_device(op, first, **named)


def without_autocast(x: Tensor) -> contextlib.AbstractContextManager[Any]:
    """Multiply on x's device in the given dtypes, without autocast; nearly free if it is off."""
    device_type = _autocast_type(x)
    return torch.autocast(device_type, enabled=False) if device_type else _nothing


def autocast_dtype(x: Tensor) -> torch.dtype | None:
    """Return the dtype in which autocast multiplies ``x``; None where it is off, and for FP64."""
    device_type = _autocast_type(x)
    if device_type and x.dtype != torch.float64:
        return torch.get_autocast_dtype(device_type)
    return None


def _autocast_type(x: Tensor) -> str:
    """Return the type of x's device if autocast is on there, else "" (also for meta tensors)."""
    device_type = "cuda" if x.is_cuda else x.device.type  # x.device.type takes five times as long
    return device_type if device_type != "meta" and torch.is_autocast_enabled(device_type) else ""


_nothing = contextlib.nullcontext()
_FLOATING = (torch.bfloat16, torch.float16, torch.float32, torch.float64)


def running_sum(x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Return the cumulative sum over dimension 1, in ``dtype`` or the dtype that torch chooses.

    A compiled one is added in pieces: Inductor of torch 2.11 cannot compile more terms at once if
    one of their factors is broadcast (pytorch/pytorch issue 180221).
    """
    length = x.shape[1]
    if length <= COMPILED_TERMS or not torch.compiler.is_compiling():
        return x.cumsum(1, dtype=dtype)
    padding = (0, 0) * (x.dim() - 2) + (0, -length % COMPILED_TERMS)
    pieces = (
        torch.nn.functional.pad(x, padding)
        .unflatten(1, (-1, COMPILED_TERMS))
        .cumsum(2, dtype=dtype)
    )
    totals = pieces[:, :, -1]
    before = running_sum(totals, dtype) - totals
    return (pieces + before[:, :, None]).flatten(1, 2)[:, :length]


def traced_as_constant(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let ``torch.compile`` call ``function`` once while tracing, and treat its result as constant.

    Marks it as ``torch.compiler.assume_constant_result`` does, which would import Dynamo here:
    seconds at every start, also where nothing is compiled.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def remembered(function: Callable[..., T]) -> Callable[..., T]:
    """Cache the results of eager calls of ``function`` by their arguments.

    For results that depend on sizes and dtypes alone, passed by position; facts about a GPU must be
    among the arguments. While torch.compile traces, sizes may be symbols, and nothing is cached.
    """
    cache: dict[tuple[Any, ...], T] = {}

    @functools.wraps(function)
    def call(*arguments: Any) -> T:
        if torch.compiler.is_compiling():
            return function(*arguments)
        cached = cache.get(arguments, cache)
        if cached is not cache:
            return cached  # type: ignore[return-value]
        if len(cache) >= MOST_REMEMBERED:
            cache.clear()
        cache[arguments] = fresh = function(*arguments)
        return fresh

    return call


def tensors_kept(most: int) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Cache the tensors that a function makes, for the last ``most`` arguments.

    They are ordinary tensors, with which later calls may train, even if the first call ran in
    inference mode. Fake tensors (``FakeTensorMode``) have no values and are not cached. Tensors
    that a CUDA graph has captured are never freed, because its replays read their memory.
    """

    def keep(make: Callable[..., T]) -> Callable[..., T]:
        captured: dict[int, T] = {}  # by identity

        @functools.lru_cache(maxsize=most)
        def once(*arguments: Any) -> T:
            with torch.inference_mode(False), torch.no_grad():
                return make(*arguments)

        @functools.wraps(make)
        def call(*arguments: Any) -> T:
            if torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None:
                return make(*arguments)
            result = once(*arguments)
            if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
                captured[id(result)] = result
            return result

        call.cache_clear = once.cache_clear  # type: ignore[attr-defined]
        return call

    return keep


def own_code(function: Callable[..., Any]) -> Callable[..., Any]:
    """Copy a function together with its code object.

    Dynamo keeps compiled graphs, and counts recompiles against its limit, per code object: compiled
    functions that shared one would push each other into silent eager execution.
    """
    assert isinstance(function, types.FunctionType)
    copy = types.FunctionType(
        function.__code__.replace(),
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy
