"""On a GPU host: our blocks beside those of ``transformers`` and ``mamba_ssm``, with equal weights.

    python tests/gpu/run_peers.py OUT [--only llama "mixtral E64" ...] [--modes eager compiled]

For each peer, first the numbers: in FP32 output and input gradients agree within ``FP32``; in BF16
ours are at most twice as far from the peer's FP32 as the peer's own BF16 is. What is wrong is not
timed. Then forward (inference) and forward with backward (gradients of input and weights) in BF16:
blocks of steps of both, alternating at random, judged as any comparison here is. Ratios are ours
over the peer's: below 1 we are faster. Prints a Markdown table, writes ``peers.json`` to OUT. A
peer that cannot be imported is listed with the reason, as is what the time did not suffice for.

``--small --device cpu`` only tries the script out.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import gc
import importlib.util
import json
import math
import random
import statistics as stats
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "models"))

import msgspec
import torch
from peer_cases import Case, Side, absent, cases
from torch import Tensor

import kernels
from sessions.model import Judgement, PairedComparison
from sessions.verdicts import verdict
from workbench.runner.experiments.paired.blocks import SETTLING_STEPS, block_steps
from workbench.runner.instruments.timing import make_clock

SLACK = 2.0  # how much farther from FP32 than the peer's BF16 ours may be, as everywhere here
LONGEST = 10  # kernels of a profile
PASSES = ("forward", "forward + backward")


@dataclass
class Row:
    """One line of the table."""

    case: Case
    mode: str
    work: str
    small: bool
    failure: str = ""
    ours_ms: float = math.nan
    peer_ms: float = math.nan
    judgement: Judgement | None = None
    facts: dict[str, Any] = field(default_factory=dict)


def main() -> int:
    """Run every case; 1 if nothing could be timed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="cases whose name holds one")
    parser.add_argument("--modes", nargs="+", choices=("eager", "compiled"), default=None)
    parser.add_argument("--budget", type=float, default=2.5, help="seconds of one comparison")
    parser.add_argument("--within", type=float, default=140.0, help="seconds of all of them")
    parser.add_argument("--profile", action="store_true", help="the kernels where ours is slower")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    until = time.perf_counter() + options.within
    torch._dynamo.config.recompile_limit = 64  # all cases share the code of their layers
    missing = {name: why for name in ("transformers", "mamba_ssm") if (why := absent(name))}
    for name, why in missing.items():
        print(f"not compared with {name}: {why}", flush=True)
    wanted = [
        case
        for case in cases()
        if case.package not in missing
        and (options.only is None or any(part in case.name for part in options.only))
    ]
    device, rows, sides = torch.device(options.device), [], {}
    for mode in options.modes or ("eager", "compiled"):
        for case in wanted:
            for row in measured(case, mode, options, device, until, sides):
                rows.append(row)
                print(line(row), flush=True)
                write(options.out, rows, missing)
    if options.profile:  # at the end: it leaves the process slower
        for row in rows:
            if row.judgement is not None and row.judgement.verdict == "SLOWER":
                row.facts["kernels"] = profiled(row, sides)
                print(f"\n{row.case.name}, {row.mode}, {row.work}: the longest kernels, us a step")
                for who, longest in row.facts["kernels"].items():
                    print(f"  {who}: " + "; ".join(f"{us:.0f} {name}" for name, us in longest))
        write(options.out, rows, missing)
    print("\n" + table(rows, missing))
    return 0 if any(row.judgement for row in rows) else 1


# The numbers.


def stream(case: Case, small: bool, device: torch.device) -> tuple[Tensor, Tensor]:
    """Input and output gradient, rounded to BF16: so small that what a block adds is not lost."""
    shape = case.size(small)
    generator = torch.Generator(device).manual_seed(2)
    x, dy = (torch.randn(shape, device=device, generator=generator) for _ in range(2))
    return (0.1 * x).to(torch.bfloat16), dy.to(torch.bfloat16)


