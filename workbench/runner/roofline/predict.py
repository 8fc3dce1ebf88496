"""The roofline's estimates of configurations before they are measured, and of their operators."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec
import torch

from sessions.model import Ceilings, Configuration, Prediction
from sessions.studies import prediction
from sessions.studies.prediction import Least
from sessions.tracing import kinds
from workbench.runner.interfaces import Situation, Trait
from workbench.runner.roofline.ceilings import RATES, Roof
from workbench.runner.roofline.counter import Call, NotCounted, Tally


@dataclass(frozen=True)
class Row:
    """One operator of the library, or class of operators: a step's calls, work and least time."""

    name: str
    calls: int
    bytes: int
    flops: int
    us: float


_SUMS = ("calls", "bytes", "flops", "us")


class PredictedToggle(Protocol):
    """The part of a toggle that a prediction reads."""

    @property
    def off(self) -> str:
        """The option that changes nothing."""

    @property
    def unpredictable(self) -> str:
        """The reason why the step's time is unknown for every other option; empty if it is not."""

    @property
    def known_classes(self) -> Mapping[str, Collection[str]]:
        """Operators whose least time is known for the other options too, by kernel class."""

    @property
    def is_counted(self) -> bool:
        """True if the counted work of a step may depend on the option."""

    @property
    def incomparable(self) -> str:
        """The reason why the ratio of two options is unknown; empty if it is not."""


class Predictor:
    """Predicts step times from counted work; steps with the same work are counted once.

    ``resolve`` returns the situation of a configuration on a device; it raises ``ValueError`` for
    one that cannot run. ``toggles`` report what cannot be predicted. ``count`` returns the work of
    a situation's step.
    """

    def __init__(
        self,
        roof: Roof,
        toggles: Mapping[str, PredictedToggle],
        resolve: Callable[[Configuration, torch.device], Situation],
        count: Callable[[Situation], Tally],
    ) -> None:
        self._roof, self._toggles = roof, toggles
        self._resolve, self._count = resolve, count
        self._known: dict[bytes, Tally | str] = {}
        self._idle: dict[bytes, float] = {}  # idle milliseconds, as given to ``profiled``

    def of(self, base: Configuration, other: Configuration) -> Prediction:
        """Return the prediction for two configurations; one that cannot run has none."""
        device = self._roof.device
        try:
            a, b = (self._resolve(configuration, device) for configuration in (base, other))
        except ValueError as error:
            return prediction.none(str(error))
        if a.configuration == b.configuration:
            return Prediction(ratio=1.0, text="A and B are the same configuration")
        for name, toggle in self._toggles.items():
            if toggle.incomparable and a.option(name) != b.option(name):
                return prediction.none(toggle.incomparable)
        return prediction.predict(self.least(a), self.least(b), self._idle.get(_key(a), math.nan))

    def profiled(self, situation: Situation, idle: float) -> None:
        """Store the fraction of a configuration's step in which the GPU was idle."""
        if not situation.has(Trait.CAPTURED):
            self._idle[_key(situation)] = idle

    def least(self, situation: Situation) -> Least:
        """Return the least time of a step."""
        tally = self._tally(situation)
        captured = situation.has(Trait.CAPTURED)
        if isinstance(tally, str):
            return Least(None, tally, captured)
        if tally.unknown:
            return Least(None, tally.unknown, captured)
        try:
            us = sum(least_us(call, self._roof.ceilings) for call in tally.calls)
        except NotCounted as why:
            return Least(None, str(why), captured)
        return Least(us, captured=captured)

    def rows(self, situation: Situation) -> tuple[list[Row], str]:
        """Return the least time of each operator of a step, and why some or all are unknown.

        A compiled step has one row for each class of kernels that Inductor calls and never fuses.
        """
        if toggles := self._unpredictable(situation):
            return self._classes(situation, toggles)
        tally = self._tally(situation)
        if isinstance(tally, str):
            return [], tally
        try:
            return _rows(tally.least, self._roof.ceilings), tally.unknown_least
        except NotCounted as why:
            return [], str(why)

    @property
    def ceilings(self) -> Ceilings:
        """The measured ceilings of the device."""
        return self._roof.ceilings

    def _unpredictable(self, situation: Situation) -> dict[str, PredictedToggle]:
        return {
            name: toggle
            for name, toggle in self._toggles.items()
            if toggle.unpredictable and situation.option(name) != toggle.off
        }

    def _classes(
        self, situation: Situation, toggles: Mapping[str, PredictedToggle]
    ) -> tuple[list[Row], str]:
        """Return the least time by class, as counted without the toggle that is unpredictable."""
        name, toggle = next(iter(toggles.items()))
        if len(toggles) > 1 or not toggle.known_classes:
            return [], toggle.unpredictable
        options = {**situation.configuration.toggles, name: toggle.off}
        configuration = msgspec.structs.replace(situation.configuration, toggles=options)
        try:
            eager = self._resolve(configuration, self._roof.device)
        except ValueError:
            return [], toggle.unpredictable
        rows, _ = self.rows(eager)
        tally = self._tally(eager)
        if isinstance(tally, str):
            return [], toggle.unpredictable
        known = {title: set(operators) for title, operators in toggle.known_classes.items()}
        # Inductor fuses a part of such an operator; its other part is among the matrix products.
        plain = {title for title in known if title != kinds.MATRIX and tally.plain & known[title]}
        for title in {*plain, kinds.MATRIX} if plain else plain:
            known.pop(title, None)
        classes = []
        for title, operators in known.items():
            if own := [row for row in rows if row.name in operators]:
                sums = (sum(getattr(row, field) for row in own) for field in _SUMS)
                classes.append(Row(title, *sums))
        return classes, toggle.unpredictable

    def _tally(self, situation: Situation) -> Tally | str:
        for toggle in self._unpredictable(situation).values():
            return toggle.unpredictable
        if situation.is_own_model:
            return "the operators that your own model calls are unknown until it runs"
        key = self._work_key(situation)
        if key not in self._known:
            self._known[key] = _counted(situation, self._count)
        return self._known[key]

    def _work_key(self, situation: Situation) -> bytes:
        """Return the cache key of a situation's counted work."""
        return _key_without(
            situation, (name for name, toggle in self._toggles.items() if not toggle.is_counted)
        )


