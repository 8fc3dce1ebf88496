"""Batches that are read from a file while the model steps: the same ones, by processes that end."""

from __future__ import annotations

import dataclasses
import signal
from pathlib import Path

import msgspec
import psutil
import pytest
import torch
from built_arms import CPU, blocked, configuration, evidence_of, stepped
from disarmed import PLAIN
from process_end import assert_end
from runner_driver import Driver

from models import hydra
from sessions.model import Configuration
from workbench.runner.batches import RING
from workbench.runner.data import make_batches
from workbench.runner.failures import Mistake
from workbench.runner.loading import Loading
from workbench.runner.toggles import data_loading

READERS = {"step": Loading(0, False), "workers": Loading(2, False)}


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> Path:
    """A file of other bytes everywhere."""
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_bytes(bytes((i * i + i // 7) % 251 for i in range(5000)))
    return path


def batches(text: Path, loading: Loading | None):
    return make_batches(
        str(text),
        family=hydra.FAMILY,
        config=dataclasses.replace(hydra.FAMILY.presets["tiny"], vocabulary=251),
        batch=3,
        sequence=24,
        seed=5,
        device=CPU,
        dtype=torch.float32,
        loading=loading,
    )


@pytest.mark.parametrize("reader", READERS)
def test_the_batches_are_those_of_the_device_in_any_order_and_no_random_state_changes(text, reader):
    on_device, read = batches(text, None), batches(text, READERS[reader])
    before = torch.get_rng_state()
    address = read.inputs[0].data_ptr()
    for count in (1, 2, 3, RING, RING + 1, 5, 40, 0, 7):
        on_device.go_to(count), read.go_to(count)
        assert torch.equal(on_device.inputs[0], read.inputs[0])
        assert torch.equal(on_device.targets[0], read.targets[0])
    following = [tuple(map(torch.clone, made.following()[0])) for made in (on_device, read)]
    assert torch.equal(following[0][0], following[1][0])
    assert torch.equal(on_device.inputs[0], read.inputs[0])
    assert torch.equal(torch.get_rng_state(), before)
    assert read.inputs[0].data_ptr() == address, "CUDA graphs read a fixed address"
    assert read.loaded is not None and read.loaded.wait_ms >= 0 and on_device.loaded is None


def test_the_evidence_states_who_read_and_how_long_a_step_waited(text):
    wanted = configuration("hydra", "train", 2, 24, toggles={"data_loading": "workers"})
    arm = stepped(msgspec.structs.replace(wanted, data=str(text)))
    for _ in range(8):
        arm.batches.advance()
    finding = evidence_of(arm, "data_loading")
    assert finding.status == "effective"
    assert "read from the file: 9, by worker processes (2); a step waited " in finding.text


def test_a_batch_that_another_process_read_than_was_requested_shows_no_effect(text, monkeypatch):
    monkeypatch.setitem(data_loading._LOADING, "workers", Loading(0, False))
    wanted = configuration("hydra", "train", 2, 24, toggles={"data_loading": "workers"})
    arm = stepped(msgspec.structs.replace(wanted, data=str(text)))
    monkeypatch.undo()
    assert evidence_of(arm, "data_loading").status == "no effect"


def test_it_is_blocked_with_a_reason_where_no_batch_could_be_read(text):
    on = {"data_loading": "step"}
    assert "the data is synthetic" in blocked(configuration("hydra", "train"), *on.popitem()).reason
    for family, workload, words in (
        ("mamba2", "decode", "reads one prompt"),
        ("own", "forward", "generates its own batches"),
    ):
        plain = Configuration(
            family=family,
            preset="file" if family == "own" else "tiny",
            model={"source": str(PLAIN)} if family == "own" else {},
            workload=workload,
            data=str(text),
        )
        assert words in blocked(plain, "data_loading", "workers").reason
    wanted = msgspec.structs.replace(configuration("hydra", "train"), data=str(text))
    assert "needs a CUDA GPU" in blocked(wanted, "data_loading", "pinned").reason
    divided = configuration("hydra", "train", 2, toggles={"data_parallel": "2"})
    divided = msgspec.structs.replace(divided, data=str(text))
    assert blocked(divided, "data_loading", "step").set == {"data_parallel": "off"}


@pytest.mark.parametrize(
    ("reader", "content", "words"),
    [
        ("step", b"short", "has become shorter"),
        ("workers", bytes([255]) * 5000, "has bytes beyond the vocabulary"),
    ],
)
def test_a_file_that_changes_is_refused_with_a_sentence(text, tmp_path, reader, content, words):
    path = tmp_path / "changing.txt"
    path.write_bytes(text.read_bytes())
    made = batches(path, READERS[reader])
    made.advance()
    changed = tmp_path / "changed.txt"  # replaces the file at once: a worker may be reading it
    changed.write_bytes(content)
    changed.replace(path)
    with pytest.raises(Mistake, match=f"^data: {path} .*{words}"):
        for _ in range(RING):
            made.advance()


def test_readers_end_with_a_killed_runner(small, text):
    driver = Driver()
    driver.until_state("idle")
    driver.start(
        msgspec.structs.replace(
            small, workload="train", data=str(text), toggles={"data_loading": "workers"}
        )
    )
    driver.until_steps(2)
    process = psutil.Process(driver.runner.process.pid)
    readers = process.children(recursive=True)
    assert len(readers) >= 2
    process.send_signal(signal.SIGKILL)
    assert_end(readers)
    driver.close()
