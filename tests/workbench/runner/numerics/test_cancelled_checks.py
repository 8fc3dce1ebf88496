"""Whoever cancels while numbers are checked does not wait for the check, which tells nothing."""

from __future__ import annotations

import msgspec
import pytest
import torch
from recording_wire import RecordingWire

from workbench import protocol
from workbench.runner.context import RunnerContext
from workbench.runner.engine import RUNS
from workbench.runner.failures import Cancelled
from workbench.runner.numerics import comparison


class CancellingWire(RecordingWire):
    """Takes Cancel in the moment in which a check of the numbers begins."""

    def send(self, message: protocol.Message) -> None:
        super().send(message)
        if isinstance(message, protocol.State) and message.text.startswith("Checking"):
            self.cancelled.set()


def commands(small) -> dict[str, protocol.Command]:
    other = msgspec.structs.replace(small, toggles={"precision": "bf16"})
    return {
        "run": protocol.Start(configuration=small, steps=1, check="last"),
        "ab": protocol.Compare(base=small, other=other, budget_s=0.1),
        "attribute": protocol.Attribute(
            base=small, toggles={"precision": "bf16"}, mode="ladder", budget_s=0.1
        ),
        "sweep": protocol.Sweep(base=small, axes={"settings.batch": [1]}, seconds=0.05),
        "validate": protocol.Validate(configuration=small),
    }


@pytest.mark.parametrize("name", ["run", "ab", "attribute", "sweep", "validate"])
def test_a_check_of_the_numbers_ends_when_the_run_is_cancelled(small, name, monkeypatch):
    went_on: list[object] = []
    monkeypatch.setattr(comparison, "_judge", lambda *given: went_on.append(given))
    wire, command = CancellingWire(), commands(small)[name]
    with pytest.raises(Cancelled):
        RUNS[type(command)](RunnerContext(wire, torch.device("cpu")), command).execute()
    assert wire.cancelled.is_set() and not went_on
    rows = [message for message in wire.sent if isinstance(message, protocol.StudyRows)]
    texts = [text for row in rows if row.table == "numbers" for text in row.columns["text"]]
    assert texts == ["not checked: cancelled"] * (name == "sweep")
