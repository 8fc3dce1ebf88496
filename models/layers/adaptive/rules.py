"""Rules by which heads choose ranks and precisions, and the rounding of each precision."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from models.errors import ConfigurationError

ESTIMATIONS = ("entropy", "energy")
PRECISIONS = {"inputs": 32, "fp16": 16, "fp8": 8}  # bits of queries and keys
HALF_STEP = {16: 2.0**-11, 8: 2.0**-4}  # relative to an element, by bits
LEAST_STEP = {16: 2.0**-32, 8: 2.0**-17}  # relative to a row's largest element, by bits


@dataclass(frozen=True, kw_only=True)
class Rules:
    """Rules for ranks and precisions; ``adaptation`` explains them."""

    rank_ratio: float = 0.5
    rank_estimation: str = "entropy"
    rank_threshold: float = 0.95
    adaptive_rank: bool = True
    adaptive_precision: bool = True
    default_precision: str = "inputs"
    allow_fp8: bool = False
    refresh_every: int = 16

    @property
    def narrows(self) -> bool:
        """True if any head may ever be narrower than its inputs."""
        return self.adaptive_precision or self.default_precision != "inputs"

    def rounds(self, dtype: torch.dtype) -> bool:
        """Return True if heads that compute in ``dtype`` may round queries and keys."""
        return self.narrows and (self.allow_fp8 or dtype.itemsize > 2)


def check_rules(name: str, rules: Rules) -> None:
    """Raise ``ConfigurationError`` for rules that no attention can follow."""
    for field, allowed in (("rank_estimation", ESTIMATIONS), ("default_precision", (*PRECISIONS,))):
        value = getattr(rules, field)
        if value not in allowed:
            raise ConfigurationError(f"{name}: {field} = {value!r} is not one of {allowed}")
    for field in ("rank_ratio", "rank_threshold"):
        value = getattr(rules, field)
        if not 0 < value <= 1:
            raise ConfigurationError(f"{name}: {field} = {value} is not above 0 and at most 1")
    if rules.refresh_every < 1:
        raise ConfigurationError(f"{name}: refresh_every = {rules.refresh_every} is less than 1")
    if rules.default_precision == "fp8" and not rules.allow_fp8:
        raise ConfigurationError(
            f"{name}: default_precision = 'fp8' needs allow_fp8 = True, which permits FP8"
        )
