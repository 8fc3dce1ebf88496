"""Time of the Python around the launches of every operator, without a GPU.

    python tests/benchmarks/bench_host_cost.py [OPERATOR ...] [--profile]

Tensors of the CPU; Triton's compiler, and the function in C at the end of its launcher with the
driver below, replaced by nothing. What is left is dispatch, checks of the inputs, autograd, memory
and what a launch needs to know. Microseconds of processor time a call, the least of several rounds,
as other processes only add to it: with gradients off, with gradients on, and of the backward pass;
then how many launches each has. Compare two versions on one machine: by itself the time is not a
GPU host's.
"""

import argparse
import cProfile
import pstats
import sys
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "kernels")]

import torch  # noqa: E402
from stubbed_triton import stubbed  # noqa: E402

import kernels  # noqa: E402
from kernels import OPS  # noqa: E402
from kernels.core.operator import Inputs  # noqa: E402
from kernels.measure.host_cost import calls_of, recording, small_inputs  # noqa: E402

# Where torch multiplies, it does so here: in few numbers.
TINY = {"linear_cross_entropy": "1x8 V2", "moe_gating": "9x12 E2 k1"}


def inputs_of(name: str) -> Inputs:
    """Return inputs as on a GPU, but for products in torch."""
    op, device = OPS[name], torch.device("cpu")
    if name in TINY:
        case = next(case for case in op.cases if case.name == TINY[name])
        return op.inputs(case, device, torch.bfloat16, 0)
    inputs = small_inputs(op, "triton", device, torch.bfloat16)
    assert inputs is not None, name
    return inputs


def least_us(call: Callable[[], object], calls: int = 50, rounds: int = 20) -> float:
    def round_us() -> float:
        began = time.thread_time_ns()
        for _ in range(calls):
            call()
        return (time.thread_time_ns() - began) / calls / 1e3

    return min(round_us() for _ in range(rounds))


def profile(call: Callable[[], object]) -> None:
    profiler = cProfile.Profile()
    profiler.enable()
    for _ in range(1000):
        call()
    profiler.disable()
    pstats.Stats(profiler).sort_stats("tottime").print_stats(20)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("operators", nargs="*")
    parser.add_argument("--profile", action="store_true", help="also where the time goes")
    options = parser.parse_args()
    torch.set_num_threads(1)
    able = sorted(name for name, op in OPS.items() if "triton" in op.implementations)
    with stubbed() as driver, kernels.using(**dict.fromkeys(able, "triton")):
        for name in options.operators or able:
            inputs = inputs_of(name)
            line = f"{name:22}"
            with mock.patch.object(torch, "empty", torch.zeros):  # places nobody wrote must exist
                calls = calls_of(OPS[name], inputs)
            for title, call in calls.items():
                driver.launches.clear()
                call()
                count = len(driver.launches)
                driver.keeps = False
                with recording(title):
                    line += f"  {title} {least_us(call):.1f} us, {count} launches;"
                driver.keeps = True
            print(line, flush=True)
            if options.profile:
                for title, call in calls.items():
                    print(f"{name} {title}")
                    with recording(title):
                        profile(call)


if __name__ == "__main__":
    main()
