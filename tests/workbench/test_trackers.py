"""Sessions become offline runs of trackers, by the trackers' own libraries."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from session_files import save_one

from workbench.cli import main


@pytest.fixture
def file(tmp_path):
    save_one(tmp_path / "a.h5")
    return tmp_path / "a.h5"


class Calls(list):
    def __getattr__(self, name):
        def call(*arguments, **named):
            self.append((name, arguments, named))
            return self

        return call


@pytest.mark.parametrize("form", ["trackio", "wandb"])
def test_every_step_is_logged_and_nothing_is_sent(form, file, monkeypatch):
    calls = Calls()
    monkeypatch.setitem(sys.modules, form, calls)
    monkeypatch.setenv("TRACKIO_DIR", "")
    assert main(["export", str(file), "--format", form, "-o", str(file.parent / "runs")]) == 0
    names = [name for name, _, _ in calls]
    assert names == ["init", *["log"] * 60, "finish"]
    _, _, begun = calls[0]
    assert begun["config"]["family"] == "hydra" and begun["name"] == "a-0"
    assert begun.get("mode", "offline") == "offline" and "space_id" not in begun
    assert calls[5][2]["step"] == 4 and calls[5][1][0]["step_time_ms"] > 0


def test_tensorboard_gets_an_event_for_each_step(file, monkeypatch):
    writer = Calls()
    stand_in = SimpleNamespace(
        EventFileWriter=lambda folder: writer, Event=dict, Summary=type("Summary", (dict,), {})
    )
    stand_in.Summary.Value = dict
    for name in (
        "compat.proto.event_pb2", "compat.proto.summary_pb2", "summary.writer.event_file_writer"
    ):  # fmt: skip
        monkeypatch.setitem(sys.modules, f"tensorboard.{name}", stand_in)
    folder = file.parent / "runs"
    assert main(["export", str(file), "--format", "tensorboard", "-o", str(folder)]) == 0
    assert [name for name, _, _ in writer] == [*["add_event"] * 60, "close"]


def test_files_of_one_name_become_runs_inside_of_the_folder(file, monkeypatch):
    written = []
    stand_in = SimpleNamespace(EventFileWriter=lambda path: written.append(path) or Calls())
    stand_in.Event = stand_in.Summary = type("Stub", (dict,), {"Value": dict})
    for name in (
        "compat.proto.event_pb2", "compat.proto.summary_pb2", "summary.writer.event_file_writer"
    ):  # fmt: skip
        monkeypatch.setitem(sys.modules, f"tensorboard.{name}", stand_in)
    second = file.parent / "other" / file.name
    second.parent.mkdir()
    save_one(second)
    folder = file.parent / "runs"
    files = [str(file), str(second)]
    assert main(["export", *files, "--format", "tensorboard", "-o", str(folder)]) == 0
    assert len(set(written)) == 2 and {Path(path).parent for path in written} == {folder}


@pytest.mark.parametrize("form", ["tensorboard", "trackio", "wandb"])
def test_a_missing_library_is_one_sentence(form, file, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, form, None)
    monkeypatch.setenv("TRACKIO_DIR", "")
    assert main(["export", str(file), "--format", form, "-o", str(file.parent / "runs")]) == 2
    assert f"pip install {form}" in capsys.readouterr().err
    assert not (file.parent / "runs").exists()
