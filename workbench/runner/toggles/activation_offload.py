"""Keep activations in the host's memory between the forward and the backward pass.

Frees what autograd saves on the GPU, weights excepted, and copies it out and back over PCIe on the
computing stream. Pays only where nothing else makes a step fit: checkpointing saves as much, and
computing again is usually faster than the two copies. On an H200, HYDRA base training (8 x 1,024
tokens, AMP BF16, Triton kernels): 0.70 of the peak memory, for 5.6 times the step's time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sessions.sizes import size_text
from workbench.protocol import Blocked
from workbench.runner.toggles import conflict
from workbench.runner.toggles._toggle import (
    NEEDS_TRAINING,
    Alternative,
    Finding,
    Situation,
    Stage,
    Toggle,
    Trait,
    effective,
    no_effect,
)
from workbench.runner.variants.offload import LEAST_BYTES, Offload

if TYPE_CHECKING:
    from torch import nn

    from workbench.runner.variants.build import Build
    from workbench.runner.variants.observed import Observed
    from workbench.runner.workloads import Compute


def _blocked(option: str, situation: Situation) -> Blocked | None:
    if option == "off":
        return None
    if not situation.workload.trains:
        return NEEDS_TRAINING
    if not situation.on_gpu:
        return Blocked(
            "the activations of this runner are in the host's memory already",
            "Run it on a machine with a GPU.",
        )
    if why := conflict(
        situation,
        Trait.CAPTURED,
        "a captured step keeps all of its activations in the graph's own pool",
    ):
        return why
    if why := conflict(
        situation,
        Trait.REPLAYED,
        "{title} {option} keeps activations in the pool of its CUDA graphs",
    ):
        return why
    if situation.option("checkpointing") == "operators":
        return Blocked(
            "what a checkpoint keeps by operator does not pass through autograd's hooks",
            "Checkpoint whole blocks.",
            {"checkpointing": "full"},
        )
    return None


def _apply(option: str, build: Build) -> None:
    build.compute_wrappers.append(lambda compute: _offloaded(compute, build.model))


def _offloaded(compute: Compute, model: nn.Module | None) -> Compute:
    assert model is not None
    return Offload(compute, model.parameters())


def _evidence(option: str, observed: Observed) -> Finding:
    offload = observed.compute
    if not isinstance(offload, Offload):
        return no_effect("the step keeps what autograd saves on the GPU")
    left = f"{size_text(offload.left_bytes)} stayed"
    if not offload.moved_tensors:
        return no_effect(f"nothing that autograd saved was as large as {LEAST_BYTES >> 10} KiB")
    return effective(
        f"{size_text(offload.moved_bytes)} in {offload.moved_tensors} tensors go to the host "
        f"and back in a step; {left}"
    )


TOGGLE = Toggle(
    name="activation_offload",
    title="Activation offload",
    help=__doc__,
    group="Memory",
    stage=Stage.GRAPHS,  # around what is compiled
    options={"off": "Off", "on": "On"},
    apply=_apply,
    evidence=_evidence,
    blocked=_blocked,
    unpredictable="it moves activations to the host, and the rate of that is not measured",
    traits={"on": (Trait.OFFLOADED,)},
    alternatives={
        "on": (
            Alternative(
                "Checkpoint blocks instead.",
                {"activation_offload": "off", "checkpointing": "full"},
            ),
        )
    },
)
