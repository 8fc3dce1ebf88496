"""Send the gradients of data parallelism in fewer bytes: a communication hook of torch.

*BF16* rounds each bucket before it is averaged, which halves the bytes. *PowerSGD* (Vogels et al.,
arXiv 1905.13727) sends two thin factors of each matrix, and adds the error to the gradient of the
next step. Both change the update slightly. Helps on slow links between hosts; within one host it
costs more time than it saves. Counted for HYDRA base training: BF16 sends 218 instead of 436 MiB
per step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sessions.sizes import size_text
from workbench.protocol import Blocked
from workbench.runner.toggles import conflict
from workbench.runner.toggles._ranks import DATA
from workbench.runner.toggles._toggle import (
    Finding,
    Situation,
    Stage,
    Toggle,
    Trait,
    effective,
    no_effect,
)

if TYPE_CHECKING:
    from workbench.runner.variants.build import Build
    from workbench.runner.variants.observed import Observed


def _blocked(option: str, situation: Situation) -> Blocked | None:
    if option == "off":
        return None
    if situation.option(DATA) == "off":
        return Blocked(
            "needs data parallelism, which is off",
            "Split each batch among two ranks.",
            {DATA: "2"},
        )
    if option == "bf16" and situation.option("precision") == "bf16":
        return Blocked(
            "gradients of BF16 weights have 16 bits already",
            "Store the weights in FP32.",
            {"precision": "amp_bf16"},
        )
    return conflict(
        situation,
        Trait.OWN_REDUCTION,
        "{title} reduces gradients without DistributedDataParallel's hooks",
    )


def _apply(option: str, build: Build) -> None:
    build.gradient_compression = option


def _evidence(option: str, observed: Observed) -> Finding:
    replicate = None if observed.divided is None else observed.divided.replicate
    if replicate is None or not replicate.reductions.buckets:
        return no_effect("no gradients were sent")
    reductions = replicate.reductions
    text = (
        f"{size_text(reductions.bytes)} of gradients per step were sent as "
        f"{size_text(reductions.sent_bytes)}"
    )
    return effective(text) if reductions.sent_bytes < reductions.bytes else no_effect(text)


TOGGLE = Toggle(
    name="gradient_compression",
    title="Gradient compression",
    help=__doc__,
    group="Devices",
    stage=Stage.GRAPHS,
    options={"off": "Off", "bf16": "BF16", "powersgd": "PowerSGD, rank 8"},
    apply=_apply,
    evidence=_evidence,
    blocked=_blocked,
    incomparable="how long ranks wait for gradients is unknown before they run",
)
