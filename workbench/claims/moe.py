"""The mixture-of-experts guide: its ladder of optimizations, and what it says of each alone."""

from __future__ import annotations

from sessions.model import Configuration
from workbench import protocol
from workbench.claims._claim import BUILD_S, GPU_CLAIM, Claim, Commands, Document, Experiment
from workbench.claims._command import configuration, eager, ladder, on_gpu
from workbench.claims._read import memory_share, slow_down, speed_up, step_speed_up

MEMORY = "memory of the baseline"
LAYERS = 2  # the guide names no number; they are alike, and each rung compiles all of them
TRAINING_S = 240.0  # for compiling three different graphs, each forward and backward
INFERENCE_S = 120.0  # for two, forward
TUNING_S = 90.0


def _base(catalogue: protocol.Catalogue, workload: str) -> Configuration:
    """The document's experts, 32 of them, at its own batch; on the CPU the tiny model."""
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
    return [
        ladder(base, budget_s, precision=_amp(catalogue)),
        ladder(base, budget_s, checkpointing="full"),
    ]


def _mode(mode: str) -> Commands:
    """Of the small preset: tuning the kernels of a large model takes many minutes."""

    def commands(catalogue: protocol.Catalogue, budget_s: float) -> list[protocol.Command]:
        toggles, model = eager(catalogue), {"n_layers": LAYERS}
        base = configuration("moe", "small", toggles, batch=8, sequence=512, model=model)
        return [ladder(base, budget_s, compile=mode)]

    return commands


def _mode_experiment(mode: str, says: str, least: float, build_s: float) -> Experiment:
    return Experiment(
        name=f"torch.compile {mode}",
        how=f"torch.compile {mode} against eager, forward pass of the small preset with {LAYERS} "
        "layers (E4)",
        commands=_mode(mode),
        claims=(_mode_claim(mode, says, least),),
        build_s=build_s,
        needs_gpu="it replays CUDA graphs, and this runner uses the CPU",
    )


def _mode_claim(mode: str, says: str, least: float, toggle: str = "") -> Claim:
    return Claim(
        row="E4",
        name=f"torch.compile {mode}",
        says=says,
        unit="x faster than eager",
        least=least,
        read=speed_up(toggle),
    )


def _rung(toggle: str, name: str, speed: float, memory: float) -> tuple[Claim, Claim]:
    """A row of the document's table: at least this fast, at most this much memory."""
    return (
        Claim(
            row="E11",
            name=name,
            says=f"{speed:.1f}x",
            unit="x faster than the baseline",
            least=speed - 0.05,
            read=speed_up(toggle),
            needs_gpu=GPU_CLAIM if toggle == "cuda_graphs" else "",
        ),
        Claim(
            row="E11",
            name=name,
            says=f"{memory:.1f}x memory",
            unit=MEMORY,
            most=memory + 0.05,
            read=memory_share(toggle),
            needs_gpu="nothing counts the memory of one arm on the CPU",
        ),
    )


DOCUMENT = Document(
    name="moe",
    title="MoE framework: optimization guide",
    experiments=(
        Experiment(
            name="training ladder",
            how="the guide's stack, one rung after the other, on a training step (E7); its CUDA "
            "graphs are for inference only, here the whole step is captured",
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
            how="the same stack on a forward pass, where there is nothing to checkpoint",
            commands=_inference,
            build_s=INFERENCE_S,
            claims=(
                Claim(
                    row="E11",
                    name="+ torch.compile, inference",
                    says="1.5x",
                    unit="x faster than the baseline",
                    least=1.45,
                    read=speed_up("compile"),
                ),
                _mode_claim("default", "1.3-1.5x", 1.3, "compile"),
                Claim(
                    row="E11",
                    name="CUDA graphs on top of it",
                    says="2-3x faster inference (32 experts: 15 ms to 6 ms)",
                    unit="x faster than without graphs",
                    least=2.0,
                    read=step_speed_up("cuda_graphs"),
                    needs_gpu=GPU_CLAIM,
                ),
            ),
        ),
        Experiment(
            name="each alone",
            how="AMP and checkpointing, each by itself against the eager training step",
            commands=_alone,
            claims=(
                Claim(
                    row="E6",
                    name="AMP",
                    says="2-3x faster on tensor cores",
                    unit="x faster than FP32",
                    least=2.0,
                    read=speed_up(),
                    study=0,
                    needs_gpu=GPU_CLAIM,
                ),
                Claim(
                    row="E6",
                    name="AMP",
                    says="40-50 % less memory",
                    unit=MEMORY,
                    most=0.6,
                    read=memory_share(),
                    study=0,
                    needs_gpu=GPU_CLAIM,
                ),
                Claim(
                    row="E6",
                    name="checkpointing",
                    says="50-70 % less memory",
                    unit=MEMORY,
                    most=0.5,
                    read=memory_share(),
                    study=1,
                    needs_gpu=GPU_CLAIM,
                ),
                Claim(
                    row="E6",
                    name="checkpointing",
                    says="20-30 % slower",
                    unit="of the step time without",
                    most=1.3,
                    read=slow_down(),
                    study=1,
                ),
            ),
        ),
        _mode_experiment("reduce-overhead", "1.2-1.3x", 1.2, BUILD_S),
        _mode_experiment("max-autotune", "1.5-2.0x", 1.5, TUNING_S),
    ),
)
