"""Tuning by torch during compilation is a phase of its own; the events are played."""

from __future__ import annotations

import pytest
import torch._dynamo.utils
from torch._dynamo.callback import CallbackTrigger, callback_handler

from sessions.model import Phase
from workbench.runner.instruments import autotuning
from workbench.runner.instruments.phases import PhaseTracker

TUNED = (
    "mm_template_autotuning",
    "addmm_template_precompiling",
    "CachingAutotuner.benchmark_all_configs",
    "CachingAutotuner.coordinate_descent_tuning",
)


@pytest.fixture
def followed(monkeypatch):
    """Return a tracker that watches torch, and the phases that it has reported."""
    log = torch._dynamo.utils.ChromiumEventLogger
    for name in ("log_event_start", "log_event_end"):
        monkeypatch.setattr(log, name, getattr(log, name))
    monkeypatch.setattr(callback_handler, "start_callbacks", [])
    monkeypatch.setattr(callback_handler, "end_callbacks", [])
    reported: list[Phase] = []
    tracker = PhaseTracker(reported.append)
    tracker.watch_compiles()
    return tracker, reported


def event(name):
    return torch._dynamo.utils.dynamo_timed(name, log_pt2_compile_event=True)


@pytest.mark.parametrize("name", TUNED)
def test_tuning_within_a_compile_is_told_apart_and_the_compile_goes_on(followed, name):
    tracker, reported = followed
    compiling = callback_handler.install_callbacks(CallbackTrigger.DYNAMO, "0/0")
    with compiling, event("compile_fx_inner"):
        assert tracker.phase is Phase.COMPILE
        with event(name):
            assert tracker.phase is Phase.AUTOTUNE
        assert tracker.phase is Phase.COMPILE
    assert reported == [Phase.COMPILE, Phase.AUTOTUNE, Phase.COMPILE, Phase.WARM_UP]
    assert tracker.step_phase(0) is Phase.COMPILE  # the step's compile holds its tuning
    assert tracker.step_phase(0) is Phase.WARM_UP


def test_what_is_tuned_at_a_kernels_first_call_voids_that_step(followed):
    tracker, reported = followed
    with event("CachingAutotuner.benchmark_all_configs"):
        with event("CachingAutotuner.coordinate_descent_tuning"):
            pass
        assert tracker.phase is Phase.AUTOTUNE
    assert reported == [Phase.AUTOTUNE, Phase.WARM_UP]
    assert tracker.step_phase(0) is Phase.AUTOTUNE


def test_tuning_that_fails_ends_its_phase(followed):
    tracker, _ = followed
    with pytest.raises(RuntimeError), event("mm_template_autotuning"):
        raise RuntimeError("no choice compiled")
    assert tracker.phase is Phase.WARM_UP


def test_a_log_without_such_events_is_left_alone():
    class Other:
        pass

    assert not autotuning.watch(Other, lambda: pytest.fail("nothing is tuned"))
    assert not hasattr(Other, "log_event_start")
