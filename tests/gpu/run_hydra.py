"""On a GPU host: HYDRA with every toggle through the real runner, and the runner's own overhead.

    python tests/gpu/run_hydra.py OUT [--preset base]

Writes ``hydra.json`` (every segment: median, ratio, peak memory, evidence, failures), ``hydra.h5``
and ``disturbance.json`` (the runner's median step against a bare loop of the same step) to OUT.
"""

from __future__ import annotations

import argparse
import json
import statistics as stats
import sys
import time
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from sessions.model import Configuration, Session
from sessions.storage import hdf5
from sessions.verdicts import statistics
from workbench import protocol
from workbench.client.recorder import Recorder
from workbench.client.runner_process import Runner
from workbench.runner.toggles import all_toggles

OFF = {toggle.name: toggle.off for toggle in all_toggles().values()}
BF16 = {"precision": "amp_bf16", "adamw": "fused"}
TRAINING: list[dict[str, str]] = [
    {},
    {"precision": "tf32"},
    {"precision": "amp_fp16"},
    {"precision": "amp_bf16"},
    {"precision": "bf16"},
    {"adamw": "foreach"},
    {"adamw": "fused"},
    BF16,
    BF16 | {"triton_rms_norm": "triton"},
    BF16 | {"triton_swiglu": "triton"},
    BF16 | {"triton_rope": "triton"},
    BF16 | {"triton": "on"},
    BF16 | {"checkpointing": "selective"},
    BF16 | {"checkpointing": "full"},
    BF16 | {"rope_cache": "shared"},
    *(
        BF16 | {"attention": backend}
        for backend in (
            "manual",
            "chunked",
            "sdpa_math",
            "sdpa_flash",
            "sdpa_efficient",
            "sdpa_cudnn",
            "flex",
            "xformers",
            "flash2",
            "flash3",
            "flash4",
        )
    ),
    BF16 | {"cuda_graphs": "on"},
    {"precision": "amp_fp16", "adamw": "fused", "cuda_graphs": "on"},
    BF16 | {"triton": "on", "cuda_graphs": "on"},
    BF16 | {"compile": "default"},
    BF16 | {"compile": "reduce-overhead"},
    BF16 | {"compile": "default", "triton": "on"},
    BF16 | {"compile": "default", "checkpointing": "full"},
    BF16 | {"compile": "default", "cuda_graphs": "on"},
    {},
    BF16 | {"compile": "max-autotune-no-cudagraphs"},
    BF16 | {"compile": "max-autotune"},
]
INFERENCE: list[dict[str, str]] = [
    {},
    {"precision": "bf16"},
    {"precision": "bf16", "triton": "on"},
    {"precision": "bf16", "cuda_graphs": "on"},
    {"precision": "bf16", "triton": "on", "cuda_graphs": "on"},
    {"precision": "bf16", "compile": "default"},
    {"precision": "bf16", "compile": "max-autotune-no-cudagraphs"},
    {"precision": "bf16", "compile": "max-autotune"},
]
SECONDS = 1.5  # of steady steps for each configuration
LIMIT_S = 150.0  # for one configuration, compile included


