"""Benchmark of an operator: every implementation, compiled plain torch and installed peers.

Each is first compared with the reference: wrong results are not timed. Every measurement is a
``Row``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from kernels.core.check import Comparison, Exact, as_tuple
from kernels.core.operator import Case, Cost, Inputs, Operator, Work, own_code
from kernels.core.tuning import Choice, reset_tiles, tiles, tuning
from kernels.measure.eight_bit import ceilings_for
from kernels.measure.peers import PEERS, peers
from kernels.measure.rounds import Enough, alternate
from kernels.measure.timing import kernel_us

COMPILED = "torch.compile"  # the reference or plain torch, compiled
REFERENCE = "reference"
TUNED, HEURISTIC = "triton", "triton, heuristic"  # names if both are timed
BOTH = "forward and backward"
_FULL_MATRIX = ("manual", "sdpa_math")  # attention backends that hold the full weight matrix
_FULL_MATRIX_LIMIT = 1 << 25  # queries times keys up to which they are timed


@dataclass
class Row:
    """Measurement of one implementation at one case in one direction.

    ``times_us``: GPU time of single calls with cold caches, by CUDA events, in rounds with the
    other implementations; ``rounds`` and ``began_s`` as in ``Timings``. ``kernel_us``: mean time in
    kernels only, by CUPTI if it is available. ``floor_us``: least time that the mathematics
    needs at the ceilings of this run. ``error``: largest error divided by the allowed error, over
    all outputs and gradients. ``difference``: largest difference of any output from the exact one;
    ``mean_difference``: the largest mean absolute difference of an output.
    ``first_s``: duration of the first call, its compilation included. ``tiles``: the tiles tuned
    before timing, which took ``autotune_s``. ``problem``: why there are no times, or no more of
    them.
    """

    op: str
    case: str
    impl: str
    direction: str  # "forward", "backward", or BOTH where the operator has gradients_in_forward
    dtype: str
    work: Work
    floor_us: float
    error: float = float("nan")
    difference: float = float("nan")
    mean_difference: float = float("nan")
    first_s: float = float("nan")
    times_us: list[float] = field(default_factory=list)
    rounds: list[int] = field(default_factory=list)
    began_s: list[float] = field(default_factory=list)
    kernel_us: float | None = None
    tiles: list[Choice] = field(default_factory=list)
    autotune_s: float = float("nan")
    problem: str = ""


_Timed = list[tuple[Row, Callable[[], Any]]]


@dataclass(frozen=True)
class _Ready:
    """Correct implementation whose backward pass is still to be recorded and timed."""

    impl: str
    mode: str
    known: dict[str, Any]
    directions: Iterator[tuple[str, Work, Callable[[], Any]]]


@dataclass(frozen=True)
class _Options:
    deadline: float
    only: Collection[str]
    forward_only: bool
    tune: bool
    budget_s: float | None
    enough: Enough


def bench(
    op: Operator,
    device: torch.device,
    dtype: torch.dtype,
    *,
    cases: Iterable[Case] | None = None,
    deadline: float = float("inf"),
    only: Collection[str] = (),
    forward_only: bool = False,
    tune: bool = False,
    budget_s: float | None = None,
    enough: Enough = lambda _: False,
    profiled: bool = True,
) -> Iterator[Row]:
    """Time one operator; yield each row when checked, when timed and (on a GPU) when profiled.

    ``cases``: by default the operator's large ones on a GPU, its first on the CPU. ``deadline``: by
    ``time.monotonic``; work not begun by then is reported as such. ``only``: the implementations to
    time; empty means all. ``tune``: tune each case's Triton kernels first, and time them both tuned
    and with the heuristic's tile. Profiling comes last, because it slows the rest of the process.
    ``forward_only`` skips profiling and gradients. ``budget_s``: time for the rounds of one case;
    it and ``enough`` as in ``alternate``.
    """
    from torch._functorch import config  # torch 2.11 does not load it

    options = _Options(deadline, only, forward_only, tune, budget_s, enough)
    # A timed backward pass runs many times over one forward pass.
    with config.patch(donated_buffer=False):
        chosen = default_cases(op, device.type) if cases is None else cases
        yield from _bench(op, device, dtype, chosen, options, profiled)


def _bench(
    op: Operator,
    device: torch.device,
    dtype: torch.dtype,
    cases: Iterable[Case],
    options: _Options,
    profiled: bool,
) -> Iterator[Row]:
    finished: list[_CaseBench] = []
    for case in cases:
        case_bench = _CaseBench(op, case, device, dtype, options)
        yield from case_bench.rows()
        if device.type == "cuda" and profiled and not options.forward_only:
            finished.append(case_bench)
    for row, call, restore in [(*entry, case.restore) for case in finished for entry in case.timed]:
        if time.monotonic() > options.deadline:
            return
        restore()
        with contextlib.suppress(Exception):  # CUPTI may be taken or forbidden: no column then
            row.kernel_us = kernel_us(call, repeats=10)
            yield row


def default_cases(op: Operator, device_type: str) -> tuple[Case, ...]:
    """Return the cases to time by default: the large ones on a GPU, the first on the CPU."""
    if device_type == "cuda":
        return tuple(case for case in op.cases if case.bench)
    return op.cases[:1]


class _CaseBench:
    """One operator at one case: its rows, and the calls that are still to be profiled.

    The constructor draws the inputs and measures the device's ceilings, while there is memory.
    """

    def __init__(
        self, op: Operator, case: Case, device: torch.device, dtype: torch.dtype, options: _Options
    ) -> None:
        self._op, self._case, self._device, self._dtype = op, case, device, dtype
        self._options = options
        self._inputs = op.inputs(case, device, dtype, 0)
        self._cost = op.cost(**self._inputs)
        ceilings_for(self._cost.forward, str(device), dtype)
        self._ready: list[_Ready] = []
        self._forward: _Timed = []
        self._backward: _Timed = []
        self._pristine: dict[str, Tensor] = {}
        self._versions: tuple[int, ...] = ()

    @property
    def timed(self) -> _Timed:
        """Return the timed passes."""
        return [entry for entry in self._forward + self._backward if entry[0].times_us]

    def restore(self) -> None:
        """Restore the values of the inputs, because some peers write into them.

        The tensors' versions are restored as well, so that the graphs kept for timing accept their
        saved tensors.
        """
        inputs = tuple(self._inputs[name] for name in self._pristine)
        for tensor, value in zip(inputs, self._pristine.values(), strict=True):
            tensor.copy_(value)
        torch._C._autograd._unsafe_set_version_counter(inputs, self._versions)

    def rows(self) -> Iterator[Row]:
        """Yield each row when it is known to be correct, and again when it is timed."""
        try:
            exact = Exact(self._op, self._inputs, large=True)
        except torch.OutOfMemoryError:
            problem = "does not fit in memory"
            yield self._row(REFERENCE, "forward", self._cost.forward, problem=problem)
            return
        tensors = {name: x for name, x in self._inputs.items() if isinstance(x, Tensor)}
        self._pristine = {name: x.clone() for name, x in tensors.items()}
        self._versions = tuple(x._version for x in tensors.values())
        yield from self._compared(exact)
        del exact
        directions = 1 if self._options.forward_only or self._cost.backward is None else 2
        yield from self._alternated(self._forward, directions)
        # Their graphs are recorded only at this point: until then the forward pass has the memory.
        yield from self._recorded() if directions > 1 else ()
        yield from self._alternated(self._backward, directions)

    def _row(self, impl: str, direction: str, work: Work, **known: Any) -> Row:
        floor_us = ceilings_for(work, str(self._device), self._dtype).floor_us(work)
        name = str(self._dtype).removeprefix("torch.")
        return Row(self._op.name, self._case.name, impl, direction, name, work, floor_us, **known)

    def _compared(self, exact: Exact) -> Iterator[Row]:
        """Yield the forward rows; a wrong result has its problem in the row and is not timed."""
        op, cost, options = self._op, self._cost, self._options
        tuned: dict[str, Any] = {}
        if options.tune and TUNED in op.implementations and time.monotonic() < options.deadline:
            tuned, problem = _tuned(op, self._inputs)
            if problem:
                yield self._row(TUNED, "forward", cost.forward, problem=problem)
        for impl, call, mode in _subjects(op, self._inputs, options.only, options.tune):
            self.restore()
            if time.monotonic() > options.deadline:
                late = "not timed: out of time"
                yield self._row(impl, "forward", cost.forward, problem=late)
                continue
            began = time.perf_counter()
            try:
                compared = exact.compare(call, poison=False)
                _synchronize(self._device)
                known = {"first_s": time.perf_counter() - began, **_errors(compared)}
                known |= tuned if impl == TUNED else {}
                if wrong := next((str(c) for c in compared if not c.right), ""):
                    problem = f"wrong: {wrong}"
                    yield self._row(impl, "forward", cost.forward, problem=problem, **known)
                    continue
                directions = _directions(op, cost, call, self._inputs)
                direction, work, timed = next(directions)
            except Exception:  # noqa: BLE001  the other implementations are still to be timed
                yield self._row(impl, "forward", cost.forward, problem=_failed(self._device))
                continue
            row = self._row(impl, direction, work, **known)
            self._ready.append(_Ready(impl, mode, known, directions))
            self._forward.append((row, _under(mode, timed)))
            yield row

    def _recorded(self) -> Iterator[Row]:
        """Record the forward passes of the correct implementations; yield their backward rows."""
        work = self._cost.backward or self._cost.forward
        for ready in self._ready:
            self.restore()
            try:
                for direction, its_work, timed in ready.directions:
                    row = self._row(ready.impl, direction, its_work, **ready.known)
                    self._backward.append((row, _under(ready.mode, timed)))
                    yield row
            except Exception:  # noqa: BLE001  the other implementations are still to be timed
                yield self._row(ready.impl, "backward", work, problem=_failed(self._device))

    def _alternated(self, contenders: _Timed, directions: int) -> Iterator[Row]:
        """Time the rows of one direction against each other and yield them."""
        options = self._options
        results = alternate(
            [call for _, call in contenders],
            str(self._device),
            describe_failure=lambda: _failed(self._device),
            before=self.restore,
            budget_s=None if options.budget_s is None else options.budget_s / directions,
            deadline=options.deadline,
            enough=options.enough,
        )
        for (row, _), result in zip(contenders, results, strict=True):
            row.times_us, row.rounds, row.began_s = result.us, result.rounds, result.began_s
            row.problem = result.problem
            yield row


def _failed(device: torch.device) -> str:
    """Describe the exception that is being handled, and free its GPU memory."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return f"failed: {traceback.format_exc(limit=-4)}"


