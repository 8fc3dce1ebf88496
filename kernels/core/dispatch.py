"""Choice of an operator's implementation: choices, their validation, and usage counters.

The call's ``impl=`` overrides the choice for the operator, which overrides ``"auto"``. On a GPU
``"auto"`` uses measured costs (``measured``), elsewhere the operator's order. A choice is global to
the process and not to a thread, because autograd runs backward passes (and checkpointing recomputes
forward passes) in its own threads.

Under ``torch.compile`` the choices are guarded, so changing one recompiles. The counters are not: a
compiled call is counted when it is traced.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from kernels.core import launch, measured, replay
from kernels.core.operator import (
    OPS,
    Mistake,
    Operator,
    Unavailable,
    no_inputs,
    traced_as_constant,
)

REQUESTED = "requested"  # the reason recorded for an implementation that was named
PREFERRED = "preferred"  # prefix of the reason for an implementation that was used out of order
FUSED = "torch.compile fuses it with its neighbours"  # the reason for "torch" under torch.compile
STANDARD = "PyTorch's default for these inputs"  # the reason for the one that "torch" means
_chosen: dict[str, str] = {}
_counts: dict[tuple[str, str], int] = {}
_last: dict[str, tuple[str, str]] = {}
Watch = Callable[[Operator, str, tuple[Any, ...]], Any]
_watch: Watch | None = None


def run(op: Operator, impl: str | None, *args: Any) -> Any:
    """Compute ``op``; ``args`` are its inputs in the order of its reference's signature.

    Raises ``Mistake`` for an unknown implementation, ``Unavailable`` for one that cannot run.
    """
    choice = impl if impl is not None else _chosen.get(op.name, "auto")
    likely = op.implementations.get(choice if choice != "auto" else _first(op, args[0]))
    can_replay = likely is not None and likely.replayed and _watch is None
    # For a captured call, ``auto`` may choose another implementation than the recorded one.
    if can_replay and not torch.is_grad_enabled() and not (choice == "auto" and _captured(args)):
        result = _replayed(op.name, choice, *args)
    else:
        result = _computed(op.name, choice, *args)
    if op.written is not no_inputs and not torch.compiler.is_compiling():
        # Autograd, which sees no writes of kernels, then refuses a graph that saved old values.
        torch._C._increment_version([*op.written_tensors(args).values()])
    return result


def _captured(args: tuple[Any, ...]) -> bool:
    return not torch.compiler.is_compiling() and measured.is_captured(args[0])


def _first(op: Operator, x: Any) -> str:
    names, _ = _candidates(op.name, _type_of(x))
    return names[0] if names else ""


def _computed(op_name: str, choice: str, *args: Any) -> Any:
    op = OPS[op_name]
    op.check(*args)
    if op.written is not no_inputs:
        _check_writable(op, args)
    name = _choose(op, args) if choice == "auto" else _checked(op, choice, args)
    if _watch is not None:
        return _watch(op, name, args)
    return op.implementations[name].call(*args)


def _check_writable(op: Operator, args: tuple[Any, ...]) -> None:
    written = op.written_tensors(args)
    for name, tensor in written.items():
        if any(
            size > 1 and not step for size, step in zip(tensor.shape, tensor.stride(), strict=True)
        ):
            raise Mistake(
                f"{op.name}: cannot write into {name}, whose elements share memory; make a copy of "
                "the expanded tensor"
            )
    if not written or not torch.is_grad_enabled():
        return
    if any(isinstance(x, torch.Tensor) and x.requires_grad for x in args):
        raise Mistake(
            f"{op.name}: a call that writes into {' and '.join(written)} computes no gradients; "
            "make it under torch.no_grad()"
        )


_replayed = replay.replayed(_computed, operators=1)


@contextmanager
def watched(watch: Watch) -> Iterator[None]:
    """Let ``watch`` compute every call instead of the named implementation, or wrap it.

    For instrumented steps that are not timed. Code that is compiled meanwhile would keep it.
    """
    global _watch
    before, _watch = _watch, watch
    try:
        yield
    finally:
        _watch = before


def _choose(op: Operator, args: tuple[Any, ...]) -> str:
    device_type = _type_of(args[0])
    candidates, passed = _candidates(op.name, device_type)
    compiling = torch.compiler.is_compiling() and "torch" in candidates
    if compiling and op.fused_by_compiler(*args):
        return _resolved(op, "torch", f"{PREFERRED}: {FUSED}", args)
    ranked = measured.ranking(op, candidates, args) if device_type in measured.DEVICES else None
    if ranked is not None:
        names, measured_times = ranked
        for name in names:
            if name not in candidates:  # it was usable when the times were stored
                measured_times = f"{measured_times}; {name}: {_why_absent(op, name, device_type)}"
                continue
            refuses = op.implementations[name].refuses
            if refuses is None or refuses(*args) is None:
                return _resolved(op, name, measured_times, args)
    if op.prefer is not None:
        preferred = op.prefer(candidates, *args)
        if preferred is not None:
            name, why = preferred
            return _resolved(op, name, f"{PREFERRED}: {why}", args)
    for name in candidates:
        implementation = op.implementations[name]
        reason = implementation.refuses(*args) if implementation.refuses is not None else None
        if reason is None and implementation.avoid is not None:
            reason = implementation.avoid(*args)
        if reason is None:
            return _resolved(op, name, passed, args)
        replay.not_replayed("a skipped implementation may be used next time")
        passed = f"{passed}; {name}: {reason}" if passed else f"{name}: {reason}"
    raise Unavailable(f"{op.name}: no implementation can run on {device_type}: {passed}")


def resolve_choice(op: Operator, choice: str, args: tuple[Any, ...]) -> str:
    """Return the implementation that a choice means for these inputs; nothing is counted."""
    counts, last = dict(_counts), dict(_last)
    try:
        with measured.known_only():
            return _choose(op, args) if choice == "auto" else _resolved(op, choice, "", args)
    finally:
        _counts.clear()
        _counts.update(counts)
        _last.clear()
        _last.update(last)


def _checked(op: Operator, name: str, args: tuple[Any, ...]) -> str:
    reason = _missing(op.name, name, _type_of(args[0]))
    if not reason:
        refuses = op.implementations[name].refuses
        reason = refuses(*args) if refuses is not None else None
    if reason:
        raise Unavailable(f"{op.name}: {name!r} cannot run: {reason}")
    return _resolved(op, name, REQUESTED, args)


def _resolved(op: Operator, name: str, reason: str, args: tuple[Any, ...]) -> str:
    """Count the implementation that a name means for these inputs, and return its name."""
    if name == "torch" and op.standard is not None:
        name, why = op.standard(*args)
        clauses = (STANDARD, why, "" if reason == REQUESTED else reason)
        reason = "; ".join(part for part in clauses if part)
    _count(op.name, name, reason)
    return name


def _why_absent(op: Operator, name: str, device_type: str) -> str:
    if name not in op.implementations:
        return f"is no longer an implementation of {op.name}"
    return str(_missing(op.name, name, device_type))


def _type_of(x: Any) -> str:
    return "cuda" if x.is_cuda else x.device.type  # the second takes five times as long


@contextmanager
def using(**choices: str) -> Iterator[None]:
    """Set choices for the duration of a block: ``using(rms_norm="triton", all="torch")``.

    A key is an operator's name or ``all``, which stands for every operator that has both a "torch"
    and a "triton" implementation (with "auto": for every operator). An operator's own key overrides
    ``all``. Blocks nest; leaving one, also by an exception, restores the earlier choices.
    """
    before = dict(_chosen)
    choose(**choices)
    try:
        yield
    finally:
        _chosen.clear()
        _chosen.update(before)


def choose(**choices: str) -> None:
    """Set choices permanently; keys as in ``using``. Raises ``Mistake`` for an unknown name."""
    changes = _spread(choices.pop("all")) if "all" in choices else {}
    for name, impl in choices.items():
        if name not in OPS:
            raise Mistake(f"unknown operator {name!r}; expected one of {('all', *sorted(OPS))}")
        if impl != "auto":
            OPS[name].implementation(impl)
        changes[name] = impl
    _chosen.update(changes)


def _spread(impl: str) -> dict[str, str]:
    if impl not in ("auto", "torch", "triton"):
        raise Mistake(
            f"all: unknown implementation {impl!r}; expected one of ('auto', 'torch', 'triton')"
        )
    return {
        name: impl
        for name, op in OPS.items()
        if impl == "auto" or {"torch", "triton"} <= op.implementations.keys()
    }


def chosen() -> dict[str, str]:
    """Return the active choice for every operator; "auto" where none was made."""
    return {name: _chosen.get(name, "auto") for name in OPS}


def usage() -> dict[str, dict[str, int]]:
    """Count calls since the last reset by operator and implementation; compiled calls per trace."""
    table: dict[str, dict[str, int]] = {}
    for (op_name, impl), calls in _counts.items():
        table.setdefault(op_name, {})[impl] = calls
    return table


def reasons() -> dict[str, tuple[str, str]]:
    """Return the last implementation used of each operator called so far, and the reason."""
    return dict(_last)


def reset_usage() -> None:
    """Reset the counters and reasons."""
    _counts.clear()
    _last.clear()


# The functions below run at trace time under torch.compile and are constants in the graph.


@traced_as_constant
def _candidates(op_name: str, device_type: str) -> tuple[tuple[str, ...], str]:
    return _candidates_once(op_name, device_type)


@functools.cache
def _candidates_once(op_name: str, device_type: str) -> tuple[tuple[str, ...], str]:
    names, passed = [], []
    for name, implementation in OPS[op_name].implementations.items():
        why = implementation.missing(device_type)
        if why is None:
            names.append(name)
        else:
            passed.append(f"{name}: {why}")
    return tuple(names), "; ".join(passed)


@traced_as_constant
def _missing(op_name: str, impl: str, device_type: str) -> str:
    return _missing_once(op_name, impl, device_type)


@functools.cache
def _missing_once(op_name: str, impl: str, device_type: str) -> str:
    return OPS[op_name].unavailable(impl, device_type) or ""


@traced_as_constant
def _count(op_name: str, impl: str, reason: str) -> None:
    key = (op_name, impl)
    _counts[key] = _counts.get(key, 0) + 1
    _last[op_name] = (impl, reason)
    if launch.recorders:
        replay.operator_called()
        replay.also(functools.partial(_count, op_name, impl, reason))
