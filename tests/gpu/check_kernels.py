"""On a GPU host: is every operator right, and how fast is it? One JSON file and a table.

    python tests/gpu/check_kernels.py [-o kernels.json] [--only rms_norm ...] [--minutes 6]
                                      [--part right]

Every operator is checked in a process of its own, several at a time, so that a crash or a hang of
one costs only that one; then each is timed alone, what is right only. An operator whose kernels
take long to compile is checked by a process for each dtype. Needs torch, triton and this
repository; neither pytest nor Qt. Exit code 1 if anything was wrong.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import fcntl
import functools
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

import kernels  # noqa: E402
from kernels import OPS, Case, Operator, hardware  # noqa: E402
from kernels.core import replay  # noqa: E402
from kernels.core.check import Exact, as_tuple, end_of_huge, poisoned, stretched  # noqa: E402
from kernels.core.operator import Huge  # noqa: E402
from kernels.measure.bench import Row, bench, leaves_of  # noqa: E402
from kernels.measure.host_cost import host_costs  # noqa: E402
from kernels.measure.peers import PEERS  # noqa: E402
from kernels.measure.timing import ceilings  # noqa: E402

DEVICE = torch.device("cuda", 0)
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
PARTS = ("right", "fast")
WORKERS = 6  # processes that check at the same time
# Bytes of memory that hold several operators' large cases, in FP64 too, beside a huge tensor.
ROOM_FOR_SEVERAL = 100 * 2**30
COSTLY = "attention"  # is timed last, with all the time that is left
# Shapes, masks and dtypes have 40 to 50 kernels each here, of 1 to 5 seconds to compile. Those of
# FP16 and BF16 have the same tiles: a shape is asked for in FP32 and in one of the two.
MANY_KERNELS = ("adaptive_attention", "attention")
SPLIT = (*MANY_KERNELS, "ssd_scan")  # which take long to compile: a process for each dtype
# Compiles for every shape and dtype, in about ten seconds each: asked for a shape in one dtype.
COMPILED_FOR_EACH = "flex"


def main() -> int:
    """Run as a script."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, default=Path("kernels.json"))
    parser.add_argument("--only", nargs="*", choices=sorted(OPS), default=sorted(OPS))
    parser.add_argument("--minutes", type=float, default=6.0)
    parser.add_argument(
        "--host-cost",
        action="store_true",
        help="print this only: microseconds a call, a line of JSON for each operator",
    )
    parser.add_argument("--part", choices=PARTS, help="only this; of one operator, in this process")
    parser.add_argument(
        "--dtype", choices=[str(d)[6:] for d in DTYPES], help="of what is right, only this share"
    )
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("check_kernels needs a CUDA GPU, and torch finds none", file=sys.stderr)
        return 2
    if options.host_cost:
        for name in options.only:
            names = ["triton"] if "triton" in OPS[name].implementations else None
            print(json.dumps({name: _host(OPS[name], names)}), flush=True)
        return 0
    if options.part and len(options.only) == 1:
        (name,) = options.only
        write = functools.partial(_write, options.output)
        if options.part == "right":
            write(check(OPS[name], options.dtype))
        else:
            measure(OPS[name], time.monotonic() + 60 * options.minutes, write)
        return 0
    parts = (options.part,) if options.part else PARTS
    return _run_all(options.only, parts, options.output, 60 * options.minutes)


