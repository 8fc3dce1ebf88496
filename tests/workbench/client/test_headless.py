"""A run without a window: how it ends, and what is kept of it."""

from __future__ import annotations

import functools
import os
import signal
import sys
import threading
import time

import msgspec
import pytest
import wire_samples
from interrupts import press_ctrl_c
from runner_driver import LIGHT

from workbench import protocol, state_folder
from workbench.client import headless, journal
from workbench.client.headless import run
from workbench.client.runner_process import Runner


def lead(monkeypatch, *command: str) -> None:
    runner = functools.partial(Runner, command=command)
    monkeypatch.setattr(headless, "Runner", runner)


def script(monkeypatch, *messages: protocol.Message, then: str = "sys.stdin.read()") -> None:
    """Let a runner send these messages, then do that."""
    lines = b"".join(map(protocol.encode, messages))
    lead(monkeypatch, sys.executable, "-S", "-c", f"import os, sys\nos.write(1, {lines!r})\n{then}")


def choose(_catalogue):
    return protocol.Start(configuration=wire_samples.configuration(), steps=5)


def test_the_outcome_is_the_session_and_how_it_ended(monkeypatch):
    sent = wire_samples.stream()
    script(monkeypatch, *sent)
    watched: list[protocol.AnyMessage] = []
    outcome = run(choose, watch=watched.append)
    assert watched == sent
    assert outcome.reason == "failed" and outcome.mistake == ""
    assert [failure.sentence for failure in outcome.failures] == ["It failed."]
    assert len(outcome.session.segments) == 3


def test_a_mistake_is_known_as_one(monkeypatch):
    mistake = protocol.Failure(kind="mistake", sentence="dim = 7 is odd")
    end = protocol.Finished(reason="failed", steps=0)
    script(monkeypatch, wire_samples.catalogue(), mistake, end)
    outcome = run(choose)
    assert outcome.mistake == "dim = 7 is odd"


def test_a_command_that_the_runner_cannot_read_has_failed(monkeypatch):
    """Nothing would ever finish it: a number that is none is null on the wire."""
    unread = protocol.Failure(kind=protocol.UNREAD, sentence="not a command")
    script(monkeypatch, wire_samples.catalogue(), unread)
    outcome = run(choose)
    assert outcome.reason == "failed"
    assert [failure.sentence for failure in outcome.failures] == ["not a command"]


def test_a_message_that_does_not_fit_is_a_failure_and_the_run_goes_on(monkeypatch):
    sent = wire_samples.stream()
    misfit = protocol.Steps(segment=9, columns={"t_s": [1.0]})
    script(monkeypatch, *sent[:-1], misfit, sent[-1])
    outcome = run(choose)
    assert outcome.reason == "failed"
    kinds = [failure.kind for failure in outcome.failures]
    assert kinds == ["model", "wire"]
    assert "segment 9 was never started" in outcome.failures[-1].sentence


def test_a_runner_that_dies_leaves_what_it_had_sent_and_its_journal(monkeypatch):
    script(monkeypatch, *wire_samples.stream()[:-2], then="os.kill(os.getpid(), 9)")
    outcome = run(choose)
    assert outcome.reason == "died"
    assert "SIGKILL" in outcome.failures[-1].sentence
    assert len(outcome.session.segments) == 3
    assert outcome.journal.exists()


def test_a_choice_that_is_refused_ends_runner_and_journal(monkeypatch):
    def refuse(_catalogue):
        raise LookupError("no such family")

    script(monkeypatch, wire_samples.catalogue())
    with pytest.raises(LookupError):
        run(refuse)
    assert not list(state_folder.path().iterdir())


@pytest.mark.parametrize("presses", [1, 3])
def test_ctrl_c_cancels_and_keeps_what_was_measured(monkeypatch, presses):
    before = signal.getsignal(signal.SIGINT)
    end = protocol.encode(protocol.Finished(reason="cancelled", steps=60))
    script(
        monkeypatch,
        *wire_samples.stream()[:-1],
        then=f"assert 'cancel' in [sys.stdin.readline(), sys.stdin.readline()][1]; "
        f"os.write(1, {end!r}); sys.stdin.read()",
    )
    stepped, steps = threading.Event(), []

    def watch(message):
        if isinstance(message, protocol.Steps):
            steps.extend(message.columns["t_s"])
            if len(steps) == 60:
                stepped.set()

    press_ctrl_c(presses, after=stepped)  # while the main thread waits for the runner's next line
    outcome = run(choose, watch=watch)
    assert outcome.reason == "cancelled"
    assert sum(len(segment.steps["t_s"]) for segment in outcome.session.segments) == 60
    assert signal.getsignal(signal.SIGINT) is before
    assert outcome.session.events[-1].text.startswith("interrupted with Ctrl+C")


