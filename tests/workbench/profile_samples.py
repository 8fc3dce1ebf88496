"""Profiles that look like real ones of a GPU, made from a seed: for tests, and to look at."""

from __future__ import annotations

import numpy as np

from sessions.model import Configuration, Segment, Session, Study
from sessions.studies import breakdown

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
        name: np.array([row[place] for row in rows], object) for place, name in enumerate(names)
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


def gaps(blocks: int) -> dict[str, np.ndarray]:
    modules = [f"blocks.{block}.attention" for block in range(blocks)]
    return {
        "module": np.array(modules, object),
        "count": np.full(blocks, 4.0),
        "us": np.linspace(60, 20, blocks),
    }


def memory() -> dict[str, dict[str, np.ndarray]]:
    """A step that rises and falls, and its peak."""
    t_ms = np.linspace(0, 20, 201)
    rising = np.interp(t_ms, [0, 7, 16, 20], [0, 1, 0, 0])
    held = {
        "parameters": np.full(201, 456 * MIB),
        "gradients": np.interp(t_ms, [0, 7, 16, 19.9, 20], [0, 0, 1, 1, 0]) * 456 * MIB,
        "optimizer": np.full(201, 912 * MIB),
        "activations": rising * 5200 * MIB,
        "workspace": np.abs(np.sin(t_ms * 9)) * 300 * MIB,
        "other": np.full(201, 33 * MIB),
        "private_pools": np.zeros(201),
    }
    reserved = np.full(201, 1.07 * sum(held.values()).max())
    place = int(np.argmax(sum(held.values())))
    estimate = [456.0, 456.0, 912.0, 5900.0, np.nan, 0.0, np.nan]
    return {
        "memory": {"t_ms": t_ms, **held, "reserved": reserved},
        "peak": {
            "role": np.array(list(held), object),
            "bytes": np.array([values[place] for values in held.values()]),
            "estimate": np.array(estimate) * MIB,
        },
    }


def session(profiles: int = 1, title: str = "profiled") -> Session:
    """A session that was only profiled, each profile faster than the one before."""
    found = Session(title=title)
    configuration = Configuration(family="hydra", preset="base", workload="train")
    for number in range(profiles):
        label = "defaults" if not number else f"precision: variant {number}"
        found.segments.append(Segment(number, configuration, label))
        found.studies.append(study(seed=number, faster=0.8**number, label=label))
    return found
