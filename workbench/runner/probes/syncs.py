"""Where a step makes the host wait for the device, with the lines that do it.

Three detectors, because each is blind to something. PyTorch dispatches every operation past a mode,
which sees those that need a value on the host (``.item()``, ``nonzero``, a mask as an index) and
copies between devices: also on the CPU, where nothing waits, and on a device that does not exist,
whose tensors have no values. It does not see into compiled code, nor calls that are free on the CPU
(``.tolist()``, ``.cpu()``): those pass a mode of functions. On a GPU
``torch.cuda.set_sync_debug_mode`` reports what really waits, compiled or not, but misses copies
from pageable memory, sparse and distributed operations.
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

from workbench.runner.probes import _lines
from workbench.runner.probes._lines import Line

aten = torch.ops.aten
_MASKED = (aten.index_put.default, aten.index_put_.default, aten.index.Tensor)
_NEEDS_VALUES = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
_WARNING = "called a synchronizing CUDA operation"
BY_CUDA = "CUDA reports that it waits"

Seen = Callable[[str], None]


class Sync(NamedTuple):
    """What makes the host wait, and where; ``line`` is None where no line of Python is known."""

    what: str
    line: Line | None

    def __str__(self) -> str:
        return f"{self.line or 'in the backward pass'} ({self.what})"


class SyncMode(TorchDispatchMode):
    """Calls ``seen`` with the reason for each operation for which the host waits for ``device``.

    ``on_host`` are addresses of tensors that lie on the host whatever the model's device, so that
    reading them makes nobody wait.
    """

    def __init__(self, seen: Seen, device: torch.device, on_host: Collection[int] = ()) -> None:
        super().__init__()
        self._seen, self._device, self._on_host = seen, device, on_host

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if reason := self._needs_values(func, args, kwargs):
            self._seen(reason)
        result = func(*args, **kwargs)
        if func in (aten._to_copy.default, aten.copy_.default):
            source = args[1] if func is aten.copy_.default else args[0]
            waits = not (kwargs.get("non_blocking") or args[2:] == (True,))
            if waits and source.device.type != result.device.type:
                self._seen(f"a copy from {source.device.type} to {result.device.type}")
        return result

    def _needs_values(self, func: Any, args: Any, kwargs: Any) -> str:
        if func in _MASKED:
            masks = [i for i in args[1] if i is not None and i.dtype in (torch.bool, torch.uint8)]
            return f"{func} with a mask of shape {tuple(masks[0].shape)}" if masks else ""
        if not _NEEDS_VALUES.intersection(func.tags) or kwargs.get("output_size") is not None:
            return ""
        tensor = next(each for each in args if isinstance(each, torch.Tensor))
        if tensor.device.type != self._device.type:
            return ""
        if self._on_host and tensor.data_ptr() in self._on_host:
            return ""
        return f"{func} needs values"


_NUMBERS = "a list or number for the device"
_COPYING: dict[Callable[..., Any], str] = {
    torch.Tensor.tolist: "tolist",
    torch.Tensor.numpy: "numpy",
    torch.Tensor.__array__: "numpy",
    torch.Tensor.cpu: "cpu",
    torch.Tensor.__repr__: "printing",
    torch.Tensor.new_tensor: _NUMBERS,
}


class _FreeOnTheCpu(TorchFunctionMode):
    """Sees what would wait on a GPU and does nothing worth dispatching on the CPU."""

    def __init__(self, seen: Seen) -> None:
        super().__init__()
        self._seen = seen

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if what := self._copies(func, args, kwargs):
            self._seen(f"{what}, which copies between host and device on a GPU")
        return func(*args, **kwargs)

    def _copies(self, func: Any, args: Any, kwargs: Any) -> str:
        # A device that is named by text is the host on purpose; else it is some tensor's own.
        device = kwargs.get("device")
        if func in (torch.tensor, torch.as_tensor) and isinstance(device, torch.device):
            there = args and isinstance(args[0], torch.Tensor)
            return "" if there else _NUMBERS
        if func is torch.Tensor.to:
            named = [each for each in (device, *args[1:2]) if isinstance(each, str)]
            return "to('cpu')" if "cpu" in named else ""
        if func is torch.Tensor.__format__ and args[0].dim():  # else it is dispatched as an item
            return _COPYING[torch.Tensor.__repr__]
        return _COPYING.get(func, "")


@contextlib.contextmanager
def watching(
    device: torch.device, on_host: Collection[int] = (), *, compiled: bool = False
) -> Iterator[Counter[Sync]]:
    """Count what makes the host wait inside, by what it is and where.

    With ``compiled`` code, functions are not looked at: Dynamo would compile it anew for that.
    """
    found: Counter[Sync] = Counter()

    def seen(what: str) -> None:
        found[Sync(what, _lines.here())] += 1

    with contextlib.ExitStack() as stack:
        if device.type == "cuda":
            stack.enter_context(_cuda_reports(seen))
        elif not compiled:
            stack.enter_context(_FreeOnTheCpu(seen))
        stack.enter_context(SyncMode(seen, device, on_host))
        yield found
    told = {each.line for each in found if each.what != BY_CUDA}
    for each in [one for one in found if one.what == BY_CUDA and one.line in told]:
        del found[each]


@contextlib.contextmanager
def _cuda_reports(seen: Seen) -> Iterator[None]:
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        show = warnings.showwarning

        def told(
            message: Warning | str,
            category: type[Warning],
            filename: str,
            lineno: int,
            file: TextIO | None = None,
            line: str | None = None,
        ) -> None:
            if _WARNING in str(message):
                seen(BY_CUDA)
            else:
                show(message, category, filename, lineno, file, line)

        warnings.showwarning = told
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode(before)
