"""The decode state of a run's segment, of a workload that decodes."""

from __future__ import annotations

from typing import Any

from workbench.runner.decoding.checkpoint import SavedRound, identity_of, read_round, save_round
from workbench.runner.failures import Mistake
from workbench.runner.interfaces import Situation
from workbench.runner.variants.variant import Variant


def read(situation: Situation, load: str, save: str) -> SavedRound | None:
    """Return the state to continue from, if any; ``load`` and ``save`` are paths or empty.

    Raises ``Mistake`` if the file does not fit, or the workload has no decode state.
    """
    if not (load or save):
        return None
    if not situation.workload.decodes:
        raise Mistake(
            f"workload {situation.workload.name!r} has no decode state to save or load; "
            "choose decode or generate."
        )
    return read_round(load, _identity(situation)) if load else None


def restore(saved: SavedRound, variant: Variant) -> None:
    """Put a variant that decodes into the saved round."""
    assert variant.decoder is not None and variant.rounds is not None
    saved.restore(variant.decoder, variant.rounds, variant.batches)


def save(path: str, variant: Variant) -> str:
    """Save the current round of a variant that decodes; return a note for the user."""
    assert variant.decoder is not None and variant.rounds is not None
    identity = _identity(variant.situation)
    return save_round(path, identity, variant.decoder, variant.rounds, variant.batches)


def _identity(situation: Situation) -> dict[str, Any]:
    """Return the properties that must be equal for a saved state to fit."""
    return identity_of(situation.configuration, situation.family.of_weights(situation.config))
