"""The state of the user's model and of its process: recorded and restored.

A check calls the model several times. Afterwards everything must be as before: parameters, buffers,
attributes of modules, global and class variables of the model's files, variables of closures, hooks
and random number generators. All of it is restored in place, so that other holders of a container
or a tensor see the old contents again, and captured graphs read them at their old addresses.

Large models: copies of tensors go to the host where the device lacks the memory.
"""

from __future__ import annotations

import array
import collections
import contextlib
import contextvars
import functools
import itertools
import random
import sys
import threading
import types
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from models import Model
from workbench.runner.model_state import rng
from workbench.runner.model_state.variables import (
    FUNCTION_CACHE,
    attributes,
    cached_values,
    roots,
    slots,
)
from workbench.runner.user_models import global_flags
from workbench.runner.user_models.addresses import record_addresses
from workbench.runner.user_models.backups import Backups
from workbench.runner.user_models.user_model import OwnModel

_MOST_OBJECTS = 500_000
_LIBRARIES = frozenset(
    {*sys.stdlib_module_names, "torch", "numpy", "triton", "workbench", "kernels"}
)
_EMPTY: tuple[Any, ...] = ([], (), {}, set(), range(0), "")
_ITERATORS: tuple[type, ...] = (
    types.GeneratorType,
    itertools.count,
    itertools.cycle,
    *(type(iter(empty)) for empty in _EMPTY),
    *(map, filter, zip, enumerate),
)
_CLOSED: tuple[type, ...] = (str, bytes, int, float, complex, bool, type(None), torch.dtype)
# Objects of the standard library whose attributes are all of their state.
_BAGS: tuple[type, ...] = (types.SimpleNamespace, threading.local, MutableMapping)
_UNSET = object()
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes
Restore = Callable[[], None]


class NotRecordable(Exception):  # noqa: N818 - a reason, not an error
    """A model holds something that cannot be restored; the text is a clause that names it."""


