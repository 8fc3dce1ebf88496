"""The watchdog's report of a step that does not end, and the cause that it names."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from workbench.client import runner_errors
from workbench.exit_reasons import abort_cause
from workbench.runner.context import _hang_cause
from workbench.runner.instruments.watchdog import Watchdog

GLOO = (
    "terminate called after throwing an instance of 'gloo::EnforceNotMet'",
    "  what():  Received data size doesn't match expected size. Is there a distributed collective "
    "mismatch in your code?",
)


def variant(*, divided, is_own_model):
    return SimpleNamespace(divided=divided, situation=SimpleNamespace(is_own_model=is_own_model))


@pytest.mark.parametrize(
    ("divided", "is_own_model", "words"),
    [
        (None, True, "No step has ended for 31 s."),
        (object(), False, "No step has ended for 31 s. Its ranks may wait for each other."),
        (object(), True, "if one of them skips a layer that the others run: let all ranks"),
    ],
)
def test_a_hang_of_ranks_names_its_cause(divided, is_own_model, words):
    sent = []
    watchdog = Watchdog(SimpleNamespace(send=sent.append))
    watchdog.cause = _hang_cause(variant(divided=divided, is_own_model=is_own_model))
    watchdog._report(31.0)
    (failure,) = sent
    assert failure.kind == "hang" and failure.sentence.startswith("No step has ended for 31 s.")
    assert words in failure.sentence and failure.sentence.endswith(".")


def test_ranks_that_abort_because_a_layer_was_skipped_are_explained():
    failure = runner_errors.ended(-6, None, GLOO)
    assert failure.sentence.startswith("The runner was ended by SIGABRT. Its ranks sent each other")
    assert "skips a layer" in failure.sentence and "switch sharding off" in failure.sentence
    assert abort_cause(-6, "out of memory") == abort_cause(-9, GLOO[1]) == ""
    assert runner_errors.ended(-6, None, ["free(): invalid pointer"]).sentence == (
        "The runner was ended by SIGABRT."
    )
