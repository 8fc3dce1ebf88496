"""On a host with two GPUs: the kinds of parallelism beside one GPU and torch's own engine.

    python tests/gpu/run_distributed.py --out FILE [--parts table plain context experts tests]

*table*: HYDRA base training, 32 x 1,024 tokens, AMP BF16: step time over that of the fastest
setting on one GPU with a 95 % interval of ``--rounds`` rounds, peak memory per rank, seconds until
the first step has ended, the largest distance of four losses from one device's, and what rank 0
does in a profiled step. The variants alternate. *plain*: ``plain/distributed.py`` under torchrun.
*context*: the same table for long sequences of HYDRA base and Mamba-2 96M, split among ranks.
*experts*: for MoE base, whose experts ranks have in parts.
*tests*: those of the ranks that need GPUs, for at most ``--test-minutes``. Prints the table and
writes everything to FILE as JSON. Ten variants of *table* took 226 s
with five rounds.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import msgspec
import torch

from sessions.model import Configuration
from sessions.verdicts import verdict
from workbench.runner.building.variant_cache import VariantCache
from workbench.runner.config.availability import require_unblocked
from workbench.runner.config.estimate import footprint
from workbench.runner.config.resolve import resolve
from workbench.runner.distributed import world
from workbench.runner.instruments.memory import free_memory
from workbench.runner.instruments.phases import PhaseTracker
from workbench.runner.variants.variant import Variant

ROOT = Path(__file__).resolve().parents[2]
WARM_UP, LOSSES, PROFILED = 3, 4, 3
AMP = {"precision": "amp_bf16", "adamw": "fused"}
AMP |= {"triton": "on"} if torch.cuda.is_available() else {}
COMPILED = {**AMP, "compile": "default", "compile_scope": "blocks"}
WHOLE = {**AMP, "compile": "default", "triton": "off"}
BLOCKS = {**WHOLE, "compile_scope": "blocks"}
CAPTURED = {"cuda_graphs": "on"} if torch.cuda.is_available() else {}
GRAPHS = {**WHOLE, **CAPTURED}
DATA = {"data_parallel": "2"}
SEQUENCE = {"tensor_parallel": "2", "sequence_parallel": "on"}
INTERLEAVED = {"pipeline_parallel": "2", "schedule": "interleaved"}
ZERO_BUBBLE = {"pipeline_parallel": "2", "schedule": "zero_bubble"}
VARIANTS = {
    "one GPU": AMP,
    "one GPU, compiled": COMPILED,
    "one GPU, best": GRAPHS,
    "data": {**AMP, **DATA},
    "data, compiled": {**COMPILED, **DATA},
    "data, compiled whole": {**WHOLE, **DATA},
    "data, compiled whole, BF16 sent": {**WHOLE, **DATA, "gradient_compression": "bf16"},
    "FSDP": {**AMP, **DATA, "sharding": "full"},
    "FSDP, compiled": {**COMPILED, **DATA, "sharding": "full"},
    "FSDP, no Triton": {**BLOCKS, **DATA, "sharding": "full"},
    "FSDP, fused loss": {**BLOCKS, **DATA, "sharding": "full", "fused_loss": "triton"},
    "tensor + sequence": {**AMP, **SEQUENCE},
    "tensor + sequence, compiled": {**COMPILED, **SEQUENCE},
    "tensor + sequence, compiled whole": {**WHOLE, **SEQUENCE},
    "pipeline": {**AMP, "pipeline_parallel": "2", "micro_batches": "8"},
    "pipeline, 4": {**AMP, "pipeline_parallel": "2", "micro_batches": "4"},
    "pipeline, 4, compiled": {**COMPILED, "pipeline_parallel": "2", "micro_batches": "4"},
    "pipeline, 4, compiled whole": {**WHOLE, "pipeline_parallel": "2", "micro_batches": "4"},
    "pipeline, 8, compiled whole": {**WHOLE, "pipeline_parallel": "2", "micro_batches": "8"},
    "interleaved": {**AMP, **INTERLEAVED, "micro_batches": "8"},
    "interleaved, 4": {**AMP, **INTERLEAVED, "micro_batches": "4"},
    "interleaved, 4, compiled whole": {**WHOLE, **INTERLEAVED, "micro_batches": "4"},
    "zero bubble, 4": {**AMP, **ZERO_BUBBLE, "micro_batches": "4"},
    "data, graphs": {**GRAPHS, **DATA},
    "FSDP, graphs": {**GRAPHS, **DATA, "sharding": "full", "compile_scope": "blocks"},
    "tensor + sequence, graphs": {**GRAPHS, **SEQUENCE},
    "pipeline, 4, graphs": {**GRAPHS, "pipeline_parallel": "2", "micro_batches": "4"},
    "pipeline, 8, graphs": {**GRAPHS, "pipeline_parallel": "2", "micro_batches": "8"},
    "interleaved, 4, graphs": {**GRAPHS, **INTERLEAVED, "micro_batches": "4"},
    "interleaved, 8, graphs": {**GRAPHS, **INTERLEAVED, "micro_batches": "8"},
    "zero bubble, 4, graphs": {**AMP, **CAPTURED, **ZERO_BUBBLE, "micro_batches": "4"},
}
REFERENCE = "one GPU"
CONTEXT, EXPERTS = {"context_parallel": "2"}, {"expert_parallel": "2"}
LONG_VARIANTS = {
    "one GPU": AMP,
    "one GPU, compiled": COMPILED,
    "one GPU, best": GRAPHS,
    "context": {**AMP, **CONTEXT},
    "context, compiled": {**COMPILED, **CONTEXT},
    "context, compiled whole": {**WHOLE, **CONTEXT},
    "context, checkpoints": {**AMP, **CONTEXT, "checkpointing": "full"},
    "context, graphs": {**GRAPHS, **CONTEXT},
}
EXPERT_VARIANTS = {
    "one GPU": AMP,
    "one GPU, compiled": COMPILED,
    "data": {**AMP, **DATA},
    "experts": {**AMP, **EXPERTS},
    "context": {**AMP, **CONTEXT},
}
Row = dict[str, Any]


def main() -> int:
    """Run the parts that were requested; 1 if one of them failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--parts", nargs="+", default=["table", "plain", "tests"])
    parser.add_argument("--variants", nargs="+", default=[], help="default: all of each part")
    parser.add_argument("--preset", default="base")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--sequence", type=int, default=1024)
    parser.add_argument("--long-batch", type=int, default=4, help="of context")
    parser.add_argument("--families", nargs="+", default=["hydra", "mamba2"], help="of context")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=8, help="of a timed block")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--test-minutes", type=float, default=1.7)
    options = parser.parse_args()
    result: dict[str, Any] = {"torch": torch.__version__}
    if torch.cuda.is_available():
        result["gpu"] = torch.cuda.get_device_name()
    parts = {
        "table": measure_table,
        "plain": measure_plain,
        "context": measure_context,
        "experts": measure_experts,
        "tests": run_tests,
    }
    failed = False
    for name in options.parts:
        began = time.monotonic()
        try:
            result[name] = parts[name](options)
        except Exception as error:  # noqa: BLE001 - the other variants are still measured
            traceback.print_exc()
            result[name] = {"error": f"{type(error).__name__}: {error}"}
        failed |= "error" in result[name]
        print(f"{name}: {time.monotonic() - began:.0f} s", flush=True)
        options.out.write_text(json.dumps(result, indent=1))
    return int(failed)


