"""A runner behind another command, as ssh: what is told where it fails, and that none is left."""

from __future__ import annotations

import json
import os
import platform
import shlex
import signal
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
import wire_samples
from hang_limit import HANG_S
from process_end import assert_end
from runner_driver import Driver

from sessions.model import Configuration, Phase
from workbench import protocol
from workbench.cli import main
from workbench.client import headless, runner_command, runner_process
from workbench.client.runner_process import Runner
from workbench.runner.wire import PIPE_BYTES
from workbench.ui.connection.runner_clock import RunnerClock

HERE = Path(__file__).parents[1]
STAND_IN = (sys.executable, "-S", str(HERE / "processes" / "ssh_stand_in.py"))
HELLO = protocol.encode(wire_samples.catalogue()).decode()
# The real wire without torch: says hello, then does what a test wants of it.
WIRED = f"""
import ctypes, os, subprocess, sys, time
from workbench.runner.wire import Wire
wire = Wire.from_standard_streams()
wire.listen()
os.write(wire._output, {HELLO!r}.encode())
"""


def over(host: str, *words: str) -> tuple[str, ...]:
    """Return the words behind the stand-in, quoted for the shell that it hands them to."""
    return (*STAND_IN, host, shlex.join(words))


def wired(then: str) -> tuple[str, ...]:
    return over("gpuhost", sys.executable, "-c", WIRED + then)


@pytest.fixture
def there(tmp_path, monkeypatch):
    """Return a function that finds the process behind the stand-in, once it has started."""
    file = tmp_path / "there"
    monkeypatch.setenv("STAND_IN_PID", str(file))

    def find() -> psutil.Process:
        return psutil.Process(int(file.read_text()))

    return find


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ssh gpuhost python -m workbench.runner", ("ssh", "gpuhost", "python", "-m")),
        ("ssh gpuhost 'cd /opt/my wb; python'", ("ssh", "gpuhost", "cd /opt/my wb; python")),
    ],
)  # fmt: skip
def test_a_command_is_split_as_a_shell_does(text, words):
    assert runner_command.split(text, runner_command.OPTION)[:4] == words


@pytest.mark.parametrize(
    ("text", "why"),
    [("", "is not a command"), ("  ", "is not a command"), ("''", "is not a command"),
     ("a\0b", "is not a command"), ("ssh 'gpu", "cannot be read: no closing quotation")],
)  # fmt: skip
def test_what_is_no_command_is_a_mistake_of_one_sentence(text, why, capsys, monkeypatch):
    monkeypatch.setattr(headless, "Runner", lambda *_: pytest.fail("it was started"))
    assert main(["run", "hydra", "--runner", text]) == 2
    err = capsys.readouterr().err
    assert err.startswith("workbench run: --runner: ") and why in err and err.count("\n") == 1
    with pytest.raises(SystemExit) as ended:  # the window
        main(["--runner", text])
    assert ended.value.code == 2 and why in capsys.readouterr().err


def test_the_option_wins_over_the_environment_and_both_are_gone_afterwards(monkeypatch):
    monkeypatch.setenv(runner_command.VARIABLE, "ssh elsewhere")
    with runner_command.use(None):
        assert runner_command.command() == ("ssh", "elsewhere")
    with runner_command.use("ssh gpuhost"):
        assert runner_command.command() == ("ssh", "gpuhost") and runner_command.is_custom()
    assert runner_command.command() == runner_command.HERE and not runner_command.is_custom()
    monkeypatch.setenv(runner_command.VARIABLE, "ssh 'gpu")
    with (
        pytest.raises(ValueError, match=f"^{runner_command.VARIABLE}: "),
        runner_command.use(None),
    ):
        pass
    monkeypatch.setenv(runner_command.VARIABLE, "")
    with runner_command.use(None):
        assert not runner_command.is_custom()


def test_paths_for_another_host_are_sent_as_they_were_given():
    assert runner_command.path(Path("models/mine.py")) == str(Path("models/mine.py").absolute())
    with runner_command.use("ssh gpuhost"):
        assert runner_command.path(Path("models/mine.py")) == "models/mine.py"


