"""Whatever a model does, a person reads one sentence and the session goes on.

Faults that end the process are survived in turn by one session: each new runner is the proof that
the one before left nothing behind.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import numpy as np
import psutil
import pytest
import wire_samples
from hang_limit import HANG_S
from runner_driver import FAULTY, Driver

from sessions.model import Configuration, Evidence
from workbench import protocol
from workbench.client import runner_process
from workbench.client.journal import Journal, recover
from workbench.client.recorder import Recorder


def faulty(fault: str, call: int = 3) -> Configuration:
    return Configuration(family="faulty", preset="tiny", model={"fault": fault, "call": call})


@pytest.fixture(scope="module")
def survivor() -> Iterator[Driver]:
    """Return a runner for the faults that it survives."""
    driver = Driver(command=FAULTY)
    driver.until_state("idle")
    yield driver
    driver.close()


def assert_works(driver: Driver) -> None:
    driver.start(faulty("none"), steps=3)
    finished = driver.finish()
    assert (finished.reason, finished.steps) == ("done", 3), driver.describe()


def test_the_catalogue_comes_first_though_libraries_print(survivor):
    assert isinstance(survivor.messages[0], protocol.Catalogue)
    assert not [m for m in survivor.messages if isinstance(m, protocol.Failure)]
    log = "\n".join(survivor.runner.log_tail)
    assert "a library greets on import" in log
    assert "and writes to descriptor 1" in log


def test_what_a_model_prints_is_log_text_and_not_a_message(survivor):
    since = len(survivor.messages)
    survivor.start(faulty("print", call=1), steps=30)
    assert survivor.finish().reason == "done"
    assert not [m for m in survivor.messages[since:] if isinstance(m, protocol.Failure)]
    assert not survivor.session.events, "a line that a model printed was taken for a message"
    log = "\n".join(survivor.runner.log_tail)
    for text in ("printed in forward", "forged", "printed by C in forward"):
        assert text in log


@pytest.mark.parametrize(
    ("fault", "kind", "sentence"),
    [
        ("raise", "model", "KeyError in the model: 'a key\\nand a second line'"),
        ("surrogate", "model", "ValueError in the model: invalid literal for int()"),
        (
            "gpu-memory",
            "out-of-memory",
            "Out of memory: 20.00 GiB more was needed and 3.21 GiB was",
        ),
        ("host-memory", "out-of-memory", "Out of memory: 4.00 PiB more was needed."),
    ],
)
@pytest.mark.parametrize("call", [1, 2, 8], ids=["building", "first step", "stepping"])
def test_a_fault_of_the_model_is_one_sentence_and_the_runner_stays(
    survivor, fault, kind, sentence, call
):
    since = len(survivor.messages)
    survivor.start(faulty(fault, call))
    finished = survivor.finish()
    failures = [m for m in survivor.messages[since:] if isinstance(m, protocol.Failure)]
    assert [failure.kind for failure in failures] == [kind]
    assert failures[0].sentence.startswith(sentence) and "\n" not in failures[0].sentence
    assert failures[0].fix and not failures[0].fatal
    assert "Traceback" in failures[0].detail and "Traceback" not in failures[0].sentence
    assert finished.reason == "failed" and finished.steps == max(0, call - 2)
    assert_works(survivor)


@pytest.mark.parametrize("call", [1, 2], ids=["building", "first step"])
def test_a_toggle_that_fails_goes_back_to_the_configuration_before(survivor, call):
    survivor.start(faulty("later", call))
    survivor.until_steps(1)
    before = survivor.session.segments[-1].configuration
    survivor.send(protocol.Apply(toggles={"attention": "manual"}))
    failure = survivor.until(protocol.Failure)
    assert failure.kind == "model" and failure.sentence.startswith("KeyError in the model")
    note = survivor.until(protocol.Note)
    assert (note.kind, note.text) == ("warning", "returned to the previous configuration")
    started = survivor.until(protocol.SegmentStarted)
    assert started.configuration == before and started.reused
    survivor.until_steps(2)
    failed = survivor.session.segments[-2]
    assert failed.configuration.toggles["attention"] == "manual"
    assert failed.ledger["failure"] == failure.sentence and len(failed.steps["t_s"]) == 0
    assert failed.evidence == [Evidence("attention", "manual", "failed", failure.sentence)]
    assert survivor.finish(protocol.Stop()).reason == "stopped"


def test_a_build_that_lacks_memory_is_tried_again_without_the_earlier_ones(survivor):
    survivor.start(faulty("tight", 1))
    survivor.until_steps(1)
    since = len(survivor.messages)
    survivor.send(protocol.Apply(toggles={"attention": "manual"}))
    survivor.until(protocol.SegmentStarted)
    survivor.until_steps(2)
    notes = [m.text for m in survivor.messages[since:] if isinstance(m, protocol.Note)]
    note_start = "freed the earlier builds (1); trying again after freeing memory: Out of memory: "
    assert any(note.startswith(note_start) for note in notes)
    assert not [m for m in survivor.messages[since:] if isinstance(m, protocol.Failure)]
    assert survivor.session.segments[-1].configuration.toggles["attention"] == "manual"
    assert survivor.finish(protocol.Stop()).reason == "stopped"


@pytest.fixture(scope="module")
def sitting(tmp_path_factory) -> Iterator[tuple[Journal, Recorder]]:
    """One session that outlives its runners."""
    journal = Journal(tmp_path_factory.mktemp("sitting") / "a.journal")
    yield journal, Recorder()
    journal.close()


DEADLY = {
    "exit": "The runner ended with exit code 7.",
    "segfault": "The runner was ended by SIGSEGV.",
    "killed": "The runner was ended by SIGKILL. The system does this when memory runs out.",
    "lost-context": "The GPU reported an error that its process cannot recover from: CUDA error: "
    "an illegal memory access was encountered",
    "hang": "The run did not stop when cancelled, so its runner was terminated.",
    "deaf": "The run did not stop when cancelled, so its runner was killed.",
}


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(fault, marks=pytest.mark.slow if fault in ("exit", "segfault", "hang") else ())
        for fault in DEADLY
    ],
)
def test_a_runner_that_dies_leaves_the_session_and_a_new_one_works(sitting, fault, monkeypatch):
    # From terminate to kill: a runner that does not ignore SIGTERM has the time that it needs.
    monkeypatch.setattr(runner_process, "GRACE_S", 1.0 if fault == "deaf" else HANG_S)
    journal, recorder = sitting
    segments = len(recorder.session.segments)
    hang_s = "3" if fault in ("hang", "deaf") else str(HANG_S)
    driver = Driver(journal, recorder, FAULTY, {"WORKBENCH_HANG_S": hang_s})
    try:
        driver.until_state("idle")
        assert_works(driver)
        driver.start(faulty("slow" if fault == "killed" else fault, call=8))
        if fault == "killed":
            driver.until_steps(3)
            os.kill(driver.runner.process.pid, signal.SIGKILL)
        elif fault in ("hang", "deaf"):
            hang = driver.until(protocol.Failure)
            assert (hang.kind, hang.fatal) == ("hang", False)
            assert hang.sentence.startswith("No step has ended for ")
            assert "Cancel the run" in hang.fix
            driver.runner.cancel(1.0)
        rest = driver.rest()
    finally:
        driver.close()
    deaths = [m for m in rest if isinstance(m, protocol.Failure)]
    assert [failure.sentence for failure in deaths] == [DEADLY[fault]]
    assert deaths[0].fatal and "new runner" in deaths[0].fix
    assert not psutil.pid_exists(driver.runner.process.pid)

    recovered = recover(journal.path)
    live = recorder.session
    assert len(live.segments) == segments + 2
    assert live.events[-1].text == DEADLY[fault]
    # The client's own words are no part of the wire.
    live_events, live.events = live.events, recovered.events
    wire_samples.assert_same(recovered, live)
    live.events = live_events
    times = np.concatenate([segment.steps["t_s"] for segment in live.segments])
    assert (np.diff(times) > 0).all()