class RunState:
    """A record of the contents of ``roots``, which have names for messages.

    Of ``skipped`` objects, only the addresses of tensors are recorded.
    """

    def __init__(
        self, roots: Iterable[tuple[str, Any]], free_bytes: int, skipped: Iterable[Any] = ()
    ) -> None:
        self._restores: list[Restore] = []
        self._visited: dict[int, Any] = {}  # by id; the references keep an id from being reused
        self._tensors: list[tuple[Tensor, Tensor]] = []
        self._backups = Backups(free_bytes)
        for value in skipped:
            self._visited[id(value)] = value
            if isinstance(value, Tensor):
                self._restores.append(record_addresses([value]))
        waiting = list(roots)
        while waiting:
            name, value = waiting.pop()
            if id(value) in self._visited or isinstance(value, _CLOSED):
                continue
            if len(self._visited) > _MOST_OBJECTS:
                raise NotRecordable(f"the model holds more than {_MOST_OBJECTS:,} objects")
            self._visited[id(value)] = value
            waiting += self._record(name, value)

    def restore(self) -> None:
        """Restore everything that has changed."""
        for restore in self._restores:
            restore()
        for tensor, copy in self._tensors:
            if not are_same(tensor, copy):
                overwrite(tensor, copy)

    def _record(self, name: str, value: Any) -> list[tuple[str, Any]]:
        """Record one object; return its contents."""
        if isinstance(value, _ITERATORS):
            raise NotRecordable(f"{name} is a {type(value).__name__}, which cannot be restored")
        if isinstance(value, Tensor):
            return self._record_tensor(name, value)
        if isinstance(value, torch.Generator):
            state = value.get_state()
            self._restores.append(lambda: void(value.set_state(state)))
            return []
        if isinstance(value, random.Random):
            python = value.getstate()
            self._restores.append(lambda: value.setstate(python))
            return []
        if _is_of_numpy(value):
            return self._record_numpy(value)
        if isinstance(value, types.CellType):
            return self._record_cell(name, value)
        if isinstance(value, types.FunctionType):
            if _is_of_library(value):
                return []
            cells = value.__closure__ or ()
            names = value.__code__.co_freevars
            defaults = (value.__defaults__ or (), value.__kwdefaults__ or {}, value.__dict__)
            contents = [(f"{name}'s {free}", cell) for free, cell in zip(names, cells, strict=True)]
            return [*contents, *((f"{name}'s default", default) for default in defaults)]
        if isinstance(value, FUNCTION_CACHE):
            contents = [(f"{name}'s cache", item) for item in cached_values(value)]
            return [*contents, (name, value.__wrapped__)]
        if isinstance(value, types.MethodType):
            return [(name, value.__self__), (name, value.__func__)]
        if isinstance(value, type):
            return self._record_class(name, value)
        return self._record_container(name, value)

    def _record_tensor(self, name: str, tensor: Tensor) -> list[tuple[str, Any]]:
        grad, needed = tensor.grad if tensor.is_leaf else None, tensor.requires_grad
        hooks = {
            kind: dict(hooks_of_kind)
            for kind in ("_backward_hooks", "_post_accumulate_grad_hooks")
            if (hooks_of_kind := getattr(tensor, kind, None)) is not None
        }
        if tensor.is_leaf:

            def restore() -> None:
                if tensor.is_leaf and tensor.requires_grad != needed:
                    tensor.requires_grad_(needed)
                if tensor.is_leaf and tensor.grad is not grad:
                    tensor.grad = grad
                for kind in ("_backward_hooks", "_post_accumulate_grad_hooks"):
                    current = getattr(tensor, kind, None)
                    if current is not None and dict(current) != hooks.get(kind, {}):
                        current.clear()
                        current.update(hooks.get(kind, {}))

            self._restores.append(restore)
        if tensor.device.type != "meta" and tensor.layout == torch.strided:
            self._restores.append(record_addresses([tensor]))
            self._tensors.append((tensor, self._backups.copy(tensor)))
        return [] if grad is None else [(f"{name}.grad", grad)]

    def _record_numpy(self, value: Any) -> list[tuple[str, Any]]:
        if hasattr(value, "bit_generator"):
            state = value.bit_generator.state
            self._restores.append(lambda: setattr(value.bit_generator, "state", state))
        elif hasattr(value, "get_state"):
            old = value.get_state()
            self._restores.append(lambda: value.set_state(old))
        elif hasattr(value, "flags") and value.flags.writeable:
            items = value.copy()
            self._restores.append(lambda: value.__setitem__(..., items))
            return [("an array", list(value.flat))] if value.dtype.hasobject else []
        return []

    def _record_cell(self, name: str, cell: types.CellType) -> list[tuple[str, Any]]:
        try:
            content = cell.cell_contents
        except ValueError:  # empty
            return []
        self._restores.append(lambda: setattr(cell, "cell_contents", content))
        return [(name, content)]

    def _record_class(self, name: str, kind: type) -> list[tuple[str, Any]]:
        if _is_of_library(kind):
            return []
        before = {key: value for key, value in vars(kind).items() if not key.startswith("__")}

        def restore() -> None:
            for key in [key for key in vars(kind) if not key.startswith("__")]:
                if key not in before:
                    delattr(kind, key)
            for key, value in before.items():
                if vars(kind).get(key) is not value:
                    setattr(kind, key, value)

        self._restores.append(restore)
        return [(f"{name}.{key}", value) for key, value in before.items()]

    def _record_container(self, name: str, value: Any) -> list[tuple[str, Any]]:
        if isinstance(value, dict | list | set | collections.deque) and attributes(value):
            contents = self._record_object(name, value)  # beside its items
            return [*contents, *self._record_items(name, value)]
        return self._record_items(name, value)

    def _record_items(self, name: str, value: Any) -> list[tuple[str, Any]]:
        if isinstance(value, dict):
            self._restores.append(_restoring_dict(value))
            return [
                (f"{name}[{key!r:.40}]", item)
                for key, item in value.items()
                if key != "__builtins__"
            ]
        if isinstance(value, list | collections.deque):
            items = list(value)

            def restore_items() -> None:
                if len(value) != len(items) or any(map(_is_not, value, items)):
                    value.clear()
                    value.extend(items)

            self._restores.append(restore_items)
            return [(f"{name}[{index}]", item) for index, item in enumerate(items)]
        if isinstance(value, set):
            members = set(value)

            def restore_members() -> None:
                if value != members:
                    value.clear()
                    value.update(members)

            self._restores.append(restore_members)
            return []
        if isinstance(value, bytearray | array.array):
            content: Any = value[:]
            self._restores.append(lambda: value.__setitem__(slice(None), content))
            return []
        if isinstance(value, contextvars.ContextVar):
            if (current := value.get(_UNSET)) is not _UNSET:
                self._restores.append(lambda: void(value.set(current)))
                return [(name, current)]
            return []
        if isinstance(value, tuple | frozenset):
            return [(f"{name}[{index}]", item) for index, item in enumerate(value)]
        if isinstance(value, (nn.Module, *_BAGS)) or not _is_of_library(type(value)):
            return self._record_object(name, value)
        return []

    def _record_object(self, name: str, value: Any) -> list[tuple[str, Any]]:
        contents: list[tuple[str, Any]] = []
        if isinstance(attributes := getattr(value, "__dict__", None), dict):
            self._restores.append(_restoring_dict(attributes))
            contents += [(f"{name}.{key}", attribute) for key, attribute in attributes.items()]
        for slot, content in slots(value).items():
            self._restores.append(functools.partial(object.__setattr__, value, slot, content))
            contents.append((f"{name}.{slot}", content))
        return [*contents, (type(value).__name__, type(value))]


