"""Presets of toggles: what to switch on for a purpose.

A preset settles every toggle but those that change the model's structure. A toggle names the
presets that switch it on and the options that they prefer, the best first; the others are off.
Three of the presets are the recommended configurations of the mixture-of-experts guide.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from workbench.protocol import OR, TogglePreset
from workbench.runner.toggles import Stage, all_toggles


@dataclass(frozen=True)
class _Preset:
    title: str
    help: str


PRESETS: Mapping[str, _Preset] = {
    "eager": _Preset(
        "Eager",
        "Nothing is optimized: FP32, PyTorch's own kernels, one after another. What all else is "
        "measured against.",
    ),
    "development": _Preset(
        "Development",
        "Starts at once and needs little memory: mixed precision and gradient checkpointing, "
        "nothing compiled. As the mixture-of-experts guide recommends.",
    ),
    "production-inference": _Preset(
        "Production inference",
        "Compiled with max-autotune in mixed precision. As the mixture-of-experts guide "
        "recommends. Tuning takes minutes, for a large model many.",
    ),
    "production-training": _Preset(
        "Production training",
        "Mixed precision and gradient checkpointing, nothing compiled. As the mixture-of-experts "
        "guide recommends, which gives training the same switches as development.",
    ),
    "low-memory": _Preset(
        "Low memory",
        "Weights in BF16, in inference those of linear layers in INT8, the optimizer's state in 8 "
        "bits, nothing kept for the backward pass that can be computed again, and compiled, which "
        "halved what checkpointing left of HYDRA's peak on an H200.",
    ),
    "latency": _Preset(
        "Latency",
        "For small batches and decoding, which wait for the host: one CUDA graph for the whole "
        "step, the bundled kernels, BF16. Nothing is compiled, so it starts soon.",
    ),
    "throughput": _Preset(
        "Throughput",
        "The most tokens a second: mixed precision, compiled, captured as one CUDA graph, fused "
        "AdamW. The fastest training of HYDRA on an H200.",
    ),
    "flash-first": _Preset(
        "FlashAttention first",
        "The newest FlashAttention that is here, else PyTorch's, in mixed precision, which it "
        "needs. Where none can be used, attention is left to the automatic choice.",
    ),
}


def all_presets() -> list[TogglePreset]:
    """Return the presets for the catalogue, each toggle's last resort being to be off."""
    return [
        TogglePreset(
            name=name,
            title=preset.title,
            help=preset.help,
            toggles={
                toggle.name: OR.join([*toggle.presets.get(name, ()), toggle.off])
                for toggle in all_toggles().values()
                if toggle.stage is not Stage.MODEL
            },
        )
        for name, preset in PRESETS.items()
    ]
