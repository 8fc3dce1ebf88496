"""Recognition of the causal convolution and the state-space scan of Mamba-2.

Functions that a module's method calls are recognized by name, arguments and results. A depthwise
``nn.Conv1d`` that pads by all but one of its weights is a causal convolution, too.
"""

from __future__ import annotations

import functools
import inspect
import math
import types
from typing import Any

import torch
from torch import Tensor, nn

import kernels
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


def _convolve_module(self: nn.Conv1d, x_BDL: Tensor) -> Tensor:
    """Compute all outputs, also those after the last input."""
    if x_BDL.dim() != 3:
        return type(self).forward(self, x_BDL)
    padded = nn.functional.pad(x_BDL, (0, self.kernel_size[0] - 1))
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


def _convolution(original: Call) -> Call:
    def convolve(
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        *args: Any,
        activation: str | None = None,
        **options: Any,
    ) -> Any:
        known = activation in (None, "silu", "swish") and weight.shape[-1] in _WIDTHS
        if not known or args or any(value is not None for value in options.values()):
            return original(x, weight, bias, *args, activation=activation, **options)
        return _convolved(x, weight, bias, "silu" if activation else None)

    return convolve


def _replace_scan(value: Any) -> Any:
    if not _is_named(value, _SCANS):
        return value
    parameters = list(inspect.signature(value).parameters)
    if not _NEEDED.issubset(parameters):
        return value
    replaced = _scan(value, parameters)
    draw = functools.partial(torch.randn, dtype=torch.float64)
    with probe.exact():
        inputs = [draw(2, 11, 4, 3), draw(2, 11, 4), -draw(4).exp(), *(draw(2, 11, 2, 5),) * 2]
        extra = [draw(4), draw(4)]

    def call(function: Call) -> Call:
        return lambda *tensors: function(
            *tensors[:5], chunk_size=4, D=tensors[5], dt_bias=tensors[6], dt_softplus=True
        )

    return replaced if probe.agree(call(value), call(replaced), inputs + extra, []) else value


def _scan(original: Call, parameters: list[str]) -> Call:
    def scan(*args: Any, **kwargs: Any) -> Any:
        arguments = {**dict(zip(parameters, args, strict=False)), **kwargs}
        x = arguments.pop(parameters[0])
        unknown = any(arguments[name] is not None for name in arguments.keys() - _KNOWN)
        limit = tuple(arguments.get("dt_limit", _NO_LIMIT))
        D = arguments.get("D")
        if unknown or limit != _NO_LIMIT or (D is not None and D.dim() != 1):
            return original(*args, **kwargs)
        y, state = kernels.ssd_scan(
            x,
            arguments["dt"],
            arguments["A"],
            arguments["B"],
            arguments["C"],
            D,
            arguments.get("dt_bias"),
            arguments.get("initial_states"),
            dt_softplus=arguments.get("dt_softplus", False),
        )
        return (y, state) if arguments.get("return_final_states", False) else y

    return scan
