"""The decode state of a run in a file, from which another run continues: see ``models.Cache.save``.

The file holds the cache, the number of the round, its progress, its text and the state of its
random numbers. So two runs write the same text as one long run. The prompts and random numbers of
later rounds follow from the seed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from models import ConfigurationError, SavedState, read_state
from sessions.model import Configuration
from sessions.numbers import counted
from workbench.runner.batches import Batches
from workbench.runner.decoding.decoder import Decoder
from workbench.runner.decoding.rounds import Rounds
from workbench.runner.environment import host
from workbench.runner.failures import Mistake


@dataclass(frozen=True)
class SavedRound:
    """A file that fits the configuration it was read for."""

    saved: SavedState

    @property
    def note(self) -> str:
        """Return the note for the timeline after the state was restored."""
        return f"continued after {counted(self.saved.position, 'token')} from {self.saved.path}"

    def restore(self, decoder: Decoder, rounds: Rounds, batches: Batches) -> None:
        """Load the saved round into these, in place; raises ``Mistake`` if the cache differs."""
        metadata = self.saved.beside
        try:
            decoder.cache.load(self.saved)
        except ConfigurationError as error:
            raise Mistake(f"--load-state: {error}.") from None
        for name, tensor in decoder.progress.items():
            tensor.copy_(metadata["progress"][name])
        rounds.go_to(metadata["round"], metadata["steps"])
        batches.go_to(metadata["advances"])


def save_round(
    path: str, identity: Mapping[str, Any], decoder: Decoder, rounds: Rounds, batches: Batches
) -> str:
    """Save the current round; return a note for the user. Waits for the device."""
    position = decoder.prompt_length + rounds.done
    metadata = {
        "made with": dict(identity),
        "round": rounds.number,
        "steps": rounds.done,
        "advances": batches.advances,
        "progress": {name: tensor.cpu() for name, tensor in decoder.progress.items()},
    }
    decoder.cache.save(path, position, metadata)
    return f"saved the decode state after {counted(position, 'token')} to {path}"


def read_round(path: str, identity: Mapping[str, Any]) -> SavedRound:
    """Return the state of a file with this ``identity``; raise ``Mistake`` for any other."""
    try:
        saved = read_state(path)
    except ConfigurationError as error:
        raise Mistake(f"--load-state on {host()}: {error}.") from None
    made_with = saved.beside.get("made with")
    if made_with is None:
        raise Mistake(f"--load-state: {path!r} was not saved by a run and names no configuration.")
    for name, expected in identity.items():
        if made_with.get(name) != expected:
            raise Mistake(
                f"--load-state: {path!r} was made with {name} = {made_with.get(name)}, but this "
                f"run has {expected}; use the configuration that made it."
            )
    return SavedRound(saved)


def identity_of(configuration: Configuration, structure: Any) -> dict[str, Any]:
    """Return the properties that must be equal for a state to fit, by their names for users.

    ``structure``: the configuration of the model's weights, as the toggles have changed it.
    """
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
