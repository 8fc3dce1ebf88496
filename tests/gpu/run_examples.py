"""On a GPU host: what the options pay, each in one step that calls for it, for the help texts.

    python tests/gpu/run_examples.py OUT [--minutes 4] [--only hydra ...]

A group is one run: a base, and changes to it one at a time. Prints a table, with ratios of step
times and of peak memory to the base, and writes ``examples.json`` to OUT.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from run_hydra import OFF, sweep

from sessions.model import Configuration, Phase, Session
from sessions.verdicts import statistics
from workbench.client.recorder import Recorder
from workbench.runner.toggles import all_toggles

TRAIN = {"precision": "amp_bf16", "adamw": "fused", "triton": "on"}
INFER = {"precision": "bf16", "triton": "on"}
COMPILED = {"compile": "default"}
# Family, preset, workload, base, toggles of which every option is tried, and further changes.
Group = tuple[str, str, str, dict[str, str], list[str], list[dict[str, str]]]
GROUPS: list[Group] = [
    (
        "hydra", "base", "train", TRAIN,
        ["activation_offload", "allocator", "checkpointing", "fused_loss", "rope_cache", "window",
         "cuda_graphs", "ccgqa", "mixture_of_depths", "mixture_of_recursions"],
        [
            COMPILED,
            COMPILED | {"compile_scope": "blocks"},
            COMPILED | {"compile_shapes": "dynamic"},
        ],
    ),
    (
        "hydra", "base", "train", TRAIN | {"attention": "sdpa"},
        ["sdp_flash", "sdp_mem_efficient", "sdp_math", "sdp_cudnn"], [],
    ),
    ("hydra", "large", "forward", INFER, ["quantization"], []),
    (
        "adaattn", "base", "forward", INFER,
        ["adaptive_rank", "adaptive_precision", "low_rank", "kernel_low_rank",
         "triton_adaptive_attention", "triton_qk_norm_rope"], [],
    ),
    (
        "mahia", "base", "train", TRAIN,
        ["diffusion_steps", "dynamic_depth", "use_fourier", "kernel_fourier_mix",
         "triton_graph_diffusion", "triton_token_router", "triton_token_scatter"], [],
    ),
    ("moe", "base", "forward", INFER, ["in_place", "reuse_buffers", "cuda_graphs"], []),
    ("moe", "base", "decode", INFER, ["cuda_graphs"], []),
    (
        "mamba2", "96M", "train", TRAIN,
        ["attention_every", "fused_add_norm", "ssd_chunk", "triton_ssd_scan",
         "triton_causal_conv1d", "triton_gated_rms_norm"], [],
    ),
    ("mamba2", "96M", "decode", INFER, ["triton_linear", "triton_ssd_step", "cuda_graphs"], []),
]  # fmt: skip


def main() -> int:
    """Run all groups; 1 if a base could not be measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--minutes", type=float, default=4.0)
    parser.add_argument("--only", nargs="+", help="families")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + 60 * options.minutes
    results: list[dict[str, Any]] = []
    for family, preset, workload, base, toggles, further in GROUPS:
        if options.only and family not in options.only:
            continue
        start = Configuration(family=family, preset=preset, workload=workload, toggles=OFF | base)
        choices = [base, *(base | {t: o} for t in toggles for o in other_options(t, base))]
        choices += [base | change for change in further]
        recorder = Recorder(Session(title=f"{family} {preset} {workload}"))
        rows = sweep(recorder, start, choices, deadline, 60.0)
        results += [measured(recorder.session, start, base, row) for row in rows]
        compared(results[-len(rows) :])
        (options.out / "examples.json").write_text(json.dumps(results, indent=1))
    return 0 if all("ms" in row for row in results if not row["change"]) else 1


def other_options(toggle: str, base: dict[str, str]) -> list[str]:
    """Return the options of a toggle that the base has not chosen."""
    options = all_toggles()[toggle].options
    return [option for option in options if option != base.get(toggle, OFF[toggle])]


def measured(
    session: Session, start: Configuration, base: dict[str, str], row: dict[str, Any]
) -> dict[str, Any]:
    """One configuration: what was changed, its median step and peak, and what failed."""
    change = {name: option for name, option in row["toggles"].items() if base.get(name) != option}
    result = {"family": start.family, "preset": start.preset, "workload": start.workload}
    result |= {"change": change, "failures": row["failures"]}
    if "segment" in row:
        segment = session.segments[row["segment"]]
        result |= {
            "ms": float(np.median(statistics.steady_ms(segment))),
            "peak_mib": float(segment.steps["peak"][-1]) / 2**20,
            "phases": [[Phase(p.phase).name, p.stop_s - p.start_s] for p in segment.phases],
            "evidence": {e.toggle: [e.status, e.text] for e in segment.evidence},
        }
    return result


def compared(rows: list[dict[str, Any]]) -> None:
    """Print a group, in ratios to its first row."""
    first = rows[0]
    print(f"{first['family']} {first['preset']} {first['workload']}", flush=True)
    for row in rows:
        change = " ".join(f"{k}={v}" for k, v in row["change"].items()) or "base"
        if "ms" not in row or "ms" not in first:
            print(f"  {change:44} {row['failures']}")
            continue
        row["ratio"], row["memory"] = (row[key] / first[key] for key in ("ms", "peak_mib"))
        print(f"  {change:44} {row['ms']:9.3f} ms  x{row['ratio']:.3f}  peak x{row['memory']:.3f}")


if __name__ == "__main__":
    raise SystemExit(main())
