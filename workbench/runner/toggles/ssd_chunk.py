"""The number of tokens that the selective scan computes in one chunk.

Within a chunk the scan is one matrix product; between chunks it passes a state. The weights are the
same, and the results differ only by rounding. Larger chunks mean fewer and larger products, of
which half is masked; smaller ones pass more states. PyTorch supports any chunk. The Triton kernel
supports chunks of 64 in half precision (narrower tiles give wrong results, wider ones spill
registers) and smaller ones in FP32. Counted for a head of 64 with 128 states, without the scores
that heads share: 20,480 multiply-adds per token in chunks of 64, and 32,768 in chunks of 256.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import kernels
from kernels.ssd_scan import CHUNK, chunk_of
from models import Model
from models.layers.ssm import SSM
from sessions.numbers import counted
from workbench.protocol import Blocked
from workbench.runner.toggles._called import not_called
from workbench.runner.toggles._imagined import Imagined
from workbench.runner.toggles._kernel_toggle import TITLES, chosen_implementation
from workbench.runner.toggles._ranks import CONTEXT, RANKS
from workbench.runner.toggles._toggle import (
    PARTS,
    Finding,
    Situation,
    Stage,
    Toggle,
    effective,
    no_effect,
)
from workbench.runner.toggles.precision import computing

if TYPE_CHECKING:
    from workbench.runner.variants.build import Build
    from workbench.runner.variants.observed import Observed


def _blocked(option: str, situation: Situation) -> Blocked | None:
    if option == "follow":
        return None
    if why := not_called("ssd_scan", situation):
        return why
    tokens = _tokens(situation)
    if tokens <= min(int(option), CHUNK):
        return Blocked(
            f"one chunk holds {counted(tokens, 'token')} anyway: the default is {CHUNK} tokens",
            "Choose a smaller chunk, or a longer sequence for the next run.",
        )
    return _refused(int(option), tokens, situation)


def _tokens(situation: Situation) -> int:
    """Return the number of tokens that a rank scans."""
    return int(situation.configuration.settings["sequence"]) // RANKS[situation.option(CONTEXT)]


def _refused(chunk: int, tokens: int, situation: Situation) -> Blocked | None:
    chosen = chosen_implementation("ssd_scan", situation) == "triton"
    refuses = kernels.OPS["ssd_scan"].implementations["triton"].refuses
    if not chosen or not situation.on_gpu or refuses is None:
        return None
    sizes, dtype = situation.config.mixer, computing(situation)
    x = Imagined((1, tokens, sizes.n_heads, sizes.head_dim), dtype)
    b = Imagined((1, tokens, sizes.n_groups, sizes.d_state), dtype)
    reason = refuses(x, None, None, b, chunk)
    if reason is None:
        return None
    return Blocked(
        f"the Triton kernel {reason}", "Choose SSD scan: PyTorch.", {"triton_ssd_scan": "torch"}
    )


def _apply(option: str, build: Build) -> None:
    def switch(model: Model) -> None:
        for mixer in _mixers(model):
            mixer.chunk = int(option)

    build.transforms.append(switch)


def _evidence(option: str, observed: Observed) -> Finding:
    if blocked := _blocked(option, observed.situation):
        return no_effect(blocked.reason)
    calls = observed.record.usage.get("ssd_scan", {})
    chunks = [mixer.chunk for mixer in _mixers(observed.model)]
    if not calls or set(chunks) != {int(option)}:
        return no_effect(f"no scan used chunks of {option}")
    defaults = {name: _default(name, observed.situation) for name in calls}
    if set(defaults.values()) == {int(option)}:
        titles = " and ".join(TITLES[name] for name in defaults)
        return no_effect(f"{titles} uses chunks of {option} by default")
    ran = ", ".join(f"{name} {count}" for name, count in calls.items())
    return effective(
        f"chunks of {option} in {counted(len(chunks), 'mixer')}; recorded calls: {ran}"
    )


def _default(implementation: str, situation: Situation) -> int:
    """Return the chunk of an implementation for which no chunk is requested; 0 if unknown."""
    if implementation != "triton":
        return CHUNK if implementation == "torch" else 0
    sizes, dtype = situation.config.mixer, computing(situation)
    return chunk_of(None, _tokens(situation), sizes.head_dim, sizes.d_state, dtype)


def _mixers(model: Model) -> list[SSM]:
    return [module for module in model.modules() if isinstance(module, SSM)]


TOGGLE = Toggle(
    name="ssd_chunk",
    title="SSD chunk",
    help=__doc__,
    group="Kernels",
    stage=Stage.KERNELS,
    options={"follow": "Automatic"} | {str(n): f"{n} tokens" for n in (16, 32, 64, 128)},
    apply=_apply,
    evidence=_evidence,
    blocked=_blocked,
    bundled=PARTS,
)
