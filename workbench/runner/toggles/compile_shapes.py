"""The sizes that ``torch.compile`` treats as constant.

*Static* compiles for the shapes of the first call, and recompiles for every other shape. *Dynamic*
compiles kernels for any size: no recompile if the batch or the sequence changes, but slower
kernels. *Automatic*, torch's default, starts static and makes sizes dynamic after they have
changed. A size of 1 is always constant. On an H200, HYDRA base training (8 x 1,024 tokens, AMP
BF16, Triton kernels): 19.2 ms with dynamic and 17.7 ms with static shapes, compared with 39.3 ms in
eager mode on a slow host.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from models import LanguageModel
from sessions.numbers import counted
from workbench.protocol import Blocked
from workbench.runner.toggles._compiling import compiling_toggle
from workbench.runner.toggles._toggle import (
    Finding,
    Situation,
    as_default,
    effective,
    no_effect,
    unknown,
)
from workbench.runner.variants.compiles import Compiles, without_id

if TYPE_CHECKING:
    from models import Model
    from workbench.runner.batches import Batches, Tensors
    from workbench.runner.distributed.parallel import Parallel
    from workbench.runner.variants.build import Build
    from workbench.runner.variants.observed import Observed
    from workbench.runner.workloads import Compute, Workload


def _blocked(option: str, situation: Situation) -> Blocked | None:
    if situation.workload.decodes:
        return Blocked(
            "a decode step has the same shape at every length", "Choose another workload."
        )
    return None


def _apply(option: str, build: Build) -> None:
    build.compile_options["dynamic"] = True if option == "dynamic" else None


def _shown(option: str, observed: Observed, compiles: Compiles) -> Finding:
    if option == "automatic":
        changed = [reason for reason in compiles.recompiles if "size" in reason]
        if changed:
            return effective(
                f"{counted(len(changed), 'recompile')} because sizes changed: {changed[0]}"
            )
        return as_default("every step had the same sizes, and then automatic compiles like static")
    if why := _not_tried(observed.divided):
        return unknown(f"no other size was tried: {why}")
    workload, batches = observed.situation.workload, observed.batches
    tried = [
        (size, _refusal(observed.compute, batch, workload.trains))
        for size, batch in _other_sizes(batches, workload, observed.model)
    ]
    if tried:  # the model's counts are of its last call, and must be those of steps
        _refusal(observed.compute, _batch(batches, workload), workload.trains)
    accepted = [size for size, why in tried if not why]
    refused = [f"{size}: {why}" for size, why in tried if why]
    if accepted:
        return effective(
            "; ".join([f"without a recompile it also supports {', '.join(accepted)}", *refused])
        )
    return no_effect("; ".join(refused) or "these batches have no size that could be changed")


def _not_tried(divided: Parallel | None) -> str:
    """Return why a rank cannot compute a batch of another size alone; empty if it can."""
    if divided is None:
        return ""
    if divided.pipeline is not None:
        return "a stage computes micro-batches that other ranks send"
    return "" if divided.fully_shard is None else "each call gathers the shards of all ranks"


def _other_sizes(
    batches: Batches, workload: Workload, model: Model
) -> Iterator[tuple[str, Tensors]]:
    """Yield the current batch with other sizes, each after its description."""
    batch = _batch(batches, workload)
    if batches.loose or not all(isinstance(x, torch.Tensor) and x.ndim for x in batch):
        return
    size = batch[0].shape[0]
    if workload.name != "prefill":  # its cache is made for one batch
        other = size - 1 if size > 2 else 2 * size
        yield f"a batch of {other} instead of {size}", tuple(_resized(x, other) for x in batch)
    if isinstance(model, LanguageModel):
        length = batch[0].shape[1]
        shorter = max(1, length // 2)
        yield (
            f"a sequence of {shorter} instead of {length}",
            tuple(_resized(x, size, shorter) for x in batch),
        )


def _batch(batches: Batches, workload: Workload) -> Tensors:
    """Return the tensors that the computation of a step takes."""
    return batches.inputs + batches.targets if workload.trains else batches.inputs


def _resized(x: torch.Tensor, rows: int, columns: int | None = None) -> torch.Tensor:
    """Return ``x`` with another batch or sequence size, with the strides of real batches."""
    sizes = (rows, *x.shape[1:]) if columns is None else (rows, columns)
    gap = x.stride(0) - x[0].numel()  # tokens and targets share a buffer
    other = x.new_zeros(rows, math.prod(sizes[1:]) + gap)
    other = other[:, : other.shape[1] - gap].view(sizes)
    common = tuple(slice(min(new, old)) for new, old in zip(sizes, x.shape, strict=True))
    other[common] = x[common]
    return other


def _refusal(compute: Compute, batch: Tensors, trains: bool) -> str:
    """Return why the compiled step does not support this batch; empty if it does."""
    try:
        with torch.compiler.set_stance("fail_on_recompile"), torch.set_grad_enabled(trains):
            compute(*batch)
    except torch.OutOfMemoryError:
        return "the test ran out of memory"
    except RuntimeError as error:
        if "fail_on_recompile" not in str(error):
            raise
        _, _, failures = str(error).partition("guard failure(s):")
        first = failures.strip().partition("\n")[0].partition("  #")[0]
        return f"would recompile ({without_id(first) or 'a guard failed'})"
    return ""


TOGGLE = compiling_toggle(
    "compile_shapes",
    "Compiled shapes",
    __doc__,
    {"static": "Static", "automatic": "Automatic", "dynamic": "Dynamic"},
    apply=_apply,
    shown=_shown,
    blocked=_blocked,
)
