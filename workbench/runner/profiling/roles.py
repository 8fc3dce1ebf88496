"""Memory by role over a marked step: whose is each byte that the allocator holds?

Every block is told by its address: parameters, buffers and the optimizer's state are known before
the step; a gradient is what lies at a parameter's ``.grad`` when the optimizer begins. Of what a
step allocates, a block that is there when the backward pass begins and was made before is an
activation that it needs; the rest is workspace: temporaries of operators, scratch space of
libraries. This needs neither hooks inside the model nor operators to be seen, and so holds for
compiled code too. What a CUDA graph uses at replay is no allocation but lies in its private pool:
whose it is, the same step tells when it runs once without the graph.

On a GPU the allocator tells how much is held altogether, and what nobody here knows of is "other".
On the CPU nothing does: what was made before the trace and is none of the known (a decode cache)
is not counted.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from sessions.breakdown import ROLES
from workbench.runner.arm import Arm
from workbench.runner.graph_pools import resident_bytes
from workbench.runner.profiling.trace import Trace
from workbench.runner.structures import tensors

ROWS = 400  # of the course over a step, at most
_ROUNDING = 512  # bytes that the CUDA allocator rounds a block up to
_UPDATE = "Optimizer.step#"


@dataclass
class Known:
    """What is known beside the trace: storages by address, and what else is held.

    ``blocks``: address to role and bytes before the steps. ``gradients``: for each marked step the
    addresses of the gradients when the optimizer began. ``pools``: bytes of CUDA graphs' private
    pools that no tensor holds now.
    """

    blocks: dict[int, tuple[str, int]] = field(default_factory=dict)
    other: int = 0
    gradients: list[set[int]] = field(default_factory=list)
    pools: int = 0
    reserved: int = 0


@dataclass
class _Block:
    bytes: int
    start: float
    stop: float = float("inf")
    role: str = "other"


def known(arm: Arm, device: torch.device) -> Known:
    """What the arm holds between two steps."""
    found = Known()
    on_gpu = device.type == "cuda"

    def take(role: str, tensor: object) -> None:
        for storage in _storages(tensor):
            size = storage.nbytes() if storage.device.type == device.type else 0
            if on_gpu:
                size = -(-size // _ROUNDING) * _ROUNDING
            if size:
                found.blocks.setdefault(storage.data_ptr(), (role, size))

    for parameter in arm.model.parameters():
        take("parameters", parameter)
        take("gradients", parameter.grad)
    for buffer in arm.model.buffers():
        take("parameters", buffer)
    shards = None if arm.trainer is None else arm.trainer.shards
    if shards is not None:
        for role, shares in (
            ("parameters", shards.weights()),
            ("gradients", shards.gradients()),
            ("optimizer", shards.moments()),
        ):
            for share in shares:
                take(role, share)
    elif arm.trainer is not None:
        for state in arm.trainer.optimizer.state.values():
            for value in state.values():
                take("optimizer", value)
        if arm.trainer.buckets is not None:
            for flat in arm.trainer.buckets.tensors():
                take("gradients", flat)
    if on_gpu:
        held = sum(size for _, size in found.blocks.values())
        found.other = max(0, torch.cuda.memory_allocated(device) - held)
        found.reserved = torch.cuda.memory_reserved(device)
        found.pools = resident_bytes(arm)
    else:
        for tensor in tensors((arm.batches.inputs, arm.batches.targets)):
            take("other", tensor)
    return found


def gradient_addresses(arm: Arm) -> set[int]:
    """Where the gradients lie now."""
    gradients = (parameter.grad for parameter in arm.model.parameters())
    return {storage.data_ptr() for one in gradients for storage in _storages(one)}


def course(trace: Trace, before: Known) -> dict[str, list[float]]:
    """Bytes by role over the last marked step: columns ``t_ms``, ``reserved`` and each role.

    ``reserved`` is what the caching allocator holds altogether, 0 where there is none.
    """
    blocks = _blocks(trace, before)
    span = trace.spans[trace.steps[-1]]
    index = {role: place for place, role in enumerate(ROLES)}
    held = [0.0] * len(ROLES)
    held[index["private_pools"]] = before.pools
    held[index["other"]] = before.other
    changes: list[tuple[float, int, float]] = []
    for block in blocks:
        place = index[block.role]
        if block.start < span.start < block.stop:
            held[place] += block.bytes
        elif span.start <= block.start <= span.stop:
            changes.append((block.start, place, block.bytes))
        if span.start <= block.stop <= span.stop:
            changes.append((block.stop, place, -block.bytes))
    reserved = float(before.reserved)
    told = [(one.at, one.reserved) for one in trace.allocations]
    reserved = next((size for at, size in reversed(told) if at < span.start), reserved)
    rows = [(span.start, tuple(held), reserved)]
    sizes = dict(told)
    for at, place, change in sorted(changes):
        held[place] += change
        reserved = sizes.get(at, reserved)
        rows.append((at, tuple(held), reserved))
    rows.append((span.stop, tuple(held), reserved))
    return _thinned(rows, span.start)


def replayed(uncaptured: dict[str, list[float]], held: Known) -> dict[str, list[float]]:
    """The course of a replayed step, told by that of the same step without its graph.

    What the uncaptured step takes beyond what it began with, the graph has in its pool; the rest of
    the pool stays "private pools", so that together they are what is allocated and the pool, at any
    time. A step that takes more than the pool has shows that more. Times are the uncaptured step's.
    """
    rows = list(zip(*(uncaptured[role] for role in ROLES), strict=True))
    own = ROLES.index("private_pools")
    taken = [sum(row) - row[own] - (sum(rows[0]) - rows[0][own]) for row in rows]
    return {
        **uncaptured,
        "private_pools": [max(0.0, held.pools - max(0.0, more)) for more in taken],
        "reserved": [float(held.reserved)] * len(rows),
    }


def _storages(tensor: object) -> list[torch.UntypedStorage]:
    """Where a tensor's numbers lie; one that wraps others (8-bit states, say) has several."""
    if not isinstance(tensor, torch.Tensor):
        return []
    if hasattr(tensor, "__tensor_flatten__"):
        names, _ = tensor.__tensor_flatten__()
        return [storage for name in names for storage in _storages(getattr(tensor, name))]
    return [tensor.untyped_storage()]


