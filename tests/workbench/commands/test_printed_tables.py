"""Tables of the command line: aligned in a terminal, Markdown on request; evidence; completion."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessions.model import Evidence
from sessions.numbers import MISSING
from sessions.tables import Column, Table
from workbench.cli import main
from workbench.commands import _tables
from workbench.commands._tables import aligned, evidence_lines, render

TABLE = Table("T", [Column("name"), Column("time", "ms"), Column("none")],
              [["a", 1.25, None], ["longer", 130.0, None]], ["A note."])  # fmt: skip


def test_numbers_end_in_one_column_and_empty_columns_are_left_out():
    lines = aligned(TABLE, 80).splitlines()
    assert lines[0] == "T" and lines[-1] == "A note."
    heading, rule, first, second = lines[2:6]
    assert "none" not in heading and set(rule) == {"-"}
    assert len(heading) == len(first) == len(second)


def test_a_wide_table_with_few_rows_is_turned_on_its_side():
    columns = [Column(f"a rather long heading {n}") for n in range(9)]
    wide = Table("T", columns, [[*range(9)]])
    lines = aligned(wide, 60).splitlines()
    assert [line.split()[-1] for line in lines[2:11] if set(line) != {"-"}] == [*"01234567"]
    assert max(map(len, lines)) <= 60


@given(st.lists(st.lists(st.text("abc xyz", max_size=30), min_size=3, max_size=3), max_size=5))
def test_no_line_is_wider_than_the_terminal_and_no_text_is_lost(rows):
    table = Table("T", [Column("one"), Column("two"), Column("three")], rows)
    text = aligned(table, 40)
    assert all(len(line) <= 40 for line in text.splitlines())
    letters = "".join(sorted("".join(map("".join, rows)).replace(" ", "")))
    shown = "".join(text.splitlines()[3:] if rows else [])
    assert all(shown.count(letter) >= letters.count(letter) for letter in set(letters))


def test_markdown_is_printed_on_request_and_for_programs(monkeypatch):
    assert render(TABLE) == TABLE.to_markdown()  # pytest's output is no terminal
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert render(TABLE).startswith("T\n") and MISSING not in render(TABLE)
    with _tables.as_markdown(True):
        assert render(TABLE) == TABLE.to_markdown()


def test_evidence_is_short_and_working_defaults_have_none_but_reasons_are_complete():
    rows = [
        Evidence("attention", "auto", "effective", "chose sdpa_flash; not used: flash4"),
        Evidence("attention", "flash", "no effect", "chose manual; it fell back because: no"),
        Evidence("adamw", "fused", "effective", "fused kernel ran; 3 of 3 steps"),
    ]
    assert evidence_lines(rows, verbose=False) == [
        "attention=flash: no effect: chose manual; it fell back because: no",
        "adamw=fused: effective: fused kernel ran",
    ]
    assert evidence_lines(rows, verbose=True, prefix="A: ")[0].endswith("not used: flash4")


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_completion_scripts_name_every_command_and_its_options(shell, capsys):
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert all(word in script for word in ("attribute", "--markdown", "--pairing-share"))
    if shell == "bash":
        checked = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True)
        assert checked.returncode == 0, checked.stderr
    assert main(["completion", shell, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["reason"], answer["shell"]) == ("done", shell)
    assert answer["script"].strip() == script.strip()
