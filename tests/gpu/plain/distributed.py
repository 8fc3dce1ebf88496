"""A plain decoder of HYDRA base's shape with torch's DDP and FSDP, and on one GPU, to compare with.

    torchrun --nproc-per-node 2 tests/gpu/plain/distributed.py OUT.json

Every rank makes the same steps in the same order: 32 sequences of 1,024 tokens in all, AMP BF16,
fused AdamW, ``torch.compile``. Rank 0 writes milliseconds and peak bytes by variant.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

VOCABULARY, WIDTH, LAYERS, HEADS, GROUPS, HIDDEN = 50304, 768, 12, 12, 4, 2048
BATCH, SEQUENCE = 32, 1024
ROUNDS, STEPS, WARM_UP = 3, 10, 4


class Block(nn.Module):
    """Grouped-query attention and a SwiGLU, each behind an RMSNorm."""

    def __init__(self) -> None:
        super().__init__()
        head = WIDTH // HEADS
        self.widths = [WIDTH, GROUPS * head, GROUPS * head]
        self.first, self.second = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, sum(self.widths), bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.gate_up = nn.Linear(WIDTH, 2 * HIDDEN, bias=False)
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Return the stream after the block: (B, S, E) -> (B, S, E)."""
        batch, length, _ = x.shape
        parts = self.qkv(self.first(x)).split(self.widths, -1)
        q, k, v = (part.view(batch, length, -1, WIDTH // HEADS).transpose(1, 2) for part in parts)
        attended = functional.scaled_dot_product_attention(
            rotate(q, cos, sin), rotate(k, cos, sin), v, is_causal=True, enable_gqa=True
        )
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        gate, up = self.gate_up(self.second(x)).chunk(2, -1)
        return x + self.down(functional.silu(gate) * up)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the halves of each head by its position's angles."""
    low, high = x.chunk(2, -1)
    return torch.cat([low * cos - high * sin, high * cos + low * sin], -1).to(x.dtype)


class Decoder(nn.Module):
    """Embedding, blocks and a tied head; returns the mean cross-entropy."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(WIDTH)
        head = WIDTH // HEADS
        frequencies = 1e4 ** (-torch.arange(0, head, 2) / head)
        angles = torch.arange(SEQUENCE)[:, None] * frequencies
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of a batch."""
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        logits = functional.linear(self.norm(x), self.embedding.weight)
        return functional.cross_entropy(logits.float().view(-1, VOCABULARY), targets.view(-1))


def step_of(model: nn.Module, call: Callable[..., Tensor], rows: int) -> Callable[[], None]:
    """Return one training step on ``rows`` sequences."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    tokens, targets = torch.randint(VOCABULARY, (2, rows, SEQUENCE), device="cuda")

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16):
            loss = call(tokens, targets)
        loss.backward()
        optimizer.step()

    return step


def one_gpu() -> Callable[[], None]:
    """Build the full batch on one GPU."""
    model = Decoder().cuda()
    return step_of(model, torch.compile(model), BATCH)


def replicated() -> Callable[[], None]:
    """Build DistributedDataParallel around the compiled model."""
    model = Decoder().cuda()
    parallel = DistributedDataParallel(model, gradient_as_bucket_view=True)
    return step_of(model, torch.compile(parallel), BATCH // dist.get_world_size())


def sharded() -> Callable[[], None]:
    """Build ``fully_shard`` over compiled blocks."""
    model = Decoder().cuda()
    for block in model.blocks:
        block.compile()
        fully_shard(block)
    fully_shard(model)
    return step_of(model, model, BATCH // dist.get_world_size())


def measure(step: Callable[[], None]) -> float:
    """Return milliseconds of a step, of several in a row."""
    dist.barrier()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(STEPS):
        step()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / STEPS


def main() -> None:
    """Measure every variant in turns; rank 0 writes the results."""
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.set_float32_matmul_precision("high")
    dist.init_process_group("nccl")
    torch.manual_seed(0)
    results: dict[str, dict[str, float]] = {}
    for build in (one_gpu, replicated, sharded):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        began = time.perf_counter()
        step = build()
        for _ in range(WARM_UP):
            step()
        torch.cuda.synchronize()
        ready_s = time.perf_counter() - began
        times = [measure(step) for _ in range(ROUNDS)]
        peak = torch.cuda.max_memory_allocated()
        name = build.__name__
        results[name] = {"ms": statistics.median(times), "peak_bytes": peak, "ready_s": ready_s}
        del step
    if dist.get_rank() == 0:
        Path(sys.argv[1]).write_text(json.dumps(results, indent=1))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
