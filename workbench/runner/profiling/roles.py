"""Memory by role over a marked step: the purpose of each byte that the allocator holds.

A block's role follows from its address. Parameters, buffers and the optimizer's state are known
before the step, and a gradient is a block at a parameter's ``.grad`` when the optimizer begins.
Among a step's own allocations, a block from before the backward pass that still exists when the
pass begins is an activation that it needs. The rest is workspace: temporaries of operators and
scratch space of libraries. This needs no hooks inside the model and no visible operators, so it
also holds for compiled code. Memory that a CUDA graph uses at replay is not allocated but lies in
the graph's private pool; its roles are those of the same step run once without the graph.

On a GPU the allocator reports its total, and the unexplained part of it is "other". The CPU has no
such total: blocks from before the trace with an unknown role (a decode cache) are not counted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from sessions.studies.breakdown import ROLES
from sessions.tracing.trace import Trace
from workbench.runner.structures import tensors

ROWS = 400  # rows of the memory over a step, at most
_ROUNDING = 512  # the CUDA allocator rounds a block up to a multiple of this many bytes
_UPDATE = "Optimizer.step#"


@dataclass
class Known:
    """The state of a variant before a trace: storages by address, and further memory.

    ``blocks``: address to role and bytes before the steps. ``gradients``: for each marked step the
    addresses of the gradients when the optimizer began. ``pools``: bytes of CUDA graphs' private
    pools that no tensor occupies.
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


