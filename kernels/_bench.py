"""How fast an operator is: every implementation, the compiled reference and installed peers.

Each is compared with the reference first: what is wrong is not timed. What was timed is a ``Row``.
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

from kernels._check import Comparison, Exact, as_tuple
from kernels._eight_bit import ceilings_for
from kernels._operator import Case, Cost, Inputs, Operator, Work
from kernels._peers import peers
from kernels._rounds import Enough, alternate
from kernels._timing import kernel_us
from kernels._tuning import Choice, reset_tiles, tiles, tuning

COMPILED = "torch.compile"  # the reference, compiled
REFERENCE = "reference"
TUNED, HEURISTIC = "triton", "triton, heuristic"  # where both are timed
BOTH = "forward and backward"
_WHOLE_MATRIX = ("manual", "sdpa_math")  # attention backends that hold every weight at once
_WHOLE_LIMIT = 1 << 25  # queries times keys up to which they are timed


@dataclass
class Row:
    """One implementation at one case in one direction.

    ``times_us``: GPU time of single calls with cold caches, by CUDA events, in rounds with the
    other implementations; ``rounds`` and ``began_s`` as in ``Timings``. ``kernel_us``: mean time in
    kernels alone, by CUPTI, where it can be had. ``floor_us``: what the mathematics needs at the
    ceilings of this run. ``error``: largest error over what is allowed, of all outputs and
    gradients. ``difference``: largest difference of any output from the exact one, and
    ``mean_difference`` the largest mean one. ``first_s``: the first call, its compilation included.
    ``tiles`` that were tuned before, which took
    ``autotune_s``. ``problem``: why there are no times, or no more of them.
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
    """An implementation that is right: its forward pass was given, its backward pass is to come."""

    impl: str
    mode: str
    known: dict[str, Any]
    ways: Iterator[tuple[str, Work, Callable[[], Any]]]


@dataclass(frozen=True)
class _Asked:
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
) -> Iterator[Row]:
    """Time one operator: each row once it is known to be right, the same again once it is timed,
    and on a GPU once more when it is profiled.

    ``cases``: by default the operator's large ones on a GPU, its first on the CPU. ``deadline``: of
    ``time.monotonic``; what is not begun by then says so. ``only``: these implementations; all
    where empty. ``tune``: each case's Triton kernels first, and time them as tuned and as by
    heuristic. Profiling comes last: it slows the rest of the process. ``forward_only`` leaves it
    out, as it does gradients. ``budget_s``: of rounds of one case; it and ``enough`` as in
    ``alternate``.
    """
    from torch._functorch import config  # torch 2.11 does not load it by itself

    # A backward pass that is timed runs many times over one forward pass.
    config.donated_buffer = False
    asked = _Asked(deadline, only, forward_only, tune, budget_s, enough)
    done: list[_CaseBench] = []
    for case in cases if cases is not None else default_cases(op, device.type):
        made = _CaseBench(op, case, device, dtype, asked)
        yield from made.rows()
        if device.type == "cuda" and not forward_only:
            done.append(made)
    for row, call, restore in [(*one, case.restore) for case in done for one in case.timed]:
        if time.monotonic() > deadline:
            return
        restore()
        with contextlib.suppress(Exception):  # CUPTI may be taken or forbidden: no column then
            row.kernel_us = kernel_us(call, repeats=10)
            yield row


def default_cases(op: Operator, device_type: str) -> tuple[Case, ...]:
    """What is timed unless something else is asked for."""
    if device_type == "cuda":
        return tuple(case for case in op.cases if case.bench)
    return op.cases[:1]