def gave(side: Side, x: Tensor, dy: Tensor, *, trains: bool = True) -> tuple[Tensor, Tensor]:
    """Output and input gradient."""
    side.module.train(trains and side.trains)
    x = x.detach().requires_grad_()
    y = side.call(x)
    (dx,) = torch.autograd.grad(y, [x], dy)
    return y.detach(), dx


def distance(measured: Tensor, wanted: Tensor) -> float:
    """Return the distance relative to the norm."""
    return float((measured.float() - wanted.float()).norm() / wanted.float().norm())


def wrong(
    case: Case, sides: tuple[Side, Side], exact: tuple[Tensor, Tensor], x: Tensor, dy: Tensor
) -> tuple[str, dict[str, float]]:
    """Return why this BF16 cannot be timed, or nothing; and the distances from the peer's FP32."""
    facts, reasons = {}, []
    results = [gave(side, x, dy) for side in sides]
    for index, what in enumerate(("output", "input gradient")):
        mine, its = (distance(gave[index], exact[index]) for gave in results)
        facts[f"ours, {what}"], facts[f"the peer, {what}"] = mine, its
        if not its <= case.bf16:
            reasons.append(f"the peer's {what} is off by {its:.2g}, at most {case.bf16:g} expected")
        if not mine <= SLACK * its:
            reasons.append(
                f"our {what} is off by {mine:.2g}, at most {SLACK:g} times the peer's {its:.2g} "
                "expected"
            )
    return "; ".join(reasons), facts


def prepared(case: Case, options: Any, device: torch.device) -> dict[str, Any]:
    """Both sides in BF16 and the peer's FP32; raises ``ArithmeticError`` where FP32 differs."""
    x, dy = stream(case, options.small, device)
    pair = case.make(options.small, device, torch.float32)
    with untuned():
        results = [gave(side, x.float(), dy.float()) for side in pair]
    facts = {}
    for what, own, exact in zip(("output", "input gradient"), *results, strict=True):
        facts[what] = distance(own, exact)
        if not facts[what] <= case.fp32:
            raise ArithmeticError(
                f"in FP32 the {what} differs by {facts[what]:.2g}, at most {case.fp32:g} expected"
            )
    exact = results[1]
    del pair, results
    made = case.make(options.small, device, torch.bfloat16)
    return {"x": x, "dy": dy, "exact": exact, "fp32": facts, "eager": made}


@contextlib.contextmanager
def untuned() -> Iterator[None]:
    """Let kernels with several tiles run the smallest: it fits, and nothing is timed.

    Compiling and trying all of them takes minutes.
    """
    if importlib.util.find_spec("triton") is None:
        yield
        return
    from triton.runtime.autotuner import Autotuner

    run = Autotuner.run

    def size(config: Any) -> int:
        sizes = [value for value in config.kwargs.values() if isinstance(value, int)]
        return math.prod([config.num_stages, *sizes])

    def smallest(self: Any, *args: Any, **kwargs: Any) -> Any:
        configs, self.configs = self.configs, [min(self.configs, key=size)]
        try:
            return run(self, *args, **kwargs)
        finally:
            self.configs = configs

    Autotuner.run = smallest
    try:
        yield
    finally:
        Autotuner.run = run


# The times.


