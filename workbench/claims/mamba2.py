"""The Mamba-2 results: its scan equals the reference, and time grows linearly with length."""

from __future__ import annotations

import random

import msgspec

from sessions.studies.sweep import balanced_order
from workbench import protocol
from workbench.claims._claim import Claim, Document, Experiment, Omission
from workbench.claims._command import configuration, eager, on_gpu
from workbench.claims._read import exponent
from workbench.claims._read_kernels import kernel_difference
from workbench.claims._read_profiles import growth, growth_of, ledger_value

LINEAR = 1.05  # an exponent up to this is called linear here; the document gives no number
SECONDS = 10.0  # longest time of a length
CONSISTENT = 1.1  # allowed growth of ms per token; the document gives no number
# Preset, how the document says its size, its millions of parameters. It gives width and depth
# alone, and not the vocabulary or the width inside a block: a tenth more or less is the same size.
SIZES = (
    ("96M", "96M parameters (768 dim, 12 layers)", 96.0),
    ("47M", "47.3M parameters (512 dim, 8 layers)", 47.3),
    ("2.8B", "2.8B parameters (2560 dim, 64 layers)", 2800.0),
)
SIZE_TOLERANCE = 0.1
EXACT = 5e-7  # the document's 0.000000, with its own rounding


def _scan(catalogue: protocol.Catalogue, budget_s: float) -> list[protocol.Command]:
    return [
        protocol.Bench(
            operators=["ssd_scan"],
            dtype="float32",
            implementations=["torch", "triton"],
            forward_only=True,
        )
    ]


def _lengths(
    catalogue: protocol.Catalogue, budget_s: float, attention_every: int
) -> list[protocol.Command]:
    """Return the runs of the document's 96M in BF16; on the CPU of the tiny one in FP32."""
    gpu = on_gpu(catalogue)
    sequences = (4096, 8192, 16384, 32768, 65536) if gpu else (512, 1024, 2048, 4096)
    # Captured: launches take the host as long for few tokens as for many, and would hide the rest.
    fast = {"precision": "bf16", "triton": "on", "cuda_graphs": "on"}
    toggles = eager(catalogue, **(fast if gpu else {}))
    model = {"attention_every": attention_every, "max_sequence": sequences[-1]}
    return [
        protocol.Start(
            configuration=configuration(
                "mamba2", "96M" if gpu else "tiny", toggles, sequence=sequence, model=model
            ),
            seconds=min(SECONDS, budget_s),
        )
        # Not ascending: a machine that drifts would look like an exponent.
        for (index,) in balanced_order([len(sequences)], random.Random(0))
        for sequence in [sequences[index]]
    ]


def _hybrid(catalogue: protocol.Catalogue, budget_s: float) -> list[protocol.Command]:
    return _lengths(catalogue, budget_s, 4)


def _pure(catalogue: protocol.Catalogue, budget_s: float) -> list[protocol.Command]:
    return _lengths(catalogue, budget_s, 0)


def _linear(name: str) -> tuple[Claim, Claim]:
    return (
        Claim(
            row="S13",
            name=name,
            says="linear O(n), consistent ms/token",
            unit="exponent of step time in length",
            most=LINEAR,
            read=exponent("sequence"),
            quotes=("Linear O(n) complexity confirmed",),
        ),
        Claim(
            row="S13",
            name=name,
            says="consistent ms/token across sequence lengths",
            unit="x the ms per token of the shortest, at the longest",
            most=CONSISTENT,
            read=growth_of(exponent("sequence"), "sequence"),
            quotes=("Consistent ms/token across sequence lengths",),
        ),
    )


def _difference(which: str, word: str, implementation: str, title: str) -> Claim:
    return Claim(
        row="S2",
        name=f"selective scan, {title}",
        says=f"{word} difference 0.000000",
        unit=f"{word} difference of an output",
        most=EXACT,
        read=kernel_difference("ssd_scan", implementation, which),
        needs_gpu="Triton kernels run on a GPU, but this runner uses the CPU"
        if implementation == "triton"
        else "",
        quotes=(f"{which.title()} difference: 0.000000",),
    )


