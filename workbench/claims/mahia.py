"""The MAHIA-X summary: its components, the whole model, and the validation that it reports."""

from __future__ import annotations

from workbench import protocol
from workbench.claims._claim import GPU_CLAIM, Claim, Document, Experiment
from workbench.claims._command import configuration, eager, forward, ladder, on_gpu
from workbench.claims._read import arms_right, kernel, memory_share, speed_up

# Component, its operator, case, fast and standard implementation.
COMPONENTS = (
    ("MetaAttentionKernel, attention", "attention", "B4 S4096 H12 D64 causal",
     "triton", "manual"),
    ("MetaAttentionKernel, Fourier mixing", "fourier_mix", "B8 T1024 D768", "matmul", "torch"),
    ("GraphDiffusionMemory", "graph_diffusion", "65536x64 4 steps", "triton", "torch"),
    ("DynamicNeuroFabric, its MLP", "swiglu", "16384x2048", "triton", "torch"),
)  # fmt: skip
LAYERS = 2  # of text: they are alike, and every product in them is tuned by itself
# In FP32 without tensor cores, Triton's compiler takes 40 s for the candidates of each product.
PRECISION = "tf32"
TUNING_S = 300.0


def _components(catalogue: protocol.Catalogue, budget_s: float) -> list[protocol.Command]:
    kernels = [(operator, case) for _, operator, case, *_ in COMPONENTS]
    names = {name for *_, fast, standard in COMPONENTS for name in (fast, standard)}
    return [forward(kernels, names, budget_s)]


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
    base = configuration("mahia", "tiny", eager(catalogue), batch=8, sequence=16)
    return [ladder(base, min(budget_s, 5.0), **fast, compile="default")]


DOCUMENT = Document(
    name="mahia",
    title="MAHIA-X CUDA optimizations",
    experiments=(
        Experiment(
            name="components",
            how="the operator that each component spends its time in, fused against standard, "
            "forward, cold caches, in interleaved rounds",
            commands=_components,
            claims=tuple(
                Claim(
                    row="M6",
                    name=component,
                    says="3-8x",
                    unit="x faster than the standard path",
                    least=3.0,
                    read=kernel(operator, case, fast, standard),
                )
                for component, operator, case, fast, standard in COMPONENTS
            ),
            needs_gpu=GPU_CLAIM,
        ),
        Experiment(
            name="model",
            how=f"the whole model with {LAYERS} text layers, forward: standard attention and eager "
            "against kernels and torch.compile max-autotune, all in FP32 with TF32 products",
            build_s=TUNING_S,
            commands=_model,
            claims=(
                Claim(
                    row="M6",
                    name="whole model",
                    says="5-10x",
                    unit="x faster than standard",
                    least=5.0,
                    read=speed_up(),
                ),
                Claim(
                    row="M6",
                    name="whole model",
                    says="50 % less memory",
                    unit="memory of standard",
                    most=0.5,
                    read=memory_share(),
                ),
            ),
            needs_gpu=GPU_CLAIM,
        ),
        Experiment(
            name="validation",
            how="the model with all components built, run, compiled, and compared with FP64 (the "
            'summary reports "4/4 passed" over a shape error and a compile error)',
            commands=_validation,
            claims=(
                Claim(
                    row="M4",
                    name="all components run, and compile",
                    says="4/4 tests passed",
                    unit="of its configurations ran with right numbers",
                    least=1.0,
                    read=arms_right(),
                ),
            ),
        ),
    ),
)