class _CaseBench:
    """One operator at one case: its rows, and what is still to be profiled of them.

    Inputs are drawn and the device's ceilings measured when it is made, while there is memory.
    """

    def __init__(
        self, op: Operator, case: Case, device: torch.device, dtype: torch.dtype, asked: _Asked
    ) -> None:
        self._op, self._case, self._device, self._dtype = op, case, device, dtype
        self._asked = asked
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
        """What was timed."""
        return [one for one in self._forward + self._backward if one[0].times_us]

    def restore(self) -> None:
        """Give the inputs the values that they had: some peers write into what they are given.

        With their versions restored as well, the graphs that are kept for timing find what they
        have saved.
        """
        given = tuple(self._inputs[name] for name in self._pristine)
        for mine, value in zip(given, self._pristine.values(), strict=True):
            mine.copy_(value)
        torch._C._autograd._unsafe_set_version_counter(given, self._versions)

    def rows(self) -> Iterator[Row]:
        """Each as it is known to be right, and again as it is timed."""
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
        directions = 1 if self._asked.forward_only or self._cost.backward is None else 2
        yield from self._alternated(self._forward, directions)
        # Their graphs are made only now: the forward pass has the memory before.
        yield from self._recorded() if directions > 1 else ()
        yield from self._alternated(self._backward, directions)

    def _row(self, impl: str, direction: str, work: Work, **known: Any) -> Row:
        floor_us = ceilings_for(work, str(self._device), self._dtype).floor_us(work)
        name = str(self._dtype).removeprefix("torch.")
        return Row(self._op.name, self._case.name, impl, direction, name, work, floor_us, **known)

    def _compared(self, exact: Exact) -> Iterator[Row]:
        """The forward rows: of what is right, and of what is not, with its problem."""
        op, cost, asked = self._op, self._cost, self._asked
        tuned: dict[str, Any] = {}
        if asked.tune and TUNED in op.implementations and time.monotonic() < asked.deadline:
            tuned, problem = _tuned(op, self._inputs)
            if problem:
                yield self._row(TUNED, "forward", cost.forward, problem=problem)
        for impl, call, mode in _subjects(op, self._inputs, asked.only, asked.tune):
            self.restore()
            if time.monotonic() > asked.deadline:
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
                ways = _directions(op, cost, call, self._inputs)
                direction, work, timed = next(ways)
            except Exception:  # noqa: BLE001  the rest is still to be timed
                yield self._row(impl, "forward", cost.forward, problem=_failed(self._device))
                continue
            row = self._row(impl, direction, work, **known)
            self._ready.append(_Ready(impl, mode, known, ways))
            self._forward.append((row, _under(mode, timed)))
            yield row

    def _recorded(self) -> Iterator[Row]:
        """The backward rows of what is right, whose forward passes are recorded now."""
        work = self._cost.backward or self._cost.forward
        for one in self._ready:
            self.restore()
            try:
                for direction, its_work, timed in one.ways:
                    row = self._row(one.impl, direction, its_work, **one.known)
                    self._backward.append((row, _under(one.mode, timed)))
                    yield row
            except Exception:  # noqa: BLE001  the rest is still to be timed
                yield self._row(one.impl, "backward", work, problem=_failed(self._device))

    def _alternated(self, contenders: _Timed, directions: int) -> Iterator[Row]:
        """The rows of one direction, timed against each other."""
        asked = self._asked
        results = alternate(
            [call for _, call in contenders],
            str(self._device),
            tell=lambda: _failed(self._device),
            before=self.restore,
            budget_s=None if asked.budget_s is None else asked.budget_s / directions,
            deadline=asked.deadline,
            enough=asked.enough,
        )
        for (row, _), result in zip(contenders, results, strict=True):
            row.times_us, row.rounds, row.began_s = result.us, result.rounds, result.began_s
            row.problem = result.problem
            yield row


