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
        "No optimization: FP32 and PyTorch's own kernels, launched one by one. The baseline for "
        "all other configurations.",
    ),
    "development": _Preset(
        "Development",
        "Starts at once and needs little memory: mixed precision and gradient checkpointing, "
        "without compilation. Recommended by the mixture-of-experts guide.",
    ),
    "production-inference": _Preset(
        "Production inference",
        "Compiled with max-autotune in mixed precision. Recommended by the mixture-of-experts "
        "guide. Autotuning takes minutes, and many minutes for a large model.",
    ),
    "production-training": _Preset(
        "Production training",
        "Mixed precision and gradient checkpointing, without compilation. Recommended by the "
        "mixture-of-experts guide, which uses the same options for training and development.",
    ),
    "low-memory": _Preset(
        "Low memory",
        "BF16 weights (INT8 in linear layers for inference), 8-bit optimizer states, full "
        "checkpointing, and torch.compile. After checkpointing, compilation halved the remaining "
        "peak memory of HYDRA on an H200.",
    ),
    "latency": _Preset(
        "Latency",
        "For small batches and decoding, where the GPU waits for the host: one CUDA graph for the "
        "complete step, the bundled kernels, BF16. Nothing is compiled, so it starts quickly.",
    ),
    "throughput": _Preset(
        "Throughput",
        "The most tokens per second: mixed precision, torch.compile, one CUDA graph for the "
        "complete step, kernels chosen by measurement, fused loss and AdamW. The fastest training "
        "of HYDRA that was measured on an H200.",
    ),
    "flash-first": _Preset(
        "FlashAttention first",
        "The newest installed FlashAttention, else PyTorch's, in mixed precision, which "
        "FlashAttention needs. If none can be used, the choice of attention stays automatic.",
    ),
}


def all_presets() -> list[TogglePreset]:
    """Return the presets for the catalogue. The last option of every toggle is "off"."""
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