def measure_table(options: argparse.Namespace) -> dict[str, Any]:
    """Measure the variants of HYDRA that were requested."""
    settings = {"batch": options.batch, "sequence": options.sequence}
    return measure("hydra", options.preset, settings, chosen(VARIANTS, options), options)


def measure_context(options: argparse.Namespace) -> dict[str, Any]:
    """Measure split sequences: of attention alone, and of state-space mixers."""
    settings = {"batch": options.long_batch, "sequence": 8 * options.sequence}
    model = {"max_sequence": settings["sequence"]}
    presets = {"hydra": options.preset, "mamba2": "96M"}
    return {
        f"{family} {presets[family]}": measure(
            family, presets[family], settings, chosen(LONG_VARIANTS, options), options, model
        )
        for family in options.families
    }


def measure_experts(options: argparse.Namespace) -> dict[str, Any]:
    """Measure experts of which each rank has a part."""
    settings = {"batch": options.batch, "sequence": options.sequence}
    return measure("moe", options.preset, settings, chosen(EXPERT_VARIANTS, options), options)


def chosen(
    variants: dict[str, dict[str, str]], options: argparse.Namespace
) -> dict[str, dict[str, str]]:
    """Return the variants that were requested, on as many ranks."""
    return {
        name: {
            toggle: str(options.ranks) if toggle.endswith("_parallel") and option == "2" else option
            for toggle, option in variant.items()
        }
        for name, variant in variants.items()
        if name in options.variants or not options.variants
    }


