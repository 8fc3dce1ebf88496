"""The round of decoding in progress, restored after calls beside its steps."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from workbench.runner.decoding.decoder import Decoder
from workbench.runner.decoding.rounds import Rounds
from workbench.runner.model_state.run_state import RunState


@contextlib.contextmanager
def restored_round(decoder: Decoder, rounds: Rounds, free_bytes: int) -> Iterator[None]:
    """Restore the cache and the progress of the current round at the end, in place.

    Copies that need more than a fraction of ``free_bytes`` lie on the host.
    """
    tensors = [*decoder.cache.tensors(), *decoder.progress.values()]
    state = RunState([("the decode state", tensors)], free_bytes)
    with rounds.restored():
        try:
            yield
        finally:
            state.restore()
