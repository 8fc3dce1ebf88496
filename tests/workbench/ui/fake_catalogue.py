"""A catalogue like the real runner's, and what it blocks, for tests that need no torch."""

from __future__ import annotations

import msgspec

from sessions.model import Configuration
from workbench.protocol import (
    OR,
    VERSION,
    Availability,
    Blocked,
    Catalogue,
    FamilyInfo,
    Field,
    LeftOut,
    OptionInfo,
    ToggleInfo,
    TogglePreset,
    WorkloadInfo,
)

KERNELS = {"follow": "Shared setting", "torch": "PyTorch", "triton": "Triton"}
TOGGLES = (
    (
        "precision",
        "Precision",
        "Precision",
        {
            "fp32": "FP32",
            "tf32": "TF32",
            "amp_fp16": "AMP FP16",
            "amp_bf16": "AMP BF16",
            "bf16": "Pure BF16",
        },
    ),
    ("triton", "Triton kernels, all", "Kernels", {"off": "Off", "on": "On"}),
    ("triton_rms_norm", "RMSNorm", "Kernels", KERNELS),
    ("triton_rope", "RoPE", "Kernels", KERNELS),
    ("triton_swiglu", "SwiGLU", "Kernels", KERNELS),
    (
        "attention",
        "Attention backend",
        "Attention",
        {
            "auto": "Automatic",
            "manual": "Manual (S x S matrix)",
            "sdpa_flash": "SDPA flash",
            "sdpa_efficient": "SDPA memory-efficient",
            "sdpa_cudnn": "SDPA cuDNN",
            "flash3": "FlashAttention 3",
            "xformers": "xFormers",
        },
    ),
    (
        "checkpointing",
        "Gradient checkpointing",
        "Memory",
        {"none": "Off", "selective": "Every second block", "full": "Every block"},
    ),
    (
        "rope_cache",
        "Shared RoPE cache",
        "Memory",
        {"per_layer": "One per layer", "shared": "Shared"},
    ),
    ("adamw", "AdamW", "Optimizer", {"loop": "Loop", "foreach": "Foreach", "fused": "Fused"}),
    (
        "compile",
        "torch.compile",
        "Compilation",
        {
            "off": "Off",
            "default": "Default",
            "reduce-overhead": "reduce-overhead",
            "max-autotune": "max-autotune",
        },
    ),
    ("cuda_graphs", "CUDA graphs", "Compilation", {"off": "Off", "on": "On"}),
)  # fmt: skip
OFF = {name: next(iter(options)) for name, _, _, options in TOGGLES}
PRESETS = {
    "Eager": {},
    "Throughput": {"precision": "amp_bf16", "adamw": "fused", "compile": "default"},
    "FlashAttention first": {"precision": "amp_bf16", "attention": "xformers|flash3"},
    "Latency": {"precision": "bf16", "triton": "on", "adamw": "fused", "cuda_graphs": "on"},
}
HALF = ("amp_fp16", "amp_bf16", "bf16")

FAMILY = FamilyInfo(
    name="hydra",
    title="HYDRA",
    help="A transformer with grouped-query attention.",
    fields=[
        Field(name="dim", title="Width", help="Of the residual stream.", default=256, minimum=1),
        Field(name="n_layers", title="Layers", help="Blocks.", default=4, minimum=1, maximum=512),
        Field(name="n_heads", title="Query heads", help="Per block.", default=8, minimum=1),
        Field(name="rope_theta", title="RoPE base", help="Of the angles.", default=10000.0),
        Field(name="tie", title="Tied embeddings", help="Share both.", default=False),
        Field(name="init", title="Initialisation", help="Scheme.", default="normal",
              choices=["normal", "scaled"]),
    ],
    presets={
        "tiny": {"dim": 256, "n_layers": 4},
        "small": {"dim": 768, "n_layers": 12, "n_heads": 12},
        "1b": {"dim": 2048, "n_layers": 24, "n_heads": 32},
    },
    parameters={"tiny": 28_931_328, "small": 162_302_976, "1b": 1_312_948_224},
    suggested={
        "tiny": {"batch": 2, "sequence": 64},
        "small": {"batch": 8, "sequence": 1024},
        "1b": {"batch": 8, "sequence": 2048},
    },
    workloads=["train", "forward"],
    default_preset="small",
)  # fmt: skip
SIZES = [
    Field(name="batch", title="Batch", help="Sequences per step.", default=4, minimum=1),
    Field(name="sequence", title="Sequence", help="Tokens per sequence.", default=128, minimum=1),
]
WORKLOADS = [
    WorkloadInfo(name="train", title="Training step", help="Forward, backward, AdamW.",
                 fields=SIZES),
    WorkloadInfo(name="forward", title="Forward (inference)", help="One forward pass.",
                 fields=SIZES),
]  # fmt: skip
NOT_INSTALLED = Blocked("xformers is not installed", "Install the extra: uv sync --extra xformers")
NEEDS_HALF = Blocked(
    "needs FP16 or BF16 inputs", "Choose a half precision.", {"precision": "amp_bf16"}
)
NEEDS_TRAINING = Blocked(
    "needs a backward pass, which this workload does not have",
    "Choose the training step.",
    {"workload": "train"},
)
NEEDS_FUSED = Blocked(
    "the step is captured with its optimizer, and only fused AdamW keeps its step count on the GPU",
    "Use fused AdamW.",
    {"adamw": "fused"},
)


