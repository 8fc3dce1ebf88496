"""On a GPU host: every operator at the shapes of public models, beside all peers.

    python tests/gpu/run_model_shapes.py --budget 130 --out shapes.json [--models NAME ...]
        [--operators rms_norm ...] [--tokens 1 2K 8K ...] [--jobs 8] [--parts gaps shapes ...]

Parts: ``gaps`` (shapes at which ours were known to be slower), ``shapes`` (all others, 8K tokens
first), ``memory`` (of the fused loss) and ``host`` (Python around the launches). Every result is
first compared with the reference in FP64; a wrong one is not timed. ``--jobs`` processes compile
first, for at most 40 % of the budget; what the budget does not reach is listed. A ratio is time of
ours over that of the best public implementation, in interleaved rounds with cold caches, with a
95 % interval; ``auto`` is the ratio of what ``auto`` chooses. Prints a Markdown table and writes
everything after each case. ``--device cpu`` only tries the script out.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import gc
import json
import math
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

import kernels
from kernels import OPS, Case
from kernels.core.check import as_tuple
from kernels.core.implementation_timing import measure
from kernels.measure.bench import COMPILED, Row, bench, leaves_of
from kernels.measure.host_cost import host_costs
from kernels.measure.model_shapes import ShapeCase, shape_cases
from kernels.measure.peers import PACKAGES, peers
from kernels.measure.rounds import Timings
from kernels.measure.timing import ceilings, gpu_us
from sessions.verdicts import verdict
from sessions.verdicts.rounds import paired_logs

PARTS = ("gaps", "shapes", "memory", "host")
ORDER = ("8K", "64x128", "64x197", "2K", "16", "1", "256", "16K", "256x128", "256x197", "64K")
HOST_US = 15.0  # of Python around the launches of a call, above which an operator is listed
NEVER = ("flex", "xformers", "sdpa", "sdpa_efficient", "padded")
COMPILING = 0.4  # of the budget
FEWEST_ROUNDS = 6  # an interval of fewer is too wide to decide


def _gap(op: str, name: str, **sizes: Any) -> ShapeCase:
    return ShapeCase(op, Case(name, sizes), ("known gap",), "gap")


def _heads(batch: int, length: int, heads: int, kv_heads: int, dim: int) -> dict[str, int]:
    return {
        "batch": batch, "length": length, "heads": heads, "kv_heads": kv_heads, "dim": dim,
    }  # fmt: skip


def _attention(name: str, *size: int, causal: bool = True) -> ShapeCase:
    return _gap(
        "attention", name, **_heads(*size), keys=size[1], causal=causal, window=None
    )  # fmt: skip


GAPS = [
    _gap(
        "moe_experts", "8192 D4096 F14336 E8 k2",
        rows=8192, dim=4096, width=14336, experts=8, k=2, packed=True,
    ),
    _gap("moe_gating", "8192 D4096 E256 k8", rows=8192, dim=4096, experts=256, k=8),
    _gap("linear_cross_entropy", "8192 D4096 V128256", rows=8192, dim=4096, words=128256),
    _gap("rms_norm", "2048 D4096", rows=2048, dim=4096),
    _gap("rope", "B1 S32768 H64 G8 D128", **_heads(1, 32768, 64, 8, 128)),
    _attention("B8 S1024 H8 D64 no mask", 8, 1024, 8, 8, 64, causal=False),
    _attention("B4 S4096 H12 D64", 4, 4096, 12, 12, 64),
    _attention("B2 S8192 H32 G8 D128", 2, 8192, 32, 8, 128),
]  # fmt: skip


def is_ours(impl: str) -> bool:
    """Return True for kernels of this project."""
    return impl.startswith("triton")


def main() -> int:
    """Run the parts; return 1 if nothing was timed."""
    options = parsed()
    began = time.monotonic()
    deadline = began + options.budget
    todo = subjects(options)
    if options.warm is not None:
        first, step = map(int, options.warm.split("/"))
        for subject in todo[first : options.cases : step]:
            warm(subject, torch.device(options.device))
        return 0
    if options.device == "cuda" and options.jobs:
        compile_first(options, began + COMPILING * options.budget)
    device = torch.device(options.device)
    report: dict[str, Any] = {"facts": facts(options.device), "rows": [], "not_reached": []}
    print(json.dumps(report["facts"]), flush=True)
    kernels.core.tuning._set("off")  # the heuristics' tiles, whatever is stored here
    extras = [part for part in EXTRAS if part in options.parts and options.device == "cuda"]
    for subject in todo:
        if subject.tokens != "gap":
            while extras and extras[0] != "host":
                extra(extras.pop(0), report, options)
        if time.monotonic() > deadline - 3:
            report["not_reached"].append(f"{subject.op} {subject.case.name} {subject.tokens}")
            continue
        for entry in measured_case(subject, device, options, deadline):
            report["rows"].append(entry)
            print(line(entry), flush=True)
        write(options.out, report)
    for part in extras:
        if time.monotonic() < deadline:
            extra(part, report, options)
    print(f"\n{table(report)}\n\n{summary(report)}")
    print(f"took {time.monotonic() - began:.0f} s", flush=True)
    return 0 if report["rows"] else 1


def extra(part: str, report: dict[str, Any], options: argparse.Namespace) -> None:
    """Run a part that is no case, and report it."""
    try:
        report[part] = EXTRAS[part](torch.device(options.device))
    except Exception:  # noqa: BLE001  the other parts are still to be reported
        report[part] = traceback.format_exc(limit=-4)
    print(part, json.dumps(report[part], indent=1), flush=True)
    gc.collect()
    torch.cuda.empty_cache()
    write(options.out, report)


def parsed() -> argparse.Namespace:
    """Return the arguments."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budget", type=float, default=130.0, help="seconds of cases in all")
    parser.add_argument("--out", type=Path, default=Path("shapes.json"))
    parser.add_argument("--models", nargs="*", default=[])
    parser.add_argument("--operators", nargs="*", default=[])
    parser.add_argument("--tokens", nargs="*", default=[])
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--seconds", type=float, default=0.2, help="of timing one pass")
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--cases", type=int, default=48, help="that are compiled first")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float16", "float32"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--warm", help=argparse.SUPPRESS)
    return parser.parse_args()


