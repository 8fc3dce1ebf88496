"""On a GPU host: every family through the real runner, forward, training and decode, in BF16.

    python tests/gpu/run_families.py OUT [--only mamba2:2.8B hydra ...] [--workloads decode ...]
                                         [--cuda-graphs off on] [--seconds 3]

Each row is a run of its own with all Triton kernels on: median step, tokens a second, peak memory
of the steady steps against the estimate, and the share of this GPU's matrix rate that the model's
own FLOPs make. Decoding comes plain and captured in a CUDA graph. Prints a table and writes
``families.json`` to OUT, where the rows of an earlier call stay unless they are measured again.
What does not fit or fails is a row too.
"""

from __future__ import annotations

import argparse
import json
import statistics as stats
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from kernels.measure.timing import ceilings
from models import FAMILIES
from models.family import WORKLOADS
from sessions.model import Configuration
from sessions.verdicts import statistics
from workbench import protocol
from workbench.client import headless
from workbench.runner.config import resolve
from workbench.runner.config.estimate import footprint

ROWS = (
    ("hydra", "base"),
    ("hydra", "large"),
    ("hydra", "published"),
    ("mamba2", "96M"),
    ("mamba2", "2.8B"),
    ("adaattn", "base"),
    ("adaattn", "large"),
    ("mahia", "base"),
    ("moe", "base"),
    ("moe", "large"),
)
GRAPHS = ("off", "on")
TOGGLES = {"precision": "bf16", "triton": "on"}
LONGER = {("adaattn", "large", "train"): 4.0}  # times as long: its first steps are no steady ones


def main() -> int:
    """Run every row; 1 if none could be measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument(
        "--workloads", nargs="+", choices=WORKLOADS, default=["forward", "train", "decode"]
    )
    parser.add_argument("--only", nargs="+", metavar="FAMILY[:PRESET]")
    parser.add_argument(
        "--cuda-graphs",
        nargs="+",
        choices=("off", "on"),
        help="for every workload; default: off, and for decoding both",
    )
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    rate = ceilings().flops_per_s
    print(f"matrix rate of this run: {rate / 1e12:.0f} TFLOP/s", flush=True)
    path = options.out / "families.json"
    rows = json.loads(path.read_text()) if path.exists() else []
    for family, preset in ROWS:
        if options.only and not {family, f"{family}:{preset}"} & {*options.only}:
            continue
        for workload in options.workloads:
            if workload not in FAMILIES[family].workloads:
                continue
            for graphs in options.cuda_graphs or (GRAPHS if workload == "decode" else GRAPHS[:1]):
                row = measure(family, preset, workload, graphs, options.seconds, rate)
                rows = [old for old in rows if named(old) != named(row)] + [row]
                print(shown(row), flush=True)
                path.write_text(json.dumps(rows, indent=1))
    return 0 if any("median_ms" in row for row in rows) else 1


def named(row: dict[str, Any]) -> tuple[str, ...]:
    """Return what identifies a row."""
    return row["family"], row["preset"], row["workload"], row.get("cuda_graphs", "off")


def measure(
    family: str, preset: str, workload: str, graphs: str, seconds: float, rate: float
) -> dict[str, Any]:
    """One run of its own; in it the weights are the only ones."""
    toggles = TOGGLES | ({"adamw": "fused"} if workload == "train" else {})
    toggles |= {"cuda_graphs": graphs}
    seconds *= LONGER.get((family, preset, workload), 1.0)
    requested = Configuration(family=family, preset=preset, workload=workload, toggles=toggles)
    outcome = headless.run(lambda _: protocol.Start(configuration=requested, seconds=seconds))
    outcome.journal.unlink(missing_ok=True)
    row: dict[str, Any] = {"family": family, "preset": preset, "workload": workload}
    row["cuda_graphs"] = graphs
    row["failures"] = [failure.sentence for failure in outcome.failures]
    if not outcome.session.segments:
        return row
    segment = outcome.session.segments[-1]
    times = statistics.steady_ms(segment)
    if not len(times):
        row["failures"].append(f"no steady step in {seconds:g} s: give it more --seconds")
        return row
    known, config = FAMILIES[family], FAMILIES[family].presets[preset]
    settings = {name: int(value) for name, value in segment.configuration.settings.items()}
    batch, sequence = settings["batch"], settings["sequence"]
    median_ms = float(stats.median(times.tolist()))
    if workload == "decode":
        flops = known.flops(config, batch, 1, context=sequence)
    else:
        flops = known.flops(config, batch, sequence, training=workload == "train")
    estimate = footprint(resolve.resolve(requested, torch.device("cuda")))
    assert estimate is not None
    return row | {
        "settings": settings,
        "parameters": known.parameter_count(config),
        "steps": len(times),
        "median_ms": median_ms,
        "tokens_per_s": 1e3 * float(segment.ledger["tokens_per_step"]) / median_ms,
        # Building may need more for a while; the estimate is of what the steps need.
        "peak_bytes": float(max(segment.steps["peak"][statistics.steady(segment)])),
        "whole_peak_bytes": float(max(segment.steps["peak"])),
        "estimated_bytes": estimate.total,
        "flops_share": flops / (1e-3 * median_ms) / rate,
        "evidence": [[e.toggle, e.requested, e.status, e.text] for e in segment.evidence],
        "metrics": {
            name: torch.tensor(series.table["values"][-1]).flatten()[:8].tolist()
            for name, series in segment.metrics.items()
        },
    }


def shown(row: dict[str, Any]) -> str:
    """One line for a person."""
    captured = "captured" if row["cuda_graphs"] == "on" else ""
    head = f"{row['family']:8}{row['preset']:10}{row['workload']:8}{captured:9}"
    if "median_ms" not in row:
        return f"{head}{row['failures']}"
    odd = [e[:3] for e in row["evidence"] if e[2] != "effective"]
    return (
        f"{head}{row['parameters'] / 1e6:8.0f} M {row['settings']} {row['median_ms']:9.3f} ms "
        f"{row['tokens_per_s']:12,.0f} tok/s peak {row['peak_bytes'] / 2**20:8.0f} MiB "
        f"(estimate {row['estimated_bytes'] / 2**20:8.0f}) "
        f"{100 * row['flops_share']:5.1f} % of the matrix rate {odd or ''}"
    )


if __name__ == "__main__":
    raise SystemExit(main())
