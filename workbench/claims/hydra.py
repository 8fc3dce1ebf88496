"""The HYDRA guide: its three Triton kernels, its shared RoPE cache, its checkpointing."""

from __future__ import annotations

from sessions.model import Configuration
from workbench import protocol
from workbench.claims._claim import GPU_CLAIM, Claim, Document, Experiment, Omission
from workbench.claims._command import (
    backward,
    configuration,
    eager,
    forward,
    ladder,
    on_gpu,
    profiles,
)
from workbench.claims._read import ledger_ratio, slow_down
from workbench.claims._read_kernels import kernel, slowest_kernel
from workbench.claims._read_profiles import activation_share, ledger_difference, peak_share

# The guide times batch 4, 512 tokens, width 768 on an RTX 4090: ms in PyTorch, ms in Triton, ratio.
KERNELS = (
    ("rope", "B4 S512 H12/12 D64", 0.342, 0.163, 2.10),
    ("swiglu", "2048x2048", 0.456, 0.312, 1.46),
    ("rms_norm", "2048x768", 0.128, 0.071, 1.80),
)
LAYERS = 24
BATCH, TOKENS = 4, 1024  # the guide names none; with these, models need about its GB
# The guide's table of memory: parameters, what has about as many, GB without and with.
SIZES: tuple[tuple[str, dict[str, int], str, float, float], ...] = (
    ("100M", {}, "4.2 GB               | 2.5 GB", 4.2, 2.5),
    ("500M", {"dim": 1536, "n_layers": 17, "n_heads": 24, "n_kv_heads": 8},
     "18.6 GB              | 11.2 GB", 18.6, 11.2),
    ("1B", {"dim": 2048, "n_layers": 20, "n_heads": 32, "n_kv_heads": 8},
     "38.4 GB              | 23.1 GB", 38.4, 23.1),
)  # fmt: skip
KIB = 1024
AUTHORS_MS = "a time on the author's RTX 4090; the time here is shown with the claim's speed-up"
NAME = "part of the name of a library"


def _kernels(catalogue: protocol.Catalogue, budget_s: float) -> list[protocol.Command]:
    return [forward(KERNELS, ("torch", "triton"), budget_s)]


def _train(catalogue: protocol.Catalogue) -> Configuration:
    toggles = eager(catalogue)
    if on_gpu(catalogue):  # 114M parameters: the guide's "100M"
        return configuration(
            "hydra", "base", toggles, workload="train", batch=BATCH, sequence=TOKENS
        )
    return configuration("hydra", "tiny", toggles, workload="train", batch=2, sequence=64)


def _checkpointing(catalogue: protocol.Catalogue, budget_s: float) -> list[protocol.Command]:
    base = _train(catalogue)
    return [
        backward(base, budget_s, checkpointing="full"),
        *profiles(base, checkpointing="full"),
    ]


def _sizes(catalogue: protocol.Catalogue, budget_s: float) -> list[protocol.Command]:
    """Return the profiles of each size in TF32: it takes as much memory as FP32, and less time."""
    toggles, commands = eager(catalogue, precision="tf32"), []
    for _, fields, *_ in SIZES[1:]:
        base = configuration(
            "hydra",
            "base",
            toggles,
            workload="train",
            batch=BATCH,
            sequence=TOKENS,
            model={**fields},
        )
        commands += profiles(base, steps=1, checkpointing="full")
    return commands


def _size_claim(index: int, study: tuple[int, int]) -> Claim:
    name, _, quote, before, after = SIZES[index]
    return Claim(
        row="H10",
        name=f"gradient checkpointing, {name} parameters",
        says=f"{before} GB become {after} GB",
        unit="memory of the step without",
        most=(after + 0.05) / (before - 0.05),
        read=peak_share(),
        study=study,
        needs_gpu=GPU_CLAIM,
        quotes=(quote, f"| {name} "),
    )


def _cache(catalogue: protocol.Catalogue, budget_s: float) -> list[protocol.Command]:
    # The guide's own cache: heads of 64, 8,192 positions.
    fields = {"n_layers": LAYERS, "dim": 128, "n_heads": 2, "n_kv_heads": 2, "max_sequence": 8192}
    base = configuration("hydra", "tiny", eager(catalogue), model=fields)
    return [ladder(base, min(budget_s, 5.0), rope_cache="shared")]