def test_ctrl_c_before_the_catalogue_starts_nothing(monkeypatch):
    hello = protocol.encode(wire_samples.catalogue())
    lead(
        monkeypatch,
        *(sys.executable, "-S", "-c"),
        f"import os, sys, time\nsys.stdin.readline(); os.write(1, {hello!r}); sys.stdin.read()",
    )
    press_ctrl_c()
    outcome = run(lambda _: pytest.fail("it was started"))
    assert outcome.reason == "cancelled" and not outcome.session.segments


@pytest.mark.timeout(60)
def test_ctrl_c_while_a_command_is_prepared_ends_its_run(monkeypatch):
    """Cancel overtakes the command, and an idle runner has nothing to cancel."""
    idle = protocol.encode(protocol.State(state="idle"))
    end = protocol.encode(protocol.Finished(reason="cancelled", steps=0))
    script(
        monkeypatch,
        wire_samples.catalogue(),
        then="commands = iter(sys.stdin.readline, '')\n"
        f"assert 'cancel' in next(commands); os.write(1, {idle!r})\n"
        "assert 'start' in next(commands) and 'cancel' in next(commands)\n"
        f"os.write(1, {end!r}); sys.stdin.read()",
    )

    def press_and_choose(catalogue):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.5)  # Cancel has been sent, and the runner has answered
        return choose(catalogue)

    assert run(press_and_choose).reason == "cancelled"


def test_ctrl_c_while_a_runner_starts_ends_it_at_once_and_blames_nobody(monkeypatch):
    # Neither the runner nor the time that it would get to stop a run ever ends.
    monkeypatch.setattr(headless, "PATIENCE_S", 1e6)
    lead(monkeypatch, sys.executable, "-S", "-c", "import time; time.sleep(1e6)")
    press_ctrl_c()
    outcome = run(lambda _: pytest.fail("it was started"))
    assert outcome.reason == "cancelled" and not outcome.failures


def pressed_in_a_run_that_goes_on(monkeypatch, presses: int, patience_s: float, **started):
    """Return the outcome of a run that does not hear Cancel, and its duration after the press."""
    monkeypatch.setattr(headless, "PATIENCE_S", patience_s)
    lead(monkeypatch, *LIGHT, "0.02")
    stepped, pressed = threading.Event(), []
    press_ctrl_c(presses, after=stepped)
    start = msgspec.structs.replace(choose(None), **started)

    def watch(message):
        if isinstance(message, protocol.Steps) and not stepped.is_set():
            stepped.set()
            pressed.append(time.monotonic())

    outcome = run(lambda _: start, watch=watch)
    return outcome, time.monotonic() - pressed[0]


def test_a_runner_that_does_not_hear_ctrl_c_is_ended_and_not_blamed_for_what_the_person_did(
    monkeypatch,
):
    outcome, _ = pressed_in_a_run_that_goes_on(monkeypatch, 1, 0.3)
    assert (outcome.reason, outcome.failures) == ("cancelled", [])
    assert len(outcome.session.segments[0].steps["t_s"]) > 0
    (event,) = outcome.session.events
    assert (event.kind, event.text[:23]) == ("warning", "interrupted with Ctrl+C")
    assert journal.recover(outcome.journal).events == outcome.session.events


def test_a_second_ctrl_c_ends_the_run_at_once(monkeypatch):
    # The time that it would get to stop the run does not end.
    outcome, _ = pressed_in_a_run_that_goes_on(monkeypatch, 2, 1e6)
    assert (outcome.reason, outcome.failures) == ("cancelled", [])
    assert len(outcome.session.segments[0].steps["t_s"]) > 0


def test_a_run_that_leaves_a_decode_state_has_longer_to_write_it(monkeypatch):
    monkeypatch.setattr("workbench.client.runner_process.GRACE_S", 2.0)
    _, seconds = pressed_in_a_run_that_goes_on(monkeypatch, 1, 0.0, save_state="/a")
    assert seconds >= 2.0
