"""The AdaAttn document: memory and speed of its attention by length, and its precisions."""

from __future__ import annotations

from workbench import protocol
from workbench.claims._claim import GPU_CLAIM, Claim, Commands, Document, Experiment
from workbench.claims._command import configuration, eager, ladder, on_gpu
from workbench.claims._read import error, memory_share, speed_up

ABOVE_512, ABOVE_1024 = 1024, 2048  # tokens: the first power of two above each of its thresholds
PRECISIONS = (("amp_fp16", "FP16", 1e-3), ("amp_bf16", "BF16", 1e-4))


def _attention(catalogue: protocol.Catalogue, budget_s: float) -> list[protocol.Command]:
    """The document's layer, 512 wide with 8 heads; both sides compute in the same precision."""
    gpu = on_gpu(catalogue)
    base = eager(
        catalogue,
        attention="manual",
        adaptive_rank="off",
        adaptive_precision="off",
        precision="bf16" if gpu else "fp32",
    )
    found: list[protocol.Command] = []
    for sequence in (ABOVE_512, ABOVE_1024):
        standard = configuration(
            "adaattn",
            "small" if gpu else "tiny",
            base,
            batch=4 if gpu else 1,
            sequence=sequence,
            model={"max_sequence": ABOVE_1024, **({} if gpu else {"n_layers": 1})},
        )
        toggles = {"attention": "auto", **({"triton": "on"} if gpu else {})}
        adaptive = {"adaptive_rank": "on", "adaptive_precision": "on"}
        found.append(ladder(standard, budget_s, **toggles, **adaptive))
    return found


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
            ),
            Claim(
                row="A10",
                name=title,
                says="~1.8x",
                unit="x faster than FP32",
                least=1.75,
                read=speed_up(),
                needs_gpu=GPU_CLAIM,
            ),
            Claim(
                row="A10",
                name=title,
                says="~0.5x memory",
                unit="memory of FP32",
                most=0.55,
                read=memory_share(),
                needs_gpu=GPU_CLAIM,
            ),
        ),
        needs_gpu="FP16 is not offered on the CPU" if option == "amp_fp16" else "",
    )


DOCUMENT = Document(
    name="adaattn",
    title="AdaAttn phase 3: GPU optimizations",
    experiments=(
        Experiment(
            name="attention by length",
            how="attention that holds the whole matrix of weights, against the best backend with "
            f"adaptive rank and precision; {ABOVE_512} and {ABOVE_1024} tokens, forward",
            commands=_attention,
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
                ),
                Claim(
                    row="A10",
                    name="speed above 1024 tokens",
                    says="2-4x",
                    unit="x faster than standard attention",
                    least=2.0,
                    read=speed_up(),
                    study=1,
                ),
                Claim(
                    row="A10",
                    name="speed above 1024 tokens, the backend alone",
                    says="2-4x",
                    unit="x faster than standard attention",
                    least=2.0,
                    read=speed_up("attention"),
                    study=1,
                ),
            ),
        ),
        *(_precision_experiment(*one) for one in PRECISIONS),
    ),
)