def measure(
    family: str,
    preset: str,
    settings: dict[str, int | str],
    variants: dict[str, dict[str, str]],
    options: argparse.Namespace,
    model: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Measure every variant in turns, from the same weights."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu", 0)
    device = torch.device("cpu") if device.type == "cpu" else device
    base = Configuration(
        family=family, preset=preset, workload="train", settings=settings, model=model or {}
    )
    print(f"{family} {preset}, {settings['batch']} x {settings['sequence']} tokens")
    arms, built, rows = VariantCache(), dict[str, Variant](), dict[str, Row]()
    start: State | None = None
    for name in variants:
        row = rows[name] = {}
        try:
            began = time.perf_counter()
            configuration = msgspec.structs.replace(base, toggles=variants[name])
            situation = resolve(configuration, device)
            require_unblocked(situation)
            arm = arms.get(situation, PhaseTracker(lambda phase: None))
            if start is None:
                start = State(arm)
            with arm.entered():  # a capture takes several steps before the first
                arm.batches.advance()
                float(arm.step())
            row["ready_s"] = time.perf_counter() - began
            start.restore(arm)
            with arm.entered():
                arm.batches.rewind()
                losses = []
                for _ in range(LOSSES):
                    arm.batches.advance()
                    losses.append(float(arm.step()))
            row["losses"] = losses
            estimate = footprint(situation)
            row["estimate_bytes"] = None if estimate is None else estimate.total
            built[name] = arm
            print(f"{name}: ready in {row['ready_s']:.1f} s", flush=True)
        except Exception as error:  # noqa: BLE001 - the other variants are still measured
            traceback.print_exc()
            row["error"] = f"{type(error).__name__}: {error}"
    rounds: list[dict[str, float]] = []
    for _ in range(options.rounds):
        rounds.append({})
        for name in random.sample(list(built), len(built)):
            try:
                rounds[-1][name] = time_block(built[name], arms, rows[name], device, options.steps)
            except Exception as error:  # noqa: BLE001 - the other variants are still measured
                del built[name]
                rows[name]["error"] = f"{type(error).__name__}: {error}"
        print({name: round(ms, 2) for name, ms in rounds[-1].items()}, flush=True)
    compare(rows, rounds)
    for name, arm in built.items():
        rows[name]["lanes"] = lanes_of(arm)
    print_table(rows)
    world.close()
    arms.forget_all()
    free_memory()
    return rows


def compare(rows: dict[str, Row], rounds: list[dict[str, float]]) -> None:
    """Add times, and their ratios to the fastest variant on one GPU in the same round."""
    times = {name: [r[name] for r in rounds] for name in rows if all(name in r for r in rounds)}
    medians = {name: statistics.median(ms) for name, ms in times.items()}
    on_one = [name for name in times if "GPU" in name]
    best = min(on_one, key=lambda name: medians[name], default="")
    losses = rows[REFERENCE].get("losses") if REFERENCE in rows else None
    for name, row in rows.items():
        if name in times:
            row["ms"], row["best"], row["ratio"] = medians[name], best, [math.nan] * 3
        if name in times and best:
            logs = [math.log(a / b) for a, b in zip(times[name], times[best], strict=True)]
            span = verdict.interval(logs)
            row["ratio"] = [math.exp(log) for log in (span.mean, span.low, span.high)]
        if losses and "losses" in row:
            pairs = zip(row["losses"], losses, strict=True)
            row["loss_distance"] = max(abs(a - b) for a, b in pairs)


def lanes_of(arm: Variant) -> list[dict[str, float]]:
    """Return milliseconds that each rank computes, waits and is idle in a profiled step."""
    if arm.divided is None:
        return []

    def step() -> None:
        arm.batches.advance()
        arm.step()

    with arm.entered():
        lanes = [rank.lane for rank in arm.divided.record_lanes(step, PROFILED)]
    return [
        {"step": a.step_ms, "computing": a.computing_ms, "waiting": a.waiting_ms, "idle": a.idle_ms}
        for a in lanes
    ]


