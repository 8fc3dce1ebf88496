"""Kinds of parallelism by name, as toggles for a number of ranks.

Kinds combine with ``+``: the second and further ones take two ranks each, and the first one the
rest. "data+tensor" on 8 ranks is four replicas of two shards of every layer.
"""

from __future__ import annotations

from workbench.protocol.catalogue import expected
from workbench.runner.failures import Mistake
from workbench.runner.toggles import all_toggles

# The toggle that takes the ranks, and what is switched on beside it.
KINDS: dict[str, tuple[str, dict[str, str]]] = {
    "data": ("data_parallel", {}),
    "gradients": ("data_parallel", {"sharding": "gradients"}),
    "fsdp": ("data_parallel", {"sharding": "full"}),
    "hybrid": ("data_parallel", {"sharding": "hybrid"}),
    "tensor": ("tensor_parallel", {}),
    "sequence": ("tensor_parallel", {"sequence_parallel": "on"}),
    "pipeline": ("pipeline_parallel", {}),
    "context": ("context_parallel", {}),
    "expert": ("expert_parallel", {}),
}


class RanksError(ValueError):
    """A kind that cannot use this number of ranks."""


def require_kind(kind: str) -> None:
    """Raise ``Mistake`` if a kind is unknown, or combines two that use the same ranks."""
    parts = kind.split("+")
    for part in parts:
        if part not in KINDS:
            raise Mistake(f"kind: unknown {part!r}; expected {expected(part, KINDS)}")
        if KINDS[part][0] not in all_toggles():
            raise Mistake(f"kind: {part!r} needs the toggle {KINDS[part][0]}, which is not here")
    if len({KINDS[part][0] for part in parts}) < len(parts):
        raise Mistake(f"kind: {kind!r} names two kinds that use the same ranks; choose one of them")


def toggles_of(kind: str, ranks: int) -> dict[str, str]:
    """Return the toggles of a kind on so many ranks; raise ``RanksError`` if it cannot use them."""
    first, *more = kind.split("+")
    count, rest = divmod(ranks, 2 ** len(more))
    if count < 2 or rest:
        raise RanksError(
            f"{kind} needs a multiple of {2 ** len(more)} ranks, at least {2 * 2 ** len(more)}"
        )
    toggles: dict[str, str] = {}
    for part, size in ((first, count), *((part, 2) for part in more)):
        toggle, beside = KINDS[part]
        if str(size) not in all_toggles()[toggle].options:
            raise RanksError(f"{part} cannot use {size} ranks")
        toggles |= {toggle: str(size), **beside}
    return toggles
