"""On a GPU host: how the Mamba-2 hybrid's time grows with the sequence, and what decoding costs.

    python tests/gpu/run_mamba2.py OUT [--presets 96M 2.8B] [--longest 131072]

For each preset, as it is and attention-free: forward passes of one sequence of 1024 tokens, twice
as many, and so on, with a line fitted to log time over log length (1 is linear) and the interval of
its slope; then single tokens decoded after contexts of those lengths, captured in a CUDA graph.
BF16, in inference. Prints its rows and writes ``mamba2.json`` to OUT. What does not fit is one too.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
import torch

from kernels.measure.timing import ceilings
from models import FAMILIES, LanguageModel, prefill_in_chunks
from sessions.studies import scaling

MAMBA2 = FAMILIES["mamba2"]
CHUNK = 8192  # of a prefill


def main() -> int:
    """Run everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--presets", nargs="+", choices=MAMBA2.presets, default=["96M", "2.8B"])
    parser.add_argument("--shortest", type=int, default=1024)
    parser.add_argument("--longest", type=int, default=131_072)
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    doublings = int(math.log2(options.longest // options.shortest))
    lengths = [options.shortest << i for i in range(doublings + 1)]
    device, results = torch.device(options.device), []
    for preset in options.presets:
        for every in (MAMBA2.presets[preset].attention_every, 0):
            config = dataclasses.replace(
                MAMBA2.presets[preset], attention_every=every, max_sequence=options.longest + 1
            )
            model = MAMBA2.materialise(config, device, torch.bfloat16).eval()
            name = f"{preset}, {'attention every ' + str(every) if every else 'attention-free'}"
            print(f"\n{name}: {MAMBA2.parameter_count(config):,} parameters", flush=True)
            rows = [*forward_rows(model, config, lengths), *decode_rows(model, lengths)]
            results.append({"model": name, "rows": rows, "slope": slope(rows)})
            print(f"exponent of the forward pass: {results[-1]['slope']}", flush=True)
            (options.out / "mamba2.json").write_text(json.dumps(results, indent=1))
            del model
    return 0


def forward_rows(model: LanguageModel, config: Any, lengths: list[int]) -> Iterator[dict[str, Any]]:
    """Whole passes over one sequence, of which only the last token's logits are made."""
    device = model.embedding.weight.device
    peak = ceilings(device.type).flops_per_s
    for length in lengths:
        tokens_BS = torch.randint(0, 256, (1, length), device=device)
        flops = MAMBA2.flops(config, 1, length, last_only=True)
        with torch.no_grad():
            row = measured(lambda t=tokens_BS: model(t, last_only=True), device)
        if "ms" in row:
            row |= {
                "us_per_token": 1e3 * row["ms"] / length,
                "utilization": flops / (1e-3 * row["ms"]) / peak,
            }
        yield shown({"work": "forward", "length": length} | row)


def decode_rows(model: LanguageModel, lengths: list[int]) -> Iterator[dict[str, Any]]:
    """One token after a context, in place: the same position again and again costs the same."""
    device = model.embedding.weight.device
    for length in (lengths[0], lengths[-1]):
        try:
            cache = model.new_cache(1, length + 1)
            tokens_BS = torch.randint(0, 256, (1, length), device=device)
            prefill_in_chunks(model, tokens_BS, cache, chunk=CHUNK)
            token_11, position = tokens_BS[:, :1], torch.full((), length, device=device)
            with torch.no_grad():
                step = captured(lambda t=token_11, c=cache, p=position: model(t, c, p), device)
                row = measured(step, device)
        except torch.cuda.OutOfMemoryError:
            yield shown({"work": "decode", "length": length, "failed": "out of memory"})
            continue
        yield shown({"work": "decode", "length": length, "cache_bytes": cache.bytes()} | row)


def captured(work: Callable[[], Any], device: torch.device) -> Callable[[], Any]:
    """Return the work as the replay of a CUDA graph, if there is one."""
    if device.type != "cuda":
        return work
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        work()
    return graph.replay


def measured(work: Callable[[], Any], device: torch.device) -> dict[str, Any]:
    """Median and spread of at least 5 and up to 50 calls, about a second; peak memory of one."""
    try:
        for _ in range(2):
            work()
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        times, began = [], time.perf_counter()
        while len(times) < 5 or (len(times) < 50 and time.perf_counter() - began < 1):
            synchronize(device)
            start = time.perf_counter()
            work()
            synchronize(device)
            times.append(1e3 * (time.perf_counter() - start))
    except torch.cuda.OutOfMemoryError:
        torch.cuda.empty_cache()
        return {"failed": "out of memory"}
    peak = torch.cuda.max_memory_allocated() if device.type == "cuda" else None
    return {
        "ms": statistics.median(times), "ms_min": min(times), "ms_max": max(times),
        "peak_bytes": peak,
    }  # fmt: skip


def synchronize(device: torch.device) -> None:
    """Wait for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def slope(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Return the exponent of time over length, with its 95 % interval, from the longer half on."""
    timed = [row for row in rows if row["work"] == "forward" and "ms" in row]
    lengths = np.array([row["length"] for row in timed])
    times_ms = np.array([row["ms"] for row in timed])
    upper = scaling.longer_half(lengths)
    fitted = scaling.fit(lengths[upper], times_ms[upper])
    ends = {"exponent": fitted.exponent, "from": fitted.low, "to": fitted.high}
    return {name: round(value, 4) for name, value in ends.items() if math.isfinite(value)}


def shown(row: dict[str, Any]) -> dict[str, Any]:
    """Print the row and return it."""
    parts = (
        f"{name} {value:.5g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in row.items()
    )
    print(", ".join(parts), flush=True)
    return row


if __name__ == "__main__":
    sys.exit(main())