def measured(
    case: Case,
    mode: str,
    options: Any,
    device: torch.device,
    until: float,
    built_by_case: dict[str, dict[str, Any]],
) -> Iterator[Row]:
    """Yield the rows of one case in one mode; ``built_by_case`` holds what was built."""
    done = 0
    try:
        for work in PASSES:
            row = Row(case, mode, work, options.small)
            failure = built_by_case.get(case.name, {}).get("failure", "")
            if failure or time.perf_counter() > until:
                row.failure = failure or f"not reached within {options.within:g} s"
            else:
                if case.name not in built_by_case:
                    built_by_case[case.name] = prepared(case, options, device)
                fill(row, built_by_case[case.name], options, device)
            yield row
            done += 1
    except Exception as error:  # noqa: BLE001  one peer that fails takes no other's row along
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        built_by_case.setdefault(case.name, {"failure": reason})
        for work in PASSES[done:]:
            yield Row(case, mode, work, options.small, failure=reason)
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def fill(row: Row, built: dict[str, Any], options: Any, device: torch.device) -> None:
    """Check the numbers once for each mode, and time one pass."""
    began = time.perf_counter()
    if row.mode not in built:
        built[row.mode] = tuple(
            dataclasses.replace(side, call=torch.compile(side.call, dynamic=False))
            for side in built["eager"]
        )
    sides = built[row.mode]
    if f"{row.mode} numbers" not in built:
        breaks = torch._dynamo.utils.counters["graph_break"]
        before = breaks.total()
        kernels.reset_usage()
        reason, facts = wrong(row.case, sides, built["exact"], built["x"], built["dy"])
        used = {name: [*impls] for name, impls in kernels.usage().items()}
        facts |= {"implementations": used, "graph_breaks": breaks.total() - before}
        built[f"{row.mode} numbers"] = reason, facts
    row.failure, facts = built[f"{row.mode} numbers"]
    row.facts |= facts | {"fp32": built["fp32"]}
    if row.failure:
        return
    ours, peers = (step(side, row.work, built["x"], built["dy"]) for side in sides)
    alternate(row, {"the peer": peers, "ours": ours}, options.budget, device)
    row.facts["seconds"] = time.perf_counter() - began


def step(side: Side, work: str, x: Tensor, dy: Tensor) -> Callable[[], Any]:
    """One step of a pass."""
    trains = work != PASSES[0]

    def forward() -> Any:
        with torch.no_grad():
            return side.call(x)

    inputs = [x.detach().clone().requires_grad_(), *side.module.parameters()]

    def both() -> Any:
        return torch.autograd.grad(side.call(inputs[0]), inputs, dy)

    def ready() -> Any:
        side.module.train(trains and side.trains)
        return (both if trains else forward)()

    return ready


def alternate(
    row: Row, arms: dict[str, Callable[[], Any]], budget_s: float, device: torch.device
) -> None:
    """Time pairs of blocks, the first arm as the base, until it is settled or the budget spent."""
    clock, turns, steps = make_clock(device), random.Random(0), [*arms.values()]

    def block(arm: int, count: int) -> float:
        for _ in range(SETTLING_STEPS):
            steps[arm]()
        clock.begin()
        for _ in range(count):
            steps[arm]()
            clock.lap(0)
        if device.type == "cuda":
            mhz.append(float(torch.cuda.clock_rate()))  # while it still works
        laps = clock.drain(wait=True)
        return stats.median(lap.wall_ms if lap.gpu_ms is None else lap.gpu_ms for lap in laps)

    mhz: list[float] = []
    for arm in (0, 1):
        block(arm, 1)  # compiles
    counts = [block_steps(block(arm, 5), budget_s, 2 * verdict.MIN_PAIRS, 0.0) for arm in (0, 1)]
    order, medians, numbers = [], [], []
    mhz.clear()
    began, pair = time.perf_counter(), 0
    while True:
        for arm in turns.sample((0, 1), 2):
            order.append(arm)
            numbers.append(pair)
            medians.append(block(arm, counts[arm]))
        pair += 1
        spent_s = time.perf_counter() - began
        blocks = PairedComparison(
            arms=[*arms],
            order=order,
            medians_ms=medians,
            pairs=numbers,
            clocks_mhz=mhz,
            ratio=math.nan,
            low=math.nan,
            high=math.nan,
            verdict="UNDECIDED",
        )
        row.judgement = verdict.judge(blocks, seconds=spent_s)
        if row.judgement.settled or spent_s > budget_s:
            break
    medians_ms = {
        name: stats.median(ms for ms, of in zip(medians, order, strict=True) if of == arm)
        for arm, name in enumerate(arms)
    }
    row.ours_ms, row.peer_ms = medians_ms["ours"], medians_ms["the peer"]
    row.facts |= {"block_steps": counts, "blocks": list(zip(order, medians, strict=True))}


