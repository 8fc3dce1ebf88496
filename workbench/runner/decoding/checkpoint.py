"""The decode state of a run, left in a file and gone on from: see ``models.Cache.save``.

Beside the cache stand the round, how far it is, what it has written and the random numbers that it
draws with, so that a run in two parts writes what one run would. The next rounds' prompts and
numbers follow from the seed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from models import ConfigurationError, SavedState, read_state
from workbench.runner.environment import host
from workbench.runner.failures import Mistake
from workbench.runner.toggles import Situation
from workbench.runner.variants.variant import Arm


@dataclass(frozen=True)
class SavedRound:
    """A file that fits the situation it was read for."""

    saved: SavedState

    @property
    def note(self) -> str:
        """Return the note for a person once it is restored."""
        return f"went on after {self.saved.position} tokens from {self.saved.path}"

    def restore(self, arm: Arm) -> None:
        """Put the arm into the saved round, in place; raises ``Mistake`` if its cache differs."""
        decoder, rounds, beside = arm.decoder, arm.rounds, self.saved.beside
        assert decoder is not None and rounds is not None
        try:
            decoder.cache.load(self.saved)
        except ConfigurationError as error:
            raise Mistake(f"--load-state: {error}.") from None
        for name, tensor in decoder.progress.items():
            tensor.copy_(beside["progress"][name])
        rounds.go_to(beside["round"], beside["steps"])
        arm.batches.go_to(beside["advances"])


def check_decodes(situation: Situation) -> None:
    """Raise ``Mistake`` for a workload that has no decode state."""
    if not situation.workload.decodes:
        raise Mistake(
            f"workload {situation.workload.name!r} has no decode state to save or go on from; "
            "choose decode or generate."
        )


def save_round(path: str, arm: Arm) -> str:
    """Save the arm's current round; return a note for a person. Waits for the device."""
    decoder, rounds = arm.decoder, arm.rounds
    assert decoder is not None and rounds is not None
    position = decoder.prompt_length + rounds.done
    beside = {
        "made with": _identity(arm.situation),
        "round": rounds.number,
        "steps": rounds.done,
        "advances": arm.batches.advances,
        "progress": {name: tensor.cpu() for name, tensor in decoder.progress.items()},
    }
    decoder.cache.save(path, position, beside)
    return f"saved the decode state after {position} tokens to {path}"


def read_round(path: str, situation: Situation) -> SavedRound:
    """Return the state of a file for this model, weights, prompt and workload; else ``Mistake``."""
    try:
        saved = read_state(path)
    except ConfigurationError as error:
        raise Mistake(f"--load-state on {host()}: {error}.") from None
    made_with = saved.beside.get("made with")
    if made_with is None:
        raise Mistake(f"--load-state: {path!r} was not saved by a run and names no configuration.")
    for name, expected in _identity(situation).items():
        if made_with.get(name) != expected:
            raise Mistake(
                f"--load-state: {path!r} was made with {name} = {made_with.get(name)}, but this "
                f"run has {expected}; ask for the configuration that made it."
            )
    return SavedRound(saved)


def _identity(situation: Situation) -> dict[str, Any]:
    """Return what must be equal for a state to mean the same, by what a person calls it.

    ``structure`` is the model as the toggles have changed it.
    """
    configuration = situation.configuration
    structure = situation.family.of_weights(situation.config)
    return {
        "family": configuration.family,
        "preset": configuration.preset,
        "model fields": dict(configuration.model),
        "seed": configuration.seed,
        "workload": configuration.workload,
        **{name: configuration.settings[name] for name in ("batch", "sequence", "new_tokens")},
        "data": configuration.data,
        "structure": msgspec.json.encode(structure).decode(),
    }
