"""Forked processes are like executed ones, and those that a fork would change are executed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import msgspec
import process_forks
import psutil
import pytest
from runner_driver import Driver

COMMAND = (sys.executable, "-P", "-m", "workbench")
RUNNER = (sys.executable, "-P", "-m", "workbench.runner")


@pytest.mark.parametrize("words", [["--version"], ["no-such-command"], ["info", "missing.h5"]])
def test_a_forked_command_does_what_an_executed_one_does(words):
    def run(**variables: str) -> tuple[int, bytes, bytes]:
        done = subprocess.run(
            [*COMMAND, *words], env={**os.environ, **variables}, capture_output=True
        )
        return done.returncode, done.stdout, done.stderr

    assert run() == run(**dict([process_forks.EXEC]))


def test_a_fork_is_a_child_with_the_streams_the_session_and_the_variables_of_its_command():
    environment = {**os.environ, "WORKBENCH_RUNNER_ID": "a mark"}
    with subprocess.Popen(
        RUNNER,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        start_new_session=True,
    ) as runner:
        assert b"catalogue" in runner.stdout.readline()
        process = psutil.Process(runner.pid)
        assert process.ppid() == os.getpid()
        assert os.getsid(runner.pid) == runner.pid
        assert tuple(filter(None, process.cmdline())) == RUNNER
        assert process.environ()["WORKBENCH_RUNNER_ID"] == "a mark"
        os.killpg(runner.pid, signal.SIGKILL)
    assert runner.returncode == -signal.SIGKILL


def test_an_executed_runner_has_the_catalogue_of_a_forked_one_and_ends_as_it_does():
    catalogues = []
    for environment in ({}, dict([process_forks.EXEC])):
        driver = Driver(environment=environment)
        driver.until_state("idle")
        driver.close()
        assert driver.runner.process.returncode == 0 and not driver.runner.log_tail
        catalogues.append(driver.messages[0])
    forked, executed = catalogues
    at = {"created": executed.created, "t_s": executed.t_s}
    assert msgspec.structs.replace(forked, **at) == executed


@pytest.mark.parametrize("variable", ["OMP_NUM_THREADS", "PYTHONPATH", "TRITON_INTERPRET"])
def test_a_variable_that_libraries_read_as_they_load_is_no_fork_s(monkeypatch, variable):
    requests = []
    monkeypatch.setattr(process_forks.Server, "fork", lambda *request: requests.append(request))
    environment = {**os.environ, variable: "7"}
    done = subprocess.run([*COMMAND, "--version"], env=environment, capture_output=True)
    assert done.returncode == 0 and not requests
