"""Every table that a page or a window shows of a session can be had as a file, by its name."""

from __future__ import annotations

import csv
import dataclasses
import json
import os
import re
import xml.etree.ElementTree
from pathlib import Path

import numpy as np
import profile_samples
import pytest
from complete_session import everything

from sessions.columns import Columns
from sessions.exports import EXPORTS, exportable
from sessions.model import TELEMETRY_COLUMNS, Session, Study
from sessions.storage import hdf5
from sessions.studies import breakdown_tables
from sessions.tables import Table
from workbench.cli import main
from workbench.plots import Run
from workbench.report import SECTIONS


@pytest.fixture(scope="module")
def session() -> Session:
    everything_measured = everything()
    everything_measured.studies.append(
        under_a_roof(profile_samples.study(seed=1, faster=0.5, label="quicker"))
    )
    counter = Columns(TELEMETRY_COLUMNS)
    counter.append({"t_s": [0.0, 1.0], "energy_j": [5.0, 6.0]})
    everything_measured.telemetry["gpu7"] = counter
    return everything_measured


def under_a_roof(profile: Study) -> Study:
    """Return the profile with each kernel's operator, and the least time of one of them."""
    kernels = dict(profile.tables["kernels"])
    operators = ["swiglu" if "swi" in kernel else "" for kernel in kernels["name"]]
    kernels["operator"] = np.array(operators, object)
    least = {"name": np.array(["swiglu"], object), "calls": np.ones(1), "us": np.ones(1)}
    return dataclasses.replace(
        profile, tables={**profile.tables, "kernels": kernels, "least": least}
    )


