"""Measure what the instrumentation of a training script costs a step, on the CPU.

``python tests/benchmarks/bench_script_overhead.py [STEPS]`` runs the same loop in new processes,
with and without ``workbench.instrument``, in turn. The step is as small as one can be, an update of
a single number and one batch of a data loader, so that the difference of the medians is the cost.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from workbench.scripts.launch import script_environment

ROUNDS = 5
LOOP = """
import sys, time, torch
torch.set_num_threads(1)
weight = torch.nn.Parameter(torch.zeros(1))
weight.grad = torch.ones(1)
optimizer = torch.optim.SGD([weight], lr=1e-6)
steps = int(sys.argv[1])
loader = torch.utils.data.DataLoader(range(2 * steps))
batches, times, cpu_ns = iter(loader), [], time.process_time_ns()
for _ in range(steps):
    began = time.perf_counter_ns()
    next(batches)
    optimizer.step()
    times.append(time.perf_counter_ns() - began)
cpu_ns = (time.process_time_ns() - cpu_ns) / steps
times.sort()
print(times[len(times) // 2] / 1e3, cpu_ns / 1e3)
"""


def run(steps: int, is_recorded: bool) -> tuple[float, float]:
    """Return the median time and the mean CPU time of a step of one process, in microseconds."""
    with tempfile.TemporaryDirectory() as folder:
        environment = script_environment(Path(folder), {}, "") if is_recorded else dict(os.environ)
        words = [sys.executable, "-c", LOOP, str(steps)]
        output = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
        median_us, cpu_us = map(float, output.stdout.split())
        return median_us, cpu_us


def main() -> None:
    """Print the cost of a step."""
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    pairs = [(run(steps, False), run(steps, True)) for _ in range(ROUNDS)]
    for index, name in enumerate(("median time", "mean CPU time, with what is written")):
        plain, recorded = (
            statistics.median(pair[side][index] for pair in pairs) for side in (0, 1)
        )
        print(
            f"{name}: {plain:.2f} us without, {recorded:.2f} us with: {recorded - plain:.2f} us a "
            f"step, {100 * (recorded - plain) / 1000:.3f} % of a step of 1 ms"
        )


if __name__ == "__main__":
    main()
