"""What the arrival of each kind of message means to the window."""

from __future__ import annotations

from sessions import numerics
from sessions.verdicts.work import INVALID
from workbench import protocol

_TOUCHED: dict[type[protocol.Message], set[str]] = {
    protocol.Progress: {"stateChanged"},
    protocol.Steps: {"dataArrived"},
    protocol.TelemetrySamples: {"dataArrived"},
    protocol.Sampling: {"dataArrived"},
    protocol.Metrics: {"dataArrived"},
    protocol.Generated: {"textChanged"},
    protocol.ComparisonFacts: {"comparisonsChanged"},
    protocol.BlockDone: {"comparisonsChanged"},
    protocol.Judged: {"comparisonsChanged"},
    protocol.NumericsChecked: {"comparisonsChanged"},
    protocol.ComparisonStarted: {"comparisonsChanged", "stateChanged"},
    protocol.StudyStarted: {"studiesChanged", "stateChanged"},
    protocol.StudyRows: {"studiesChanged"},
    protocol.StudyFacts: {"studiesChanged"},
    protocol.PhaseChanged: {"segmentsChanged"},
    protocol.EvidenceFound: {"segmentsChanged"},
    protocol.Note: {"eventsChanged"},
}
MEASURED = (  # what makes the live session worth saving
    protocol.Steps,
    protocol.BlockDone,
    protocol.Judged,
    protocol.NumericsChecked,
    protocol.StudyStarted,
    protocol.StudyRows,
    protocol.StudyFacts,
)


def touched(message: protocol.Message) -> set[str]:
    """The signals of ``AppState`` that tell of a message."""
    if isinstance(message, protocol.Facts):
        shown = numerics.was_checked(message.ledger) or INVALID in message.ledger
        return {"segmentsChanged"} if shown else set()
    return _TOUCHED.get(type(message), set())
