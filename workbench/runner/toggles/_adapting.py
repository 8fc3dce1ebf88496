"""Ranks and bits that are in use, for the toggles whose heads adapt while they run."""

from __future__ import annotations

from collections import Counter

from torch import Tensor

from models import Model
from sessions.numbers import counted
from workbench.runner.workloads import Workload


def ranks(model: Model) -> Counter[int]:
    """Return the number of heads by number of columns, the narrowest first."""
    return _levels(model.adapted()["rank_LH"])


def bits(model: Model) -> Counter[int]:
    """Return the number of heads by the bits of their queries and keys."""
    return _levels(model.adapted()["bits_LH"])


def head_dim(model: Model) -> int:
    """Return the width of a head, which is its full rank."""
    return int(model.adapted()["basis_LHDD"].shape[-1])


def choices(model: Model) -> list[list[int]]:
    """Return the ranks and the bits of all heads; empty for a model that does not adapt."""
    adapted = model.adapted()
    return [adapted[name].flatten().tolist() for name in ("rank_LH", "bits_LH") if name in adapted]


def calls(model: Model, workload: Workload) -> str:
    """Return in how many calls the model has adapted, and how many more a change can take."""
    settling = workload.steps_to_settle(model)
    so_far = counted(int(model.adapted()["step"]), "call")
    return f"{so_far} (a change can take {settling} more)" if settling else so_far


def ranks_text(model: Model) -> str:
    """Return which ranks are in use, as text."""
    used, full = ranks(model), head_dim(model)
    narrow = sum(heads for rank, heads in used.items() if rank < full)
    text = ", ".join(f"{counted(heads, 'head')} of rank {rank}" for rank, heads in used.items())
    total = counted(used.total(), "head")
    return f"{narrow} of {total} compute with fewer than {full} columns: {text}"


def _levels(levels: Tensor) -> Counter[int]:
    return Counter(sorted(levels.flatten().tolist()))
