"""In which order a pipeline's stages take their micro-batches.

*One forward, one backward* (1F1B, Narayanan et al., arXiv 2104.04473): a stage keeps the
activations of no more micro-batches than there are stages from it on. *All forward, then all
backward* (GPipe, Huang et al., arXiv 1811.06965) keeps those of all micro-batches, and waits as
long. It pays only where a message takes so long that the alternation of 1F1B waits for it. Counted
for two stages and eight micro-batches: the first stage keeps two micro-batches, or all eight.

Neither order saves the host's work on each micro-batch, so their number counts first. On two H200s
in AMP BF16 a step of HYDRA base, 32 x 1024 tokens, took 69.8 ms with 4 micro-batches in 1F1B, and
120.5 ms with 8; the rank with most needed 7.4 GiB, and 4.5 GiB.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from workbench.protocol import Blocked
from workbench.runner.toggles._ranks import PIPELINE, WAITING_STAGES
from workbench.runner.toggles._toggle import (
    Finding,
    Situation,
    Stage,
    Toggle,
    effective,
    no_effect,
)

if TYPE_CHECKING:
    from workbench.runner.variants.build import Build
    from workbench.runner.variants.variant import Arm


def _blocked(option: str, situation: Situation) -> Blocked | None:
    if option == "1f1b" or situation.option(PIPELINE) != "off":
        return None
    return Blocked(
        "there are no stages that could take turns",
        "Switch pipeline parallelism on.",
        {PIPELINE: "2"},
    )


def _apply(option: str, build: Build) -> None:
    build.schedule = option


def _evidence(option: str, arm: Arm) -> Finding:
    pipeline = None if arm.divided is None else arm.divided.pipeline
    if pipeline is None or not pipeline.turns:
        return no_effect("no step was made by stages")
    in_flight = [turns.in_flight for turns in pipeline.turns]
    text = (
        f"the ranks had {', '.join(map(str, in_flight))} of {pipeline.micro_batches} micro-batches "
        "in flight at most"
    )
    return effective(text) if set(in_flight) == {pipeline.micro_batches} else no_effect(text)


TOGGLE = Toggle(
    name="schedule",
    title="Pipeline schedule",
    help=__doc__,
    group="Devices",
    stage=Stage.GRAPHS,
    options={"1f1b": "One forward, one backward", "gpipe": "All forward, then all backward"},
    apply=_apply,
    evidence=_evidence,
    blocked=_blocked,
    bundled="orders the stages of the bundled families, which a model of yours need not have",
    incomparable=WAITING_STAGES,
)
