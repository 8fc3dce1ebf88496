"""TorchScript: record the model's operators once as a graph, and fuse pointwise operators.

The older of torch's compilers, which the MAHIA-X document names in addition to Inductor. An
interpreter runs the graph without Python; on a GPU its fuser (NNC) generates one kernel for each
group of pointwise operators. Decisions in Python (shapes, branches) are recorded as they were in
the first call. A model is therefore refused if it decides by values, or computes outside of torch's
operators. The first calls are slow. Matrix products, attention and norms are never fused: counted
for HYDRA base, a forward pass records 615 operators, of which 192 are pointwise and 86 are those
three kinds; the rest move or reshape tensors. *torch.compile* fuses more of them.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch

from sessions.numbers import counted
from workbench.protocol import Blocked
from workbench.runner.failures import Cancelled, Mistake, is_fatal, lacks_memory
from workbench.runner.profiling import instrumented
from workbench.runner.toggles import conflict
from workbench.runner.toggles._toggle import (
    NEEDS_GPU,
    Finding,
    Situation,
    Stage,
    Toggle,
    Trait,
    effective,
    no_effect,
)

if TYPE_CHECKING:
    from torch import nn

    from workbench.runner.variants.build import Build
    from workbench.runner.variants.observed import Observed
    from workbench.runner.workloads import Compute

_GROUP = "prim::TensorExprGroup"
# Traits of toggles that have no effect in a recorded graph, or that record the step themselves.
_NOT_WITH = {
    Trait.COMPILED: "{title} already traces the model",
    Trait.CAPTURED: "TorchScript optimizes its graph over several calls; {title} capture only one",
    Trait.RECOMPUTED: "{title} has no effect: a recorded graph keeps all activations",
    Trait.OFFLOADED: "{title} has no effect: a recorded graph keeps all activations",
    Trait.TRITON: "TorchScript records torch's operators, but not Triton kernels",
    Trait.RANKS: "TorchScript records the step of a single GPU, but {title} uses several",
}
_OFF = "Switch the other option off."


class Scripted:
    """A computation that is recorded at its first call; TorchScript runs all later calls."""

    def __init__(self, compute: Compute, model: nn.Module | None) -> None:
        self._compute = compute
        self._model = model
        self._graph: Any = None

    def __call__(self, *batch: torch.Tensor) -> torch.Tensor:
        """Compute; the first call records."""
        if self._graph is None:
            self._graph = self._recorded(batch)
        output: torch.Tensor = self._graph(*batch)
        return output

    @property
    def unrecorded(self) -> Compute:
        """The computation in Python."""
        return self._compute

    def _recorded(self, batch: tuple[torch.Tensor, ...]) -> Any:
        """Return the computation as a graph of TorchScript; raises ``Mistake``."""
        from torch.fx.experimental.proxy_tensor import make_fx  # slow to load

        try:
            # First trace to torch's operators: TorchScript's own tracer would make tensors of the
            # sizes on which Python code decides.
            graph = make_fx(self._compute, pre_dispatch=True)(*batch)
            self._check_constants(graph)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a deprecation warning at every call
                return torch.jit.trace(graph, batch, check_trace=False)
        except (Cancelled, Mistake):
            raise
        except Exception as error:  # a model may do anything that cannot be recorded
            if is_fatal(error) or lacks_memory(error):
                raise
            first = (str(error).strip().split("\n") or [""])[0]
            raise Mistake(
                f"torchscript: this model cannot be recorded: {type(error).__name__}: {first}; "
                "switch TorchScript off, or use torch.compile"
            ) from error

    def _check_constants(self, graph: torch.fx.GraphModule) -> None:
        """Raise ``Mistake`` if the graph holds a tensor that does not belong to the model.

        It was computed outside of torch's operators, so it would be the same in every call.
        """
        model = self._model
        assert model is not None
        known = {id(tensor) for tensor in (*model.parameters(), *model.buffers())}
        for node in graph.graph.nodes:
            constant = getattr(graph, str(node.target), None) if node.op == "get_attr" else None
            if isinstance(constant, torch.Tensor) and constant.dim() and id(constant) not in known:
                raise Mistake(
                    f"torchscript: a tensor of shape {tuple(constant.shape)} was computed outside "
                    "of torch's operators (by a Triton kernel, by NumPy, or before the call), and "
                    "would be the same in every call; switch TorchScript off"
                )


def _blocked(option: str, situation: Situation) -> Blocked | None:
    if option == "off":
        return None
    if not can_fuse(situation.device):
        return Blocked(f"its fuser {NEEDS_GPU.reason}", NEEDS_GPU.fix)
    if situation.workload.name not in ("forward", "train"):
        return Blocked(
            "TorchScript records one call, but decoding makes many calls that write to a cache",
            "Choose the forward pass or the training step.",
            {"workload": "forward"},
        )
    if hasattr(situation.config, "adaptive_rank"):
        return Blocked(
            "the heads of this family choose rank and precision in Python while they run",
            "Choose another family, or torch.compile.",
        )
    if situation.workload.trains and situation.option("precision").startswith("amp"):
        return Blocked(
            "TorchScript's backward pass of linear layers does not support autocast's dtypes",
            "Use pure BF16 or FP32.",
            {"precision": "bf16"},
        )
    blocks = (conflict(situation, trait, why, _OFF) for trait, why in _NOT_WITH.items())
    return next(filter(None, blocks), None)


def can_fuse(device: torch.device) -> bool:
    """Return True if TorchScript can generate kernels for the device."""
    llvm = getattr(torch._C, "_llvm_enabled", lambda: False)
    return device.type == "cuda" or bool(llvm())


def _apply(option: str, build: Build) -> None:
    build.compute_wrappers.append(lambda compute: Scripted(compute, build.model))


def _evidence(option: str, observed: Observed) -> Finding:
    if not isinstance(observed.compute, Scripted):
        return no_effect("TorchScript does not run the step")
    workload = observed.situation.workload
    with torch.set_grad_enabled(workload.trains):
        instrumented.computed(observed.compute, workload, observed.batches)
    groups = str(torch.jit.last_executed_optimized_graph()).count(f"= {_GROUP}")
    if not groups:
        return no_effect("TorchScript fused no operators: it ran every operator separately")
    return effective(f"TorchScript ran {counted(groups, 'group')} of operators as one kernel each")


TOGGLE = Toggle(
    name="torchscript",
    title="TorchScript",
    help=__doc__,
    group="Compilation",
    stage=Stage.COMPILE,
    options={"off": "Off", "trace": "Recorded and fused"},
    apply=_apply,
    evidence=_evidence,
    blocked=_blocked,
)