def test_every_command_that_starts_a_runner_takes_the_option():
    for name in sorted((HERE.parents[1] / "workbench" / "commands").glob("[a-z]*.py")):
        if name.name == "check.py":  # it alternates two checkouts, both on this host
            continue
        text = name.read_text()
        starts = any(f"{word}(" in text for word in ("Runner", "query_runner", "headless.run", "drive", "run_plan", "measure", "app.build"))  # fmt: skip  # noqa: E501
        assert starts == ("drives=True" in text), name


@pytest.mark.parametrize(
    ("command", "heard"),
    [
        (over("unknown", "true"), "255 before a runner answered; the last line on its "
         "standard error was 'ssh: Could not resolve hostname unknown"),
        (over("gpuhost", "/no/such/python", "-m", "workbench.runner"), "ended with exit code 127"),
        (over("chatty", "true"), "'Welcome to chatty!', which is not a message"),
        (("yes", "babble"), "its standard output begins with 'babble'"),
        (("/no/such/ssh", "gpuhost"), "could not be started: No such file or directory"),
    ],
    ids=["unknown host", "no python", "banner and end", "endless", "no ssh"],
)  # fmt: skip
def test_a_command_that_gives_no_runner_is_one_sentence(command, heard, capsys, monkeypatch):
    monkeypatch.setattr(runner_process, "GRACE_S", 0.3)
    assert main(["run", "hydra", "--steps", "1", "--runner", shlex.join(command)]) == 1
    sentence, *detail = capsys.readouterr().err.splitlines()
    assert shlex.join(command) in sentence and heard in sentence
    assert "`ssh -T`" in sentence and "same version" in sentence
    assert "Traceback" not in "".join(detail)


def test_a_banner_before_the_first_message_is_told_and_left_out():
    runner = Runner(command=(*STAND_IN, "chatty", f"printf %s {shlex.quote(HELLO)}; cat >&2"))
    catalogue, failure = (next(messages) for messages in [runner.messages()] for _ in range(2))
    assert isinstance(catalogue, protocol.Catalogue)
    assert (failure.kind, failure.fatal) == ("wire", False)
    assert "'Welcome to chatty!' before the runner's first message" in failure.sentence
    assert "Sunday" in failure.detail
    runner.close()


@pytest.mark.parametrize("shape", ["the same", "another"])
def test_another_version_of_the_protocol_ends_a_command_with_one_sentence(shape, capsys):
    other = wire_samples.catalogue()
    other.version = protocol.VERSION + 1
    line = protocol.encode(other).decode()
    if shape == "another":
        line = json.dumps({"type": "catalogue", "version": other.version}) + "\n"
    command = over("gpuhost", "sh", "-c", f"printf %s {shlex.quote(line)}; exec cat >&2")
    assert main(["run", "hydra", "--runner", shlex.join(command)]) == 1
    err = capsys.readouterr().err
    assert f"uses version {protocol.VERSION + 1} of the protocol" in err
    assert "Install the same version of the workbench on both sides." in err


BUSY = {
    "computes": "while True: pass",
    "waits for a compiler": "subprocess.run(['sleep', '1000000'])",
    # PyDLL keeps Python's lock while C waits, so that no thread of Python's can go on to the end.
    "hangs in C": "import psutil; from workbench.runner import wire as real; real.LEAVE_S = 0.5\n"
    "psutil.Process.children = lambda *_, **__: ctypes.PyDLL(None).sleep(1000000)\ntime.sleep(1e6)",
}


@pytest.mark.parametrize("busy", BUSY)
@pytest.mark.parametrize("how", ["quit", "ssh is killed"])
def test_a_runner_that_no_signal_reaches_ends_with_its_input(there, busy, how):
    runner = Runner(command=wired(BUSY[busy]))
    assert isinstance(next(runner.messages()), protocol.Catalogue)
    left = there()
    family = [left, *left.children(recursive=True)]
    deadline = time.monotonic() + HANG_S
    while busy == "waits for a compiler" and not any(
        "sleep" in process.name() for process in family
    ):
        assert time.monotonic() < deadline
        time.sleep(0.01)
        family = [left, *left.children(recursive=True)]
    if how == "quit":
        runner.close()
    else:
        os.kill(runner.process.pid, signal.SIGKILL)
    assert_end(family)
    runner.close()


