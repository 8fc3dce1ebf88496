"""A notebook opens a session as arrays and tables, and draws it inline."""

from __future__ import annotations

import builtins
import sys
from types import SimpleNamespace
from xml.etree import ElementTree

import numpy as np
import pytest
from session_files import save_one

import sessions
from sessions.errors import Lacking, SessionError
from workbench.notebook import draw
from workbench.plot_export import ExportError


@pytest.fixture
def opened(tmp_path):
    save_one(tmp_path / "a.h5")
    return sessions.open(tmp_path / "a.h5")


def test_steps_and_tables_are_those_of_the_file(opened):
    steps = opened.steps()
    assert len(steps["t_s"]) == len(steps["wall_ms"]) == 60
    assert isinstance(steps["wall_ms"], np.ndarray) and steps["wall_ms"].flags.writeable
    assert opened.table("segments").rows[0][1] == 60
    assert "steady steps" in opened._repr_markdown_() and "1 segment>" in repr(opened)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda opened: opened.steps(1),
        lambda opened: opened.telemetry("gpu3"),
        lambda opened: opened.table("verdicts"),
        lambda opened: opened.table("nothing"),
        lambda opened: opened.table("segments", 2),
    ],
)
def test_what_the_session_lacks_is_one_sentence(opened, wrong):
    with pytest.raises(Lacking, match=r"a\.h5 has"):
        wrong(opened)


def test_an_unknown_table_is_answered_with_those_there_are(opened):
    with pytest.raises(Lacking, match="no table 'nope'; it has: segments"):
        opened.table("nope")


def test_a_file_that_is_no_session_is_refused(tmp_path):
    (tmp_path / "b.h5").write_text("text")
    with pytest.raises(SessionError):
        sessions.open(tmp_path / "b.h5")


def test_a_frame_needs_pandas(opened, monkeypatch):
    real = builtins.__import__

    def without_pandas(name, *rest):
        if name == "pandas":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without_pandas)
    with pytest.raises(ImportError, match="pip install pandas"):
        opened.frame("segments")


def test_frames_hold_tables_and_steps(opened, monkeypatch):
    calls = []
    stand_in = SimpleNamespace(DataFrame=lambda *rows, **columns: calls.append((*rows, columns)))
    monkeypatch.setitem(sys.modules, "pandas", stand_in)
    opened.frame("segments")
    opened.frame("steps")
    (rows, columns), (steps, _) = calls
    assert len(rows[0]) == len(columns["columns"]) and "steady steps" in columns["columns"]
    assert len(steps["wall_ms"]) == 60


def test_a_drawing_is_an_inline_svg_and_can_be_saved(opened, tmp_path, qapp):
    for source in (opened, opened.session, opened.path, [opened, opened.path]):
        drawing = draw(source, "step_time")
        assert ElementTree.fromstring(drawing._repr_svg_()).tag.endswith("svg")
    assert draw(opened, "step_time").save(tmp_path / "a.csv").read_text().startswith("session,")


@pytest.mark.parametrize("name", ["verdict", "nothing"])
def test_a_chart_that_cannot_be_drawn_is_one_sentence(opened, name, qapp):
    with pytest.raises(ExportError):
        draw(opened, name)