def _failed(device: torch.device) -> str:
    """What there is to say of the exception that is handled, whose memory is given back."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return f"failed: {traceback.format_exc(limit=-4)}"


def _errors(compared: list[Comparison]) -> dict[str, Any]:
    """What a ``Row`` tells of a comparison with the exact results."""
    outputs = [c for c in compared if c.what.startswith("output")]
    return {
        "error": max((c.error / c.allowed for c in compared if c.allowed), default=0.0),
        "difference": max((c.error for c in outputs), default=0.0),
        "mean_difference": max((c.mean_error for c in outputs), default=0.0),
    }


def _tuned(op: Operator, inputs: Inputs) -> tuple[dict[str, Any], str]:
    """What a ``Row`` tells of the tuning before it, and why there are no tiles, if so."""
    began = time.perf_counter()
    tuned: dict[str, Any] = {}
    problem = ""
    try:
        tuned["tiles"] = tune_case(op, inputs)
    except Exception:  # noqa: BLE001  the rest is still to be timed
        problem = f"not tuned: {traceback.format_exc(limit=-4)}"
    return {**tuned, "autotune_s": time.perf_counter() - began}, problem


def tune_case(op: Operator, inputs: Inputs) -> list[Choice]:
    """Tune the Triton kernels on these inputs, where they take them; the tiles that they have."""
    call = op.implementations[TUNED]
    leaves = leaves_of(op, inputs)
    reset_tiles()
    if call.refuses is None or call.refuses(*leaves.values()) is None:
        with tuning("on"):
            with torch.no_grad():
                call(*inputs.values())
            wanted = [x for x in leaves.values() if isinstance(x, Tensor) and x.requires_grad]
            live = [y for y in as_tuple(call(*leaves.values())) if y.requires_grad]
            if live:
                torch.autograd.grad(live, wanted, [torch.randn_like(y) for y in live])
    return tiles()


def _under(mode: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """``call`` under that mode of tuning; under the mode in force where it is empty."""
    if not mode:
        return call

    def inside(*args: Any) -> Any:
        with tuning(mode):
            return call(*args)

    return inside


def _subjects(
    op: Operator, inputs: Inputs, only: Collection[str], tune: bool
) -> Iterator[tuple[str, Callable[..., Any], str]]:
    """What is timed on these inputs: a name, a function of the inputs by position, a mode."""

    def wanted(name: str) -> bool:
        return not only or name in only

    device = next(iter(inputs.values())).device
    arguments = list(leaves_of(op, inputs).values())
    whole = 0
    if op.name == "attention":
        whole = inputs["q_BHSD"].shape[2] * inputs["k_BGTD"].shape[2]
    for name, implementation in op.implementations.items():
        if not wanted(name) or (name in _WHOLE_MATRIX and whole > _WHOLE_LIMIT):
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
        with contextlib.suppress(Exception):  # raised again, and told, where it is compared
            if peer(*arguments) is NotImplemented:
                continue
        yield name, peer, ""
    if op.large_reference is None and wanted(COMPILED):
        torch._dynamo.reset()
        yield COMPILED, torch.compile(op.reference, fullgraph=True, dynamic=False), ""


def _directions(
    op: Operator, cost: Cost, call: Callable[..., Any], inputs: Inputs
) -> Iterator[tuple[str, Work, Callable[[], Any]]]:
    plain = list(inputs.values())

    def forward() -> Any:
        with torch.no_grad():
            return call(*plain)

    yield "forward", cost.forward, forward
    leaves = leaves_of(op, inputs)
    wanted = [x for x in leaves.values() if isinstance(x, Tensor) and x.requires_grad]
    if cost.backward is None or not wanted:
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
            again = [y for y in as_tuple(call(*leaves.values())) if y.requires_grad]
            return torch.autograd.grad(again, wanted, upstream)

        yield BOTH, work, both
        return
    yield (
        "backward",
        cost.backward,
        lambda: torch.autograd.grad(live, wanted, upstream, retain_graph=True),
    )


def leaves_of(op: Operator, inputs: Inputs) -> Inputs:
    """The inputs with those that get a gradient as leaves that ask for one."""
    return {
        name: x.detach().requires_grad_() if name in op.gradients and x is not None else x
        for name, x in inputs.items()
    }


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()
