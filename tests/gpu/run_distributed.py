"""On a host with two GPUs: the kinds of parallelism beside one GPU and torch's own engine.

    python tests/gpu/run_distributed.py --out FILE [--parts table plain context experts tests]

*table*: HYDRA base training, 32 x 1,024 tokens, AMP BF16: step time against the fastest setting on
one GPU, peak memory per rank, seconds until the first step has ended, and the largest distance of
four losses from one device's. The variants alternate. *plain*: ``plain_distributed.py`` under
torchrun.
*context*: the same table for long sequences of HYDRA base and Mamba-2 96M, split among ranks.
*experts*: for MoE base, whose experts ranks have in parts.
*tests*: those of the ranks that need GPUs, for at most ``--test-minutes``. Prints the table and
writes everything to FILE as JSON. *table* and *tests* take about four minutes, *context* and
*experts* about four more.
"""

from __future__ import annotations

import argparse
import contextlib
import json
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
from workbench.runner.building.variant_cache import VariantCache
from workbench.runner.config.availability import require_unblocked
from workbench.runner.config.estimate import footprint
from workbench.runner.config.resolve import resolve
from workbench.runner.distributed import world
from workbench.runner.instruments.memory import free_memory
from workbench.runner.instruments.phases import PhaseTracker
from workbench.runner.variants.variant import Variant

ROOT = Path(__file__).resolve().parents[2]
ROUNDS, STEPS, WARM_UP, LOSSES = 3, 8, 3, 4
AMP = {"precision": "amp_bf16", "adamw": "fused"}
AMP |= {"triton": "on"} if torch.cuda.is_available() else {}
COMPILED = {**AMP, "compile": "default", "compile_scope": "blocks"}
WHOLE = {**AMP, "compile": "default", "triton": "off"}
GRAPHS = {**WHOLE, "cuda_graphs": "on"} if torch.cuda.is_available() else WHOLE
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
    "tensor + sequence": {**AMP, **SEQUENCE},
    "tensor + sequence, compiled": {**COMPILED, **SEQUENCE},
    "tensor + sequence, compiled whole": {**WHOLE, **SEQUENCE},
    "pipeline": {**AMP, "pipeline_parallel": "2", "micro_batches": "8"},
    "pipeline, 4": {**AMP, "pipeline_parallel": "2", "micro_batches": "4"},
    "pipeline, 4, compiled": {**COMPILED, "pipeline_parallel": "2", "micro_batches": "4"},
    "pipeline, 4, compiled whole": {**WHOLE, "pipeline_parallel": "2", "micro_batches": "4"},
    "interleaved": {**AMP, **INTERLEAVED, "micro_batches": "8"},
    "interleaved, 4": {**AMP, **INTERLEAVED, "micro_batches": "4"},
    "zero bubble, 4": {**AMP, **ZERO_BUBBLE, "micro_batches": "4"},
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
    return measure("hydra", options.preset, settings, chosen(VARIANTS, options))


def measure_context(options: argparse.Namespace) -> dict[str, Any]:
    """Measure split sequences: of attention alone, and of state-space mixers."""
    settings = {"batch": 4, "sequence": 8 * options.sequence}
    model = {"max_sequence": settings["sequence"]}
    return {
        f"{family} {preset}": measure(
            family, preset, settings, chosen(LONG_VARIANTS, options), model
        )
        for family, preset in (("hydra", options.preset), ("mamba2", "96M"))
    }


def measure_experts(options: argparse.Namespace) -> dict[str, Any]:
    """Measure experts of which each rank has a part."""
    settings = {"batch": options.batch, "sequence": options.sequence}
    return measure("moe", options.preset, settings, chosen(EXPERT_VARIANTS, options))


def chosen(
    variants: dict[str, dict[str, str]], options: argparse.Namespace
) -> dict[str, dict[str, str]]:
    """Return the variants that were requested."""
    return {n: v for n, v in variants.items() if n in options.variants or not options.variants}


def measure(
    family: str,
    preset: str,
    settings: dict[str, int | str],
    variants: dict[str, dict[str, str]],
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
    times: dict[str, list[float]] = {name: [] for name in built}
    for _ in range(ROUNDS):
        for name in random.sample(list(built), len(built)):
            with contextlib.suppress(Exception):
                times[name].append(time_block(built[name], arms, rows[name], device))
                print(f"{name}: {times[name][-1]:.2f} ms", flush=True)
    reference = rows.get(REFERENCE, {}).get("losses")
    best = min((statistics.median(t) for n, t in times.items() if "GPU" in n and t), default=0.0)
    for name, row in rows.items():
        if times.get(name):
            row["ms"] = statistics.median(times[name])
            row["ratio"] = row["ms"] / best if best else None
        if reference and "losses" in row:
            pairs = zip(row["losses"], reference, strict=True)
            row["loss_distance"] = max(abs(a - b) for a, b in pairs)
    print_table(rows)
    world.close()
    arms.forget_all()
    free_memory()
    return rows


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
        assert arm.keeper is not None
        parameters = list(arm.plain_weights().values())
        state = arm.keeper.optimizer.state
        return [*parameters, *(v for p in parameters for _, v in sorted(state[p].items()))]


def time_block(arm: Variant, arms: VariantCache, row: Row, device: torch.device) -> float:
    """Return milliseconds of a step in a block of them, after some that are not timed."""
    with arm.entered():
        if arm.divided is not None:
            row["moved_bytes"] = arm.divided.moved_bytes
        for _ in range(WARM_UP):
            arm.batches.advance()
            arm.step()
        if device.type == "cuda":
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        began = time.perf_counter()
        for _ in range(STEPS):
            arm.batches.advance()
            arm.step()
        if device.type == "cuda":
            torch.cuda.synchronize()
            peak = torch.cuda.max_memory_allocated() - arms.others_bytes(arm)
            row["peaks"] = [peak]
        ms = 1e3 * (time.perf_counter() - began) / STEPS
    if arm.divided is not None:
        row["peaks"] = [*row.get("peaks", []), *arm.divided.peaks[1:]]
        row["differing"] = arm.divided.differing
    return ms


def print_table(rows: dict[str, Row]) -> None:
    """Print one line per variant."""
    print(f"{'':22}{'ms':>8}{'ratio':>7}  {'peak MiB':18}{'estimate':>9}{'ready s':>9}  losses off")
    for name, row in rows.items():
        if "ms" not in row:
            print(f"{name:22}{row.get('error', 'no time')}")
            continue
        peaks = ", ".join(f"{peak / 2**20:,.0f}" for peak in row.get("peaks", []))
        print(
            f"{name:22}{row['ms']:8.2f}{row['ratio'] or 0:7.3f}  {peaks:18}"
            f"{(row['estimate_bytes'] or 0) / 2**20:9,.0f}{row['ready_s']:9.1f}  "
            f"{row.get('loss_distance', float('nan')):.2g}"
            + (f"  {row['differing']} parameters differ" if row.get("differing") else "")
        )


def measure_plain(options: argparse.Namespace) -> dict[str, Any]:
    """Run the plain model under torchrun."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "plain.json"
        script = Path(__file__).with_name("plain_distributed.py")
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