def catalogue(created: float = 1_763_680_000.0) -> Catalogue:
    """Return the catalogue of an H200 with most libraries."""
    return Catalogue(
        version=VERSION,
        created=created,
        device="cuda",
        device_title="NVIDIA H200",
        environment={
            "gpu": "NVIDIA H200",
            "driver": "580.95.05",
            "cuda": "13.0",
            "torch": "2.11.0+cu130",
            "triton": "3.6.0",
            "python": "3.12.9",
        },
        families=[FAMILY],
        workloads=WORKLOADS,
        toggles=[
            ToggleInfo(
                name=name,
                title=title,
                help=f"Help of {title}.",
                group=group,
                options=[OptionInfo(name=option, title=text) for option, text in options.items()],
                default=next(iter(options)),
            )
            for name, title, group, options in TOGGLES
        ],
        presets=[
            TogglePreset(
                name=title.lower(),
                title=title,
                help=f"Help of {title}.",
                toggles={
                    name: f"{options[name]}{OR}{off}" if name in options else off
                    for name, off in OFF.items()
                },
            )
            for title, options in PRESETS.items()
        ],
        operators={"rms_norm": "torch, triton", "attention": "12 backends; xformers not installed"},
    )


def availability(configuration: Configuration) -> Availability:
    """Return what the catalogue's toggles block in a configuration, preferences resolved."""
    requested, left_out = configuration, []
    for name, options in requested.toggles.items():
        *better, last = options.split(OR)
        configuration = chosen(configuration, name, last)
        for option in better:
            tried = chosen(configuration, name, option)
            why = blocked_in(tried).get(name, {}).get(option)
            if why is None:
                configuration = tried
                left_out = [
                    msgspec.structs.replace(item, taken=option) if item.toggle == name else item
                    for item in left_out
                ]
                break
            left_out.append(
                LeftOut(toggle=name, option=option, taken=last, reason=why.reason, fix=why.fix)
            )
    return msgspec.structs.replace(
        settled(configuration),
        configuration=requested,
        toggles=configuration.toggles,
        left_out=left_out,
    )


def chosen(configuration: Configuration, name: str, option: str) -> Configuration:
    """Return the configuration with another option of one toggle."""
    toggles = {**configuration.toggles, name: option}
    return msgspec.structs.replace(configuration, toggles=toggles)


def blocked_in(configuration: Configuration) -> dict[str, dict[str, Blocked]]:
    """Return what is blocked in a configuration without preferences."""
    blocked: dict[str, dict[str, Blocked]] = {"attention": {"xformers": NOT_INSTALLED}}
    toggles = configuration.toggles
    if toggles["precision"] not in HALF:
        for option in ("sdpa_flash", "sdpa_cudnn", "flash3"):
            blocked["attention"][option] = NEEDS_HALF
    if configuration.workload != "train":
        blocked["checkpointing"] = dict.fromkeys(("selective", "full"), NEEDS_TRAINING)
        blocked["adamw"] = dict.fromkeys(("foreach", "fused"), NEEDS_TRAINING)
    elif toggles["adamw"] != "fused":
        blocked["cuda_graphs"] = {"on": NEEDS_FUSED}
    return blocked


def settled(configuration: Configuration) -> Availability:
    """The answer for a configuration without preferences."""
    blocked, toggles = blocked_in(configuration), configuration.toggles
    problems = [
        f"{toggle} = {toggles[toggle]}: {why[toggles[toggle]].reason}"
        for toggle, why in blocked.items()
        if toggles[toggle] in why
    ]
    heads = configuration.model.get("n_heads", 12)
    if 768 % int(heads):
        problems.append(f"{heads} query heads do not divide the width 768; choose a divisor.")
    return Availability(configuration=configuration, blocked=blocked, problems=problems)