def _sizes(catalogue: protocol.Catalogue, budget_s: float) -> list[protocol.Command]:
    """Run one step of each size, which counts its parameters; the largest in half precision."""
    toggles = eager(catalogue, precision="bf16" if on_gpu(catalogue) else "fp32")
    return [
        protocol.Start(configuration=configuration("mamba2", preset, toggles, sequence=64), steps=1)
        for preset, *_ in SIZES
    ]


def _contexts(
    catalogue: protocol.Catalogue, budget_s: float, attention_every: int
) -> list[protocol.Command]:
    """Decode after prompts of two lengths, taken in by chunks."""
    gpu = on_gpu(catalogue)
    lengths, chunk = ((4096, 65536), 4096) if gpu else ((256, 4096), 256)
    toggles = eager(catalogue, **({"precision": "bf16", "triton": "on"} if gpu else {}))
    fields = {"attention_every": attention_every, "max_sequence": lengths[-1] + 64}
    return [
        protocol.Start(
            configuration=msgspec.structs.replace(
                configuration(
                    "mamba2",
                    "96M" if gpu else "tiny",
                    toggles,
                    workload="decode",
                    model=fields,
                ),
                settings={"batch": 1, "sequence": length, "chunk": chunk, "new_tokens": 16},
            ),
            steps=16,
        )
        for length in lengths
    ]


def _hybrid_contexts(catalogue: protocol.Catalogue, budget_s: float) -> list[protocol.Command]:
    return _contexts(catalogue, budget_s, 4)


def _pure_contexts(catalogue: protocol.Catalogue, budget_s: float) -> list[protocol.Command]:
    return _contexts(catalogue, budget_s, 0)


def _context(name: str) -> Claim:
    return Claim(
        row="S5",
        name=f"context, {name}",
        says="unlimited context capability",
        unit="x the decode state at 16 times the context",
        most=1.0,
        read=growth("decode_state_bytes", "sequence"),
        quotes=("Unlimited context capability",),
    )


DOCUMENT = Document(
    name="mamba2",
    title="GPU-optimized Mamba-2 results",
    experiments=(
        Experiment(
            name="scan",
            how="the chunked scan in FP32, compared with FP64; a test shows that the chunked and "
            "the sequential algorithm agree",
            commands=_scan,
            claims=(
                _difference("max", "largest", "triton", "Triton"),
                _difference("mean", "mean", "triton", "Triton"),
                _difference("max", "largest", "torch", "PyTorch"),
                _difference("mean", "mean", "torch", "PyTorch"),
            ),
        ),
        Experiment(
            name="length, hybrid",
            how="step time of a forward pass by length, captured as a CUDA graph on a GPU, with "
            "attention in every fourth block as in the document; slope of the logarithms",
            commands=_hybrid,
            claims=_linear("hybrid"),
        ),
        Experiment(
            name="length, scan only",
            how="the same without attention",
            commands=_pure,
            claims=_linear("scan only"),
        ),
        Experiment(
            name="context, hybrid",
            how="bytes of the decode state after prompts of two lengths, processed in chunks: if "
            "they grow with the context, memory limits it",
            commands=_hybrid_contexts,
            claims=(_context("hybrid"),),
            priority=1,
        ),
        Experiment(
            name="context, scan only",
            how="the same without attention",
            commands=_pure_contexts,
            claims=(_context("scan only"),),
            priority=1,
        ),
        Experiment(
            name="sizes",
            how="parameters of models with the document's widths and depths; the document does not "
            "name the vocabulary, so a tenth more or less counts as the same size",
            commands=_sizes,
            build_s=30.0,
            claims=tuple(
                Claim(
                    row="S7",
                    name=f"size {preset}",
                    says=says,
                    unit="million parameters",
                    least=millions * (1 - SIZE_TOLERANCE),
                    most=millions * (1 + SIZE_TOLERANCE),
                    read=ledger_value("parameters", preset, 1e6),
                    study=index,
                    needs_gpu=f"{preset} parameters do not fit in every host's memory"
                    if preset == "2.8B"
                    else "",
                    quotes=(says,),
                )
                for index, (preset, says, millions) in enumerate(SIZES)
            ),
            priority=1,
        ),
    ),
    omissions=(
        Omission("Production 2025", "a year"),
        Omission("production-grade 2025 AI", "a year"),
        Omission("looks like in 2025", "a year"),
        Omission("every 4th layer", "a default of the architecture, which the measurements use"),
        Omission("(585 lines)", "the size of the author's source code, not a claim"),
    ),
)