def _run_all(names: list[str], parts: tuple[str, ...], output: Path, seconds: float) -> int:
    deadline = time.monotonic() + seconds
    report: dict[str, Any] = {"environment": environment(), **{part: {} for part in PARTS}}
    wrong: list[str] = []
    if "right" in parts:
        reserved = 0.35 * seconds if "fast" in parts else 0.0
        with concurrent.futures.ThreadPoolExecutor(WORKERS) as pool:
            begun = {
                name: [
                    pool.submit(_child, name, "right", deadline - reserved, *share)
                    for share in _shares(name)
                ]
                for name in sorted(names, key=lambda name: name not in SPLIT)
            }
            for name in names:
                result = _together([future.result() for future in begun[name]])
                report["right"][name] = result
                print(*_summary(name, result), sep="\n", flush=True)
                output.write_text(json.dumps(report, indent=1))
        wrong = [name for name in names if report["right"][name]["failures"]]
    if "fast" in parts:
        for index, name in enumerate(sorted(names, key=COSTLY.__eq__)):
            left = deadline - time.monotonic()
            limit = time.monotonic() + min(left, 2 * left / (len(names) - index))
            report["fast"][name] = _child(name, "fast", limit)
            print(*_table(name, report["fast"][name]), sep="\n", flush=True)
            output.write_text(json.dumps(report, indent=1))
    if "right" in parts:
        print(f"\n{len(names) - len(wrong)} operators right, wrong: {wrong or 'none'}; {output}")
    return 1 if wrong else 0


def _shares(name: str) -> list[list[str]]:
    """Return further arguments of the processes that check an operator."""
    return [["--dtype", str(d)[6:]] for d in DTYPES] if name in SPLIT else [[]]


def _together(shares: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the results of one operator from all of its processes."""
    combined: dict[str, Any] = {"checks": 0, "failures": [], "worst": {}}
    for share in shares:
        combined["checks"] += share.get("checks", 0)
        combined["failures"] += share["failures"]
        combined["worst"] |= share.get("worst", {})
    return combined


def _child(name: str, part: str, deadline: float, *arguments: str) -> dict[str, Any]:
    """One operator's part in a process of its own; what went wrong with it is a failure."""
    left = deadline - time.monotonic()
    if left < 5:
        return {"failures": [f"{part}: not run, out of time"]}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "part.json"
        command = [sys.executable, __file__, "--only", name, "--part", part, "-o", str(file)]
        command += ["--minutes", str(0.8 * left / 60), *arguments]
        problem = ""
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=left)
        except subprocess.TimeoutExpired as expired:
            output = (expired.stderr or b"").decode(errors="replace")[-1500:]
            problem = f"{part}: took over {left:.0f} s\n{output}"
        else:
            if done.returncode:
                problem = f"{part}: process ended {done.returncode}\n{done.stderr[-3000:]}"
        result = json.loads(file.read_text()) if file.exists() else {"failures": []}
        result["failures"] += [problem] if problem else []
        return result


def _write(file: Path, part: dict[str, Any]) -> None:
    """Whole or not at all: the process may be killed at any time."""
    new = file.with_suffix(".new")
    new.write_text(json.dumps(part))
    new.replace(file)


def environment() -> dict[str, Any]:
    """Return the facts that decide a result."""
    facts = hardware.of(DEVICE)
    return {
        "gpu": facts.name,
        "capability": facts.capability,
        "sm_count": facts.sm_count,
        "torch": torch.__version__,
        "triton": getattr(sys.modules.get("triton"), "__version__", None),
        "python": platform.python_version(),
        "status": {name: str(s) for name, s in kernels.status("cuda").items()},
    }


def check(op: Operator, dtype: str | None = None) -> dict[str, Any]:
    """Everything about being right, of one operator on this GPU; of one ``dtype``, if given."""
    failures: list[str] = []
    worst: dict[str, float] = {}
    checks, begun = 0, time.monotonic()
    # Dynamo notes at its first use which functions torch has: not the ones that poison memory.
    torch.compile(torch.zeros_like, backend="eager")(torch.empty(1))
    for title, of, test in _checks(op, worst):
        if dtype not in (None, str(of)[6:]):
            continue
        checks += 1
        # What a check that hangs leaves behind: which one it was.
        print(f"{time.monotonic() - begun:6.1f} s  {title}", file=sys.stderr, flush=True)
        try:
            failures += [f"{title}: {problem}" for problem in test()]
        except kernels.Unavailable as refusal:
            failures.append(f"{title}: {refusal}")
        except Exception:  # noqa: BLE001  every failure is a line of the report
            failures.append(f"{title}: {traceback.format_exc(limit=-6)}")
            if "CUDA error" in failures[-1]:
                break  # the context is lost, and with it this process
    return {"checks": checks, "failures": failures, "worst": worst}


