"""Presets of toggles: what to switch on for a purpose.

A preset settles every toggle but those that change the model's structure: what it does not name is
switched off. Several options of a toggle stand in order of preference. Three of the presets are the
recommended configurations of the mixture-of-experts guide.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from workbench.protocol import OR, TogglePreset
from workbench.runner.toggles import Stage, all_toggles

_AMP = ("amp_bf16", "amp_fp16")


@dataclass(frozen=True)
class _Preset:
    title: str
    help: str
    options: Mapping[str, tuple[str, ...]]


PRESETS: Mapping[str, _Preset] = {
    "eager": _Preset(
        "Eager",
        "Nothing is optimized: FP32, PyTorch's own kernels, one after another. What all else is "
        "measured against.",
        {},
    ),
    "development": _Preset(
        "Development",
        "Starts at once and needs little memory: mixed precision and gradient checkpointing, "
        "nothing compiled. As the mixture-of-experts guide recommends.",
        {"precision": _AMP, "checkpointing": ("full",)},
    ),
    "production-inference": _Preset(
        "Production inference",
        "Compiled with max-autotune in mixed precision. As the mixture-of-experts guide "
        "recommends. Tuning takes minutes, for a large model many.",
        {
            "precision": _AMP,
            "compile": ("max-autotune", "max-autotune-no-cudagraphs"),
        },
    ),
    "production-training": _Preset(
        "Production training",
        "Mixed precision and gradient checkpointing, nothing compiled. As the mixture-of-experts "
        "guide recommends, which gives training the same switches as development.",
        {"precision": _AMP, "checkpointing": ("full",)},
    ),
    "low-memory": _Preset(
        "Low memory",
        "Weights in BF16, in inference those of linear layers in INT8, the optimizer's state in 8 "
        "bits, nothing kept for the backward pass that can be computed again, and compiled, which "
        "halved what checkpointing left of HYDRA's peak on an H200.",
        {
            "precision": ("bf16", "amp_fp16"),
            "quantization": ("int8_weight_only",),
            "checkpointing": ("full",),
            "rope_cache": ("shared",),
            "adamw": ("8bit_torchao", "8bit_bitsandbytes"),
            "fused_loss": ("triton", "chunked"),
            "compile": ("default",),
        },
    ),
    "latency": _Preset(
        "Latency",
        "For small batches and decoding, which wait for the host: one CUDA graph for the whole "
        "step, the bundled kernels, BF16. Nothing is compiled, so it starts soon.",
        {
            "precision": ("bf16", "amp_fp16"),
            "triton": ("on",),
            "adamw": ("fused", "foreach"),
            "cuda_graphs": ("on",),
        },
    ),
    "throughput": _Preset(
        "Throughput",
        "The most tokens a second: mixed precision, compiled, captured as one CUDA graph, fused "
        "AdamW. The fastest training of HYDRA on an H200.",
        {
            "precision": _AMP,
            "adamw": ("fused", "foreach"),
            "compile": ("default",),
            "cuda_graphs": ("on",),
        },
    ),
    "flash-first": _Preset(
        "FlashAttention first",
        "The newest FlashAttention that is here, else PyTorch's, in mixed precision, which it "
        "needs. Where none can be used, attention is left to the automatic choice.",
        {
            "precision": _AMP,
            "attention": ("flash4", "flash3", "flash2", "sdpa_flash"),
        },
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
                toggle.name: OR.join([*preset.options.get(toggle.name, ()), toggle.off])
                for toggle in all_toggles().values()
                if toggle.stage is not Stage.MODEL
            },
        )
        for name, preset in PRESETS.items()
    ]
