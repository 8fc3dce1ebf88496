"""Synchronisations: the lines at which a step makes the host wait for the device.

Three detectors are combined, because none of them detects everything. PyTorch dispatches every
operation through a mode, which detects operations that need a value on the host (``.item()``,
``nonzero``, a mask as an index) and copies between devices. It also does so on the CPU, where
nothing waits, and on the meta device, whose tensors have no values. It detects nothing inside
compiled code, and no calls that are free on the CPU (``.tolist()``, ``.cpu()``): a mode of
functions detects those. On a GPU ``torch.cuda.set_sync_debug_mode`` reports the real waits,
compiled or not, but misses copies from pageable memory, sparse and distributed operations.
"""

from __future__ import annotations

import contextlib
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple, TextIO

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from workbench.runner import source_lines
from workbench.runner.source_lines import Line

aten = torch.ops.aten
_MASKED = (aten.index_put.default, aten.index_put_.default, aten.index.Tensor)
_NEEDS_VALUES = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
_WARNING = "called a synchronizing CUDA operation"
BY_CUDA = "CUDA reports that it waits"

Report = Callable[[str], None]


class Sync(NamedTuple):
    """A cause that makes the host wait; ``line`` is None if no line of Python is known."""

    cause: str
    line: Line | None

    def __str__(self) -> str:
        return f"{self.line or 'in the backward pass'} ({self.cause})"


class SyncMode(TorchDispatchMode):
    """Dispatch mode that calls ``report`` with a reason whenever the host waits for ``device``.

    ``on_host`` holds addresses of tensors that lie on the host on every device: reading them causes
    no wait.
    """

    def __init__(self, report: Report, device: torch.device, on_host: Collection[int] = ()) -> None:
        super().__init__()
        self._report, self._device, self._on_host = report, device, on_host

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if reason := self._needs_values(func, args, kwargs):
            self._report(reason)
        result = func(*args, **kwargs)
        if func in (aten._to_copy.default, aten.copy_.default):
            source = args[1] if func is aten.copy_.default else args[0]
            waits = not (kwargs.get("non_blocking") or args[2:] == (True,))
            if waits and source.device.type != result.device.type:
                self._report(f"a copy from {source.device.type} to {result.device.type}")
        return result

    def _needs_values(self, func: Any, args: Any, kwargs: Any) -> str:
        if func in _MASKED:
            masks = [i for i in args[1] if i is not None and i.dtype in (torch.bool, torch.uint8)]
            return f"{_call(func)} with a mask of shape {tuple(masks[0].shape)}" if masks else ""
        if not _NEEDS_VALUES.intersection(func.tags) or kwargs.get("output_size") is not None:
            return ""
        tensor = next(value for value in args if isinstance(value, torch.Tensor))
        if tensor.device.type != self._device.type:
            return ""
        if self._on_host and tensor.data_ptr() in self._on_host:
            return ""
        return f"{_call(func)} needs values on the host"


_PYTHON_NAMES = {"_local_scalar_dense": "item", "_unique2": "unique"}


def _call(func: Any) -> str:
    """Return the call that a user writes for an operator of PyTorch: ``item()``, ``nonzero()``."""
    name = func.overloadpacket.__name__
    return f"{_PYTHON_NAMES.get(name, name.strip('_'))}()"


_NUMBERS = "a device tensor made from a list or number"
_COPYING: dict[Callable[..., Any], str] = {
    torch.Tensor.tolist: "tolist",
    torch.Tensor.numpy: "numpy",
    torch.Tensor.__array__: "numpy",
    torch.Tensor.cpu: "cpu",
    torch.Tensor.__repr__: "printing",
    torch.Tensor.new_tensor: _NUMBERS,
}


class _FreeOnTheCpu(TorchFunctionMode):
    """Function mode for calls that wait on a GPU but dispatch nothing on the CPU."""

    def __init__(self, report: Report) -> None:
        super().__init__()
        self._report = report

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if cause := self._copies(func, args, kwargs):
            self._report(f"{cause}, which copies between host and device on a GPU")
        return func(*args, **kwargs)

    def _copies(self, func: Any, args: Any, kwargs: Any) -> str:
        # A device given as text means the host on purpose; a device object is usually some tensor's
        # own.
        device = kwargs.get("device")
        if func in (torch.tensor, torch.as_tensor) and isinstance(device, torch.device):
            is_tensor = args and isinstance(args[0], torch.Tensor)
            return "" if is_tensor else _NUMBERS
        if func is torch.Tensor.to:
            names = [name for name in (device, *args[1:2]) if isinstance(name, str)]
            return "to('cpu')" if "cpu" in names else ""
        if func is torch.Tensor.__format__ and args[0].dim():  # a scalar is dispatched as ``item``
            return _COPYING[torch.Tensor.__repr__]
        return _COPYING.get(func, "")


@contextlib.contextmanager
def watching(
    device: torch.device, on_host: Collection[int] = (), *, compiled: bool = False
) -> Iterator[Counter[Sync]]:
    """Count the causes that make the host wait inside the context.

    With ``compiled`` code, functions are not intercepted, because Dynamo would compile the code
    again for that.
    """
    counts: Counter[Sync] = Counter()

    def report(cause: str) -> None:
        counts[Sync(cause, source_lines.here())] += 1

    with contextlib.ExitStack() as stack:
        if device.type == "cuda":
            stack.enter_context(_cuda_reports(report))
        elif not compiled:
            stack.enter_context(_FreeOnTheCpu(report))
        stack.enter_context(SyncMode(report, device, on_host))
        yield counts
    explained = {sync.line for sync in counts if sync.cause != BY_CUDA}
    for sync in [sync for sync in counts if sync.cause == BY_CUDA and sync.line in explained]:
        del counts[sync]


@contextlib.contextmanager
def _cuda_reports(report: Report) -> Iterator[None]:
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        show = warnings.showwarning

        def show_or_report(
            message: Warning | str,
            category: type[Warning],
            filename: str,
            lineno: int,
            file: TextIO | None = None,
            line: str | None = None,
        ) -> None:
            if _WARNING in str(message):
                report(BY_CUDA)
            else:
                show(message, category, filename, lineno, file, line)

        warnings.showwarning = show_or_report
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode(before)
