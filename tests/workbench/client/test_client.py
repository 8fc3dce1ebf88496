"""However a runner's process ends or babbles, a person reads one sentence; none is left behind."""

from __future__ import annotations

import signal
import sys
import threading
import time

import psutil
import pytest
import wire_samples
from hang_limit import HANG_S
from process_end import assert_end

from workbench import protocol
from workbench.client import runner_process
from workbench.client.journal import Journal, recover
from workbench.client.runner_process import Runner

HELLO = protocol.encode(wire_samples.catalogue()).decode()


def child(script: str, journal: Journal | None = None) -> Runner:
    """Return a runner that says hello and then does what ``script`` says."""
    preamble = (
        f"import os, signal, sys, time\nsay = lambda t: os.write(1, t.encode())\nsay({HELLO!r})\n"
    )
    return Runner(journal, (sys.executable, "-S", "-c", preamble + script))


def life(runner: Runner) -> list[protocol.AnyMessage]:
    messages = list(runner.messages())
    runner.close()
    assert not runner.alive
    return messages


@pytest.mark.parametrize(
    ("script", "sentence"),
    [
        ("sys.exit(0)", "The runner ended with exit code 0."),
        ("sys.exit(7)", "The runner ended with exit code 7."),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "The runner was ended by SIGSEGV."),
        (
            "os.kill(os.getpid(), signal.SIGRTMIN + 1)",
            f"The runner was ended by signal {signal.SIGRTMIN + 1}.",
        ),
        (
            "os.kill(os.getpid(), signal.SIGKILL)",
            "The runner was ended by SIGKILL. The system does this when memory runs out.",
        ),
    ],
)
def test_a_runner_that_ends_unasked_has_an_obituary(script, sentence):
    catalogue, failure = life(child(f"print('last words', file=sys.stderr, flush=True)\n{script}"))
    assert isinstance(catalogue, protocol.Catalogue)
    assert (failure.kind, failure.sentence, failure.fatal) == ("died", sentence, True)
    assert failure.fix == "Start a new runner; everything measured so far is kept."
    assert "last words" in failure.detail


def test_a_runner_that_said_itself_why_it_ends_has_no_second_obituary():
    own = protocol.Failure(kind="cuda", sentence="The GPU is lost.", fatal=True)
    messages = life(child(f"say({protocol.encode(own).decode()!r})\nsys.exit(3)"))
    assert messages[1:] == [own]


def test_a_line_that_is_no_message_is_reported_and_the_next_is_heard():
    note = protocol.Note(kind="note", text="still here")
    script = f"say('loading...\\n')\nsay({protocol.encode(note).decode()!r})\nsys.exit(0)"
    _, wire, heard, died = life(child(script))
    assert (wire.kind, wire.fatal) == ("wire", False)
    assert "loading..." in wire.detail and "loading" not in wire.sentence
    assert heard == note
    assert died.kind == "died"


def test_a_runner_that_dies_within_a_line_is_one_failure_and_ends_the_line(tmp_path):
    journal = Journal(tmp_path / "a.journal")
    _, failure = life(child('say(\'{"type":"ste\'); os.kill(os.getpid(), 9)', journal))
    assert failure.kind == "died"
    journal.close()
    assert journal.path.read_bytes().endswith(b'{"type":"ste\n')
    assert recover(journal.path).environment == {"torch": "0"}


def test_a_huge_line_does_not_stop_the_stream():
    script = "say('x' * 30_000_000 + '\\n')\nsay({!r})\nsys.exit(0)".format(
        protocol.encode(protocol.Note(kind="note", text="after")).decode()
    )
    # os.write may write less than it was given.
    script = "say = lambda t: sys.stdout.write(t) and sys.stdout.flush()\n" + script
    _, wire, note, _ = life(child(script))
    assert wire.kind == "wire" and len(wire.detail) < 500
    assert note.text == "after"


def test_closing_is_quiet_and_commands_to_a_closed_runner_are_refused():
    runner = child("sys.stdin.read()")
    heard: list[protocol.AnyMessage] = []
    reader = threading.Thread(target=lambda: heard.extend(runner.messages()))
    reader.start()
    runner.close()
    reader.join(timeout=HANG_S)
    assert all(isinstance(message, protocol.Catalogue) for message in heard)
    assert runner.send(protocol.Pause()) is False


def test_closing_takes_the_workers_of_the_runner_along():
    fork = (
        "pid = os.fork()\n"
        "if not pid:\n    [os.close(d) for d in (0, 1, 2)]\n    time.sleep(1e6)\n"
        "sys.stdin.read()"
    )
    runner = child(fork)
    next(iter(runner.messages()))
    deadline = time.monotonic() + HANG_S
    while not (workers := psutil.Process(runner.process.pid).children()):
        assert time.monotonic() < deadline
    runner.close()
    assert_end(workers)


@pytest.mark.parametrize(
    ("script", "ended"),
    [
        ("time.sleep(1e6)", "terminated"),
        ("signal.signal(signal.SIGTERM, signal.SIG_IGN); say('\\n'); time.sleep(1e6)", "killed"),
    ],
)
def test_a_runner_that_does_not_hear_cancel_is_ended_by_force(monkeypatch, script, ended):
    before_kill_s = 0.3 if ended == "killed" else HANG_S
    monkeypatch.setattr(runner_process, "GRACE_S", before_kill_s)
    runner = child(script)
    messages = runner.messages()
    next(messages)
    if ended == "killed":
        next(messages)  # only now does it ignore SIGTERM
    runner.cancel(0.3)
    runner.cancel(0.3)  # impatience changes nothing
    (failure,) = messages
    assert failure.sentence == (f"The run did not stop when cancelled, so its runner was {ended}.")
    runner.close()


def test_a_runner_that_answers_cancel_is_left_alone():
    idle = protocol.encode(protocol.State(state="idle")).decode()
    runner = child(f"sys.stdin.readline(); say({idle!r}); sys.stdin.read()")
    messages = runner.messages()
    next(messages)
    runner.cancel(HANG_S)
    escalation = runner._escalation
    assert next(messages).state == "idle"
    assert escalation.finished.is_set(), "it would be terminated later"
    assert runner.alive
    runner.close()
