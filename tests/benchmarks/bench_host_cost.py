"""Time of the Python around the launches of every operator, without a GPU.

    python tests/benchmarks/bench_host_cost.py [OPERATOR ...] [--profile]

Tensors of the CPU, Triton's compiler and launcher replaced by nothing: what is left is dispatch,
checks of the inputs, autograd, allocation and Triton's own Python. Microseconds a call: with
gradients off, with gradients on, and with the backward pass; a few launches an operator, each of
which costs the driver's time beside. In the columns without Triton, its launches are replaced, too.
"""

import argparse
import cProfile
import pstats
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "kernels")]

import torch
from stubbed_triton import stubbed

import kernels
from kernels import OPS
from kernels._check import as_tuple


def median_us(call: Callable[[], object], calls: int = 200, rounds: int = 9) -> float:
    spent = []
    for _ in range(20):
        call()
    for _ in range(rounds):
        began = time.thread_time_ns()
        for _ in range(calls):
            call()
        spent.append((time.thread_time_ns() - began) / calls / 1e3)
    return statistics.median(spent)


def calls_of(op) -> dict[str, Callable[[], object]]:
    case = next(c for c in op.cases if not c.bench and fits(op, c))
    inputs = op.inputs(case, torch.device("cpu"), torch.bfloat16, 0)
    leaves = {
        n: x.detach().requires_grad_() if n in op.gradients and x is not None else x
        for n, x in inputs.items()
    }

    def forward():
        return op.function(**leaves)

    def no_grad():
        with torch.no_grad():
            return op.function(**leaves)

    outputs = as_tuple(forward())
    for y in outputs:
        if not y.is_floating_point():
            y.data.zero_()  # places that no launch has written must exist
    live = [y for y in outputs if y.requires_grad]
    found = {"no_grad": no_grad, "forward": forward}
    if live:
        upstream = [torch.zeros_like(y) for y in live]
        wanted = [leaves[n] for n in op.gradients if leaves.get(n) is not None]

        def backward():
            torch.autograd.grad(live, wanted, upstream, retain_graph=True)

        found["backward"] = backward
    return found


def fits(op, case) -> bool:
    inputs = op.inputs(case, torch.device("cpu"), torch.bfloat16, 0)
    refuses = op.implementations["triton"].refuses
    return not (refuses and refuses(*inputs.values())) and all(
        x.numel() for x in inputs.values() if isinstance(x, torch.Tensor)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("operators", nargs="*")
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    names = options.operators or sorted(
        n for n, op in OPS.items() if "triton" in op.implementations
    )
    chosen = dict.fromkeys(names, "triton")
    with stubbed() as driver, kernels.using(**chosen):
        print(f"{'':22}{'no_grad':>10}{'forward':>10}{'backward':>10}   launches")
        for name in names:
            driver.keeps = True
            calls = calls_of(OPS[name])
            counts = []
            for call in calls.values():
                driver.launches.clear()
                call()
                counts.append(len(driver.launches))
            driver.keeps = False
            times = [median_us(call) for call in calls.values()]
            print(f"{name:22}" + "".join(f"{t:10.1f}" for t in times) + f"   {counts}", flush=True)
            if options.profile:
                for title, call in calls.items():
                    print(title)
                    profile = cProfile.Profile()
                    profile.enable()
                    for _ in range(1000):
                        call()
                    profile.disable()
                    pstats.Stats(profile).sort_stats("tottime").print_stats(25)


if __name__ == "__main__":
    main()