def subjects(options: argparse.Namespace) -> list[ShapeCase]:
    """Return the cases in the order of interest: of all operators one, then another."""
    chosen = [
        gap
        for gap in GAPS
        if "gaps" in options.parts and (not options.operators or gap.op in options.operators)
    ]
    if "shapes" in options.parts:
        cases = shape_cases(options.models, options.operators, options.tokens)
        turn: dict[tuple[str, str], int] = {}

        def rank(subject: ShapeCase) -> tuple[int, int]:
            key = (subject.op, subject.tokens)
            turn[key] = turn.get(key, 0) + 1
            return ORDER.index(subject.tokens) + 2 * turn[key], turn[key]

        chosen += sorted(cases, key=rank)
    return chosen


def inputs_of(subject: ShapeCase, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    """Return random inputs."""
    return OPS[subject.op].inputs(subject.case, device, dtype, 0)


def warm(subject: ShapeCase, device: torch.device) -> None:
    """Compile what the case runs; other processes then read it from disk."""
    op = OPS[subject.op]
    with contextlib.suppress(Exception):
        inputs = inputs_of(subject, device, torch.bfloat16)
        calls = [i for n, i in op.implementations.items() if is_ours(n)]
        calls += peers(op.name).values()
        if op.large_reference is None:
            calls.append(torch.compile(op.plain or op.reference, fullgraph=True, dynamic=False))
        for call in calls:
            with contextlib.suppress(Exception):
                run_once(op, call, inputs, trains=not subject.case.forward_only)
    torch._dynamo.reset()
    gc.collect()
    torch.cuda.empty_cache()


def run_once(op: kernels.Operator, call: Any, inputs: dict[str, Any], trains: bool) -> None:
    """Run one forward pass, and one backward pass if there is one."""
    with torch.no_grad():
        call(*inputs.values())
    leaves = leaves_of(op, inputs)
    wanted = [x for x in leaves.values() if isinstance(x, torch.Tensor) and x.requires_grad]
    if trains and wanted:
        live = [y for y in as_tuple(call(*leaves.values())) if y.requires_grad]
        torch.autograd.grad(live, wanted, [torch.randn_like(y) for y in live])


def compile_first(options: argparse.Namespace, until: float) -> None:
    """Let several processes compile the first cases; end those that are late."""
    began = time.monotonic()
    arguments = [sys.executable, __file__, "--parts", *options.parts, "--device", options.device]
    arguments += ["--cases", str(options.cases)]
    for name in ("models", "operators", "tokens"):
        if getattr(options, name):
            arguments += [f"--{name}", *getattr(options, name)]
    processes = [
        subprocess.Popen([*arguments, "--warm", f"{number}/{options.jobs}"])
        for number in range(options.jobs)
    ]
    for process in processes:
        try:
            process.wait(timeout=max(0.1, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    print(f"compiled for {time.monotonic() - began:.0f} s", flush=True)


def measured_case(
    subject: ShapeCase, device: torch.device, options: argparse.Namespace, deadline: float
) -> list[dict[str, Any]]:
    """Return one entry for each direction of a case."""
    op, dtype = OPS[subject.op], getattr(torch, options.dtype)
    rows: dict[int, Row] = {}
    problem = ""
    choice: dict[str, Any] = {}
    try:
        for row in bench(
            op, device, dtype, cases=[subject.case], deadline=deadline, only=contenders(op),
            forward_only=subject.case.forward_only, enough=partial(is_enough, options.seconds),
            profiled=False,
        ):  # fmt: skip
            rows[id(row)] = row
        if device.type == "cuda" and subject.tokens == "gap":
            choice |= chosen(op, subject, device, dtype)
    except Exception:  # noqa: BLE001  the other cases are still to be timed
        problem = traceback.format_exc(limit=-3)
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    directions = dict.fromkeys(row.direction for row in rows.values()) or {"forward": None}
    return [
        entry(subject, direction, [r for r in rows.values() if r.direction == direction])
        | {"choice": choice, "problem": problem, "dtype": options.dtype}
        for direction in directions
    ]


def is_enough(seconds: float, timings: Sequence[Timings]) -> bool:
    """Return True after so many seconds, but not before ``FEWEST_ROUNDS``."""
    began_s = min((t.began_s[0] for t in timings), default=0.0)
    rounds = min((t.rounds[-1] for t in timings), default=FEWEST_ROUNDS)
    return rounds >= FEWEST_ROUNDS and time.perf_counter() - began_s > seconds


def contenders(op: kernels.Operator) -> list[str]:
    """Return what is timed: not what ``auto`` never takes, which costs most of the time."""
    ours = [name for name, i in op.implementations.items() if not i.last_resort]
    return [name for name in ours if name not in NEVER] + [*peers(op.name), COMPILED]


def chosen(
    op: kernels.Operator, subject: ShapeCase, device: torch.device, dtype: torch.dtype
) -> dict[str, Any]:
    """Return what ``auto`` chooses, eagerly and captured, with its numbers."""
    facts: dict[str, Any] = {}
    candidates, _ = kernels.core.dispatch._candidates(op.name, device.type)
    for trains in (False,) if subject.case.forward_only else (False, True):
        arguments = tuple(leaves_of(op, inputs_of(subject, device, dtype)).values())
        with torch.set_grad_enabled(trains):
            result = measure(op, candidates, arguments)
        way = "trains" if trains else "infers"
        facts[way] = {
            "eager": result.text(False),
            "captured": result.text(True),
            "choice": (result.ranking(False) or ("",))[0],
            "choice_captured": (result.ranking(True) or ("",))[0],
        }
        torch.cuda.empty_cache()
    return facts


def entry(subject: ShapeCase, direction: str, rows: list[Row]) -> dict[str, Any]:
    """Return one line of the table as data."""
    timed = {row.impl: row for row in rows if row.times_us}
    median = {name: statistics.median(row.times_us) for name, row in timed.items()}
    ours = min((n for n in median if is_ours(n)), key=median.get, default="")
    public = min((n for n in median if not is_ours(n)), key=median.get, default="")
    ratio = {}
    if ours and public:
        logs = paired_logs(
            (timed[ours].times_us, timed[ours].rounds),
            (timed[public].times_us, timed[public].rounds),
        )
        span = verdict.interval(logs)
        ratio = {
            "ratio": math.exp(span.mean),
            "low": math.exp(span.low),
            "high": math.exp(span.high),
        }
    some = next(iter(timed.values()), None)
    return {
        "op": subject.op,
        "case": subject.case.name,
        "sizes": dict(subject.case.sizes),
        "models": subject.models,
        "tokens": subject.tokens,
        "direction": direction,
        "us": {name: round(us, 2) for name, us in sorted(median.items(), key=lambda x: x[1])},
        "error_of_allowed": {row.impl: round(row.error, 3) for row in rows},
        "floor_us": None if some is None else round(some.floor_us, 2),
        "ours": ours,
        "public": public,
        **ratio,
        "problems": {row.impl: row.problem[-400:] for row in rows if row.problem},
    }


def auto_ratio(row: dict[str, Any]) -> float:
    """Return the time of the fastest that ``auto`` may choose over the best public one.

    Where ``auto`` was asked, of what it chooses for captured steps.
    """
    way = "infers" if row["direction"] == "forward" else "trains"
    name = row["choice"].get(way, {}).get("choice_captured", "")
    usable = [n for n in row["us"] if n in OPS[row["op"]].implementations]
    name = name if name in row["us"] else min(usable, key=row["us"].get, default="")
    if not name or not row["public"]:
        return math.nan
    return row["us"][name] / row["us"][row["public"]]


def loss_memory(device: torch.device) -> dict[str, Any]:
    """Return peak memory and time of the loss with gradients, beyond its inputs."""
    op, sizes = OPS["linear_cross_entropy"], {"rows": 8192, "dim": 4096, "words": 128256}
    inputs = op.inputs(Case("memory", sizes), device, torch.bfloat16, 0)
    calls = {name: op.implementations[name] for name in ("triton", "triton_small")}
    calls |= peers(op.name)
    calls["torch.compile"] = torch.compile(op.reference, fullgraph=True, dynamic=False)
    results = {}
    for name, call in calls.items():
        with contextlib.suppress(Exception):

            def step(call: Any = call) -> None:
                leaves = leaves_of(op, inputs)
                loss = call(*leaves.values())
                torch.autograd.grad(loss, [leaves["x"], leaves["weight_VD"]])

            step()
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            step()
            peak = torch.cuda.max_memory_allocated() - before
            results[name] = {
                "mb": round(peak / 1e6),
                "ms": round(gpu_us(step, repeats=10) / 1e3, 3),
            }
    return results


def slow_hosts(device: torch.device) -> dict[str, Any]:
    """Return the operators whose Python around the launches takes more than ``HOST_US``."""
    slow = {}
    for name, op in sorted(OPS.items()):
        ours = [n for n in op.implementations if is_ours(n)] or list(op.implementations)[:1]
        for impl, ways in host_costs(op, device, torch.bfloat16, ours).items():
            for way, cost in ways.items():
                if cost.outside_us > HOST_US:
                    slow[f"{name} {impl}, {way}"] = dataclasses.asdict(cost)
    return slow


def facts(device: str) -> dict[str, Any]:
    """Return the device, versions, and which peers can be imported."""
    name = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    rates = ceilings(device, torch.bfloat16)
    here = {package: _version(package) for package in (*PACKAGES.values(), "triton")}
    here["flash_attn.cute"] = _version("flash_attn.cute")
    return {
        "device": name,
        "gb_per_s": round(rates.bytes_per_s / 1e9),
        "tflops": round(rates.flops_per_s / 1e12),
        "packages": here,
    }


def _version(package: str) -> str:
    import importlib

    try:
        return str(getattr(importlib.import_module(package), "__version__", "installed"))
    except Exception as error:  # noqa: BLE001  a broken package is one that is reported
        return f"{type(error).__name__}: {error}"[:120]


def line(row: dict[str, Any]) -> str:
    """Return one line while it runs."""
    times = ", ".join(f"{name} {us:.1f}" for name, us in row["us"].items())
    head = f"{row['op']} {row['case']} {row['tokens']} {row['direction']}"
    ratio = f"{row['ratio']:.3f} ({row['low']:.3f} to {row['high']:.3f})" if "ratio" in row else "-"
    wrong = "; ".join(f"{n}: {p.splitlines()[-1][:160]}" for n, p in row["problems"].items())
    auto = row["choice"].get("infers" if row["direction"] == "forward" else "trains", {})
    return (
        f"{head}: ratio {ratio}, auto {auto_ratio(row):.3f}; floor {row['floor_us']} us; {times}"
        + (f"\n    {wrong}" if wrong else "")
        + (f"\n    {row['problem'][-500:]}" if row["problem"] else "")
        + (f"\n    auto, eager: {auto['eager']}" if auto else "")
    )


def table(report: dict[str, Any]) -> str:
    """Return the rows as Markdown, the worst ratio first."""
    rows = sorted(report["rows"], key=lambda row: -row.get("ratio", 0.0))
    lines = [
        "| operator | shape | pass | ratio | 95 % | ours us | best public us | auto | of floor |",
        "|---|---|---|---:|---|---:|---|---:|---:|",
    ]
    for row in rows:
        if "ratio" not in row:
            continue
        ours, public = row["us"][row["ours"]], row["us"][row["public"]]
        lines.append(
            f"| {row['op']} | {row['case']}, {row['tokens']} | {row['direction']} | "
            f"{row['ratio']:.3f} | {row['low']:.3f} to {row['high']:.3f} | {ours} | "
            f"{row['public']} {public} | {auto_ratio(row):.3f} | {row['floor_us'] / ours:.2f} |"
        )
    return "\n".join(lines)


def summary(report: dict[str, Any]) -> str:
    """Return how many rows reach the targets."""
    ratios = [row["ratio"] for row in report["rows"] if "ratio" in row]
    autos = [ratio for row in report["rows"] if not math.isnan(ratio := auto_ratio(row))]

    def counted(values: list[float]) -> str:
        best, close = (sum(v <= most for v in values) for most in (1.0, 1.03))
        return f"{best} at most 1.00, {close} at most 1.03 of {len(values)}"

    return (
        f"ours: {counted(ratios)}; auto: {counted(autos)}; "
        f"{len(report['not_reached'])} cases not reached"
    )


def write(out: Path, report: dict[str, Any]) -> None:
    """Write everything so far."""
    out.write_text(json.dumps(report, indent=1, default=str))


EXTRAS = {"memory": loss_memory, "host": slow_hosts}

if __name__ == "__main__":
    raise SystemExit(main())