@pytest.fixture(scope="module")
def file(session, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("whole") / "whole.h5"
    hdf5.save(session, path)
    return path


def printed(words: list[str], capsys) -> str:
    assert main(words) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def refused(words: list[str], capsys) -> str:
    assert main(words) == 2
    return capsys.readouterr().err


@pytest.mark.sample(10)
@pytest.mark.parametrize("name", EXPORTS)
def test_each_kind_of_table_is_written_as_markdown_and_told_to_programs(
    name, session, file, tmp_path, capsys
):
    tables = EXPORTS[name].tables(session)
    assert tables and all(table.rows for table in tables)  # the session has every kind
    printed(["export", str(file), "--table", name, "-o", str(tmp_path / "a.md")], capsys)
    written = (tmp_path / "a.md").read_text()
    assert written == "\n".join(table.to_markdown() for table in tables)
    assert printed(["export", str(file), "--table", name], capsys) == written
    answer = json.loads(printed(["export", str(file), "--table", name, "--json"], capsys))
    assert [len(table["rows"]) for table in answer["tables"]] == [
        len(table.rows) for table in tables
    ]


def test_whatever_table_a_report_has_can_be_exported_too(session, qapp):
    shown = [
        part
        for section in SECTIONS.values()
        if not section.why_not([Run(session, "whole")])
        for part in section.parts([Run(session, "whole")])
        if isinstance(part, Table)
    ]
    assert len(shown) > 12
    offered = [headings(table) for tables in exportable(session).values() for table in tables]
    left_out = [table.title for table in shown if headings(table) not in offered]
    assert left_out == ["Claimed and measured"], "a shorter form of the claims, for a page"


def headings(table: Table) -> list[str]:
    return [column.name for column in table.columns]


def test_a_file_has_all_rows_where_a_window_has_the_first(session, file, capsys):
    (study, _) = [study for study in session.studies if study.kind == "profile"]
    words = ["export", str(file), "--table", "modules", "--number", "1", "--json"]
    (table,) = json.loads(printed(words, capsys))["tables"]
    assert len(table["rows"]) > len(breakdown_tables.modules_table(study).rows)


def test_of_several_tables_of_a_name_csv_holds_the_one_that_is_chosen(file, tmp_path, capsys):
    words = ["export", str(file), "--table", "memory", "-o", str(tmp_path / "m.csv")]
    error = refused(words, capsys)
    assert "a CSV file holds one table; choose one by --number: 1 'Memory by role: hydra" in error
    assert "quicker'" in error and not (tmp_path / "m.csv").exists()
    printed([*words, "--number", "2"], capsys)
    rows = list(csv.DictReader((tmp_path / "m.csv").open(newline="")))
    assert len(rows) > 3 and rows[-1]["Role"] == "total"
    assert "there is no table memory with number 3; there are: 1 " in refused(
        [*words, "--number=3"], capsys
    )


def test_what_a_file_lacks_is_answered_with_what_it_has(pair, file, capsys):
    for name in ("pie", "modules"):
        error = refused(["export", str(pair[0]), "--table", name], capsys)
        (offered,) = re.findall(rf"{re.escape(str(pair[0]))} has: (.*)\n", error)
        assert offered.split(", ") == list(exportable(hdf5.load(pair[0])))
        assert repr(name) in error or EXPORTS[name].help in error


def test_what_files_have_is_listed_with_titles_and_rows(session, file, pair, capsys):
    listed = printed(["export", str(file), "--list"], capsys)
    for name, tables in exportable(session).items():
        assert re.search(rf"^  {name} +{re.escape(EXPORTS[name].help)}$", listed, re.MULTILINE)
        for table in tables:
            rows = len(table.rows)
            assert f"{table.title}: {rows} row{'s' * (rows != 1)}\n" in listed
    answer = json.loads(printed(["export", *map(str, pair), "--list", "--json"], capsys))
    assert answer["tables"].keys() == set(map(str, pair))
    assert "comparison " in printed(["export", *map(str, pair), "--list"], capsys)


def test_tables_of_several_files_set_them_side_by_side(pair, tmp_path, capsys):
    output = tmp_path / "c.csv"
    words = ["export", *map(str, pair), "--table", "comparison", "-o", str(output)]
    printed(words, capsys)
    rows = list(csv.DictReader(output.open(newline="")))
    assert float(rows[1]["ratio (x step time)"]) == pytest.approx(0.7, rel=0.02)
    assert "| setting | base | fast |" in printed(
        ["export", *map(str, pair), "--table", "differences"], capsys
    )
    assert "name two or more" in refused(["export", str(pair[0]), "--table", "differences"], capsys)


def test_what_a_window_lets_one_choose_of_a_plot_can_be_chosen_here(file, tmp_path, capsys):
    drawn = []
    for choice in ([], ["--option", "profile=1"], ["--option", "profile=2"]):
        output = tmp_path / f"{len(drawn)}.csv"
        words = ["export", str(file), "--plot", "breakdown", "-o", str(output), *choice]
        printed(words, capsys)
        drawn.append(output.read_text())
    newest, first, second = drawn
    assert newest == second != first
    error = refused([*words[:-1], "profile=7"], capsys)
    assert "The option profile of the plot breakdown cannot be '7'; expected one of 2, 1." in error


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--plot", "box"], "a plot needs -o FILE"),
        (["--list", "-o", "a.md"], "--list prints its answer"),
        (["--list", "--number", "1"], "--number chooses among tables of one name"),
        (["--plot", "box", "--number", "1", "-o", "a.png"], "--number chooses among tables"),
        (["--plot", "box", "-o", "a.csv", "--option", "log"], "expected NAME=CHOICE"),
        (["--plot", "box", "-o", "a.csv", "--option", "a=b"], "plot box has no option 'a'; it has"),
        (["--table", "segments", "--option", "a=b"], "--option chooses how a plot is drawn"),
        (
            ["--table", "segments", "-o", "a.png"],
            "unknown suffix '.png'",
        ),
    ],
)
def test_words_that_do_not_go_together_are_a_mistake_in_one_sentence(words, why, pair, capsys):
    error = refused(["export", str(pair[0]), *words], capsys)
    assert error.startswith("workbench export: ") and why in error and error.count("\n") == 1


@pytest.mark.parametrize("suffix", [".md", ".csv", ".html", ".svg"])
def test_a_name_that_is_not_utf_8_is_written_with_replacement_characters(suffix, pair, tmp_path):
    odd = Path(os.fsdecode(bytes(tmp_path) + b"/\xff\x1b[31m.h5"))
    odd.write_bytes(pair[0].read_bytes())
    written = tmp_path / f"written{suffix}"
    words = {
        ".md": ["compare"],
        ".csv": ["export", "--table", "comparison"],
        ".html": ["report", "--title", "\udcff", "--notes", "\udcff"],
        ".svg": ["export", "--plot", "step_time"],
    }[suffix]
    assert main([*words[:1], str(odd), str(pair[1]), *words[1:], "-o", str(written)]) == 0
    text = written.read_bytes().decode()
    assert "\ufffd" in text and "\x1b" not in text
    if suffix == ".svg":  # a browser shows no drawing that is not well-formed
        xml.etree.ElementTree.fromstring(text)


@pytest.mark.parametrize("suffix", [".md", ".csv"])
def test_a_lone_surrogate_of_a_file_is_written_as_a_replacement_character(suffix, pair, tmp_path):
    session = hdf5.load(pair[0])
    session.segments[0].ledger["made by"] = "\ud800"
    hdf5.save(session, tmp_path / "odd.h5")
    written = tmp_path / f"facts{suffix}"
    assert main(["export", str(tmp_path / "odd.h5"), "--table", "facts", "-o", str(written)]) == 0
    assert "\ufffd" in written.read_bytes().decode()