def _blocks(trace: Trace, before: Known) -> list[_Block]:
    """Every block that was held at some time of the trace, with its role."""
    live = {
        address: _Block(size, float("-inf"), role=role)
        for address, (role, size) in before.blocks.items()
    }
    done: list[tuple[int, _Block]] = []
    unseen = 0
    for one in trace.allocations:
        if one.bytes > 0:
            if (replaced := live.pop(one.address, None)) is not None:
                replaced.stop = one.at  # its end was not told
                done.append((one.address, replaced))
            live[one.address] = _Block(one.bytes, one.at)
        elif (block := live.pop(one.address, None)) is not None:
            block.stop = one.at
            done.append((one.address, block))
        else:
            unseen += -one.bytes  # held before the trace, and by nobody known
            done.append((one.address, _Block(-one.bytes, float("-inf"), one.at)))
    before.other = max(0, before.other - unseen)
    done += live.items()
    for number, step in enumerate(trace.steps):
        gradients = before.gradients[number] if number < len(before.gradients) else set()
        _name(trace, step, done, gradients)
    return [block for _, block in done]


def _name(trace: Trace, step: int, blocks: list[tuple[int, _Block]], gradients: set[int]) -> None:
    """Give the blocks that one step allocated their roles."""
    span = trace.spans[step]
    inside = [one for one in trace.spans if span.start <= one.start <= span.stop]
    backward = min((one.start for one in inside if one.is_node), default=float("inf"))
    update = min((one.start for one in inside if one.name.startswith(_UPDATE)), default=-1.0)
    for address, block in blocks:
        if not span.start <= block.start <= span.stop:
            continue
        if address in gradients and block.start < update < block.stop:
            block.role = "gradients"
        elif block.start < backward < block.stop:
            block.role = "activations"
        else:
            block.role = "workspace"


def _thinned(
    rows: list[tuple[float, tuple[float, ...], float]], start: float
) -> dict[str, list[float]]:
    """As columns: of each stretch the row that holds most, and those where a role holds most."""
    stride = -(-len(rows) // (ROWS - len(ROLES)))
    kept = {
        max(range(place, min(place + stride, len(rows))), key=lambda n: sum(rows[n][1]))
        for place in range(0, len(rows), stride)
    }
    kept |= {max(range(len(rows)), key=lambda n: rows[n][1][role]) for role in range(len(ROLES))}
    chosen = [rows[n] for n in sorted(kept)]
    columns = {role: [held[place] for _, held, _ in chosen] for place, role in enumerate(ROLES)}
    return {
        "t_ms": [(at - start) / 1e3 for at, _, _ in chosen],
        **columns,
        "reserved": [reserved for _, _, reserved in chosen],
    }
