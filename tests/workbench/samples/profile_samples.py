"""Profiles that look like real ones of a GPU, made from a seed: for tests, and to look at."""

from __future__ import annotations

import msgspec
import numpy as np

from sessions.model import Configuration, Segment, Session, Study
from sessions.studies import breakdown
from sessions.tracing import timeline, trace

MIB = 2.0**20
PARTS = (  # module in a block, kernel, class, microseconds forward
    ("attention_norm", "_rms_norm_forward", "normalisation", 18.0),
    ("attention.qkv", "nvjet_tst_192x192_64x3", "matrix product", 96.0),
    ("attention", "flash_fwd_kernel", "attention", 120.0),
    ("attention", "_rope_forward", "elementwise", 22.0),
    ("attention.out", "nvjet_tst_128x256_64x4", "matrix product", 41.0),
    ("mlp_norm", "_rms_norm_forward", "normalisation", 18.0),
    ("mlp.gate_up", "nvjet_tst_256x128_64x4", "matrix product", 210.0),
    ("mlp", "_swiglu_forward", "elementwise", 37.0),
    ("mlp.down", "nvjet_tst_128x256_64x4", "matrix product", 112.0),
    ("", "vectorized_elementwise_kernel<add>", "elementwise", 14.0),
)


def study(blocks: int = 12, seed: int = 0, faster: float = 1.0, label: str = "defaults") -> Study:
    """One profile of a training step."""
    rng = np.random.default_rng(seed)
    rows: list[tuple[str, str, str, str, float, float]] = []
    for block in range(blocks):
        for part, kernel, kind, us in PARTS:
            module = f"blocks.{block}{'.' if part else ''}{part}"
            for phase, factor in (("forward", 1.0), ("backward", 2.1)):
                took = us * factor * faster * rng.uniform(0.95, 1.05)
                rows.append((kernel, module, phase, kind, 1.0, took))
    rows += [
        ("indexSelectSmallIndex", "embedding", "forward", "indexing", 1.0, 12.0),
        ("nvjet_head", "head", "forward", "matrix product", 1.0, 640.0 * faster),
        ("nvjet_head", "head", "backward", "matrix product", 2.0, 1290.0 * faster),
        ("cunn_SoftMaxForward", "(loss)", "forward", "reduction", 1.0, 180.0),
        ("multi_tensor_apply_kernel", "(optimizer)", "optimizer", "optimizer", 4.0, 820.0),
    ]
    names = ("name", "module", "phase", "kind")
    columns = {
        name: np.array([row[column] for row in rows], object) for column, name in enumerate(names)
    }
    kernels = {
        **columns,
        "calls": np.array([row[4] for row in rows]),
        "us": np.array([row[5] for row in rows]),
    }
    busy = float(kernels["us"].sum())
    return Study(
        kind=breakdown.KIND,
        title=f"hydra base train: {label}",
        start_s=1.0 + seed,
        request={"device": "cuda", "label": label, "steps": 3},
        facts={"step_us": busy * 1.22, "busy_us": busy, "profiled_us": busy * 1.5, "notes": []},
        tables={"kernels": kernels, "gaps": gaps(blocks), **memory()},
    )


def rich_study(blocks: int = 4, seed: int = 0, faster: float = 1.0) -> Study:
    """Return a profile with a timeline, a roofline and the configuration that was profiled."""
    made = study(blocks, seed, faster)
    kernels = made.tables["kernels"]
    kernels["operator"] = np.array([LIBRARY.get(str(name), "") for name in kernels["name"]], object)
    shares = {"matrix product": 0.72, "attention": 0.55, "rms_norm": 0.4, "rope": 0.3,
              "swiglu": 0.8, "elementwise": 0.6, "optimizer": 0.9}  # fmt: skip
    took = dict.fromkeys(shares, 0.0)
    for operator, kind, us in zip(kernels["operator"], kernels["kind"], kernels["us"], strict=True):
        if (name := operator or kind) in took:
            took[name] += us
    least_us = np.array([took[name] * share for name, share in shares.items()])
    moved = least_us * 3.0e6  # at 3 TB/s
    intensity = np.array([400.0, 250.0, 1.2, 0.6, 0.8, 0.0, 0.0])
    made.tables["least"] = {
        "name": np.array(list(shares), object),
        "calls": np.full(len(shares), 4.0),
        "bytes": np.where(intensity > 200, least_us * 600e6 / np.maximum(intensity, 1.0), moved),
        "flops": np.where(intensity > 200, least_us * 600e6, moved * intensity),
        "us": least_us,
    }
    made.facts |= {"ceiling_bytes_per_s": 3.0e12, "ceiling_dtypes": ["bfloat16", "tf32"],
                   "ceiling_flops_per_s": [6.0e14, 3.5e14]}  # fmt: skip
    configuration = Configuration(family="hydra", preset="base", workload="train", toggles=TOGGLES)
    made.request["configuration"] = msgspec.json.encode(configuration).decode()
    columns = timeline.tables(gpu_trace(blocks, faster)).items()
    made.tables.update(
        {
            name: {
                column: np.array(values, object if isinstance(values[0], str) else float)
                for column, values in table.items()
            }
            for name, table in columns
        }
    )
    return made


