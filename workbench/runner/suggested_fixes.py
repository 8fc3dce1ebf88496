"""The change that is most likely to help when a run fails, and that can be made.

Which choices are tried, and in what order, follows the kind of failure; the first that changes
something and is not blocked is offered, with what it costs.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import torch

from sessions.model import Configuration, Judgement
from sessions.verdicts.verdict import REGION
from sessions.verdicts.verdict_words import judgement_words
from workbench import protocol
from workbench.runner.config.availability import require_unblocked
from workbench.runner.config.estimate import footprint
from workbench.runner.config.resolve import resolve
from workbench.runner.failures import Mistake
from workbench.runner.toggles import Situation, all_toggles
from workbench.runner.toggles.compile import WITH_GRAPHS

BATCH = "batch"  # the one setting that a cure may change
_Choice = tuple[dict[str, str], str]  # what to set, and what that means


def cure(
    failure: protocol.Failure, configuration: Configuration | None, device: torch.device
) -> protocol.Failure:
    """Return the failure with the choice that should help, if there is one."""
    if configuration is None or failure.kind not in _CURES or failure.clears:
        return failure
    try:
        situation = resolve(configuration, device)
    except ValueError:  # it is what failed
        return failure
    for choices, meaning in _CURES[failure.kind](failure, situation):
        if _possible(situation, choices):
            fix = f"{_told(choices)}: {meaning}."
            return msgspec.structs.replace(failure, fix=fix, set=choices)
    return failure


def not_finite(what: str) -> protocol.Failure:
    """Return the failure of steps whose ``what`` (loss, output) is not finite."""
    return protocol.Failure(
        kind="nan",
        sentence=f"The {what} is not finite (NaN or infinite): the steps go on, but their numbers "
        "mean nothing.",
        fix="In FP32 with plain kernels that is the model's or its data's: look for a division by "
        "zero, a logarithm of zero, an overflow, or weights that diverged.",
    )


def slower_when_compiled(
    base: Configuration, other: Configuration, judgement: Judgement
) -> protocol.Failure | None:
    """Return advice if a verdict says that torch.compile made the step slower."""
    before, after = (configuration.toggles.get("compile", "off") for configuration in (base, other))
    if (
        judgement.verdict != "SLOWER"
        or judgement.ratio is None
        or before != "off"
        or after == "off"
    ):
        return None
    return protocol.Failure(
        kind="slower",
        sentence=f"torch.compile made it {judgement_words(judgement, REGION)}.",
        fix="Set torch.compile to Off. Graph breaks, recompiles for changing shapes, or operators "
        "that a hand-written kernel already does well are the usual causes; the evidence and the "
        "checklist name lines.",
        set={"compile": "off"},
    )


def _for_compile(failure: protocol.Failure, situation: Situation) -> Iterator[_Choice]:
    traced = "torch._dynamo.exc." in failure.detail  # then no other mode would get further
    if situation.option("compile") not in ("off", "default") and not traced:
        yield {"compile": "default"}, "fewer passes of the compiler, and less speed"
    if situation.option("compile_scope") == "fullgraph" and "exc.Unsupported" in failure.detail:
        yield {"compile_scope": "model"}, "what cannot be traced runs in eager mode between graphs"
    yield {"compile": "off"}, "the model runs in eager mode, slower"
    yield {"triton": "off"}, "the operators run in PyTorch"


def _for_memory(failure: protocol.Failure, situation: Situation) -> Iterator[_Choice]:
    trains, precision = situation.workload.trains, situation.option("precision")
    if situation.option("data_parallel") != "off" and situation.option("sharding") != "full":
        meaning = "each rank holds its share of weights, gradients and moments, and sends more"
        yield {"sharding": "full"}, meaning
        yield {"sharding": "gradients"}, "each rank holds its share of gradients and moments"
    if trains and situation.option("checkpointing") != "full":
        meaning = "activations are computed again in the backward pass, which takes more time"
        yield {"checkpointing": "full"}, meaning
    if trains and precision in ("fp32", "tf32"):
        yield {"precision": "amp_bf16"}, "activations take half as much, with fewer digits"
        yield {"precision": "amp_fp16"}, "activations take half as much, with a smaller range"
    elif not trains and precision != "bf16":  # autocast would keep copies of the weights
        yield {"precision": "bf16"}, "weights and activations take half as much, with fewer digits"
    needed = footprint(situation)
    if situation.option("quantization") == "none" and needed and 2 * needed.weights > needed.total:
        meaning = "linear layers hold a byte a weight, rounded, and take more time to widen them"
        yield {"quantization": "int8_weight_only"}, meaning
    batch = int(situation.configuration.settings[BATCH])
    if batch > 1:
        yield {BATCH: str(batch // 2)}, f"half of the {batch} sequences that a step has now"


def _for_capture(failure: protocol.Failure, situation: Situation) -> Iterator[_Choice]:
    meaning = "the host launches each kernel, which short kernels wait for"
    yield {"cuda_graphs": "off"}, meaning
    if (mode := situation.option("compile")) in WITH_GRAPHS:
        tuned = "max-autotune-no-cudagraphs" if mode == "max-autotune" else "default"
        yield {"compile": tuned}, meaning


def _for_nan(failure: protocol.Failure, situation: Situation) -> Iterator[_Choice]:
    precision = situation.option("precision")
    if precision in ("amp_fp16", "bf16"):
        meaning = "a larger range than FP16" if precision == "amp_fp16" else "weights in FP32"
        yield {"precision": "amp_bf16"}, meaning
    if precision != "fp32":
        yield {"precision": "fp32"}, "all digits, and more time and memory"
    yield {"triton": "off"}, "the operators run in PyTorch, which shows whether a kernel is wrong"


def _for_ranks(failure: protocol.Failure, situation: Situation) -> Iterator[_Choice]:
    devices = [toggle for toggle in all_toggles().values() if toggle.group == "Devices"]
    used = [toggle for toggle in devices if situation.option(toggle.name) != toggle.off]
    meaning = "one device continues alone; running again starts the other ranks instead"
    yield {toggle.name: toggle.off for toggle in used}, meaning


_CURES = {
    "ranks": _for_ranks,
    "compile": _for_compile,
    "out-of-memory": _for_memory,
    "capture": _for_capture,
    "nan": _for_nan,
}


def _possible(situation: Situation, choices: dict[str, str]) -> bool:
    """Return True if the choices change something and can be made."""
    toggles = {name: option for name, option in choices.items() if name != BATCH}
    before = situation.configuration
    after = msgspec.structs.replace(before, toggles={**before.toggles, **toggles})
    if BATCH in choices:
        settings = {**before.settings, BATCH: int(choices[BATCH])}
        after = msgspec.structs.replace(after, settings=settings)
    if after == before:
        return False
    try:
        require_unblocked(resolve(after, situation.device))
    except (Mistake, ValueError):
        return False
    return True


def _told(choices: dict[str, str]) -> str:
    parts = []
    for name, option in choices.items():
        toggle = all_toggles().get(name)
        title = "Batch" if toggle is None else toggle.title
        parts.append(f"{title} to {option if toggle is None else toggle.options[option]}")
    return "Set " + " and ".join(parts)