def test_cancelling_a_deaf_runner_ends_it_though_the_command_ignores_signals(there, monkeypatch):
    """A command that hands its own pipes on, as setsid does, and that no signal ends."""
    monkeypatch.setattr(runner_process, "GRACE_S", 0.3)
    program = WIRED + "sys.stderr.write(f'{os.getpid()}\\n'); sys.stderr.flush(); time.sleep(1e6)"
    runner = Runner(command=("setsid", "--fork", sys.executable, "-c", program))
    messages = runner.messages()
    next(messages)
    while not runner.log_tail:
        time.sleep(0.01)
    left = psutil.Process(int(runner.log_tail[0]))
    runner.cancel()
    assert "did not stop when cancelled" in list(messages)[-1].sentence
    assert_end([left])
    runner.close()


def test_the_runners_time_is_known_to_the_latency_whatever_its_wall_clock_shows(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    clock = RunnerClock()
    assert clock.now() == 0.0
    began, ways = 990.0, (0.30, 0.02, 0.15)
    for number, way in enumerate(ways):
        stamped = 10.0 + number
        now[0] = began + stamped + way
        message = protocol.State(state="idle", t_s=stamped) if number else wire_samples.catalogue()
        message.t_s = stamped
        clock.hear(message)
    clock.hear(protocol.Failure(kind="died", sentence="of the window's own, without a time"))
    now[0] = began + 100.0
    assert clock.now() == pytest.approx(100.0 - min(ways))
    again = wire_samples.catalogue(created=0.0)
    again.t_s = 2.0
    clock.hear(again)  # another runner
    assert clock.now() == pytest.approx(2.0)


def test_a_real_runner_is_gone_after_its_ssh_is_killed_while_it_measures(there):
    driver = Driver(command=over("gpuhost", sys.executable, "-m", "workbench.runner"))
    driver.until_state("idle")
    assert driver.session.environment["host"] == platform.node()
    driver.start(
        Configuration(
            family="hydra",
            preset="tiny",
            model={"dim": 32, "n_layers": 2, "n_heads": 2, "n_kv_heads": 1},
            settings={"batch": 1, "sequence": 16},
        )
    )
    driver.until_steps(2)
    left = there()
    assert os.getsid(left.pid) != os.getsid(driver.runner.process.pid)
    os.kill(driver.runner.process.pid, signal.SIGKILL)
    assert driver.rest()[-1].sentence.startswith("The runner was ended by SIGKILL.")
    assert_end([left])
    driver.close()


def test_what_the_runner_writes_stays_there_and_the_answer_says_so(capsys, tmp_path):
    catalogue = wire_samples.catalogue()
    catalogue.environment["host"] = "gpuhost"
    catalogue.workloads = [protocol.WorkloadInfo(name="decode", title="", help="", fields=[])]
    lines = tmp_path / "lines"
    messages = [catalogue, protocol.State(state="idle"), protocol.Finished(reason="done", steps=0)]
    lines.write_bytes(b"".join(map(protocol.encode, messages)))
    command = shlex.join(over("gpuhost", "sh", "-c", f"cat {lines}; exec cat >&2"))
    arguments = ["--workload", "decode", "--steps", "1", "--save-state", "/no/folder/here/a.state"]
    assert main(["run", "hydra", *arguments, "--runner", command]) == 0
    assert "/no/folder/here/a.state is on gpuhost\n" in capsys.readouterr().out
    assert main(["run", "hydra", *arguments]) == 2  # here the folder is known to be missing


def test_a_second_of_10000_steps_is_less_than_a_megabyte_in_batches_that_a_pipe_holds():
    """Check what a link has to carry, as the README says."""
    rng = np.random.default_rng(0)
    carried, batches, steps = 0, 30, 333
    for batch in range(batches):
        times = 1000 + batch / batches + np.arange(steps) * 1e-4
        columns = {
            "t_s": [1e-9 * round(1e9 * t) for t in times],
            "wall_ms": [1e-6 * int(n) for n in rng.integers(90_000, 110_000, steps)],
            "gpu_ms": [float(x) for x in rng.uniform(0.09, 0.11, steps).astype(np.float32)],
            "phase": [int(Phase.STEADY)] * steps,
            **{name: [12_345_678_901] * steps for name in ("allocated", "peak", "reserved")},
        }
        line = protocol.encode(protocol.Steps(segment=0, columns=columns))
        assert len(line) < PIPE_BYTES // 8
        carried += len(line)
    assert 0.5e6 < carried < 1e6
