"""Kinds of parallelism by name, as toggles for a number of ranks.

Kinds combine with ``+``: the second and further ones take two ranks each, and the first one the
rest. "data+tensor" on 8 ranks is four replicas of two shards of every layer.
"""

from __future__ import annotations

from workbench.protocol.catalogue import expected
from workbench.runner.failures import Mistake
from workbench.runner.toggles import all_toggles
from workbench.runner.toggles._toggle import Kind


def kinds() -> dict[str, Kind]:
    """Return the kinds of parallelism by name."""
    return {name: kind for toggle in all_toggles().values() for name, kind in toggle.kinds.items()}


class RanksError(ValueError):
    """A kind that cannot use this number of ranks."""


def require_kind(kind: str) -> None:
    """Raise ``Mistake`` if a kind is unknown, or combines two that use the same ranks."""
    parts = kind.split("+")
    for part in parts:
        if part not in kinds():
            raise Mistake(f"kind: unknown {part!r}; expected {expected(part, kinds())}")
    if len({kinds()[part].toggle for part in parts}) < len(parts):
        raise Mistake(f"kind: {kind!r} names two kinds that use the same ranks; choose one of them")


def toggles_of(kind: str, ranks: int) -> dict[str, str]:
    """Return the toggles of a kind on so many ranks; raise ``RanksError`` if it cannot use them."""
    first, *remaining = kind.split("+")
    count, remainder = divmod(ranks, 2 ** len(remaining))
    if count < 2 or remainder:
        raise RanksError(
            f"{kind} needs a multiple of {2 ** len(remaining)} ranks, at least "
            f"{2 * 2 ** len(remaining)}"
        )
    toggles: dict[str, str] = {}
    for part, size in ((first, count), *((part, 2) for part in remaining)):
        toggle, choices = kinds()[part]
        if str(size) not in all_toggles()[toggle].options:
            raise RanksError(f"{part} cannot use {size} ranks")
        toggles |= {toggle: str(size), **choices}
    return toggles
