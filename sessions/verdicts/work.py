"""The settings that make the steps of two configurations different work: model or workload.

A ratio of step times is a speed-up only between two ways to compute the same mathematics. Precision
and quantization are such ways, within a tolerance that the numerical check states.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from sessions.model import Configuration, PairedComparison, Segment, Session

INVALID = "invalid"  # the fact of a segment whose measured step times are impossibly short
COMMIT = "commit"  # the workbench's own, in a session's environment
MODEL_DIGEST = "model_digest"  # the fact of a segment by which two run the same model or not
# Key of an attribution's request: toggles of other models whose option is the base's own field.
SAME_MODEL = "same_model"
DIFFERENT_MODELS, OTHER_WORK = "different models", "other work"
# Facts of a paired comparison whose ratio is no speed-up: which of the two, and by which fields.
DIFFERENCE, DIFFERING = "difference", "differing"

SHORT = 12  # digits of a commit in texts

# Bundled toggles that set a field of the model's configuration and with it the mathematics, for
# sessions that do not name them. Others stand in the environment, which the runner describes.
MODEL_TOGGLES = frozenset(
    {
        "adaptive_rank",
        "attention_every",
        "ccgqa",
        "diffusion_steps",
        "dynamic_depth",
        "low_rank",
        "mixture_of_depths",
        "mixture_of_recursions",
        "use_fourier",
        "window",
    }
)
FURTHER_TOGGLES = "toggles of other models"  # a fact of the environment: names, by commas
_further: set[str] = set()
_MODEL = ("family", "preset", "model")
_WORKLOAD = ("workload", "settings")
_LACKING = "follow"  # option of a toggle that a session from before it does not name
# A model of one's own is the same one where only its file is another.
_FILE = ("model.source", "model.sha256")


def short_commit(commit: str, digits: int = SHORT) -> str:
    """Return the first digits of a commit, with the ``+`` of files that have changed since."""
    return commit[:digits] + "+" * (len(commit) > digits and commit.endswith("+"))


def is_invalid(segment: Segment) -> bool:
    """Return True if the segment's measured step times are impossibly short."""
    return bool(segment.ledger.get(INVALID))


def learn_toggles(environment: Mapping[str, str]) -> None:
    """Take note of the toggles that make another model by the word of an environment."""
    _further.update(filter(None, environment.get(FURTHER_TOGGLES, "").split(", ")))


def makes_other_model(toggle: str) -> bool:
    """Return True if a toggle changes the mathematics of the model."""
    return toggle in MODEL_TOGGLES or toggle in _further


def is_of_model(name: str) -> bool:
    """Return True if a field of this flat name changes the mathematics of the model."""
    group, _, field = name.partition(".")
    if group == "toggles":
        return makes_other_model(field)
    return group in _MODEL and name not in _FILE


def is_of_workload(name: str) -> bool:
    """Return True if a field of this flat name changes what a step does with the model."""
    return name.partition(".")[0] in _WORKLOAD


def difference(
    first: Configuration, second: Configuration, digests: Sequence[object] = ("", "")
) -> tuple[str, list[str]]:
    """Return ``DIFFERENT_MODELS`` or ``OTHER_WORK`` and by which fields; "" for a fair comparison.

    Fields have flat names, as in ``Configuration.flat``. ``digests`` of both models' mathematics
    decide if both are known: an option of a toggle may equal the model's own field.
    """
    names = _differing(first, second, is_of_model)
    if all(digests):
        names = (names or ["model"]) if digests[0] != digests[1] else []
    if names:
        return DIFFERENT_MODELS, names
    if names := _differing(first, second, is_of_workload):
        return OTHER_WORK, names
    return "", []


def difference_of_segments(first: Segment, second: Segment) -> tuple[str, list[str]]:
    """Return ``difference`` of what two segments ran."""
    digests = [segment.ledger.get(MODEL_DIGEST, "") for segment in (first, second)]
    return difference(first.configuration, second.configuration, digests)


def facts_of(arms: Sequence[Segment]) -> dict[str, Any]:
    """Return the facts by which a comparison of these arms tells that its ratio is no speed-up."""
    kind, names = difference_of_segments(arms[0], arms[-1]) if arms else ("", [])
    return {DIFFERENCE: kind, DIFFERING: names} if kind else {}


def segments_of(session: Session, comparison: PairedComparison) -> list[Segment]:
    """Return the segments of a comparison's arms; empty if the session lacks one."""
    indices, known = comparison.facts.get("segments", []), range(len(session.segments))
    if not isinstance(indices, list) or any(index not in known for index in indices):
        return []
    return [session.segments[index] for index in indices]


def arms_of(session: Session, comparison: PairedComparison) -> list[Configuration]:
    """Return the configurations of a comparison's arms; empty if the session lacks a segment."""
    return [segment.configuration for segment in segments_of(session, comparison)]


def explained(session: Session, comparison: PairedComparison) -> PairedComparison:
    """Return the comparison with ``facts_of`` its arms, which older files lack."""
    work_facts = facts_of(segments_of(session, comparison))
    if not work_facts or DIFFERENCE in comparison.facts:
        return comparison
    return msgspec.structs.replace(comparison, facts={**comparison.facts, **work_facts})


def _differing(
    first: Configuration, second: Configuration, matters: Callable[[str], bool]
) -> list[str]:
    flat = first.flat(), second.flat()
    names = [name for name in dict.fromkeys([*flat[0], *flat[1]]) if matters(name)]
    # repr, because 1, 1.0 and True are equal, and NaN is not equal to itself
    return [
        name for name in names if len({repr(settings.get(name, _LACKING)) for settings in flat}) > 1
    ]
