"""The AdaAttn document: memory and speed of its attention by length, and its precisions."""

from __future__ import annotations

import math

from sessions.model import Scalar
from workbench import protocol
from workbench.claims._claim import (
    CPU_CLAIM,
    GPU_CLAIM,
    Claim,
    Commands,
    Document,
    Experiment,
    Omission,
)
from workbench.claims._command import checked_run, configuration, eager, ladder, on_gpu
from workbench.claims._read import (
    arms_right,
    error,
    memory_share,
    slow_down,
    speed_up,
    with_effect,
    with_times,
)
from workbench.claims._read_profiles import longest_right

ABOVE_512, ABOVE_1024 = 1024, 2048  # tokens: the first power of two above each of its thresholds
ABOVE_2K, ABOVE_4K, LONGEST = 4096, 8192, 16384
PRECISIONS = (("amp_fp16", "FP16", 1e-3), ("amp_bf16", "BF16", 1e-4))
# The document's times on a CPU: batch, tokens, and the milliseconds of both of its columns.
ON_CPU = ((4, 128, 67), (4, 512, 257), (1, 1024, 477))
AUTHORS_VERSION = "a version that the author's code requires, not a claim"
AUTHORS_SOURCE = "the size of the author's source code, not a claim about performance"


def _attention(*sequences: int, narrow: bool = False) -> Commands:
    """Return ladders of the document's layer, 512 wide with 8 heads, in one precision.

    ``narrow``: three heads of four start with queries and keys in a quarter of their dimensions.
    """

    def commands(catalogue: protocol.Catalogue, budget_s: float) -> list[protocol.Command]:
        gpu = on_gpu(catalogue)
        base = eager(
            catalogue,
            attention="manual",
            adaptive_rank="off",
            adaptive_precision="off",
            precision="bf16" if gpu else "fp32",
        )
        fields: dict[str, Scalar] = {"max_sequence": ABOVE_1024}
        fields |= {} if gpu else {"n_layers": 1}
        fields |= {"qk_dimensions": 16 if gpu else 8} if narrow else {}
        toggles = {"attention": "auto", **({"triton": "on"} if gpu else {})}
        toggles |= {"adaptive_rank": "on", "adaptive_precision": "on"}
        preset, batch = ("small", 4) if gpu else ("tiny", 1)
        standards = (
            configuration("adaattn", preset, base, batch=batch, sequence=sequence, model=fields)
            for sequence in sequences
        )
        return [ladder(standard, budget_s, **toggles) for standard in standards]

    return commands


def _precision(option: str) -> Commands:
    def commands(catalogue: protocol.Catalogue, budget_s: float) -> list[protocol.Command]:
        gpu = on_gpu(catalogue)
        base = configuration(
            "adaattn",
            "small" if gpu else "tiny",
            eager(catalogue),
            batch=8 if gpu else 2,
            sequence=1024 if gpu else 64,
        )
        return [ladder(base, budget_s, precision=option)]

    return commands


def _chunks(catalogue: protocol.Catalogue, budget_s: float) -> list[protocol.Command]:
    toggles = eager(catalogue, attention="manual", precision="bf16")
    fields = {"max_sequence": LONGEST, "adaptive_rank": False, "adaptive_precision": False}
    return [
        ladder(
            configuration("adaattn", "small", toggles, sequence=sequence, model=fields),
            budget_s,
            attention="chunked",
        )
        for sequence in (ABOVE_2K, ABOVE_4K)
    ]


def _long(catalogue: protocol.Catalogue, budget_s: float) -> list[protocol.Command]:
    gpu = on_gpu(catalogue)
    toggles = eager(catalogue, **({"precision": "bf16", "triton": "on"} if gpu else {}))
    fields = {"max_sequence": LONGEST, **({} if gpu else {"n_layers": 1})}
    return [
        checked_run(
            configuration(
                "adaattn", "small" if gpu else "tiny", toggles, sequence=sequence, model=fields
            )
        )
        for sequence in ((ABOVE_4K, LONGEST) if gpu else (ABOVE_4K,))
    ]


def _on_cpu(catalogue: protocol.Catalogue, budget_s: float) -> list[protocol.Command]:
    toggles = eager(catalogue, attention="manual", adaptive_rank="off", adaptive_precision="off")
    fields = {"n_layers": 1, "vocabulary": 256}  # the layer of the document, and hardly a head
    return [
        ladder(
            configuration("adaattn", "small", toggles, batch=batch, sequence=tokens, model=fields),
            budget_s,
            attention="auto",
        )
        for batch, tokens, _ in ON_CPU
    ]


def _on_cpu_claim(index: int, batch: int, tokens: int, ms: int) -> Claim:
    """Return the claim that both columns of the document's CPU table say: the same time."""
    return Claim(
        row="A10",
        name=f"on a CPU, batch {batch}, {tokens} tokens",
        says=f"{ms} ms with and without the GPU optimizations",
        unit="of the standard time",
        least=(ms - 0.5) / (ms + 0.5),
        most=(ms + 0.5) / (ms - 0.5),
        read=with_times(slow_down()),
        study=index,
        quotes=("67ms    | 257ms   | 477ms",),
    )


