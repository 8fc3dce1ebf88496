"""Whoever closes a pipe or a terminal changes no exit code, and what was measured is kept."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
from pathlib import Path

import pytest
import wire_samples
from interrupts import press_ctrl_c, when_recorded

from sessions.storage import hdf5
from workbench import protocol
from workbench.cli import main


@pytest.fixture
def unread():
    """Return a stream whose reader has gone, as after ``| head``."""
    read, write = os.pipe()
    os.close(read)
    stream = io.TextIOWrapper(open(write, "wb"), line_buffering=True)  # noqa: PTH123, SIM115
    yield stream
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())  # what it holds goes there
    stream.close()


def full(*_: object, **__: object) -> None:
    raise OSError(28, os.strerror(28))


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_reader_that_has_gone_changes_neither_the_exit_code_nor_what_is_saved(
    stream, unread, ran, sent, tmp_path, monkeypatch
):
    sent(ran.catalogue, *wire_samples.stream()[1:])  # which end with a failure
    monkeypatch.setattr(sys, stream, unread)
    path = tmp_path / "a.h5"
    assert main(["run", "hydra", "-o", str(path)]) == 1
    assert len(hdf5.load(path).segments) == 3


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_an_end_that_was_closed_before_the_start_loses_nothing(
    stream, ran, sent, tmp_path, monkeypatch
):
    started = next(
        message for message in ran.messages if isinstance(message, protocol.SegmentStarted)
    )
    warning = protocol.Note(kind="warning", text="the device is shared")
    sent(ran.catalogue, started, warning, protocol.Finished(reason="done", steps=9))
    monkeypatch.setattr(sys, stream, None)
    path = tmp_path / "a.h5"
    assert main(["run", "hydra", "-o", str(path)]) == (stream == "stdout")
    assert path.exists()
    assert main(["run", "nonesuch"]) == 2


def test_a_terminal_that_takes_no_more_words_costs_none_of_what_was_measured(
    ran, sent, tmp_path, monkeypatch
):
    sent(ran.catalogue, *wire_samples.stream()[1:])
    monkeypatch.setattr(sys.stderr, "write", full)
    path = tmp_path / "a.h5"
    assert main(["run", "hydra", "-o", str(path)]) == 1 and path.exists()


def test_a_table_that_was_asked_for_is_written_whoever_reads_it_on_the_screen(
    pair, unread, tmp_path, monkeypatch
):
    monkeypatch.setattr(sys, "stdout", unread)
    assert main(["compare", *map(str, pair), "-o", str(tmp_path / "t.md")]) == 0
    assert "| base |" in (tmp_path / "t.md").read_text()


@pytest.fixture
def not_ignored():
    """Restore SIGHUP's default as in a terminal: ``nohup`` has it ignored in every test."""
    numbers = (signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, signal.SIG_DFL) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_batch_system_that_ends_a_run_keeps_what_it_measured(
    number, not_ignored, ran, sent, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr("workbench.client.headless.PATIENCE_S", 0.1)
    sent(ran.catalogue, *wire_samples.stream()[1:-1])
    begun = when_recorded(monkeypatch, lambda m: isinstance(m, protocol.SegmentStarted))
    press_ctrl_c(number=number, after=begun)
    path = tmp_path / "a.h5"
    assert main(["run", "hydra", "-o", str(path)]) == 130
    assert hdf5.load(path).events[-1].text.startswith(f"interrupted with {number.name} ")
    assert f"Interrupted with {number.name}" in capsys.readouterr().err


def test_a_second_ctrl_c_while_a_session_is_saved_does_not_lose_it(
    ran, sent, tmp_path, monkeypatch, capsys
):
    sent(
        ran.catalogue, *wire_samples.stream()[1:-1], protocol.Finished(reason="cancelled", steps=9)
    )
    save = hdf5.save

    def pressed(session, path):
        os.kill(os.getpid(), signal.SIGINT)
        save(session, path)

    monkeypatch.setattr("sessions.storage.hdf5.save", pressed)
    path = tmp_path / "a.h5"
    before = signal.getsignal(signal.SIGINT)
    assert main(["run", "hydra", "-o", str(path), "--json"]) == 130
    assert json.loads(capsys.readouterr().out)["file"] == str(path)
    assert len(hdf5.load(path).segments) == 3
    assert signal.getsignal(signal.SIGINT) is before


def test_nohup_is_heeded(ran, sent):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    heard = []

    def look(catalogue):
        heard.append(signal.getsignal(signal.SIGHUP))
        return protocol.Start(configuration=wire_samples.configuration())

    from workbench.client import headless

    try:
        sent(ran.catalogue, protocol.Finished(reason="done", steps=0))
        headless.run(look)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert heard == [signal.SIG_IGN]


def test_a_session_takes_the_place_of_no_other_kind_of_file(tmp_path, monkeypatch, capsys, pair):
    monkeypatch.setattr("workbench.client.headless.run", lambda *_, **__: pytest.fail("it ran"))
    model = tmp_path / "model.py"
    model.write_text("def build(): ...\n")
    assert main(["run", "--model", str(model), "-o", str(model)]) == 2
    assert capsys.readouterr().err == (
        f"workbench run: {model} exists and is not a session; name another file\n"
    )
    same = str(tmp_path / "a.state")
    (tmp_path / "folder").mkdir()
    for other in (same, str(tmp_path / "folder" / ".." / "a.state")):
        words = ["run", "hydra", "--workload", "decode", "--save-state", same, "-o", other]
        assert main(words) == 2
        assert "is named twice, for the session and for another file" in capsys.readouterr().err
    assert main(["check", "--baseline", str(pair[0]), "-o", str(pair[0])]) == 2
    assert "is named twice, for the session and for another file" in capsys.readouterr().err
    monkeypatch.setattr("workbench.client.headless.run", full)
    with pytest.raises(OSError, match="No space left"):  # another session may be replaced
        main(["run", "hydra", "-o", str(pair[0])])


def test_a_folder_that_nothing_can_be_written_in_is_refused_before_anything_is_measured(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr("workbench.client.headless.run", lambda *_, **__: pytest.fail("it ran"))
    monkeypatch.setattr(os, "access", lambda folder, mode: Path(folder) != tmp_path)
    for words in (["run", "hydra"], ["bench"], ["reproduce", "moe"]):
        assert main([*words, "-o", str(tmp_path / "a.h5")]) == 2
        assert f"nothing can be written in {tmp_path}" in capsys.readouterr().err