def _errors(compared: list[Comparison]) -> dict[str, Any]:
    """Return the fields of a ``Row`` that describe a comparison with the exact results."""
    outputs = [c for c in compared if c.name.startswith("output")]
    return {
        "error": max((c.error / c.allowed for c in compared if c.allowed), default=0.0),
        "difference": max((c.error for c in outputs), default=0.0),
        "mean_difference": max((c.mean_error for c in outputs), default=0.0),
    }


def _tuned(op: Operator, inputs: Inputs) -> tuple[dict[str, Any], str]:
    """Tune the kernels; return the fields of a ``Row``, and why there are no tiles (or "")."""
    began = time.perf_counter()
    tuned: dict[str, Any] = {}
    problem = ""
    try:
        tuned["tiles"] = tune_case(op, inputs)
    except Exception:  # noqa: BLE001  the other implementations are still to be timed
        problem = f"not tuned: {traceback.format_exc(limit=-4)}"
    return {**tuned, "autotune_s": time.perf_counter() - began}, problem


def tune_case(op: Operator, inputs: Inputs) -> list[Choice]:
    """Tune the Triton kernels on these inputs, if they accept them; return their tiles."""
    call = op.implementations[TUNED]
    leaves = leaves_of(op, inputs)
    reset_tiles()
    if call.refuses is None or call.refuses(*leaves.values()) is None:
        with tuning("on"):
            with torch.no_grad():
                call(*inputs.values())
            trainable = [x for x in leaves.values() if isinstance(x, Tensor) and x.requires_grad]
            live = [y for y in as_tuple(call(*leaves.values())) if y.requires_grad]
            if live:
                torch.autograd.grad(live, trainable, [torch.randn_like(y) for y in live])
    return tiles()


