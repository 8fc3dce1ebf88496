"""On a GPU host: our attention beside SDPA's and installed libraries', at the shapes of models.

    python tests/gpu/run_attention.py OUT [--backends sdpa_cudnn flash4] [--together 1000000 66]
                                          [--seconds 0.6] [--jobs 12]
                                          [--operator adaptive_attention] [--every-gpu]
                                          [--shapes "H12/12 D64" ...]

Of each shape the forward pass without gradients, and the backward pass, are captured in CUDA graphs
and replayed in rounds of random order with cold caches, so that no host is waited for. ``triton``
stands for our kernels as they are; ``--together N`` times them with N heads at a time besides, and
says whether they give the same numbers to the last bit. ``auto`` is told: what it takes without
gradients and with them. ``--every-gpu``: ours are the kernels for every GPU, also on Hopper.
``--operator adaptive_attention``: heads of keys have a half, three quarters and all of their
columns in turn, and nothing but ours is timed unless ``--backends`` names more. ``--shapes``: only
those whose label has one of these in it. ``--jobs`` processes first compile what is to be timed.
Prints a Markdown table, writes ``attention.json`` to OUT. ``--device cpu`` only tries the script
out.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from torch import Tensor

import kernels
from kernels import OPS
from kernels.adaptive_attention import _launch
from kernels.attention import _flash, _hopper, _order
from kernels.core.replay import forget
from kernels.measure.rounds import alternate

OURS = "triton"
Shape = tuple[int, int, int, int, int, bool]
# Batch, tokens, heads, heads of keys, head dimension, causal.
SHAPES = [
    (16, 512, 32, 8, 128, True),
    (8, 1024, 32, 8, 128, True),
    (4, 2048, 32, 8, 128, True),
    (4, 4096, 32, 8, 128, True),
    (2, 16384, 32, 8, 128, True),
    (32, 512, 16, 16, 128, True),
    (8, 1024, 16, 16, 128, True),
    (4, 4096, 16, 16, 128, True),
    (2, 8192, 16, 16, 128, True),
    (8, 1024, 32, 8, 128, False),
    (8, 1024, 16, 16, 128, False),
    (16, 512, 12, 4, 64, True),
    (8, 1024, 12, 4, 64, True),  # HYDRA base, experts base
    (4, 2048, 12, 4, 64, True),
    (4, 4096, 12, 4, 64, True),
    (32, 512, 16, 16, 64, True),
    (8, 1024, 12, 12, 64, True),  # AdaAttn base
    (4, 4096, 12, 12, 64, True),
    (2, 8192, 12, 12, 64, True),
    (64, 256, 8, 8, 64, False),  # MAHIA-X base
]
BESIDE = {"attention": ["sdpa_cudnn"], "adaptive_attention": []}
SMALL = [(2, 40, 4, 2, 16, True), (1, 24, 3, 3, 8, False)]


def label(shape: Shape) -> str:
    """Return a shape as tables have it: H query heads over heads of keys."""
    batch, tokens, heads, groups, dim, causal = shape
    return f"B{batch} S{tokens} H{heads}/{groups} D{dim}{'' if causal else ', no mask'}"


@dataclass
class Row:
    """One shape: microseconds forward and backward by contender, and what went wrong."""

    shape: Shape
    auto: tuple[str, str] = ("", "")  # without gradients, with them
    forward_us: dict[str, float] = field(default_factory=dict)
    backward_us: dict[str, float] = field(default_factory=dict)
    same: dict[str, bool] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        cells = [label(self.shape)]
        cells.append(" / ".join(dict.fromkeys(self.auto)))
        for name in self.forward_us | self.problems:
            times = [us[name] for us in (self.forward_us, self.backward_us) if name in us]
            shown = self.problems.get(name) or " / ".join(f"{us:.4g}" for us in times)
            cells.append(f"{name}: {shown}{'' if self.same.get(name, True) else ', NOT THE SAME'}")
        return f"| {' | '.join(cells)} |"


def main() -> int:
    """Time every shape; 1 if our own kernels failed, or heads together changed a number."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--operator", choices=list(BESIDE), default="attention")
    parser.add_argument("--backends", nargs="*", help="unless given, cuDNN's for attention")
    parser.add_argument("--shapes", nargs="*", default=[""])
    parser.add_argument("--every-gpu", action="store_true")
    parser.add_argument("--together", nargs="*", type=int, default=[])
    parser.add_argument("--seconds", type=float, default=0.6, help="of a shape in one direction")
    parser.add_argument("--jobs", type=int, default=0)
    parser.add_argument("--share", type=int, help=argparse.SUPPRESS)  # of a job: it times nothing
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    if options.backends is None:
        options.backends = BESIDE[options.operator]
    if options.every_gpu:
        _hopper.takes = lambda *_: False
    shapes = SHAPES if options.device == "cuda" else SMALL
    shapes = [shape for shape in shapes if any(text in label(shape) for text in options.shapes)]
    if options.share is not None:
        for shape in shapes[options.share :: options.jobs]:
            _Shape(shape, options).prepare()
        return 0
    if options.jobs:
        job = [sys.executable, __file__, *sys.argv[1:], "--share"]
        jobs = [subprocess.Popen([*job, str(i)]) for i in range(options.jobs)]
        for job_process in jobs:
            job_process.wait()
    options.out.mkdir(parents=True, exist_ok=True)
    rows = []
    for shape in shapes:
        rows.append(_Shape(shape, options).timed())
        print(rows[-1], flush=True)
        (options.out / "attention.json").write_text(json.dumps([vars(row) for row in rows]))
    failed = [row for row in rows if OURS in row.problems or not all(row.same.values())]
    return 1 if failed else 0