def main() -> int:
    """Run everything; 1 if the baseline could not run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--preset", default="base")
    parser.add_argument("--minutes", type=float, default=6.0)
    parser.add_argument("--workloads", nargs="+", default=["decode", "prefill", "forward", "train"])
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds for one of them")
    parser.add_argument(
        "--toggles", nargs="+", help="only the base and configurations that set one of these"
    )
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    try:
        result = disturbance()
    except Exception:  # noqa: BLE001 - the rest is worth having
        result = {"error": traceback.format_exc()}
    (options.out / "disturbance.json").write_text(json.dumps(result, indent=1))
    print(json.dumps(result, indent=1))
    deadline = time.monotonic() + 60 * options.minutes
    recorder = Recorder(Session(title=f"HYDRA {options.preset}, every toggle"))
    results = []
    for workload in options.workloads:
        choices = TRAINING if workload == "train" else INFERENCE
        if options.toggles:
            wanted = {*options.toggles}
            choices = [c for c in choices if c in ({}, BF16) or wanted & {*c, *c.values()}]
        start = Configuration(family="hydra", preset=options.preset, workload=workload, toggles=OFF)
        results += sweep(recorder, start, choices, deadline, options.limit)
        report(recorder.session, results, options.out)
    return 0 if any("median_ms" in result for result in results) else 1


def sweep(
    recorder: Recorder,
    start: Configuration,
    choices: list[dict[str, str]],
    deadline: float,
    limit_s: float,
) -> list[dict]:
    """One run through all choices, by Apply, as a person would toggle.

    The first choice is what ``start`` says.
    """
    runner = Runner()
    workload = start.workload
    results: list[dict] = []
    current: dict | None = None
    began = steady_began = 0.0
    rest = list(choices)

    def advance() -> None:
        nonlocal current, began, steady_began
        if not rest or time.monotonic() > deadline:
            current = None
            runner.send(protocol.Stop())
            return
        chosen = rest.pop(0)
        current = {"workload": workload, "toggles": chosen, "failures": []}
        results.append(current)
        began, steady_began = time.monotonic(), 0.0
        runner.send(protocol.Apply(toggles={**OFF, **chosen}))

    for message in runner.messages():
        recorder.record(message)
        match message:
            case protocol.Catalogue():
                runner.send(protocol.Start(configuration=start))
            case protocol.State(state="running") if not results:
                current = {"workload": workload, "toggles": rest.pop(0), "failures": []}
                results.append(current)
                began = time.monotonic()
            case protocol.SegmentStarted() if current is not None:
                steady_began = 0.0
            case protocol.Failure():
                print(f"  {message.kind}: {message.sentence}", file=sys.stderr)
                if current is not None:
                    current["failures"].append([message.kind, message.sentence])
                    current["detail"] = message.detail[-1500:]
                    if not message.fatal and message.kind != "hang":
                        advance()
                else:
                    results.append({"workload": workload, "failures": [message.sentence]})
            case protocol.Steps() if current is not None:
                segment = recorder.session.segments[-1]
                wanted = {**OFF, **current["toggles"]}
                if segment.configuration.toggles == wanted and statistics.steady(segment).any():
                    steady_began = steady_began or time.monotonic()
                    if time.monotonic() - steady_began > SECONDS:
                        current["segment"] = segment.index
                        advance()
                elif time.monotonic() - began > limit_s:
                    current["failures"].append(["slow", f"not steady after {limit_s:.0f} s"])
                    advance()
            case protocol.Finished():
                break
    runner.close()
    return results


def report(session: Session, results: list[dict], out: Path) -> None:
    """Fill in the numbers, print a table, and save both."""
    baselines: dict[str, float] = {}  # medians; one after the other, so that ratios are unpaired
    for result in results:
        if "segment" not in result:
            continue
        segment = session.segments[result["segment"]]
        summary = statistics.summarize(statistics.steady_ms(segment))
        base_ms = baselines.setdefault(result["workload"], summary.median)
        result |= {
            "n": summary.n,
            "median_ms": summary.median,
            "p95_ms": summary.p95,
            "ratio": summary.median / base_ms,
            "peak_mib": float(segment.steps["peak"][-1]) / 2**20,
            "evidence": [[e.toggle, e.requested, e.status, e.text] for e in segment.evidence],
            "ledger": segment.ledger,
        }
    for result in results:
        chosen = " ".join(f"{k}={v}" for k, v in result.get("toggles", {}).items()) or "-"
        if "median_ms" in result:
            odd = [e[:4] for e in result["evidence"] if e[2] != "effective"]
            print(
                f"{result['workload']:8}{chosen:60.60} n={result['n']:5} "
                f"{result['median_ms']:9.3f} ms  x{result['ratio']:.3f} "
                f"peak {result['peak_mib']:8.0f} MiB {odd or ''}"
            )
        else:
            print(f"{result['workload']:8}{chosen:60.60} {result.get('failures')}")
    (out / "hydra.json").write_text(json.dumps(results, indent=1, default=str))
    hdf5.save(session, out / "hydra.h5")


def disturbance() -> dict:
    """Measure the runner's step against a bare loop of it, and its host cost per step."""
    import queue

    from workbench.runner.building.variant_cache import VariantCache
    from workbench.runner.config.resolve import resolve
    from workbench.runner.context import RunnerContext
    from workbench.runner.instruments.phases import PhaseTracker

    class Silent:
        def __init__(self) -> None:
            self.sent = queue.SimpleQueue()
            self.waiting = False

        def seconds(self, now_ns: int | None = None) -> float:
            return (time.perf_counter_ns() if now_ns is None else now_ns) * 1e-9

        def send(self, message: protocol.Message) -> None:
            self.sent.put(protocol.encode(message))

    device = torch.device("cuda", 0)
    configuration = Configuration(
        family="hydra",
        preset="small",
        workload="forward",
        settings={"batch": 8, "sequence": 512},
        toggles={**OFF, "precision": "bf16", "cuda_graphs": "on"},
    )
    context = RunnerContext(Silent(), device)  # type: ignore[arg-type]
    arm = VariantCache().get(resolve(configuration, device), PhaseTracker(lambda phase: None))
    with arm.entered():
        for _ in range(20):
            arm.batches.advance()
            arm.step()
        torch.cuda.synchronize()
        bare, watched, host = [], [], []
        for _ in range(12):
            bare.append(_bare(arm))
            watched.append(_watched(arm, context))
        host = [_host_cost(context) for _ in range(5)]
    return {
        "bare_step_ms": stats.median(bare),
        "watched_step_ms": stats.median(watched),
        "ratio": stats.median(w / b for w, b in zip(watched, bare, strict=True)),
        "ratios": [w / b for w, b in zip(watched, bare, strict=True)],
        "host_us_per_step": stats.median(host),
    }


def _bare(arm, steps: int = 200) -> float:
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    for _ in range(steps):
        arm.batches.advance()
        arm.step()
    stop.record()
    stop.synchronize()
    return start.elapsed_time(stop) / steps


def _watched(arm, context, steps: int = 200) -> float:
    torch.cuda.synchronize()
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    context.clock.begin()
    now_ns = flushed_ns = 0
    for _ in range(steps):
        arm.batches.advance()
        arm.step()
        phase = context.phases.step_phase(now_ns)
        now_ns = context.watchdog.beat_ns = context.clock.lap(phase)
        if now_ns - flushed_ns > 33_000_000:
            flushed_ns = now_ns
            context.send_steps(context.clock.drain())
            context.clock.begin()
    stop.record()
    stop.synchronize()
    context.clock.drain(wait=True)
    return start.elapsed_time(stop) / steps


def _host_cost(context, steps: int = 2000) -> float:
    """Microseconds that marking and sending cost a step, with no step between."""
    torch.cuda.synchronize()
    context.clock.begin()
    now_ns = flushed_ns = 0
    began = time.perf_counter()
    for _ in range(steps):
        phase = context.phases.step_phase(now_ns)
        now_ns = context.watchdog.beat_ns = context.clock.lap(phase)
        if now_ns - flushed_ns > 33_000_000:
            flushed_ns = now_ns
            context.send_steps(context.clock.drain())
            context.clock.begin()
    cost = (time.perf_counter() - began) / steps * 1e6
    context.clock.drain(wait=True)
    return cost


if __name__ == "__main__":
    raise SystemExit(main())