def _precision_experiment(option: str, title: str, mse: float) -> Experiment:
    return Experiment(
        name=title,
        how=f"{title} (AMP) against FP32; the error against the same weights in FP64 or FP32",
        commands=_precision(option),
        claims=(
            Claim(
                row="A10",
                name=title,
                says=f"MSE < {mse:.0e}",
                unit="mean squared error of the outputs against FP32",
                most=mse,
                read=error("mse", "precision"),
                quotes=(f"<1e-{round(-math.log10(mse))} ",),
            ),
            Claim(
                row="A10",
                name=title,
                says="~1.8x",
                unit="x as fast as FP32",
                least=1.75,
                read=speed_up(),
                needs_gpu=GPU_CLAIM,
                quotes=(f"| {title}      | ~1.8x",),
            ),
            Claim(
                row="A10",
                name=title,
                says="1.5-2x on modern GPUs",
                unit="x as fast as FP32",
                least=1.5,
                read=speed_up(),
                needs_gpu=GPU_CLAIM,
                quotes=("1.5-2x speedup with FP16/BF16",),
            ),
            Claim(
                row="A10",
                name=title,
                says="~0.5x memory",
                unit="memory of FP32",
                most=0.55,
                read=memory_share(),
                needs_gpu=GPU_CLAIM,
                quotes=("~0.5x          |",),
            ),
        ),
        needs_gpu="FP16 is not available on the CPU" if option == "amp_fp16" else "",
    )


DOCUMENT = Document(
    name="adaattn",
    title="AdaAttn phase 3: GPU optimizations",
    experiments=(
        Experiment(
            name="attention by length",
            how="attention that stores the complete matrix of weights, compared with the best "
            f"backend with adaptive rank and precision; {ABOVE_512} and {ABOVE_1024} tokens, "
            "forward; the reason names the ranks of the timed heads",
            commands=_attention(ABOVE_512, ABOVE_1024),
            claims=(
                Claim(
                    row="A10",
                    name="memory above 512 tokens",
                    says="25-50 % less",
                    unit="memory of standard attention",
                    most=0.75,
                    read=memory_share(),
                    study=0,
                    needs_gpu=GPU_CLAIM,
                    quotes=("25-50% for sequences >512 tokens",),
                ),
                Claim(
                    row="A10",
                    name="speed above 1024 tokens",
                    says="2-4x",
                    unit="x as fast as standard attention",
                    least=2.0,
                    read=speed_up(),
                    study=1,
                    quotes=("2-4x for sequences >1024 tokens",),
                ),
                Claim(
                    row="A10",
                    name="speed above 1024 tokens, the backend alone",
                    says="2-4x",
                    unit="x as fast as standard attention",
                    least=2.0,
                    read=speed_up("attention"),
                    study=1,
                ),
            ),
        ),
        Experiment(
            name="attention of narrow heads",
            how=f"the same at {ABOVE_1024} tokens, for a model whose heads have a narrow spectrum: "
            "queries and keys of three of four heads start in a quarter of their dimensions; it "
            "counts only if ranks were reduced",
            commands=_attention(ABOVE_1024, narrow=True),
            claims=(
                Claim(
                    row="A10",
                    name="speed above 1024 tokens, narrow heads",
                    says="2-4x",
                    unit="x as fast as standard attention",
                    least=2.0,
                    read=with_effect("adaptive_rank", speed_up()),
                ),
            ),
            priority=1,
        ),
        *(_precision_experiment(*precision) for precision in PRECISIONS),
        Experiment(
            name="chunked attention",
            how="attention in chunks, compared with attention that stores the complete matrix of "
            f"weights, at {ABOVE_2K:,} and {ABOVE_4K:,} tokens in BF16; the document names "
            "thresholds but no saving, so any saving holds",
            commands=_chunks,
            claims=tuple(
                Claim(
                    row="A5",
                    name=f"chunked attention above {threshold} tokens",
                    says=f"memory-efficient chunks for sequences >{threshold} tokens",
                    unit="memory of standard attention",
                    most=0.995,
                    read=memory_share(),
                    study=index,
                    quotes=(f"for sequences >{threshold} tokens",),
                )
                for index, threshold in enumerate(("2K", "4K"))
            ),
            needs_gpu="nothing counts the memory of one arm on the CPU",
            priority=1,
        ),
        Experiment(
            name="long sequences",
            how=f"a forward pass at {ABOVE_4K:,} tokens (on a GPU also at {LONGEST:,} tokens); its "
            "output is compared with a reference",
            commands=_long,
            claims=(
                Claim(
                    row="A5",
                    name="long sequences",
                    says="up to 8K+ tokens",
                    unit="tokens in one call, with right numbers",
                    least=ABOVE_4K,
                    read=longest_right("sequence"),
                    quotes=("up to 8K+ tokens", "from 128 to 8K+ tokens"),
                ),
            ),
            priority=1,
        ),
        Experiment(
            name="on a CPU",
            how="one layer of the document's width, forward: standard attention, compared with the "
            "best backend of the CPU, which the document calls a fallback; its milliseconds are "
            "from the author's machine, and the times here are shown with the ratio",
            commands=_on_cpu,
            claims=(
                *(_on_cpu_claim(index, *size) for index, size in enumerate(ON_CPU)),
                Claim(
                    row="A7",
                    name="on a CPU",
                    says="100% backward compatible with CPU-only setups",
                    unit="of its configurations ran with right numbers",
                    least=1.0,
                    read=arms_right(),
                    quotes=("100% backward compatible",),
                ),
            ),
            needs_cpu=CPU_CLAIM,
            priority=1,
        ),
    ),
    omissions=(
        Omission("Phase 3", "part of a title"),
        Omission("Phases 1-2", "part of a title"),
        Omission("PyTorch 2.0+", AUTHORS_VERSION),
        Omission("FlashAttention 2.0+", AUTHORS_VERSION),
        Omission(
            "| FP32      | 1.0x          | 1.0x           | 0.0",
            "the baseline of its table, compared with itself",
        ),
        *(
            Omission(quote, AUTHORS_SOURCE)
            for quote in (
                "(2 new files)",
                "(272 lines)",
                "(398 lines)",
                "(1 modified file)",
                "(1 new file)",
                "(423 lines)",
                "6 files, ~1100+ lines",
            )
        ),
    ),
)