def least_us(call: Call, ceilings: Ceilings) -> float:
    """Return the least microseconds of one call; raises ``NotCounted``."""
    memory_us = 1e6 * call.bytes / ceilings.bytes_per_s
    if not call.flops:
        return memory_us
    rate = ceilings.flops_per_s.get(call.dtype)
    if rate is None:
        remedy = "run workbench ceilings --measure" if call.dtype in RATES else "none is measured"
        lacks = ceilings.lacking.get(call.dtype, remedy)
        raise NotCounted(
            f"the matrix rate of {call.dtype} is not among the measured ceilings: {lacks}"
        )
    return max(memory_us, 1e6 * call.flops / rate)


def _counted(situation: Situation, count: Callable[[Situation], Tally]) -> Tally | str:
    try:
        return count(situation)
    except NotCounted as why:
        return str(why)
    except Exception as error:  # noqa: BLE001 - a prediction may fail in any way, and a run must not
        first = (str(error).strip().splitlines() or ["no message"])[0]
        return f"its step cannot be traced without running it ({type(error).__name__}: {first})"


def _rows(calls: Sequence[Call], ceilings: Ceilings) -> list[Row]:
    rows_by_name: dict[str, Row] = {}
    for call in calls:
        row = rows_by_name.get(call.name, Row(call.name, 0, 0, 0, 0.0))
        rows_by_name[call.name] = Row(
            call.name,
            row.calls + 1,
            row.bytes + call.bytes,
            row.flops + call.flops,
            row.us + least_us(call, ceilings),
        )
    return sorted(rows_by_name.values(), key=lambda row: -row.us)


def _key(situation: Situation) -> bytes:
    """Return the cache key of a situation's step; a capture acts on the built step alone."""
    capturing = {
        name
        for name, by_option in situation.traits.items()
        if any(Trait.CAPTURED in traits for traits in by_option.values())
    }
    return _key_without(situation, capturing)


def _key_without(situation: Situation, names: Iterable[str]) -> bytes:
    """Return the cache key of a configuration without some of its toggles."""
    left_out, configuration = set(names), situation.configuration
    toggles = {name: o for name, o in configuration.toggles.items() if name not in left_out}
    return msgspec.json.encode(msgspec.structs.replace(configuration, toggles=toggles))
