"""The mixture-of-experts guide: its ladder of optimizations, and its claims about each alone."""

from __future__ import annotations

import msgspec

from sessions.model import Configuration
from workbench import protocol
from workbench.claims._claim import (
    BUILD_S,
    GPU_CLAIM,
    Claim,
    Commands,
    Document,
    Experiment,
    Omission,
)
from workbench.claims._command import configuration, eager, ladder, on_gpu, profiles
from workbench.claims._read import (
    Read,
    memory_share,
    slow_down,
    speed_up,
    step_speed_up,
    with_times,
)
from workbench.claims._read_profiles import compile_seconds, fewer_launches

MEMORY = "memory of the baseline"
LAYERS = 2  # the guide names no number; they are alike, and each rung compiles all of them
TRAINING_S = 480.0  # for compiling three different graphs, forward and backward, each twice
INFERENCE_S = 120.0  # for two, forward
TUNING_S = 90.0
DEEP = 24  # layers of the model whose checkpointing the guide calls that of deep models
NO_CLAIM = "part of the name of a technique, a pattern or a mode"
GRAPH_GPU = "it replays CUDA graphs, but this runner uses the CPU"
# Rows of the guide's table of CUDA graphs: its name, our preset, its row, its speed-up.
GRAPHS = (
    ("small model", "small", "| Small model | 5ms | 2ms | 2.5x |", 2.5),
    ("large model", "base", "| Large model | 20ms | 12ms | 1.7x |", 1.7),
    ("32 experts", "document", "| MoE (32 experts) | 15ms | 6ms | 2.5x |", 2.5),
)
# Single techniques: name, the guide's claim, the upper bound, its study, the quote.
LESS_MEMORY = (
    ("AMP", "40-50 % less memory", 0.6, 0, "**Memory savings**: 40-50%"),
    ("AMP", "50 % less memory, a quick win", 0.505, 0, "2-3x speedup, 50% memory reduction"),
    ("checkpointing", "50-70 % less memory", 0.5, 1, "50-70% (for deep models)"),
    ("checkpointing", "70 % less memory", 0.305, 1, "70% memory reduction"),
)
SLOWER = (
    ("checkpointing", "20-30 % slower", 1.3, 1, "20-30% (recompute on backward)"),
    ("checkpointing", "20 % slower", 1.205, 1, "(20% slower)"),
)


def _base(catalogue: protocol.Catalogue, workload: str) -> Configuration:
    """Return the document's 32 experts at its own batch; on the CPU the tiny model."""
    # Only fused AdamW can be captured, and an optimizer is none of the rungs.
    toggles = eager(catalogue, **({"adamw": "fused"} if workload == "train" else {}))
    if on_gpu(catalogue):
        return configuration(
            "moe",
            "document",
            toggles,
            workload=workload,
            batch=32,
            sequence=128,
            model={"n_layers": LAYERS},
        )
    return configuration("moe", "tiny", toggles, workload=workload, batch=4, sequence=64)


def _amp(catalogue: protocol.Catalogue) -> str:
    return "amp_fp16" if on_gpu(catalogue) else "amp_bf16"


def _training(catalogue: protocol.Catalogue, budget_s: float) -> list[protocol.Command]:
    return [
        ladder(
            _base(catalogue, "train"),
            budget_s,
            compile="default",
            precision=_amp(catalogue),
            checkpointing="full",
            cuda_graphs="on",
        )
    ]


def _inference(catalogue: protocol.Catalogue, budget_s: float) -> list[protocol.Command]:
    base = _base(catalogue, "forward")
    return [ladder(base, budget_s, compile="default", precision=_amp(catalogue), cuda_graphs="on")]


def _alone(catalogue: protocol.Catalogue, budget_s: float) -> list[protocol.Command]:
    base = _base(catalogue, "train")
    deep = msgspec.structs.replace(base, model={"n_layers": DEEP})
    if on_gpu(catalogue):
        deep = msgspec.structs.replace(deep, preset="small")
    return [
        ladder(base, budget_s, precision=_amp(catalogue)),
        ladder(deep, budget_s, checkpointing="full"),
    ]


def _graphs(catalogue: protocol.Catalogue, budget_s: float) -> list[protocol.Command]:
    return [
        ladder(
            configuration("moe", preset, eager(catalogue), batch=8, sequence=128),
            budget_s,
            cuda_graphs="on",
        )
        for _, preset, *_ in GRAPHS
    ]