class _Shape:
    """The inputs of one shape, and its contenders by name: forward and backward."""

    def __init__(self, shape: Shape, options: Any) -> None:
        batch, tokens, heads, groups, dim, self._causal = shape
        self._options = options
        self._row = Row(shape)
        torch.manual_seed(0)
        make = {"device": options.device, "dtype": torch.bfloat16}
        self._qkv = [
            torch.randn(batch, tokens, n, dim, **make).transpose(1, 2)
            for n in (heads, groups, groups)
        ]
        self._upstream = torch.randn_like(self._qkv[0])
        turns = [dim // 2, 3 * dim // 4, dim]
        ranks = [turns[i % len(turns)] for i in range(groups)]
        self._ranks = torch.tensor(ranks, device=options.device)
        self._side = torch.cuda.Stream() if options.device == "cuda" else None

    def prepare(self) -> dict[str, tuple[Callable[[], Any], Callable[[], Any]]]:
        """Call each contender once, which compiles it; those that can run."""
        contenders = {}
        ours = [(OURS, OURS, None)]
        ours += [(f"{n} together", OURS, n) for n in self._options.together]
        if OPS[self._options.operator].unavailable(OURS, self._options.device):
            ours = []
        expected: list[Tensor] = []
        for name, backend, together in [*ours, *((n, n, None) for n in self._options.backends)]:
            with _working_on(together):
                try:
                    forward, backward = self._passes(backend)
                    gave = [forward(), *backward()]
                    contenders[name] = (self._captured(forward), self._captured(backward))
                except kernels.Unavailable as refusal:
                    self._row.problems[name] = str(refusal)
                    continue
                except Exception as error:  # noqa: BLE001  the others are wanted all the same
                    traceback.print_exc()
                    self._row.problems[name] = f"{type(error).__name__}: {str(error)[:80]}"
                    continue
            expected = expected or gave
            if backend == OURS:
                self._row.same[name] = all(map(torch.equal, gave, expected))
        return contenders

    def timed(self) -> Row:
        """All contenders against each other."""
        row, contenders = self._row, self.prepare()
        row.auto = (self._auto(trained=False), self._auto(trained=True))
        for direction, times_us in enumerate((row.forward_us, row.backward_us)):
            calls = [passes[direction] for passes in contenders.values()]
            results = alternate(
                calls,
                self._options.device,
                describe_failure=lambda: traceback.format_exc(limit=-2),
                budget_s=self._options.seconds,
            )
            for name, result in zip(contenders, results, strict=True):
                if result.problem:
                    row.problems[name] = result.problem
                else:
                    times_us[name] = statistics.median(result.us)
        return row

    def _passes(self, backend: str) -> tuple[Callable[[], Tensor], Callable[[], Any]]:
        """Return both passes; the backward pass is of one that runs here, on the graphs' stream."""
        if self._side is not None:
            self._side.wait_stream(torch.cuda.current_stream())  # which drew the inputs
        with torch.cuda.stream(self._side):
            leaves = [x.detach().requires_grad_() for x in self._qkv]
            out = self._call(*leaves, backend)

        def forward() -> Tensor:
            with torch.no_grad():
                return self._call(*self._qkv, backend)

        def backward() -> Any:
            return torch.autograd.grad(out, leaves, self._upstream, retain_graph=True)

        return forward, backward

    def _call(self, q: Tensor, k: Tensor, v: Tensor, backend: str | None) -> Tensor:
        if self._options.operator == "attention":
            return kernels.attention(q, k, v, causal=self._causal, backend=backend)
        given = {"causal": self._causal, "impl": backend}
        return kernels.adaptive_attention(q, k, v, self._ranks, **given)

    def _captured(self, call: Callable[[], Any]) -> Callable[[], Any]:
        if self._side is None:
            return call
        self._side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._side):
            call()
        torch.cuda.current_stream().wait_stream(self._side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self._side):
            output = call()

        def replay() -> Any:
            graph.replay()
            return output, call  # in whose memory a graph of the backward pass reads

        return replay

    def _auto(self, trained: bool) -> str:
        q, k, v = (x.detach().requires_grad_(trained) for x in self._qkv)
        self._call(q, k, v, None)
        return kernels.reasons()[self._options.operator][0]


@contextlib.contextmanager
def _working_on(heads: int | None) -> Iterator[None]:
    """Our kernels with so many heads at a time; None: as many as they take themselves."""
    if heads is None:
        yield
        return
    try:
        for module in (_flash, _hopper, _launch):
            module.heads_together = lambda *_, **__: heads
        forget()
        yield
    finally:
        for module in (_flash, _hopper, _launch):
            module.heads_together = _order.heads_together
        forget()


if __name__ == "__main__":
    sys.exit(main())
