"""The decode state and the text of a run's segment, of a workload that decodes."""

from __future__ import annotations

from typing import Any

from workbench.runner.decoding.checkpoint import SavedRound, identity_of, read_round, save_round
from workbench.runner.decoding.generated_text import TextReader
from workbench.runner.failures import Mistake
from workbench.runner.interfaces import Situation
from workbench.runner.variants.variant import Arm
from workbench.runner.wire import Wire


def read(situation: Situation, load: str, save: str) -> SavedRound | None:
    """Return the state to go on from, if any; ``load`` and ``save`` are paths or empty.

    Raises ``Mistake`` if the file does not fit, or the workload has no decode state.
    """
    if not (load or save):
        return None
    if not situation.workload.decodes:
        raise Mistake(
            f"workload {situation.workload.name!r} has no decode state to save or go on from; "
            "choose decode or generate."
        )
    return read_round(load, _identity(situation)) if load else None


def restore(saved: SavedRound, arm: Arm) -> None:
    """Put the arm into the saved round."""
    assert arm.decoder is not None and arm.rounds is not None
    saved.restore(arm.decoder, arm.rounds, arm.batches)


def save(path: str, arm: Arm) -> str:
    """Save the arm's current round; return a note for the user."""
    assert arm.decoder is not None and arm.rounds is not None
    return save_round(path, _identity(arm.situation), arm.decoder, arm.rounds, arm.batches)


def text_reader(wire: Wire, segment: int, arm: Arm) -> TextReader | None:
    """Return the reader of the text that an arm writes; None if it writes none."""
    if arm.text is None or arm.rounds is None:
        return None
    data = arm.situation.configuration.data
    return TextReader(wire, segment, arm.text, arm.rounds, arm.batches, data)


def _identity(situation: Situation) -> dict[str, Any]:
    """Return what must be equal for a saved state to fit."""
    return identity_of(situation.configuration, situation.family.of_weights(situation.config))
