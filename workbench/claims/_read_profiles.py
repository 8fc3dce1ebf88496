"""The readers of claims: profiles, facts of segments, and compile times."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from sessions import numerics
from sessions.model import Segment, Study
from sessions.numbers import counted
from sessions.sizes import sized
from sessions.studies import breakdown
from sessions.verdicts import statistics
from workbench.claims._claim import Reading, Results, Unmeasured
from workbench.claims._read import LEAST_STEPS

Read = Callable[[Results], Reading]


def activation_share() -> Read:
    """Return activations kept for the backward pass, of the second profile over the first."""

    def read(results: Results) -> Reading:
        before, after = (
            breakdown.highest(profile).get("activations", 0) for profile in _profiles(results)
        )
        if not before:
            raise Unmeasured("the profile shows no activations kept for the backward pass")
        return Reading(after / before, note=_sizes(before, after))

    return read


def peak_share() -> Read:
    """Return the peak memory of a whole step, of the second profile over the first."""

    def read(results: Results) -> Reading:
        before, after = (
            float(profile.facts.get("peak_bytes", 0)) for profile in _profiles(results)
        )
        if not before or not math.isfinite(before):
            raise Unmeasured("the peak memory of a step is not known")
        return Reading(after / before, note=_sizes(before, after))

    return read


def fewer_launches() -> Read:
    """Return how many times fewer kernels the second profile's step launches than the first's."""

    def read(results: Results) -> Reading:
        before, after = (
            float(np.sum(profile.tables["kernels"]["calls"])) for profile in _profiles(results)
        )
        return Reading(before / after, note=f"{before:.0f} kernels per step become {after:.0f}")

    return read


def compile_seconds() -> Read:
    """Return the seconds of the command's first compilation, tuning included."""

    def read(results: Results) -> Reading:
        seconds = results.compile_s[0] if results.compile_s else 0.0
        if not seconds:
            raise Unmeasured("; ".join(["nothing was compiled", *results.reasons]))
        return Reading(seconds)

    return read


def ledger_value(name: str, preset: str = "", scale: float = 1.0) -> Read:
    """Return a fact of the last segment that has it, divided by ``scale``."""

    def read(results: Results) -> Reading:
        return Reading(_fact(results.segments, name, preset) / scale)

    return read


def ledger_difference(larger: str, smaller: str, scale: float = 1.0) -> Read:
    """Return by how much one fact of the last segment exceeds another, divided by ``scale``."""

    def read(results: Results) -> Reading:
        values = [_fact(results.segments, name) for name in (larger, smaller)]
        return Reading((values[0] - values[1]) / scale)

    return read


def growth(name: str, setting: str) -> Read:
    """Return a fact at the largest value of a setting over that at the smallest."""

    def read(results: Results) -> Reading:
        sizes = {
            _setting(segment, setting): float(segment.ledger[name])
            for segment in results.segments
            if name in segment.ledger
        }
        if len(sizes) < 2:
            raise Unmeasured(
                f"{name} is known at {len(sizes)} of {counted(len(results.segments), 'size')}"
            )
        least, most = min(sizes), max(sizes)
        note = f"{setting} {least:g}: {sizes[least]:,.0f}, {most:g}: {sizes[most]:,.0f}"
        return Reading(sizes[most] / sizes[least], note=note)

    return read


def longest_right(setting: str) -> Read:
    """Return the largest value of a setting that ran with right numbers."""

    def read(results: Results) -> Reading:
        if not results.segments:
            raise Unmeasured("no size was measured")
        right = [segment for segment in results.segments if _is_right(segment)]
        wrong = [segment for segment in results.segments if not _is_right(segment)]
        note = "; ".join(
            f"{segment.configuration.settings[setting]}: {_why_not(segment)}" for segment in wrong
        )
        if not right:
            raise Unmeasured(note)
        return Reading(
            max(float(segment.configuration.settings[setting]) for segment in right), note=note
        )

    return read


def passed_share(ladder: Read, alone: int) -> Read:
    """Return the share of tests that pass: ``alone`` segments by themselves, and a ladder.

    The segments are the first ones, each checked against a reference after its last step; the
    ladder, which is the last command, passes if all of its configurations ran with right numbers.
    """

    def read(results: Results) -> Reading:
        segments = results.segments[:alone]
        if len(segments) < alone:
            raise Unmeasured(f"ran {len(segments)} of {counted(alone, 'component')}")
        compiled = ladder(results.of([len(results.studies) - 1]))
        problems = [
            f"{_title(segment)}: {_why_not(segment)}"
            for segment in segments
            if not _is_right(segment)
        ]
        problems += [compiled.note] if compiled.value < 1 else []
        return Reading(1 - len(problems) / (alone + 1), note="; ".join(problems))

    return read


def growth_of(exponent: Read, setting: str) -> Read:
    """Return by what factor the time per unit of a setting grows from its least to its largest.

    It follows from the fitted exponent, with its interval.
    """

    def read(results: Results) -> Reading:
        fitted = exponent(results)
        sizes = [
            _setting(segment, setting)
            for segment in results.segments
            if len(statistics.steady_ms(segment)) >= LEAST_STEPS
        ]
        times = max(sizes) / min(sizes)
        value, low, high = (times ** (end - 1) for end in (fitted.value, *fitted.ends))
        return Reading(value, low, high, note=f"{min(sizes):g} to {max(sizes):g}: {fitted.note}")

    return read


def _profiles(results: Results) -> tuple[Study, Study]:
    """Return the first and the last command's profile."""
    profiles = [
        profile
        for profile in results.studies
        if profile is not None and "kernels" in profile.tables
    ]
    if len(profiles) < 2 or len(profiles) < len(results.studies):
        raise Unmeasured("the profiles were not finished")
    return profiles[0], profiles[-1]


def _fact(segments: Sequence[Segment], name: str, preset: str = "") -> float:
    for segment in reversed(segments):
        if name in segment.ledger and preset in ("", segment.configuration.preset):
            return float(segment.ledger[name])
    raise Unmeasured(f"no segment records its {name}")


def _setting(segment: Segment, name: str) -> float:
    return float(segment.configuration.settings[name])


def _is_right(segment: Segment) -> bool:
    """Return True if the segment ran to its end and its numbers are known to be right."""
    return segment.ledger.get(numerics.RIGHT) is True


def _why_not(segment: Segment) -> str:
    return numerics.text(segment.ledger) or "it did not run to the end"


def _title(segment: Segment) -> str:
    return str(segment.configuration.model.get("source", segment.configuration.family))


def _sizes(before: float, after: float) -> str:
    unit, (first, second) = sized([before, after])
    return f"{first:.3g} {unit} become {second:.3g} {unit} here"
