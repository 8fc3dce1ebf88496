"""Recognition of the causal convolution and the state-space scan of Mamba-2.

Functions that a module's method calls are recognized by name, arguments and results. A depthwise
``nn.Conv1d`` that pads by all but one of its weights is a causal convolution, too.
"""

from __future__ import annotations

import functools
import inspect
import math
import types
from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor, nn

import kernels
from kernels.core.operator import autocast_dtype
from workbench.runner.foreign import probe
from workbench.runner.foreign.patches import Call, Patch, named_modules
from workbench.runner.foreign.rebinding import Rebinder

_CONVOLUTIONS = ("causal_conv1d_fn", "causal_conv1d")
_SCANS = ("mamba_chunk_scan_combined", "mamba2_chunk_scan")
_WIDTHS = (2, 3, 4)
_NO_LIMIT = (0.0, math.inf)
_NEEDED = {"dt", "A", "B", "C", "chunk_size", "D", "dt_bias", "dt_softplus"}
_KNOWN = _NEEDED | {"initial_states", "dt_limit", "return_final_states"}


def patch_causal_conv1d(model: nn.Module) -> Patch:
    """Replace functions that convolve, and depthwise convolutions that no such function does."""
    patch = Rebinder(_replace_convolution).patch(model, "causal_conv1d")
    rebound = tuple(f"{path}." for path in patch.sites)
    for path, module in named_modules(model):
        if _is_causal(module) and not f"{path}.".startswith(rebound):
            patch.replace_method(path, module, "forward", _convolve_module)
    return patch


def patch_ssd_scan(model: nn.Module) -> Patch:
    """Replace functions that scan."""
    return Rebinder(_replace_scan).patch(model, "chunk_scan")


def _is_causal(module: nn.Module) -> bool:
    if type(module) is not nn.Conv1d or "forward" in vars(module):
        return False
    width = module.kernel_size[0]
    return (
        width in _WIDTHS
        and module.groups == module.in_channels == module.out_channels
        and module.padding == (width - 1,)
        and (module.stride, module.dilation, module.padding_mode) == ((1,), (1,), "zeros")
    )


def _convolve_module(self: nn.Conv1d, input: Tensor) -> Tensor:
    """Compute all outputs, also those after the last input."""
    if input.dim() != 3:
        return type(self).forward(self, input)
    dtype = autocast_dtype(input)  # the dtype in which autocast convolves
    padded = nn.functional.pad(input, (0, self.kernel_size[0] - 1)).to(dtype or input.dtype)
    return _convolved(padded, self.weight.squeeze(1), self.bias, None)


def _convolved(
    x_BDL: Tensor, weight_DW: Tensor, bias_D: Tensor | None, activation: str | None
) -> Tensor:
    y_BLD, _ = kernels.causal_conv1d(
        x_BDL.transpose(1, 2), weight_DW, bias_D, activation=activation
    )
    return y_BLD.transpose(1, 2)


def _is_named(value: Any, names: tuple[str, ...]) -> bool:
    return isinstance(value, types.FunctionType) and value.__name__ in names


def _replace_convolution(value: Any) -> Any:
    if not _is_named(value, _CONVOLUTIONS):
        return value
    if "activation" not in list(inspect.signature(value).parameters)[3:]:
        return value
    replaced = _convolution(value)
    draw = functools.partial(torch.randn, dtype=torch.float64)
    with probe.exact():
        x, weight, bias = draw(2, 6, 9), draw(6, 4), draw(6)
    for activation in (None, "silu"):
        for biases in ((bias,), (None,)):
            first, second = (functools.partial(f, activation=activation) for f in (value, replaced))
            if not probe.agree(first, second, [x, weight, *biases], []):
                return value
    return replaced


class _Arguments:
    """Arguments of a function's calls by name, with the function's own defaults.

    ``inspect.Signature.bind`` does the same, but torch.compile cannot trace it.
    """

    def __init__(self, function: Call) -> None:
        parameters = inspect.signature(function).parameters.values()
        self.names = [p.name for p in parameters if p.kind <= p.POSITIONAL_OR_KEYWORD]
        self.defaults = {p.name: p.default for p in parameters if p.default is not p.empty}

    def bind(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], known: Collection[str]
    ) -> dict[str, Any] | None:
        """Return a call's arguments; None if an unknown one differs from its default.

        An argument of ``**kwargs`` has the default None.
        """
        if len(args) > len(self.names):
            return None
        passed = {**dict(zip(self.names, args, strict=False)), **kwargs}
        unknown = [name for name in passed if name not in known]
        if any(passed[name] is not self.defaults.get(name) for name in unknown):
            return None
        return {**self.defaults, **passed}


def _convolution(original: Call) -> Call:
    arguments = _Arguments(original)
    tensors = arguments.names[:3]
    known = (*tensors, "activation")

    def convolve(*args: Any, **kwargs: Any) -> Any:
        values = arguments.bind(args, kwargs, known)
        if values is None or values["activation"] not in (None, "silu", "swish"):
            return original(*args, **kwargs)
        x, weight, bias = (values[name] for name in tensors)
        if weight.shape[-1] not in _WIDTHS:
            return original(*args, **kwargs)
        return _convolved(x, weight, bias, "silu" if values["activation"] else None)

    return convolve


def _replace_scan(value: Any) -> Any:
    if not _is_named(value, _SCANS):
        return value
    if not _NEEDED.issubset(inspect.signature(value).parameters):
        return value
    replaced = _scan(value)
    draw = functools.partial(torch.randn, dtype=torch.float64)
    with probe.exact():
        inputs = [draw(2, 11, 4, 3), draw(2, 11, 4), -draw(4).exp(), *(draw(2, 11, 2, 5),) * 2]
        extra = [draw(4), draw(4)]

    def call(function: Call) -> Call:
        return lambda *tensors: function(
            *tensors[:5], chunk_size=4, D=tensors[5], dt_bias=tensors[6], dt_softplus=True
        )

    return replaced if probe.agree(call(value), call(replaced), inputs + extra, []) else value


def _scan(original: Call) -> Call:
    arguments = _Arguments(original)
    first = arguments.names[0]
    known = (first, *_KNOWN)

    def scan(*args: Any, **kwargs: Any) -> Any:
        values = arguments.bind(args, kwargs, known)
        if values is None or tuple(values.get("dt_limit", _NO_LIMIT)) != _NO_LIMIT:
            return original(*args, **kwargs)
        D = values["D"]
        if D is not None and D.dim() != 1:
            return original(*args, **kwargs)
        y, state = kernels.ssd_scan(
            values[first],
            values["dt"],
            values["A"],
            values["B"],
            values["C"],
            D,
            values["dt_bias"],
            values.get("initial_states"),
            dt_softplus=values["dt_softplus"],
        )
        return (y, state) if values.get("return_final_states", False) else y

    return scan