def profiled(
    row: Row, built_by_case: dict[str, dict[str, Any]]
) -> dict[str, list[tuple[float, str]]]:
    """Return what all kernels took on either side, and those that took longest, us a step."""
    times_by_side = {}
    built = built_by_case[row.case.name]
    for who, side in zip(("ours", "the peer"), built[row.mode], strict=True):
        once = step(side, row.work, built["x"], built["dy"])
        once()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            for _ in range(3):
                once()
            torch.cuda.synchronize()
        times = [(event.self_device_time_total / 3, event.key) for event in profile.key_averages()]
        longest = [(us, name[:80]) for us, name in sorted(times, reverse=True)[:LONGEST]]
        times_by_side[who] = [(sum(us for us, _ in times), f"in {len(times)} kernels"), *longest]
    return times_by_side


# What is told.


def line(row: Row) -> str:
    """One line while it runs."""
    head = f"{row.case.name:14} {row.case.package:13}{row.mode:9}{row.work:19}"
    if row.judgement is None:
        return f"{head}{row.failure}"
    judgement = row.judgement
    return (
        f"{head}ours {row.ours_ms:8.3f} ms, peer {row.peer_ms:8.3f} ms: "
        f"{span(judgement)} {judgement.verdict} "
        f"({judgement.pairs} pairs, {row.facts['seconds']:.0f} s)"
    )


def span(judgement: Judgement) -> str:
    """Ratio and interval."""
    if judgement.low is None or judgement.high is None:
        return f"{judgement.ratio:.3f}"
    return f"{judgement.ratio:.3f} ({judgement.low:.3f} to {judgement.high:.3f})"


def table(rows: list[Row], missing: dict[str, str]) -> str:
    """Everything as Markdown; the verdicts corrected for how many there are (Holm)."""
    lines = [
        "| peer | block | B x S x E | mode | pass | ours ms | peer ms | ours / peer | verdict |",
        "|---|---|---|---|---|---:|---:|---:|---|",
    ]
    judged = [row for row in rows if row.judgement is not None]
    corrected = verdict.corrected([row.judgement for row in judged if row.judgement is not None])
    by_row = {id(row): judgement for row, judgement in zip(judged, corrected, strict=True)}
    for row in rows:
        case = row.case
        shape = " x ".join(str(size) for size in case.size(row.small))
        head = f"| {case.package} {case.peer} | {case.name} | {shape} | {row.mode} | {row.work} |"
        judgement = by_row.get(id(row))
        if judgement is None:
            lines.append(f"{head} | | | {row.failure} |")
        else:
            times = f" {row.ours_ms:.3f} | {row.peer_ms:.3f} | {span(judgement)} |"
            lines.append(f"{head}{times} {judgement.verdict} |")
    lines += [f"\nNot compared with {name}: {why}." for name, why in missing.items()]
    notes = {row.case.name: row.case.note for row in rows if row.case.note}
    lines += [f"\n{name}: the peer runs with {note}." for name, note in notes.items()]
    return "\n".join(lines)


def write(out: Path, table_rows: list[Row], missing: dict[str, str]) -> None:
    """Everything so far."""
    rows = [
        {
            "case": row.case.name,
            "peer": f"{row.case.package} {row.case.peer}",
            "shape": row.case.size(row.small),
            "note": row.case.note,
            "mode": row.mode,
            "pass": row.work,
            "failure": row.failure,
            "ours_ms": row.ours_ms,
            "peer_ms": row.peer_ms,
            "judgement": row.judgement and json.loads(msgspec.json.encode(row.judgement)),
            **row.facts,
        }
        for row in table_rows
    ]
    versions = {name: package_version(name) for name in ("torch", "triton", "transformers")}
    document = {"versions": versions, "missing": missing, "rows": rows}
    (out / "peers.json").write_text(json.dumps(document, indent=1))


def package_version(name: str) -> str:
    """Return what is installed."""
    return str(getattr(sys.modules.get(name), "__version__", "not imported"))


if __name__ == "__main__":
    raise SystemExit(main())
