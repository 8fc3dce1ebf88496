"""Steps that are faster than the device can run them are invalid, and never faster."""

from __future__ import annotations

import math

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from recording_wire import RecordingWire

from sessions.ceilings import FASTEST, INVALID, impossible, limit_ms
from sessions.model import Ceilings, Judgement, PairedComparison
from sessions.verdicts import verdict
from sessions.verdicts.verdict_words import headline, ratio_line, remarks, summary_sentence
from workbench import protocol
from workbench.client.recorder import Recorder
from workbench.runner.context import RunnerContext
from workbench.runner.experiments.compare import CompareRun
from workbench.runner.experiments.paired import interleaving
from workbench.runner.experiments.run import Run, RunEnded


@given(st.floats(1e3, 1e16), st.floats(1e9, 1e16), st.floats(0.5, 10))
def test_no_step_that_reaches_less_than_twice_the_highest_rate_is_invalid(flops, rate, times):
    least_ms = limit_ms({"model_flops": flops, FASTEST: rate})
    at_rate_ms = 1e3 * flops / rate
    assert impossible(times * at_rate_ms * 1.0001, least_ms, "cuda") == ""
    assert "faster than this GPU" in impossible(0.49 * at_rate_ms, least_ms, "cuda")


def test_what_is_not_known_makes_nothing_invalid():
    for ledger in ({}, {"model_flops": 1e9}, {FASTEST: 1e12}, {"model_flops": 1e9, FASTEST: 0.0}):
        assert math.isnan(limit_ms(ledger))
        assert impossible(1e-9, limit_ms(ledger), "cpu") == ""


def test_a_judgement_of_an_impossible_step_claims_nothing_and_says_so_first():
    faster = Judgement(verdict="FASTER", pairs=9, ratio=0.1, low=0.09, high=0.11, p=1e-9)
    judged = verdict.invalidated(faster, "B: a step is faster than this GPU can run it")
    assert (judged.verdict, judged.p, judged.more_s) == ("UNDECIDED", 1.0, None)
    shown = PairedComparison(
        arms=["A", "B"], order=[], medians_ms=[], ratio=0.1, low=0.09, high=0.11,
        verdict=judged.verdict, facts={**msgspec.to_builtins(judged), "final": True},
    )  # fmt: skip
    assert headline(shown).startswith("INVALID: an arm is faster than this device can run it")
    assert not any("faster" in words for words in (ratio_line(shown), summary_sentence(shown)))
    assert remarks(shown)[0] == "B: a step is faster than this GPU can run it."


def context_with(rate: float, disturbed: str = "") -> RunnerContext:
    """Return the context of a device that is known to reach so many FLOPs a second at best."""
    context = RunnerContext(RecordingWire(), torch.device("cpu"))
    context.roof.measured = Ceilings(
        device="cpu", driver="", torch="", created=0.0, bytes_per_s=1e9,
        flops_per_s={"float32": rate, "bfloat16": rate / 2}, disturbed=disturbed,
    )  # fmt: skip
    return context


def session_of(context):
    recorder = Recorder()
    for message in context.wire.sent:
        recorder.record(message)
    return recorder.session


@pytest.mark.parametrize("rate", [1e3, 1e18], ids=["slow device", "fast device"])
def test_a_comparison_of_impossible_steps_is_invalid_with_both_numbers(rate, small, monkeypatch):
    monkeypatch.setattr(interleaving, "WARM_UP_S", 0.1)
    context = context_with(rate)
    command = protocol.Compare(base=small, other=small, budget_s=0.4, build_count=1)
    CompareRun(context, command).execute()
    (comparison,) = session_of(context).comparisons
    why = comparison.facts["invalid"]
    assert bool(why) == (rate == 1e3)
    if why:
        assert why.startswith("A: a step is faster than this CPU can run it: ")
        assert " ms measured, but its FLOPs need at least " in why
        assert comparison.verdict == "UNDECIDED" and "INVALID" in headline(comparison)


def run(context, small):
    with pytest.raises(RunEnded):
        Run(context, protocol.Start(configuration=small, steps=2000, seconds=1.0)).execute()
    return session_of(context)


def test_a_segment_of_impossible_steps_is_marked_once_with_a_warning(small):
    session = run(context_with(1e3), small)
    (segment,) = session.segments
    assert "faster than this CPU can run it" in segment.ledger[INVALID]
    warnings = [event.text for event in session.events if event.kind == "warning"]
    assert [text for text in warnings if "INVALID" in text] == [
        f"the step times are INVALID: {segment.ledger[INVALID]}"
    ]


def test_ceilings_that_were_measured_beside_others_make_nothing_invalid(small):
    session = run(context_with(1e3, disturbed="others used 80 % of the CPU"), small)
    assert INVALID not in session.segments[0].ledger
    assert FASTEST not in session.segments[0].ledger
