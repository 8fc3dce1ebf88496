"""What ``torch.compile`` is given: the whole model, that without a break allowed, or each block.

*Whole model* goes on where a graph breaks: the part between two graphs runs in eager mode. *One
graph* makes a break an error, with its reason and its line. *Each block* compiles the entries of
the model's lists of modules one by one (regional compilation): blocks of one kind share one graph,
and nothing is fused across them. Pays while compiling is what one waits for, the more the deeper
the model: a training step of eight layers took less than half as long to compile on a CPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from workbench.protocol import Blocked
from workbench.runner.compiles import counted
from workbench.runner.toggles._toggle import (
    NOT_COMPILED,
    Finding,
    Situation,
    Stage,
    Toggle,
    effective,
    no_effect,
)
from workbench.runner.toggles.compile import WITH_GRAPHS, repeated_blocks

if TYPE_CHECKING:
    from workbench.runner.arm import Arm, Build


def _blocked(option: str, situation: Situation) -> Blocked | None:
    if option == "model":
        return None
    mode = situation.option("compile")
    if mode == "off":
        return NOT_COMPILED
    if option == "blocks" and mode in WITH_GRAPHS:
        return Blocked(
            f"torch.compile {mode} replays CUDA graphs, and each block's would overwrite what the "
            "next one reads",
            "Compile without CUDA graphs.",
            {"compile": "max-autotune-no-cudagraphs" if mode == "max-autotune" else "default"},
        )
    return None


def _apply(option: str, build: Build) -> None:
    build.compile_options["fullgraph"] = option == "fullgraph"
    build.compiles_blocks = option == "blocks"


def _evidence(option: str, arm: Arm) -> Finding:
    found = arm.compiles.read()
    if not found.graphs:
        return no_effect("no graph was compiled")
    if option == "fullgraph":
        if found.breaks:
            return no_effect(f"{found.text()}, although none was allowed")
        return effective(f"{counted(found.graphs, 'graph')} without a break, which was demanded")
    blocks = repeated_blocks(arm.model)
    kinds = len({type(block) for block in blocks})
    text = (
        f"{counted(len(blocks), 'block')} of {counted(kinds, 'kind')} share "
        f"{counted(found.graphs, 'compiled graph')}"
    )
    if found.recompiles:
        text += f"; {found.text()}"
    return effective(text) if found.graphs < len(blocks) or len(blocks) == 1 else no_effect(text)


TOGGLE = Toggle(
    name="compile_scope",
    title="Compile scope",
    help=__doc__,
    group="Compilation",
    stage=Stage.COMPILE,
    options={"model": "Whole model", "fullgraph": "One graph", "blocks": "Each block"},
    apply=_apply,
    evidence=_evidence,
    blocked=_blocked,
)
