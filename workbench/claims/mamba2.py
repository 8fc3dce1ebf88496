"""The Mamba-2 results: its scan equals the reference, and time grows linearly with length."""

from __future__ import annotations

import random

from sessions.sweep import balanced_order
from workbench import protocol
from workbench.claims._claim import Claim, Document, Experiment
from workbench.claims._command import configuration, eager, on_gpu
from workbench.claims._read import exponent, kernel_difference

LINEAR = 1.05  # an exponent up to this is called linear here; the document gives no number
SECONDS = 10.0  # of each length, at most


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
    """The document's 96M in BF16; on the CPU the tiny one in FP32."""
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
        for (place,) in balanced_order([len(sequences)], random.Random(0))
        for sequence in [sequences[place]]
    ]


def _hybrid(catalogue: protocol.Catalogue, budget_s: float) -> list[protocol.Command]:
    return _lengths(catalogue, budget_s, 4)


def _pure(catalogue: protocol.Catalogue, budget_s: float) -> list[protocol.Command]:
    return _lengths(catalogue, budget_s, 0)


def _linear(name: str) -> Claim:
    return Claim(
        row="S13",
        name=name,
        says="linear O(n), consistent ms/token",
        unit="exponent of step time in length",
        most=LINEAR,
        read=exponent("sequence"),
    )


DOCUMENT = Document(
    name="mamba2",
    title="GPU-optimized Mamba-2 results",
    experiments=(
        Experiment(
            name="scan",
            how="the chunked scan in FP32 against the same in FP64; that the chunked algorithm is "
            "what one step after the other gives is tested",
            commands=_scan,
            claims=(
                Claim(
                    row="S2",
                    name="selective scan, Triton",
                    says="largest difference 0.000000",
                    unit="largest difference of an output",
                    most=5e-7,
                    read=kernel_difference("ssd_scan", "triton"),
                    needs_gpu="Triton kernels run on a GPU, and this runner uses the CPU",
                ),
                Claim(
                    row="S2",
                    name="selective scan, PyTorch",
                    says="largest difference 0.000000",
                    unit="largest difference of an output",
                    most=5e-7,
                    read=kernel_difference("ssd_scan", "torch"),
                ),
            ),
        ),
        Experiment(
            name="length, hybrid",
            how="step time of a forward pass over lengths, captured as a graph on a GPU, attention "
            "in every fourth block as the document has it; slope of the logarithms",
            commands=_hybrid,
            claims=(_linear("hybrid"),),
        ),
        Experiment(
            name="length, scan only",
            how="the same without attention",
            commands=_pure,
            claims=(_linear("scan only"),),
        ),
    ),
)