def _under(mode: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``call`` wrapped in that tuning mode; an empty mode does not change it."""
    if not mode:
        return call

    def inside(*args: Any) -> Any:
        with tuning(mode):
            return call(*args)

    return inside


def _subjects(
    op: Operator, inputs: Inputs, only: Collection[str], tune: bool
) -> Iterator[tuple[str, Callable[..., Any], str]]:
    """Yield what to time on these inputs: name, function of the inputs by position, tuning mode."""

    def wanted(name: str) -> bool:
        return not only or name in only

    device = next(iter(inputs.values())).device
    arguments = list(leaves_of(op, inputs).values())
    pairs = 0
    if op.name == "attention":
        pairs = inputs["q_BHSD"].shape[2] * inputs["k_BGTD"].shape[2]
    for name, implementation in op.implementations.items():
        by_peer = name in PEERS.get(op.name, {})  # other libraries' kernels follow
        if by_peer or not wanted(name) or (name in _FULL_MATRIX and pairs > _FULL_MATRIX_LIMIT):
            continue
        refuses = implementation.refuses
        if implementation.missing(device.type) is None and not (refuses and refuses(*arguments)):
            modes = {TUNED: "cached", HEURISTIC: "off"} if tune and name == TUNED else {name: ""}
            for title, mode in modes.items():
                call = _under(mode, implementation.call)
                yield title, dataclasses.replace(implementation, call=call), mode
    for name, peer in peers(op.name).items():
        if not wanted(name):
            continue
        # it raises again, and is reported, where it is compared
        with contextlib.suppress(Exception):
            if peer(*arguments) is NotImplemented:
                continue
        yield name, peer, ""
    if op.large_reference is None and wanted(COMPILED):
        yield (
            COMPILED,
            torch.compile(own_code(op.plain or op.reference), fullgraph=True, dynamic=False),
            "",
        )


def _directions(
    op: Operator, cost: Cost, call: Callable[..., Any], inputs: Inputs
) -> Iterator[tuple[str, Work, Callable[[], Any]]]:
    plain = list(inputs.values())

    def forward() -> Any:
        with torch.no_grad():
            return call(*plain)

    yield "forward", cost.forward, forward
    leaves = leaves_of(op, inputs)
    trainable = [x for x in leaves.values() if isinstance(x, Tensor) and x.requires_grad]
    if cost.backward is None or not trainable:
        return
    live = [y for y in as_tuple(call(*leaves.values())) if y.requires_grad]
    if not live:
        return
    upstream = [torch.randn_like(y) for y in live]
    if op.gradients_in_forward:
        work = Work(
            cost.forward.bytes + cost.backward.bytes, cost.forward.flops + cost.backward.flops
        )

        def both() -> Any:
            outputs = [y for y in as_tuple(call(*leaves.values())) if y.requires_grad]
            return torch.autograd.grad(outputs, trainable, upstream)

        yield BOTH, work, both
        return
    yield (
        "backward",
        cost.backward,
        lambda: torch.autograd.grad(live, trainable, upstream, retain_graph=True),
    )


def leaves_of(op: Operator, inputs: Inputs) -> Inputs:
    """Return the inputs, with those that get a gradient as leaves that require one."""
    leaves = {name: inputs[name].detach().requires_grad_() for name in op.differentiable(inputs)}
    return inputs | leaves


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()
