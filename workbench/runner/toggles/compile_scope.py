"""The scope of ``torch.compile``: the whole model, one graph without breaks, or each block.

*Whole model* continues after a graph break: the code between two graphs runs in eager mode. *One
graph* makes a graph break an error, with its reason and its line. *Each block* compiles the entries
of the model's lists of modules separately (regional compilation), and the loss of a bundled
language model: blocks of the same kind share one graph, and nothing is fused between blocks. It
shortens compilation, and more so for deeper models: a training step of eight layers took less than
half as long to compile on a CPU. On an H200, HYDRA base training (8 x 1,024 tokens, AMP BF16,
Triton kernels): 39.3 ms in eager mode on a slow host, 22.3 ms with each block compiled separately
but not the loss, 17.7 ms with the whole model.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from models import Footprint
from sessions.numbers import counted
from workbench.protocol import Blocked, Failure
from workbench.runner.toggles import conflict
from workbench.runner.toggles._compiling import compiling_toggle
from workbench.runner.toggles._ranks import SHARDING
from workbench.runner.toggles._toggle import (
    Finding,
    Fix,
    Situation,
    Trait,
    as_default,
    effective,
    no_effect,
)
from workbench.runner.toggles.compile import beside_blocks, repeated_blocks
from workbench.runner.variants.compiles import Compiles

if TYPE_CHECKING:
    from workbench.runner.variants.build import Build
    from workbench.runner.variants.observed import Observed


def _blocked(option: str, situation: Situation) -> Blocked | None:
    if option != "blocks":
        return None
    return conflict(
        situation,
        Trait.REPLAYED,
        "{title} {option} replays CUDA graphs, and the graph of each block would overwrite the "
        "input of the next one",
    )


def _fixes(failure: Failure, situation: Situation, needed: Footprint | None) -> Iterator[Fix]:
    is_broken = failure.kind == "compile" and "exc.Unsupported" in failure.detail
    if is_broken and situation.option(TOGGLE.name) == "fullgraph":
        meaning = "code that cannot be traced runs in eager mode between graphs"
        yield Fix(20, {TOGGLE.name: "model"}, meaning)


def _apply(option: str, build: Build) -> None:
    build.compile_options["fullgraph"] = option == "fullgraph"
    build.compiles_blocks = option == "blocks"


def _shown(option: str, observed: Observed, compiles: Compiles) -> Finding:
    if option == "fullgraph":
        if compiles.breaks:
            return no_effect(f"{compiles.text()}, although no graph break was allowed")
        return effective(f"{counted(compiles.graphs, 'graph')} without a graph break, as requested")
    blocks = repeated_blocks(observed.model)
    kinds = len({type(block) for block in blocks})
    trains = observed.situation.workload.trains
    losses = len(beside_blocks(observed.model)) if trains else 0  # each has its own graph
    graphs = compiles.graphs - losses
    text = (
        f"{counted(len(blocks), 'block')} of {counted(kinds, 'kind')} share "
        f"{counted(graphs, 'compiled graph')}{', and the loss has another' if losses else ''}"
    )
    if compiles.recompiles or compiles.breaks:
        text += f"; {compiles.text()}"
    unbroken = graphs - len(compiles.breaks)  # each break divides the graph that blocks share
    if unbroken > kinds and 1 < len(blocks) <= unbroken:
        return no_effect(text)
    situation = observed.situation
    if situation.option(SHARDING) != "off" and not situation.is_own_model:
        return as_default(f"{text}; sharding compiles each block separately anyway")
    return effective(text)


TOGGLE = compiling_toggle(
    "compile_scope",
    "Compile scope",
    __doc__,
    {"model": "Whole model", "fullgraph": "One graph", "blocks": "Each block"},
    apply=_apply,
    shown=_shown,
    blocked=_blocked,
    traits={"blocks": (Trait.COMPILED_BLOCKS,)},
    fixes=_fixes,
)
