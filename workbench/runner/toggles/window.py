"""Let every token attend only to a fixed number of tokens before it.

This changes the model: earlier tokens are reached only through the layers. Time and memory of
attention then grow linearly with the sequence, instead of quadratically. The decode cache does not
become smaller. Not every backend supports a window; *Automatic* finds one that does. (Beltagy et
al., Longformer, arXiv 2004.05150; Jiang et al., Mistral 7B, arXiv 2310.06825.)

Counted for HYDRA large with a window of 512: 0.95 times the FLOPs of the forward pass at 2,048
tokens, 0.77 at 8,192.
"""

from __future__ import annotations

from typing import Any

from workbench.protocol import Blocked
from workbench.runner.toggles._field_toggle import field_toggle
from workbench.runner.toggles._toggle import Situation


def _needs(value: Any, situation: Situation) -> Blocked | None:
    longest = situation.workload.sequence(situation.configuration.settings)
    if longest > value:
        return None
    return Blocked(
        f"the window covers the complete sequence of {longest} tokens",
        "Choose a smaller window, or a longer sequence for the next run.",
    )


TOGGLE = field_toggle(
    "window",
    "Attention window",
    __doc__,
    {str(n): (f"{n} tokens", n) for n in (32, 128, 512, 2048)},
    group="Attention",
    needs=_needs,
)