@contextlib.contextmanager
def recorded(
    roots: Iterable[tuple[str, Any]],
    model: nn.Module,
    device: torch.device,
    free_bytes: int,
    skipped: Iterable[Any] = (),
) -> Iterator[RunState]:
    """Record the state of a model and of the process; restore all of it at the end.

    Raises ``NotRecordable`` before anything has happened.
    """
    state = RunState(roots, free_bytes, skipped)
    global_hooks = [
        (hooks, dict(hooks))
        for name, hooks in vars(torch_module).items()
        if name.startswith("_global_") and isinstance(hooks, dict)
    ]
    modes = {module: module.training for module in model.modules()}
    with rng.put_back(model, device), global_flags.put_back():
        try:
            yield state
        finally:
            state.restore()
            for module, training in modes.items():
                module.training = training
            for hooks, before in global_hooks:
                if dict(hooks) != before:
                    hooks.clear()
                    hooks.update(before)


@contextlib.contextmanager
def restored_state(
    model: Model, device: torch.device, free_bytes: int
) -> Iterator[Callable[[], None]]:
    """Restore state that calls of a model change, except parameters; yield a function for it.

    If the state of a user's model cannot be recorded, only its buffers are restored.
    """
    with contextlib.ExitStack() as stack:
        if isinstance(model, OwnModel):
            state = recorded(roots(model), model, device, free_bytes, list(model.parameters()))
            try:
                restore = stack.enter_context(state).restore
            except NotRecordable:
                restore = stack.enter_context(restored_buffers(model, device))
        else:
            restore = stack.enter_context(restored_buffers(model, device))
        yield restore


@contextlib.contextmanager
def restored_buffers(model: Model, device: torch.device) -> Iterator[Callable[[], None]]:
    """Restore choices, metrics, call counts and the generators; yield a function for it."""
    live = (model.adapted(), model.carried(), model.metrics())
    tensors = {id(tensor): tensor for group in live for tensor in group.values()}.values()
    copies = [(tensor, tensor.detach().clone()) for tensor in tensors]
    restore_addresses = record_addresses(tensors)
    registered = [(module._buffers, dict(module._buffers)) for module in model.modules()]
    counts = [(vars(module), _counts(vars(module))) for module in model.modules()]

    def restore() -> None:
        for buffers, before in registered:
            if any(buffers.get(name) is not tensor for name, tensor in before.items()):
                buffers.update(before)
        restore_addresses()
        for tensor, copy in copies:
            if not are_same(tensor, copy):
                overwrite(tensor, copy)
        for contents, numbers in counts:
            if _counts(contents) != numbers:
                contents.update(numbers)

    with rng.put_back(model, device):
        try:
            yield restore
        finally:
            restore()


def _counts(contents: dict[str, Any]) -> dict[str, int]:
    """Return the attributes of a module that count what its calls did."""
    return {name: value for name, value in contents.items() if type(value) is int}


def are_same(first: Tensor, second: Tensor) -> bool:
    """Return True if two tensors hold the same bits; any NaN is the same as any other."""
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    first, second = first.detach(), second.detach()
    if first.device != second.device:
        second = second.to(first.device)
    if first.is_complex():
        first, second = (torch.view_as_real(x.resolve_conj()) for x in (first, second))
    if not first.is_floating_point():
        return bool(torch.equal(first, second))
    if not any(map(is_traceable_wrapper_subclass, (first, second))):
        if torch.equal(
            *(x.resolve_neg().view(_INTEGERS[x.dtype.itemsize]) for x in (first, second))
        ):
            return True
        if first.dtype.itemsize == 1:  # FP8 has hardly any operators
            return False
    alike = (first == second) & (torch.signbit(first) == torch.signbit(second))
    return bool((alike | ((first != first) & (second != second))).all())


def overwrite(tensor: Tensor, values: Tensor) -> None:
    """Write values into a tensor where it lies, whatever its shape has become."""
    with torch.no_grad():
        if tensor.shape != values.shape or tensor.dtype != values.dtype:
            tensor.data = values.to(tensor.device, copy=True)
            return
        try:
            tensor.copy_(values)
        except RuntimeError:  # made in inference mode, or expanded
            with torch.inference_mode():
                tensor.copy_(values)


def void(_: object) -> None:
    """Drop what a call returns."""


def _restoring_dict(contents: dict[Any, Any]) -> Restore:
    skipped = _double_underscored(contents)
    before = {key: value for key, value in contents.items() if key not in skipped}

    def restore() -> None:
        if "training" in before and "training" in contents:  # a mode, which ``recorded`` puts back
            before["training"] = contents["training"]
        expected = {**_double_underscored(contents), **before}
        if len(contents) != len(expected) or any(
            key not in expected or expected[key] is not value
            for key, value in list(contents.items())
        ):
            contents.clear()
            contents.update(expected)

    return restore


def _double_underscored(contents: dict[Any, Any]) -> dict[Any, Any]:
    """Return the names of a file that are no state: Python's, and those that Dynamo has added.

    Code that Dynamo has compiled looks them up among the file's global variables.
    """
    if "__builtins__" not in contents:
        return {}
    return {key: value for key, value in contents.items() if str(key).startswith("__")}


def _is_not(first: object, second: object) -> bool:
    return first is not second


def _is_of_library(kind: type | types.FunctionType) -> bool:
    return (kind.__module__ or "").partition(".")[0] in _LIBRARIES


def _is_of_numpy(value: Any) -> bool:
    return type(value).__module__.partition(".")[0] == "numpy"
