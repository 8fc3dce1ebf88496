"""The MAHIA-X summary: its components, the whole model, and the validation that it reports."""

from __future__ import annotations

from sessions.model import OWN, Configuration
from workbench import protocol
from workbench.claims._claim import GPU_CLAIM, Claim, Document, Experiment
from workbench.claims._command import checked_run, configuration, eager, ladder, on_gpu
from workbench.claims._read import arms_right, memory_share, speed_up, with_times
from workbench.claims._read_profiles import passed_share

FILE = "workbench/runner/components/mahia_components.py"
# Component, the function that builds it, batch, and the toggles of its fused path.
COMPONENTS = (
    ("MetaAttentionKernel", "meta_attention", 4,
     {"attention": "triton", "kernel_fourier_mix": "matmul"}),
    ("GraphDiffusionMemory", "graph_memory", 16384, {"triton_graph_diffusion": "triton"}),
    ("DynamicNeuroFabric", "neuro_fabric", 4, {"triton": "on"}),
)  # fmt: skip
STANDARD = {"attention": "manual", "kernel_fourier_mix": "torch"}
TESTED_BATCH = 2  # as in the document's tests
LAYERS = 2  # layers of text: all are alike, and each product is tuned separately
# In FP32 without tensor cores, Triton's compiler takes 40 s for the candidates of each product.
PRECISION = "tf32"
TUNING_S = 300.0


def _component(
    catalogue: protocol.Catalogue, function: str, batch: int, precision: str
) -> Configuration:
    """Return a single component as a model from a file, with its standard path."""
    standard = STANDARD if "attention" in function else {}
    return configuration(
        OWN,
        "file",
        eager(catalogue, precision=precision, **standard),
        batch=batch,
        sequence=1,
        model={"source": f"{FILE}:{function}"},
    )


def _components(catalogue: protocol.Catalogue, budget_s: float) -> list[protocol.Command]:
    return [
        ladder(_component(catalogue, function, batch, "bf16"), budget_s, **fused)
        for _, function, batch, fused in COMPONENTS
    ]


def _model(catalogue: protocol.Catalogue, budget_s: float) -> list[protocol.Command]:
    base = configuration(
        "mahia",
        "small",
        eager(catalogue, attention="manual", precision=PRECISION),
        batch=256,
        sequence=128,
        model={"n_layers": LAYERS},
    )
    return [ladder(base, budget_s, attention="auto", triton="on", compile="max-autotune")]


def _validation(catalogue: protocol.Catalogue, budget_s: float) -> list[protocol.Command]:
    fast = {"triton": "on"} if on_gpu(catalogue) else {}
    alone = []
    for _, function, *_ in COMPONENTS:
        component = _component(catalogue, f"{function}_as_tested", TESTED_BATCH, "fp32")
        component.toggles.update(fast)
        alone.append(checked_run(component))
    base = configuration("mahia", "tiny", eager(catalogue), batch=8, sequence=16)
    return [*alone, ladder(base, min(budget_s, 5.0), **fast, compile="default")]


DOCUMENT = Document(
    name="mahia",
    title="MAHIA-X CUDA optimizations",
    experiments=(
        Experiment(
            name="components",
            how="each component as a complete model, its fused path compared with its standard "
            "path, forward in BF16 at width 768: 4 x 4,096 tokens, and 16,384 vectors for the "
            "memory",
            commands=_components,
            claims=tuple(
                Claim(
                    row="M6",
                    name=component,
                    says="3-8x",
                    unit="x as fast as the standard path",
                    least=3.0,
                    read=with_times(speed_up()),
                    study=index,
                    quotes=("**3-8x Speed Improvement**",),
                )
                for index, (component, *_) in enumerate(COMPONENTS)
            ),
            needs_gpu=GPU_CLAIM,
        ),
        Experiment(
            name="model",
            how=f"the complete model with {LAYERS} text layers, forward: standard attention in "
            "eager mode, compared with kernels and torch.compile max-autotune; FP32 with TF32",
            build_s=TUNING_S,
            commands=_model,
            claims=(
                Claim(
                    row="M6",
                    name="whole model",
                    says="5-10x",
                    unit="x as fast as standard",
                    least=5.0,
                    read=speed_up(),
                    quotes=("5-10x performance improvements", "5-10x speed improvements"),
                ),
                Claim(
                    row="M6",
                    name="whole model",
                    says="50 % less memory",
                    unit="memory of standard",
                    most=0.5,
                    read=memory_share(),
                    quotes=("**50% Less Memory Consumption**", "50% memory reduction"),
                ),
            ),
            needs_gpu=GPU_CLAIM,
        ),
        Experiment(
            name="validation",
            how="each component at the sizes of the document's tests, and the complete compiled "
            'model, all compared with a reference (the summary reports "4/4 passed", although '
            "the document shows a shape error and a compile error)",
            commands=_validation,
            claims=(
                Claim(
                    row="M4",
                    name="all components run, and compile",
                    says="4/4 tests passed",
                    unit="of the four tests pass, with right numbers",
                    least=1.0,
                    read=passed_share(arms_right(), len(COMPONENTS)),
                    quotes=(
                        "4/4 tests passed",
                        "torch.Size([2, 16, 32])",
                        "torch.Size([2, 32])",
                        "(1x2 and 32x32)",
                    ),
                ),
            ),
        ),
    ),
)