DOCUMENT = Document(
    name="hydra",
    title="HYDRA optimization guide",
    experiments=(
        Experiment(
            name="kernels",
            how="each kernel alone, compared with plain PyTorch: forward, cold caches, interleaved "
            "rounds, the guide's sizes; the guide's GPU is an RTX 4090",
            commands=_kernels,
            claims=(
                *(
                    Claim(
                        row="H10",
                        name=f"Triton {name}",
                        says=f"{speed:.2f}x",
                        unit="x as fast as PyTorch",
                        least=speed - 0.005,
                        read=kernel(name, case),
                        quotes=(f"Speedup: {speed:.2f}x",),
                    )
                    for name, case, *_, speed in KERNELS
                ),
                Claim(
                    row="H10",
                    name="Triton kernels, the slowest of the three",
                    says="1.5-2x for RMSNorm, SwiGLU, RoPE",
                    unit="x as fast as PyTorch",
                    least=1.45,
                    read=slowest_kernel([(name, case) for name, case, *_ in KERNELS]),
                    quotes=("1.5-2x faster for RMSNorm, SwiGLU, RoPE",),
                ),
            ),
            needs_gpu="Triton kernels run on a GPU, but this runner uses the CPU",
        ),
        Experiment(
            name="checkpointing",
            how="a training step that recomputes every block, compared with one that recomputes "
            "none: time of the backward pass alone, in interleaved rounds; activations from a "
            "profile, when the backward pass begins; memory at the peak of the complete step",
            commands=_checkpointing,
            claims=(
                Claim(
                    row="H10",
                    name="gradient checkpointing, activations",
                    says="~40 % less activation memory",
                    unit="activation memory of the step without it",
                    most=0.65,
                    read=activation_share(),
                    study=(1, 2),
                    quotes=("~40% activation memory reduction", "activation memory by ~40%"),
                ),
                Claim(
                    row="H5",
                    name="gradient checkpointing, backward pass",
                    says="~30 % slower backward pass",
                    unit="of the backward pass's time without it",
                    most=1.35,
                    read=slow_down(),
                    study=0,
                    quotes=("~30% slower backward pass",),
                ),
                _size_claim(0, (1, 2)),
            ),
        ),
        Experiment(
            name="shared RoPE cache",
            how=f"bytes of the rotary tables of {LAYERS} layers: one per layer, or one shared",
            commands=_cache,
            claims=(
                Claim(
                    row="H3",
                    name="shared RoPE cache",
                    says="24x less memory for position embeddings",
                    unit="x fewer bytes",
                    least=float(LAYERS),
                    read=ledger_ratio("rope_cache_bytes_unshared", "rope_cache_bytes"),
                    quotes=("24x memory reduction",),
                ),
                Claim(
                    row="H3",
                    name="shared RoPE cache",
                    says="24 layers waste 192 KB",
                    unit="KiB less",
                    least=191.5,
                    read=ledger_difference("rope_cache_bytes_unshared", "rope_cache_bytes", KIB),
                    quotes=("24 layers × 8KB cache = **192KB wasted memory**",),
                ),
            ),
        ),
        Experiment(
            name="checkpointing by size",
            how="peak memory of a training step that recomputes every block, compared with one "
            f"that recomputes none, at the guide's larger sizes, batch {BATCH} x {TOKENS:,} tokens",
            commands=_sizes,
            build_s=30.0,
            claims=(_size_claim(1, (0, 1)), _size_claim(2, (2, 3))),
            needs_gpu=GPU_CLAIM,
            priority=2,
        ),
    ),
    omissions=(
        Omission("Flash Attention 2", NAME),
        Omission("8-bit optimizers", NAME),
        Omission("'triton_version': '3.0.0'", "the version on the author's machine"),
        Omission("RTX 4090", "the author's GPU"),
        *(
            Omission(f"{side}{ms:.3f} ms", AUTHORS_MS)
            for _, _, *times_ms, _ in KERNELS
            for side, ms in zip(("PyTorch: ", "Triton:  "), times_ms, strict=True)
        ),
        Omission("32 query heads", "the shapes of an example"),
        Omission("4 KV heads (8 groups)", "the shapes of an example"),
    ),
)