def known(
    device: torch.device,
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    buckets: Iterable[Tensor],
    batch: object,
    pool_bytes: int,
) -> Known:
    """Return the memory of a model and its steps between two of them.

    ``buckets``: memory of gradients that ranks reduce. ``pool_bytes``: as in ``Known``.
    """
    memory = Known()
    on_gpu = device.type == "cuda"

    def add(role: str, tensor: object) -> None:
        for storage in _storages(tensor):
            size = storage.nbytes() if storage.device.type == device.type else 0
            if on_gpu:
                size = -(-size // _ROUNDING) * _ROUNDING
            if size:
                memory.blocks.setdefault(storage.data_ptr(), (role, size))

    for parameter in model.parameters():
        add("parameters", parameter)
        add("gradients", parameter.grad)
    for buffer in model.buffers():
        add("parameters", buffer)
    if optimizer is not None:
        for state in optimizer.state.values():
            for value in state.values():
                add("optimizer", value)
    for bucket in buckets:
        add("gradients", bucket)
    if on_gpu:
        explained = sum(size for _, size in memory.blocks.values())
        memory.other = max(0, torch.cuda.memory_allocated(device) - explained)
        memory.reserved = torch.cuda.memory_reserved(device)
        memory.pools = pool_bytes
    else:
        for tensor in tensors(batch):
            add("other", tensor)
    return memory


def gradient_addresses(parameters: Iterable[nn.Parameter]) -> set[int]:
    """Return the present addresses of the gradients."""
    gradients = (parameter.grad for parameter in parameters)
    return {storage.data_ptr() for gradient in gradients for storage in _storages(gradient)}


def memory_over_step(trace: Trace, before: Known) -> dict[str, list[float]]:
    """Return bytes by role over the last marked step: columns ``t_ms``, ``reserved``, each role.

    ``reserved`` is the total of the caching allocator, 0 without such an allocator.
    """
    blocks = _blocks(trace, before)
    span = trace.spans[trace.steps[-1]]
    index = {role: column for column, role in enumerate(ROLES)}
    sizes = [0.0] * len(ROLES)
    sizes[index["private_pools"]] = before.pools
    sizes[index["other"]] = before.other
    changes: list[tuple[float, int, float]] = []
    for block in blocks:
        column = index[block.role]
        if block.start < span.start < block.stop:
            sizes[column] += block.bytes
        elif span.start <= block.start <= span.stop:
            changes.append((block.start, column, block.bytes))
        if span.start <= block.stop <= span.stop:
            changes.append((block.stop, column, -block.bytes))
    reserved = float(before.reserved)
    reservations = [(allocation.at, allocation.reserved) for allocation in trace.allocations]
    reserved = next((size for at, size in reversed(reservations) if at < span.start), reserved)
    rows = [(span.start, tuple(sizes), reserved)]
    reserved_at = dict(reservations)
    for at, column, change in sorted(changes):
        sizes[column] += change
        reserved = reserved_at.get(at, reserved)
        rows.append((at, tuple(sizes), reserved))
    rows.append((span.stop, tuple(sizes), reserved))
    return _thinned(rows, span.start)


def replayed(uncaptured: dict[str, list[float]], state: Known) -> dict[str, list[float]]:
    """Return the memory of a replayed step, derived from the same step without its graph.

    The uncaptured step's growth since its start lies in the graph's pool at replay. The rest of the
    pool remains "private pools", so that the roles always add up to the allocated memory and the
    pool. A step that grows beyond its pool shows the larger sum. Times are those of the uncaptured
    step.
    """
    rows = list(zip(*(uncaptured[role] for role in ROLES), strict=True))
    pool_index = ROLES.index("private_pools")
    taken = [sum(row) - row[pool_index] - (sum(rows[0]) - rows[0][pool_index]) for row in rows]
    return {
        **uncaptured,
        "private_pools": [max(0.0, state.pools - max(0.0, growth)) for growth in taken],
        "reserved": [float(state.reserved)] * len(rows),
    }


def _storages(tensor: object) -> list[torch.UntypedStorage]:
    """Return a tensor's storages: several for a wrapper of tensors, such as 8-bit states."""
    if not isinstance(tensor, torch.Tensor):
        return []
    if hasattr(tensor, "__tensor_flatten__"):
        names, _ = tensor.__tensor_flatten__()
        return [storage for name in names for storage in _storages(getattr(tensor, name))]
    return [tensor.untyped_storage()]


def _blocks(trace: Trace, before: Known) -> list[_Block]:
    """Return every block that existed at some time of the trace, with its role."""
    live = {
        address: _Block(size, float("-inf"), role=role)
        for address, (role, size) in before.blocks.items()
    }
    addressed_blocks: list[tuple[int, _Block]] = []
    unseen = 0
    for event in trace.allocations:
        if event.bytes > 0:
            if (replaced := live.pop(event.address, None)) is not None:
                replaced.stop = event.at  # its release is missing from the trace
                addressed_blocks.append((event.address, replaced))
            live[event.address] = _Block(event.bytes, event.at)
        elif (block := live.pop(event.address, None)) is not None:
            block.stop = event.at
            addressed_blocks.append((event.address, block))
        else:
            unseen += -event.bytes  # allocated before the trace: its role is unknown
            addressed_blocks.append((event.address, _Block(-event.bytes, float("-inf"), event.at)))
    before.other = max(0, before.other - unseen)
    addressed_blocks += live.items()
    for number, step in enumerate(trace.steps):
        gradients = before.gradients[number] if number < len(before.gradients) else set()
        _name(trace, step, addressed_blocks, gradients)
    return [block for _, block in addressed_blocks]


def _name(trace: Trace, step: int, blocks: list[tuple[int, _Block]], gradients: set[int]) -> None:
    """Set the roles of the blocks that a step allocated."""
    span = trace.spans[step]
    inside = [inner for inner in trace.spans if span.start <= inner.start <= span.stop]
    backward = min((inner.start for inner in inside if inner.is_node), default=float("inf"))
    update = min((inner.start for inner in inside if inner.name.startswith(_UPDATE)), default=-1.0)
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
    """Return the rows as columns: the largest row of each stretch, and each role's largest row."""
    stride = -(-len(rows) // (ROWS - len(ROLES)))
    selected = {
        max(range(first, min(first + stride, len(rows))), key=lambda n: sum(rows[n][1]))
        for first in range(0, len(rows), stride)
    }
    selected |= {
        max(range(len(rows)), key=lambda n: rows[n][1][role]) for role in range(len(ROLES))
    }
    chosen = [rows[n] for n in sorted(selected)]
    columns = {role: [sizes[n] for _, sizes, _ in chosen] for n, role in enumerate(ROLES)}
    return {
        "t_ms": [(at - start) / 1e3 for at, _, _ in chosen],
        **columns,
        "reserved": [reserved for _, _, reserved in chosen],
    }