def _launches(catalogue: protocol.Catalogue, budget_s: float) -> list[protocol.Command]:
    return profiles(_base(catalogue, "forward"), triton="on")


def _kernels(catalogue: protocol.Catalogue, budget_s: float) -> list[protocol.Command]:
    return [ladder(_base(catalogue, "forward"), budget_s, triton="on")]


def _mode(mode: str) -> Commands:
    """Return the commands of the small preset: tuning a large model's kernels takes minutes."""

    def commands(catalogue: protocol.Catalogue, budget_s: float) -> list[protocol.Command]:
        toggles, model = eager(catalogue), {"n_layers": LAYERS}
        base = configuration("moe", "small", toggles, batch=8, sequence=512, model=model)
        return [ladder(base, budget_s, compile=mode)]

    return commands


def _mode_experiment(
    mode: str, says: str, least: float, takes: str, most_s: float, build_s: float
) -> Experiment:
    """Return a row of the guide's table: how long a mode compiles, and how much faster it is."""
    return Experiment(
        name=f"torch.compile {mode}",
        how=f"torch.compile {mode} compared with eager, forward pass of the small preset with "
        f"{LAYERS} layers; its first compilation, which may use Inductor's cache on disk (E4)",
        commands=_mode(mode),
        claims=(
            Claim(
                row="E4",
                name=f"torch.compile {mode}",
                says=says,
                unit="x as fast as eager",
                least=least,
                read=speed_up(),
                quotes=(f"| {takes} | {says} |",),
            ),
            Claim(
                row="E4",
                name=f"torch.compile {mode}, compile time",
                says=takes,
                unit="s of compiling",
                most=most_s,
                read=compile_seconds(),
                quotes=(f"| {mode} | {takes} |",),
            ),
        ),
        build_s=build_s,
        needs_gpu="" if mode == "default" else GRAPH_GPU,
    )


def _rung(toggle: str, name: str, speed: float, memory: float) -> tuple[Claim, Claim]:
    """Return a row of the document's table: at least this fast, at most this much memory."""
    row = f"| {name.replace('checkpointing', 'Checkpointing')} | {speed:.1f}x | {memory:.1f}x |"
    return (
        Claim(
            row="E11",
            name=name,
            says=f"{speed:.1f}x",
            unit="x as fast as the baseline",
            least=speed - 0.05,
            read=speed_up(toggle),
            needs_gpu=GPU_CLAIM if toggle == "cuda_graphs" else "",
            quotes=(row,),
        ),
        Claim(
            row="E11",
            name=name,
            says=f"{memory:.1f}x memory",
            unit=MEMORY,
            most=memory + 0.05,
            read=memory_share(toggle),
            needs_gpu="nothing counts the memory of one arm on the CPU",
            quotes=(row,),
        ),
    )


def _alone_claim(
    name: str, says: str, most: float, study: int, quote: str, unit: str, read: Read, gpu: str = ""
) -> Claim:
    """Return the guide's claim about a single technique."""
    return Claim(
        row="E6",
        name=name,
        says=says,
        unit=unit,
        most=most,
        read=read,
        study=study,
        needs_gpu=gpu,
        quotes=(quote,),
    )


