"""How the step of an arm goes together with other ranks', by what its toggles asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workbench.runner.ranks.divided import Divided
from workbench.runner.ranks.pipeline import PipelineDivided
from workbench.runner.ranks.shares import Shares
from workbench.runner.ranks.stages import Stages
from workbench.runner.ranks.tensor import TensorDivided

if TYPE_CHECKING:
    from models import Model
    from workbench.runner.ranks.layers import Held
    from workbench.runner.variants.build import Build


def divided(build: Build, part: Held | None, model: Model) -> Divided | None:
    """Of a model around this rank's ``part``, or around the whole; None where there is one rank."""
    match part:
        case Shares():
            return TensorDivided(build, part)
        case Stages():
            return PipelineDivided(build, part, model)
    if build.ranks > 1:
        return Divided(build.ranks, build.situation.device, build.sharding)
    return None