def _checks(
    op: Operator, worst: dict[str, float]
) -> Iterator[tuple[str, torch.dtype, Callable[[], list[str]]]]:
    """Title, the dtype that its kernels are of, and what is wrong."""
    rng = random.Random(0)
    small = [case for case in op.cases if not case.bench]
    small += [Case(f"random {i}", op.sizes(rng)) for i in range(3)]
    many = op.name in MANY_KERNELS
    for number, case in enumerate(small):
        dtypes = (torch.float32, DTYPES[2 - number % 2]) if many else DTYPES
        for dtype in dtypes:
            also_apart = dtype == torch.float16 and (not many or number % 3 != 1)
            is_compiled = dtype == dtypes[number // 2 % 2]
            left_out = () if is_compiled else (COMPILED_FOR_EACH,)
            for apart in (False, True) if also_apart else (False,):
                title = f"{case.name} {dtype}{' apart' if apart else ''}"
                test = functools.partial(_compare, op, case, dtype, apart, worst, left_out=left_out)
                yield title, dtype, test
    narrow = torch.bfloat16
    short = hardware.has_gpu() and hardware.of(DEVICE).total_bytes < ROOM_FOR_SEVERAL
    for case in op.cases:
        if case.bench:
            test = functools.partial(_compare, op, case, narrow, False, worst, large=True)
            yield f"{case.name} large", narrow, functools.partial(_alone, test) if short else test
    case = next(c for c in small if "0" not in c.name.split()[0][:2])
    yield f"{case.name} compiled", narrow, lambda: _compiled(op, case)
    yield f"{case.name} replayed", narrow, lambda: _replayed(op, case)
    yield f"{case.name} captured", narrow, lambda: _captured(op, case)
    yield f"{case.name} synchronization", narrow, lambda: _synchronizes(op, case)
    yield f"{case.name} autocast", narrow, lambda: _autocast(op, case)
    for huge in op.huge:
        title = f"over 2^31 elements {dict(huge.sizes)}"
        yield title, huge.dtype, functools.partial(_alone, functools.partial(_huge, op, huge))


def _implementations(op: Operator, inputs: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    arguments = leaves_of(op, inputs).values()
    for name, implementation in op.implementations.items():
        # The bench compares libraries' kernels, which are not ours to mend, before it times them.
        by_peer = name in PEERS.get(op.name, {})
        if (
            not by_peer
            and implementation.missing("cuda") is None
            and not (implementation.refuses and implementation.refuses(*arguments))
        ):
            yield name, implementation


def _compare(
    op: Operator,
    case: Case,
    dtype: torch.dtype,
    apart: bool,
    worst: dict[str, float],
    large: bool = False,
    left_out: tuple[str, ...] = (),
) -> list[str]:
    inputs = op.inputs(case, DEVICE, dtype, 0)
    if apart:
        inputs = stretched(inputs)
    exact = Exact(op, inputs, large=large)
    problems = []
    for name, call in _implementations(op, inputs):
        if name in left_out or (large and name in ("manual", "sdpa_math")):
            continue  # the latter hold the whole matrix of weights
        try:
            compared = exact.compare(call)
        except Exception:
            problems.append(f"{name}: {traceback.format_exc(limit=-6)}")
            if "CUDA error" in problems[-1]:
                raise
            continue
        problems += [f"{name}: {comparison}" for comparison in compared if not comparison.right]
        for comparison in compared:
            key = f"{name} {dtype}"
            share = comparison.error / comparison.allowed if comparison.allowed else 0.0
            worst[key] = max(worst.get(key, 0.0), share)
    return problems


def _triton_or_auto(op: Operator, inputs: dict[str, Any]) -> list[str]:
    names = [name for name, _ in _implementations(op, inputs)]
    return [name for name in ("triton",) if name in names] + ["auto"]


def _public(op: Operator, impl: str) -> Callable[..., Any]:
    """Return the public function by position, under a choice."""

    def call(*args: Any) -> Any:
        with kernels.using(**{op.name: impl}):
            return kernels.core.dispatch.run(op, None, *args)

    return call


def _compiled(op: Operator, case: Case) -> list[str]:
    inputs = op.inputs(case, DEVICE, torch.bfloat16, 0)
    exact, problems = Exact(op, inputs), []
    for impl in _triton_or_auto(op, inputs):
        torch._dynamo.reset()

        def call(*args: Any) -> Any:
            return op.function(**dict(zip(inputs, args, strict=True)))

        with kernels.using(**{op.name: impl}):
            compared = exact.judge(exact.results(torch.compile(call, fullgraph=True)))
        problems += [f"{impl}: {comparison}" for comparison in compared if not comparison.right]
    return problems


def _replayed(op: Operator, case: Case) -> list[str]:
    """Check a call like those before it, in poisoned memory: with gradients, and without."""
    inputs = op.inputs(case, DEVICE, torch.bfloat16, 0)
    exact, problems = Exact(op, inputs), []
    for impl in _triton_or_auto(op, inputs):
        call = _public(op, impl)
        for _ in range(replay.BEFORE + 2):
            exact.results(call)
            with torch.no_grad():
                call(*op.with_copies(tuple(inputs.values())))
        with poisoned():
            results = exact.results(call)
            with torch.no_grad():
                alone = call(*op.with_copies(tuple(inputs.values())))
        outputs = as_tuple(op.comparable(alone) if op.comparable else alone)
        compared = exact.judge(results)
        compared += [exact.compare_result(f"output {i}", y) for i, y in enumerate(outputs)]
        problems += [f"{impl}: {comparison}" for comparison in compared if not comparison.right]
    return problems


def _step(op: Operator, inputs: dict[str, Any], call: Callable[..., Any]) -> Callable[[], Any]:
    """Forward and backward as one function of nothing, on fixed tensors."""
    names = op.differentiable(inputs)
    arguments = leaves_of(op, inputs)

    def forward() -> tuple[torch.Tensor, ...]:
        return as_tuple(call(*op.with_copies(tuple(arguments.values()))))

    upstream = [torch.randn_like(y) if y.is_floating_point() else y for y in forward()]

    def step() -> tuple[torch.Tensor, ...]:
        outputs = forward()
        if not names:
            return outputs
        live = [(y, u) for y, u in zip(outputs, upstream, strict=True) if y.requires_grad]
        leaves = [arguments[n] for n in names]
        return (*outputs, *torch.autograd.grad([y for y, _ in live], leaves, [u for _, u in live]))

    return step


def _captured(op: Operator, case: Case) -> list[str]:
    inputs = op.inputs(case, DEVICE, torch.bfloat16, 0)
    problems = []
    for impl in _triton_or_auto(op, inputs):
        step = _step(op, inputs, _public(op, impl))
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        # A captured call may be measured to prefer another implementation than an eager one.
        with torch.cuda.stream(side), kernels.measuring(False):
            eager = step()
            step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with (
            torch.cuda.graph(graph, capture_error_mode="thread_local"),
            kernels.measuring(False),
        ):
            captured = step()
        for tensor, before in zip(captured, eager, strict=True):
            if tensor.data_ptr() == before.data_ptr():
                continue  # handed through from the inputs, which are the same in both
            tensor.detach().fill_(torch.nan if tensor.is_floating_point() else -1)
        graph.replay()
        torch.cuda.synchronize()
        if not all(torch.equal(a, b) for a, b in zip(eager, captured, strict=True)):
            problems.append(f"{impl}: the replay differs from the eager call")
    return problems


def _synchronizes(op: Operator, case: Case) -> list[str]:
    inputs = op.inputs(case, DEVICE, torch.bfloat16, 0)
    for impl in _triton_or_auto(op, inputs):
        step = _step(op, inputs, _public(op, impl))
        step()
        torch.cuda.set_sync_debug_mode("error")
        try:
            step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return []


def _autocast(op: Operator, case: Case) -> list[str]:
    inputs = op.inputs(case, DEVICE, torch.float32, 0)
    problems = []
    for impl in _triton_or_auto(op, inputs):
        with torch.autocast("cuda", torch.bfloat16):
            results = _step(op, inputs, _public(op, impl))()
        if not all(bool(torch.isfinite(t).all()) for t in results):
            problems.append(f"{impl}: not finite under autocast")
    return problems


def _alone(test: Callable[[], list[str]]) -> list[str]:
    """One process at a time, or their tensors would not fit in the memory together."""
    with Path(__file__).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            return test()
        finally:
            torch.cuda.empty_cache()


def _huge(op: Operator, huge: Huge) -> list[str]:
    inputs = op.inputs(Case("huge", huge.sizes), DEVICE, huge.dtype, 0)
    triton = op.implementations["triton"]
    refused = triton.refuses(*inputs.values()) if triton.refuses else None
    if refused:
        return [f"triton: {refused}"]
    compared = end_of_huge(op, inputs, triton, huge)
    return [str(comparison) for comparison in compared if not comparison.right]


def _summary(name: str, part: dict[str, Any]) -> list[str]:
    failures = part["failures"]
    lines = [f"{name}: {'WRONG' if failures else 'right'}, {part.get('checks', 0)} checks"]
    lines += ["    " + failure.replace("\n", "\n    ")[:1500] for failure in failures[:6]]
    if len(failures) > 6:
        lines.append(f"    and {len(failures) - 6} more")
    return lines


def measure(op: Operator, deadline: float, write: Callable[[dict[str, Any]], None]) -> None:
    """Everything about being fast, of one operator on this GPU; written after every row."""
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "4")
    part: dict[str, Any] = {"failures": [], "rows": [], "host_us": {}}
    limits = ceilings(str(DEVICE))
    part["copy_gb_per_s"] = limits.bytes_per_s / 1e9
    part["matmul_tflop_per_s"] = limits.flops_per_s / 1e12
    part["host_us"] = _host(op)
    rows: list[Row] = []
    for row in bench(op, DEVICE, torch.bfloat16, deadline=deadline):
        if not any(row is known for known in rows):
            rows.append(row)
        part["rows"] = [asdict(row) for row in rows]
        part["failures"] = [f"{r.case} {r.impl}: {r.problem}" for r in rows if _ours(op, r)]
        write(part)


def _host(op: Operator, only: list[str] | None = None) -> dict[str, dict[str, dict[str, float]]]:
    costs = host_costs(op, DEVICE, torch.bfloat16, only)
    return {impl: {way: asdict(cost) for way, cost in ways.items()} for impl, ways in costs.items()}


def _ours(op: Operator, row: Row) -> bool:
    return bool(row.problem) and row.impl in op.implementations


def _table(name: str, part: dict[str, Any]) -> list[str]:
    lines = [f"\n{name}"]
    for impl, ways in part.get("host_us", {}).items():
        for way, cost in ways.items():
            us, outside = cost["call_us"], cost["outside_us"]
            lines.append(f"    host {impl} {way}: {us:.1f} us, {outside:.1f} outside launches")
    for row in sorted(part.get("rows", []), key=lambda r: (r["case"], r["direction"])):
        head = f"    {row['case']:34} {row['direction']:9} {row['impl']:15}"
        if not row["times_us"]:
            lines.append(f"{head} {row['problem'][-120:]}")
            continue
        us = statistics.median(row["times_us"])
        lines.append(
            f"{head} {us:10.1f} us  {100 * row['floor_us'] / us:5.1f} % of speed of light"
            f"  kernels {row['kernel_us'] or float('nan'):9.1f} us  error {row['error']:.2f}"
        )
    lines += ["    " + failure[:1500] for failure in part["failures"]]
    return lines


if __name__ == "__main__":
    sys.exit(main())