DOCUMENT = Document(
    name="moe",
    title="MoE framework: optimization guide",
    experiments=(
        Experiment(
            name="training ladder",
            how="the guide's stack, one option after the other, on a training step (E7); its CUDA "
            "graphs are for inference only, but here the complete step is captured",
            commands=_training,
            build_s=TRAINING_S,
            claims=(
                *_rung("compile", "+ torch.compile", 1.5, 1.0),
                *_rung("precision", "+ AMP", 3.0, 0.5),
                *_rung("checkpointing", "+ checkpointing", 3.0, 0.3),
                *_rung("cuda_graphs", "+ CUDA graphs", 4.5, 0.3),
            ),
        ),
        Experiment(
            name="inference ladder",
            how="the same stack on a forward pass, which has nothing to checkpoint",
            commands=_inference,
            build_s=INFERENCE_S,
            claims=(
                Claim(
                    row="E11",
                    name="+ torch.compile, inference",
                    says="1.5x",
                    unit="x as fast as the baseline",
                    least=1.45,
                    read=speed_up("compile"),
                ),
                Claim(
                    row="E11",
                    name="+ torch.compile, inference",
                    says="1.5-2x, a quick win",
                    unit="x as fast as the baseline",
                    least=1.45,
                    read=speed_up("compile"),
                    quotes=("**Enable torch.compile**: 1.5-2x speedup",),
                ),
                Claim(
                    row="E11",
                    name="CUDA graphs on top of it",
                    says="2-3x faster inference",
                    unit="x as fast as without graphs",
                    least=2.0,
                    read=step_speed_up("cuda_graphs"),
                    needs_gpu=GPU_CLAIM,
                    quotes=("Inference (2-3x faster!)", "**CUDA graphs**: 2-3x speedup"),
                ),
            ),
        ),
        Experiment(
            name="each alone",
            how="AMP and checkpointing, each separately compared with the eager training step; "
            f"checkpointing with {DEEP} layers, because the guide means deep models",
            commands=_alone,
            claims=(
                Claim(
                    row="E6",
                    name="AMP",
                    says="2-3x faster on tensor cores",
                    unit="x as fast as FP32",
                    least=2.0,
                    read=speed_up(),
                    study=0,
                    needs_gpu=GPU_CLAIM,
                    quotes=("2-3x on Tensor Cores", "**Enable AMP**: 2-3x speedup"),
                ),
                *(_alone_claim(*item, MEMORY, memory_share(), GPU_CLAIM) for item in LESS_MEMORY),
                *(_alone_claim(*item, "of the step time without", slow_down()) for item in SLOWER),
            ),
        ),
        _mode_experiment("default", "1.3-1.5x", 1.3, "~30s", 35, BUILD_S),
        _mode_experiment("reduce-overhead", "1.2-1.3x", 1.2, "~10s", 15, BUILD_S),
        _mode_experiment("max-autotune", "1.5-2.0x", 1.5, "~2-5min", 330, TUNING_S),
        Experiment(
            name="CUDA graphs",
            how="the forward pass captured as a CUDA graph, compared with launches by the host, "
            "8 x 128 tokens in FP32; the guide's milliseconds are from the author's machine, and "
            "the times here are shown with the ratio",
            commands=_graphs,
            claims=tuple(
                Claim(
                    row="E5",
                    name=f"CUDA graphs, {name}",
                    says=f"{speed}x",
                    unit="x as fast as without graphs",
                    least=speed - 0.05,
                    read=with_times(speed_up()),
                    study=index,
                    quotes=(row,),
                )
                for index, (name, _, row, speed) in enumerate(GRAPHS)
            ),
            needs_gpu=GRAPH_GPU,
            priority=1,
        ),
        Experiment(
            name="custom kernels",
            how="the forward pass with Triton kernels, compared with PyTorch's kernels",
            commands=_kernels,
            claims=(
                Claim(
                    row="E1",
                    name="custom kernels",
                    says="3-5x",
                    unit="x as fast as PyTorch's",
                    least=3.0,
                    read=speed_up(),
                    quotes=("**Custom kernels**: 3-5x speedup",),
                ),
            ),
            needs_gpu="Triton kernels run on a GPU, but this runner uses the CPU",
            priority=1,
        ),
        Experiment(
            name="kernel launches",
            how="kernel launches of a forward pass, counted by the profiler: PyTorch's operators "
            "compared with the fused kernels",
            commands=_launches,
            claims=(
                Claim(
                    row="E1",
                    name="fused kernels",
                    says="10x fewer CUDA kernel calls",
                    unit="x fewer kernel launches",
                    least=9.5,
                    read=fewer_launches(),
                    quotes=("10x fewer CUDA kernel calls",),
                ),
            ),
            needs_gpu="Triton kernels run on a GPU, but this runner uses the CPU",
            priority=1,
        ),
    ),
    omissions=(
        Omission("| Baseline | 1.0x | 1.0x |", "the baseline of its table"),
        Omission(
            "(<1% error)",
            "a check for the reader before deploying; `workbench validate` does it",
        ),
        *(Omission(f"Pattern {number}", NO_CLAIM) for number in (1, 2, 3)),
        *(Omission(f"Mode {number}", NO_CLAIM) for number in (1, 2, 3, 4)),
        *(Omission(f"Technique {number}", NO_CLAIM) for number in (1, 2, 3, 4)),
    ),
)