class State:
    """Copies of an arm's full weights, moments and step counts."""

    def __init__(self, arm: Variant) -> None:
        self._kept = [tensor.detach().clone() for tensor in self._tensors(arm)]

    def restore(self, arm: Variant) -> None:
        """Put them back."""
        with torch.no_grad():
            for tensor, before in zip(self._tensors(arm), self._kept, strict=True):
                tensor.copy_(before)

    @staticmethod
    def _tensors(arm: Variant) -> list[torch.Tensor]:
        assert arm.full_trainer is not None
        parameters = list(arm.plain_weights().values())
        state = arm.full_trainer.optimizer.state
        return [*parameters, *(v for p in parameters for _, v in sorted(state[p].items()))]


def time_block(
    arm: Variant, arms: VariantCache, row: Row, device: torch.device, n_steps: int
) -> float:
    """Return milliseconds of a step in a block of them, after some that are not timed."""
    with arm.entered():
        if arm.divided is not None:
            row["moved_bytes"] = arm.divided.moved_bytes
        for _ in range(min(WARM_UP, n_steps)):
            arm.batches.advance()
            arm.step()
        if device.type == "cuda":
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        began = time.perf_counter()
        for _ in range(n_steps):
            arm.batches.advance()
            arm.step()
        if device.type == "cuda":
            torch.cuda.synchronize()
            peak = torch.cuda.max_memory_allocated() - arms.others_bytes(arm)
            row["peaks"] = [peak]
        ms = 1e3 * (time.perf_counter() - began) / n_steps
    if arm.divided is not None:
        row["peaks"] = arm.divided.peaks
        row["differing"] = arm.divided.n_differing
    return ms


def print_table(rows: dict[str, Row]) -> None:
    """Print one line per variant."""
    print(
        f"{'':32}{'ms':>8}{'ratio':>7}{'95 %':>16}  {'peak MiB':18}{'estimate':>9}{'ready s':>9}"
        "  losses off  rank 0: computing, waiting, idle ms"
    )
    for name, row in rows.items():
        if "ms" not in row:
            print(f"{name:32}{row.get('error', 'no time')}")
            continue
        peaks = ", ".join(f"{peak / 2**20:,.0f}" for peak in row.get("peaks", []))
        ratio, low, high = row["ratio"]
        lane = row["lanes"][0] if row.get("lanes") else {}
        parts = ", ".join(f"{lane[part]:.1f}" for part in ("computing", "waiting", "idle") if lane)
        print(
            f"{name:32}{row['ms']:8.2f}{ratio:7.3f}{f'{low:.3f} to {high:.3f}':>16}  {peaks:18}"
            f"{(row['estimate_bytes'] or 0) / 2**20:9,.0f}{row['ready_s']:9.1f}  "
            f"{row.get('loss_distance', float('nan')):.2g}  {parts}"
            + (f"  {row['differing']} parameters differ" if row.get("differing") else "")
        )


def measure_plain(options: argparse.Namespace) -> dict[str, Any]:
    """Run the plain model under torchrun."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "plain.json"
        script = Path(__file__).parent / "plain" / "distributed.py"
        command = ["-m", "torch.distributed.run", "--nproc-per-node", "2", str(script), str(out)]
        subprocess.run([sys.executable, *command], check=True, timeout=150)
        rows: dict[str, Any] = json.loads(out.read_text())
    for name, row in rows.items():
        ratio = row["ms"] / rows["one_gpu"]["ms"]
        mib, ready_s = row["peak_bytes"] / 2**20, row["ready_s"]
        print(
            f"plain {name:16}{row['ms']:8.2f}{ratio:7.3f}  {mib:,.0f} MiB, ready in {ready_s:.1f} s"
        )
    return rows


def run_tests(options: argparse.Namespace) -> dict[str, Any]:
    """Run the ranks' tests that need GPUs, as many as the time allows."""
    folder = ROOT / "tests" / "workbench" / "runner" / "distributed"
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-n",
        "0",
        "-m",
        "gpu",
        "-v",
        "--no-header",
        str(folder),
    ]
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        output, _ = process.communicate(timeout=60 * options.test_minutes)
    except subprocess.TimeoutExpired:
        process.terminate()
        output, _ = process.communicate()
    lines = output.splitlines()
    counts = {word: sum(f" {word}" in line for line in lines) for word in ("PASSED", "FAILED")}
    failed = [line for line in lines if " FAILED" in line or line.startswith("E  ")]
    print(counts, *failed[:40], sep="\n")
    return {**counts, "failed": failed, "tail": lines[-60:]}


if __name__ == "__main__":
    raise SystemExit(main())
