"""One real runner for all tests that leave it as they found it: importing torch costs seconds."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import psutil
import pytest
import torch
import torch._inductor.compile_fx  # now, so that nobody looks for garbage among what it brings
from hang_limit import HANG_S
from process_end import command_of
from runner_driver import FAULTY, Driver

import kernels
from sessions.model import Configuration
from workbench import protocol
from workbench.client import runner_process
from workbench.runner.distributed import world


@pytest.fixture(scope="session")
def shared() -> Iterator[Driver]:
    """Return a real runner, idle."""
    driver = Driver()
    driver.until_state("idle")
    yield driver
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner_process, "GRACE_S", HANG_S)  # by itself, however busy the machine is
        driver.close()
    assert driver.runner.process.returncode == 0


@pytest.fixture
def runner(shared) -> Iterator[Driver]:
    """Return the shared runner; whatever still runs at the end of the test is ended."""
    # Its answer to a late command of the test before (a cancellation) comes before this one.
    same = Configuration(family="hydra", preset="tiny")
    shared.send(protocol.Predict(base=same, other=same))
    shared.until(protocol.Predicted)
    shared.until_state("idle")
    yield shared
    states = [message for message in shared.messages if isinstance(message, protocol.State)]
    if states[-1].state != "idle":
        shared.finish(protocol.Stop())


@pytest.fixture(scope="session")
def with_families() -> Iterator[Driver]:
    """Return a real runner that has the tests' families too."""
    driver = Driver(command=FAULTY)
    driver.until_state("idle")
    yield driver
    driver.close()


@pytest.fixture(scope="session")
def small() -> Configuration:
    """Return a model of two layers that steps in a few milliseconds."""
    return Configuration(
        family="hydra",
        preset="tiny",
        model={"dim": 32, "n_layers": 2, "n_heads": 2, "n_kv_heads": 1, "max_sequence": 256},
        settings={"batch": 1, "sequence": 16},
    )


@pytest.fixture(scope="session", autouse=True)
def no_peer_is_left() -> Iterator[None]:
    """Ranks that one test starts serve the next, also of another file, and end with the last.

    They may be late with a heartbeat where other processes have the cores.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(world, "SILENCE_S", HANG_S)
        yield
        world.close()
    commands = [command_of(child) for child in psutil.Process().children()]
    assert not [command for command in commands if "rank_worker" in command]


@pytest.fixture(autouse=True)
def implementations_by_rule() -> Iterator[None]:
    """Let ``auto`` follow the operators' rules here: the fastest one depends on the machine."""
    with kernels.measuring(False):
        yield


@pytest.fixture
def eager_backend(monkeypatch):
    """torch.compile without the seconds that generating code takes."""
    compiled = functools.partial(torch.compile, backend="eager", dynamic=False)
    monkeypatch.setattr(torch, "compile", lambda function, **_: compiled(function))
    yield
    torch._dynamo.reset()
