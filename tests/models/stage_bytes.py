"""Peak memory of a rank that has one stage of a pipeline, counted on a CPU; see ``peak_bytes``.

Micro-batches pass the stage in the order of torch's 1F1B or GPipe. What neighbours send is as large
as from other processes.
"""

from __future__ import annotations

from typing import Any

import torch
from peak_bytes import _amp, _dtype, _metered
from torch import Tensor

from models import Family
from models.parallel.context_parallel import install
from models.parallel.pipeline_stages import chain
from models.parallel.tensor_parallel_plan import divide
from workbench.runner.distributed.collectives import AcrossRanks
from workbench.runner.distributed.context import SplitContext


def stage_peak(
    family: Family,
    config: Any,
    ranks: int,
    rank: int,
    micro_batches: int,
    *,
    batch: int,
    sequence: int,
    precision: str,
    checkpointing: str = "none",
    all_forward: bool = False,
    tensor_ranks: int = 1,
    context_ranks: int = 1,
) -> int:
    """Return the peak bytes of a rank's training step; ``sequence`` is that of all ranks."""
    stage = chain(family, config).stages(ranks)[rank]
    model: Any = family.build(config, dtype=_dtype(precision)).train()
    model.narrow(stage)
    if tensor_ranks > 1:
        divide(model, tensor_ranks, AcrossRanks())
    if context_ranks > 1:
        install(model, SplitContext(context_ranks, context_ranks - 1))
    model.share_rope_cache(False)
    model.set_checkpointing(checkpointing)
    rows = batch // micro_batches
    shape = rows, sequence // context_ranks, model.dim
    step = batch, sequence, precision, True, "triton"
    with _metered(family, config, model, *step) as (meter, inputs):
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        for parameter in model.parameters():
            parameter.grad = torch.empty_like(parameter)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        # torch receives into buffers of their own.
        received, gradients = (
            [torch.empty(shape, dtype=_dtype(precision)) for _ in range(count)]
            for count in (0 if absent else micro_batches for absent in (stage.first, stage.last))
        )
        meter.most = meter.now
        outputs: list[Tensor] = []

        def forward(number: int) -> None:
            part = slice(number * rows, (number + 1) * rows)
            x = inputs[0][part]
            if not stage.first:
                x = received[number].detach().requires_grad_()
            with _amp(precision):
                output = model.stage_loss(x, inputs[1][part])
            outputs.append(output.loss if stage.last else output.x)

        passed = micro_batches if all_forward else min(ranks - rank, micro_batches)
        # Autocast forgets its copies of weights where the outermost region ends.
        with torch.autocast("cpu", enabled=False):
            for number in range(passed):
                forward(number)
            for number in range(micro_batches):
                gradient = None if stage.last else gradients[number]
                torch.autograd.backward(outputs.pop(0), gradient)
                if passed + number < micro_batches:
                    forward(passed + number)
        optimizer.step()
    return meter.most
