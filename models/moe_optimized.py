"""Optimizations around a ``MixtureOfExpertsSystem``, each with a switch.

A switch that is on may have no effect: ``effects()`` reports which had one.

Shapes: B batch, T sequence, I input width, O output width.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from models.configs.moe import SWITCHES, MoEConfig
from models.errors import ConfigurationError
from models.execution.compiled import MODES
from models.execution.cuda_graph import CUDAGraphInference
from models.moe_system import MixtureOfExpertsSystem

AMP_DTYPES = (torch.bfloat16, torch.float16)


class FullyOptimizedMoESystem(nn.Module):
    """A ``MixtureOfExpertsSystem`` with compilation, AMP, checkpointing and CUDA graphs.

    Inputs (B, T, I) become outputs (B, T, O). In training mode ``forward`` keeps gradients and uses
    AMP, compilation and checkpointing. In evaluation mode it keeps none and uses AMP, compilation
    and CUDA graphs. A switch that is None follows the configuration. ``amp_dtype`` FP16 adds a
    gradient scaler, which ``training_step`` uses. ``compile_backend`` other than Inductor takes no
    mode. Raises ``ConfigurationError`` for switches that are not allowed. A compilation or capture
    that fails raises in the call that needed it.
    """

    def __init__(
        self,
        config: MoEConfig,
        *,
        use_compile: bool | None = None,
        compile_mode: str | None = None,
        compile_backend: str = "inductor",
        use_amp: bool | None = None,
        amp_dtype: torch.dtype = torch.bfloat16,
        use_gradient_checkpointing: bool | None = None,
        use_cuda_graph: bool | None = None,
    ) -> None:
        values = (use_compile, compile_mode, use_amp, use_gradient_checkpointing, use_cuda_graph)
        requested = dict(zip(SWITCHES, values, strict=True))
        chosen = config.switches | {name: v for name, v in requested.items() if v is not None}
        use_compile, compile_mode, use_amp = (chosen[name] for name in SWITCHES[:3])
        use_gradient_checkpointing, use_cuda_graph = (chosen[name] for name in SWITCHES[3:])
        if compile_mode not in MODES:
            raise ConfigurationError(
                f"FullyOptimizedMoESystem: unknown compile_mode {compile_mode!r}; expected one of "
                f"{MODES}"
            )
        if amp_dtype not in AMP_DTYPES:
            raise ConfigurationError(
                f"FullyOptimizedMoESystem: amp_dtype {amp_dtype} is not one of {AMP_DTYPES}"
            )
        if use_cuda_graph and use_compile and compile_mode in ("reduce-overhead", "max-autotune"):
            raise ConfigurationError(
                f"FullyOptimizedMoESystem: compile_mode {compile_mode!r} captures its own CUDA "
                "graphs; choose another mode or use_cuda_graph=False"
            )
        super().__init__()
        self.moe = MixtureOfExpertsSystem(config)
        self.use_compile, self.use_amp, self.amp_dtype = use_compile, use_amp, amp_dtype
        self.use_gradient_checkpointing = use_gradient_checkpointing
        self.use_cuda_graph = use_cuda_graph
        self.moe.set_checkpointing("full" if use_gradient_checkpointing else "none")
        self._compiler = {
            "mode": compile_mode if compile_backend == "inductor" else None,
            "backend": compile_backend,
        }
        self._compiled: Callable[[Tensor], tuple[Tensor, Tensor]] | None = None
        self._graphs: dict[Any, CUDAGraphInference] = {}
        self._scaler: torch.amp.GradScaler | None = None
        self._seen: dict[str, Any] = {}  # facts about the last call

    def __getstate__(self) -> dict[str, Any]:
        """Leave out compiled code and captured graphs, which belong to these very weights."""
        return dict(self.__dict__, _compiled=None, _graphs={}, _seen={})

    def _apply(
        self, fn: Callable[[Tensor], Tensor], recurse: bool = True
    ) -> FullyOptimizedMoESystem:
        """Forget captured graphs, whose weights a cast or a move has replaced."""
        self._graphs.clear()
        super()._apply(fn, recurse)
        return self

    def forward(self, x_BTI: Tensor) -> Tensor:
        """Compute (B, T, I) -> (B, T, O), in the system's dtype or that of AMP's last operator."""
        if self.training:
            return self._computed(x_BTI)[0]
        with torch.no_grad():
            if self.use_cuda_graph and x_BTI.is_cuda:
                key = (x_BTI.shape, x_BTI.dtype, x_BTI.device)
                if key not in self._graphs:
                    self._graphs[key] = CUDAGraphInference(_Bare(self._computed), [x_BTI])
                return self._graphs[key](x_BTI)
            return self._computed(x_BTI)[0]

    def training_step(
        self, x_BTI: Tensor, target_BTO: Tensor, optimizer: torch.optim.Optimizer
    ) -> Tensor:
        """Train one step; return the mean squared error plus the balancing losses, []."""
        y_BTO, auxiliary = self._computed(x_BTI)
        loss = nn.functional.mse_loss(y_BTO.to(auxiliary.dtype), target_BTO) + auxiliary
        optimizer.zero_grad(set_to_none=True)
        if self.use_amp and self.amp_dtype == torch.float16:
            if self._scaler is None:
                self._scaler = torch.amp.GradScaler(x_BTI.device.type)
            self._scaler.scale(loss).backward()
            self._scaler.step(optimizer)
            self._scaler.update()
        else:
            loss.backward()
            optimizer.step()
        return loss.detach()

    def effects(self) -> dict[str, str]:
        """Return ``off``, ``effective: why`` or ``no effect: why`` of each switch."""
        if not self._seen:
            raise ConfigurationError("FullyOptimizedMoESystem: effects are known only after a call")
        last_call, blocks = self._seen, self._seen["checkpointed"]
        device = last_call["nothing"].device.type
        with torch.no_grad(), torch.autocast(device, self.amp_dtype, enabled=self.use_amp):
            computed = self.moe.blocks[0].attention.qkv(last_call["nothing"]).dtype
        effects = {
            "compile": _effect(
                self.use_compile,
                last_call["graphs"] > 0,
                f"{_count_text(last_call['graphs'], 'graph')} compiled so far",
                "nothing was compiled",
            ),
            "amp": _effect(
                self.use_amp,
                computed == self.amp_dtype,
                f"linears compute in {computed}",
                f"linears compute in {computed}",
            ),
            "gradient_checkpointing": _effect(
                self.use_gradient_checkpointing,
                blocks > 0,
                f"{_count_text(blocks, 'block')} recomputed in the backward pass",
                "evaluation saves nothing for a backward pass",
            ),
            "cuda_graph": _effect(
                self.use_cuda_graph,
                bool(self._graphs) and not self.training,
                f"{_count_text(len(self._graphs), 'graph')} captured, one for each shape",
                "training steps are not captured"
                if self.training
                else f"needs a CUDA GPU, but the input is on {device}",
            ),
        }
        return effects

    def _computed(self, x_BTI: Tensor) -> tuple[Tensor, Tensor]:
        with torch.autocast(x_BTI.device.type, self.amp_dtype, enabled=self.use_amp):
            before = _graphs_compiled() if self.use_compile else 0
            result = self._run()(x_BTI)
            graphs = self._seen.get("graphs", 0)
            if self.use_compile:
                graphs += _graphs_compiled() - before
        self._seen = {
            "nothing": x_BTI[:0],
            "checkpointed": self.moe.checkpointed_blocks,
            "graphs": graphs,
        }
        return result

    def _run(self) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
        if not self.use_compile:
            return self.moe.forward_with_loss
        if self._compiled is None:
            run = self.moe.forward_with_loss
            self._compiled = torch.compile(run, fullgraph=True, **self._compiler)
        return self._compiled


class _Bare(nn.Module):
    """Module without parameters that returns the first result of a function."""

    def __init__(self, function: Callable[[Tensor], tuple[Tensor, Tensor]]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        """Return the result."""
        return self.function(x)[0]


def _effect(requested: bool, happened: bool, evidence: str, otherwise: str) -> str:
    if not requested:
        return "off"
    return f"effective: {evidence}" if happened else f"no effect: {otherwise}"


def _graphs_compiled() -> int:
    count: int = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    return count


def _count_text(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
