"""The parts of the catalogue: families, workloads, toggles, and what blocks an option."""

from __future__ import annotations

import difflib
from collections.abc import Collection

import msgspec

from sessions.model import Scalar

MANY = 40  # names that a sentence can list


def expected(name: str, allowed: Collection[str]) -> str:
    """Return the allowed names for an error: "one of ...", or the nearest if there are many."""
    if len(allowed) <= MANY:
        return f"one of {', '.join(allowed)}"
    near = difflib.get_close_matches(name, allowed, n=5, cutoff=0)
    return f"one of {len(allowed)} names; the nearest are {', '.join(near)}"


def ended(*texts: str) -> str:
    """Return the texts as sentences in one line."""
    sentences = [text.strip() for text in texts if text.strip()]
    return " ".join(
        sentence if sentence.endswith((".", "!", "?")) else f"{sentence}." for sentence in sentences
    )


class Field(msgspec.Struct, frozen=True, kw_only=True):
    """One number, switch or choice of a form, with its allowed values."""

    name: str
    title: str
    help: str
    default: Scalar
    choices: list[Scalar] = []
    minimum: float | None = None
    maximum: float | None = None


class MetricInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A metric of a family: a matrix of numbers that its models measure while they run."""

    name: str
    title: str
    unit: str  # "" for a share or a plain number
    help: str
    row: str  # the meaning of a row
    column: str  # the meaning of a column; empty if there is only one


class FamilyInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A model family: its configuration fields and its presets (field values by preset name)."""

    name: str
    title: str
    help: str
    fields: list[Field]
    presets: dict[str, dict[str, Scalar]]
    parameters: dict[str, int]  # parameter count by preset
    suggested: dict[str, dict[str, Scalar]]  # workload settings that fit this device, by preset
    workloads: list[str]
    default_preset: str  # the one that fits this device
    metrics: list[MetricInfo] = []


class WorkloadInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A workload: what one step does."""

    name: str
    title: str
    help: str
    fields: list[Field]


class OptionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One option of a toggle."""

    name: str
    title: str


class ToggleInfo(msgspec.Struct, frozen=True, kw_only=True):
    """An optimization and its options; the first one does not change the model."""

    name: str
    title: str
    help: str
    group: str
    options: list[OptionInfo]
    default: str


class Blocked(msgspec.Struct, frozen=True):
    """The reason why an option cannot be used, and what would enable it.

    ``set`` names the choices that would unblock it, so that a click can make them: keys are toggle
    names, or ``"workload"``. It is empty if no choice helps (an install or a GPU is missing).
    ``absent``: no model of this family has a part that the option could change.
    """

    reason: str
    fix: str
    set: dict[str, str] = {}
    absent: bool = False

    @property
    def reason_with_fix(self) -> str:
        """Return the reason and the fix as one line."""
        return ended(self.reason, self.fix)
