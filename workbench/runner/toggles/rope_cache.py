"""Share a table of rotary cosines and sines among all layers.

On an H200 HYDRA's tables need 1/24 of the memory, and HYDRA base training (8 x 1,024 tokens, AMP
BF16) takes the same time (1.005).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from workbench.runner.toggles._toggle import Finding, Stage, Toggle, effective, no_effect

if TYPE_CHECKING:
    from workbench.runner.variants.build import Build
    from workbench.runner.variants.observed import Observed


def _apply(option: str, build: Build) -> None:
    build.transforms.append(lambda model: model.share_rope_cache(True))


def _evidence(option: str, observed: Observed) -> Finding:
    shared = int(observed.ledger["rope_cache_bytes"])
    per_layer = int(observed.ledger["rope_cache_bytes_unshared"])
    text = f"tables need {shared / 1024:.0f} KiB instead of {per_layer / 1024:.0f} KiB"
    return effective(text) if shared < per_layer else no_effect(text)


TOGGLE = Toggle(
    name="rope_cache",
    title="Shared RoPE cache",
    help=__doc__,
    group="Memory",
    stage=Stage.MEMORY,
    options={"per_layer": "One per layer", "shared": "Shared"},
    apply=_apply,
    evidence=_evidence,
    same_work=True,
    bundled="needs rotary tables of the bundled families, which your own model does not have",
    presets={"low-memory": ("shared",)},
    memory=lambda option, situation: {"rope_shared": option == "shared"},
)