LIBRARY = {"_rms_norm_forward": "rms_norm", "_rope_forward": "rope", "_swiglu_forward": "swiglu"}
TOGGLES = {"compile": "off", "cuda_graphs": "off", "precision": "tf32", "adamw": "loop",
           "triton": "on", "checkpointing": "none"}  # fmt: skip
MAIN, AUTOGRAD = 1, 2


def gpu_trace(blocks: int, faster: float = 1.0, steps: int = 2) -> trace.Trace:
    """Return the trace of training steps on a GPU whose host is sometimes late."""
    events: list[trace.Event] = []
    at, free, number = 0.0, 0.0, 0

    def span(name, start, stop, thread=MAIN, category="cpu_op", **arguments) -> None:
        event = trace.Event(name, "X", category, thread, start, stop - start)
        event.args = trace.Arguments(**arguments)
        events.append(event)

    for _ in range(steps):
        begun = at
        for phase, factor in (("forward", 1.0), ("backward", 2.1)):
            thread = MAIN if phase == "forward" else AUTOGRAD
            order = range(blocks) if phase == "forward" else reversed(range(blocks))
            for block in order:
                for part, kernel, _, us in PARTS if phase == "forward" else PARTS[::-1]:
                    module = f"blocks.{block}{'.' if part else ''}{part}"
                    number += 1
                    start = at
                    if phase == "forward":
                        span(trace.MODULE + module, start, start + 44.0,
                             category="user_annotation")  # fmt: skip
                        span(f"aten::{kernel}", start + 2, start + 42, sequence=number)
                    else:
                        node = f"{trace.NODE}{kernel}Backward"
                        before = (blocks * len(PARTS)) * 2 + 1
                        number_of = before + 2 * (number // before) * before - number
                        span(node, start, start + 44, thread, sequence=number_of)
                    span("cudaLaunchKernel", start + 10, start + 16, thread, "cuda_runtime",
                         correlation=number)  # fmt: skip
                    first = max(free, start + 20)
                    free = first + us * factor * faster
                    span(kernel, first, free, 7 if block % 3 else 13, "kernel",
                         correlation=number)  # fmt: skip
                    at += 60.0
        at = max(at, free) + 120.0
        span(trace.STEP, begun, at, category="user_annotation")
    made = trace.build(events, "cuda")
    trace.resolve(made)
    return made


def gaps(blocks: int) -> dict[str, np.ndarray]:
    modules = [f"blocks.{block}.attention" for block in range(blocks)]
    return {
        "module": np.array(modules, object),
        "count": np.full(blocks, 4.0),
        "us": np.linspace(60, 20, blocks),
    }


def memory() -> dict[str, dict[str, np.ndarray]]:
    """Return the memory of a step that rises and falls, and its peak."""
    t_ms = np.linspace(0, 20, 201)
    rising = np.interp(t_ms, [0, 7, 16, 20], [0, 1, 0, 0])
    by_role = {
        "parameters": np.full(201, 456 * MIB),
        "gradients": np.interp(t_ms, [0, 7, 16, 19.9, 20], [0, 0, 1, 1, 0]) * 456 * MIB,
        "optimizer": np.full(201, 912 * MIB),
        "activations": rising * 5200 * MIB,
        "workspace": np.abs(np.sin(t_ms * 9)) * 300 * MIB,
        "other": np.full(201, 33 * MIB),
        "private_pools": np.zeros(201),
    }
    reserved = np.full(201, 1.07 * sum(by_role.values()).max())
    peak = int(np.argmax(sum(by_role.values())))
    estimate = [456.0, 456.0, 912.0, 5900.0, np.nan, 0.0, np.nan]
    return {
        "memory": {"t_ms": t_ms, **by_role, "reserved": reserved},
        "peak": {
            "role": np.array(list(by_role), object),
            "bytes": np.array([values[peak] for values in by_role.values()]),
            "estimate": np.array(estimate) * MIB,
        },
    }


def session(profiles: int = 1, title: str = "profiled") -> Session:
    """Return a session that was only profiled, each profile faster than the one before."""
    session = Session(title=title)
    configuration = Configuration(family="hydra", preset="base", workload="train")
    for number in range(profiles):
        label = "defaults" if not number else f"precision: variant {number}"
        session.segments.append(Segment(number, configuration, label))
        session.studies.append(study(seed=number, faster=0.8**number, label=label))
    return session
