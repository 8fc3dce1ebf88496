"""The HYDRA guide: its three Triton kernels, its shared RoPE cache, its checkpointing."""

from __future__ import annotations

from sessions.model import Configuration
from workbench import protocol
from workbench.claims._claim import GPU_CLAIM, Claim, Document, Experiment
from workbench.claims._command import configuration, eager, forward, ladder, on_gpu
from workbench.claims._read import kernel, ledger_ratio, memory_share, slow_down

# The guide times batch 4, 512 tokens, width 768 on an RTX 4090.
KERNELS = (
    ("rope", "B4 S512 H12/12 D64", 2.10),
    ("swiglu", "2048x2048", 1.46),
    ("rms_norm", "2048x768", 1.80),
)
LAYERS = 24


def _kernels(catalogue: protocol.Catalogue, budget_s: float) -> list[protocol.Command]:
    return [forward(KERNELS, ("torch", "triton"), budget_s)]


def _train(catalogue: protocol.Catalogue) -> Configuration:
    toggles = eager(catalogue)
    if on_gpu(catalogue):  # 114M parameters: the guide's "100M"
        return configuration("hydra", "base", toggles, workload="train", batch=8, sequence=1024)
    return configuration("hydra", "tiny", toggles, workload="train", batch=2, sequence=64)


def _checkpointing(catalogue: protocol.Catalogue, budget_s: float) -> list[protocol.Command]:
    return [ladder(_train(catalogue), budget_s, checkpointing="full")]


def _cache(catalogue: protocol.Catalogue, budget_s: float) -> list[protocol.Command]:
    base = configuration("hydra", "tiny", eager(catalogue), model={"n_layers": LAYERS})
    return [ladder(base, min(budget_s, 5.0), rope_cache="shared")]


DOCUMENT = Document(
    name="hydra",
    title="HYDRA optimization guide",
    experiments=(
        Experiment(
            name="kernels",
            how="each kernel alone against plain PyTorch, forward, cold caches, in interleaved "
            "rounds, at the guide's sizes; the guide's GPU is an RTX 4090",
            commands=_kernels,
            claims=tuple(
                Claim(
                    row="H10",
                    name=f"Triton {name}",
                    says=f"{speed:.2f}x",
                    unit="x faster than PyTorch",
                    least=speed - 0.005,
                    read=kernel(name, case),
                )
                for name, case, speed in KERNELS
            ),
            needs_gpu="Triton kernels run on a GPU, and this runner uses the CPU",
        ),
        Experiment(
            name="checkpointing",
            how="a training step with every block recomputed, against none",
            commands=_checkpointing,
            claims=(
                Claim(
                    row="H10",
                    name="gradient checkpointing",
                    says="4.2 GB become 2.5 GB (100M parameters)",
                    unit="memory of the step without",
                    most=0.6,
                    read=memory_share(),
                    needs_gpu=GPU_CLAIM,
                ),
                Claim(
                    row="H5",
                    name="gradient checkpointing",
                    says="~30 % slower",
                    unit="of the step time without",
                    most=1.35,
                    read=slow_down(),
                ),
            ),
        ),
        Experiment(
            name="shared RoPE cache",
            how=f"bytes of the rotary tables of {LAYERS} layers, each its own against one for all",
            commands=_cache,
            claims=(
                Claim(
                    row="H3",
                    name="shared RoPE cache",
                    says="24x less memory for position embeddings",
                    unit="x fewer bytes",
                    least=float(LAYERS),
                    read=ledger_ratio("rope_cache_bytes_unshared", "rope_cache_bytes"),
                ),
            ),
        ),
    ),
)
