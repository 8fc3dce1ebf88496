"""Tables of sessions, which survive CSV and Markdown."""

from __future__ import annotations

import csv
import io
import re

import numpy as np
import pytest
import session_samples as samples
from hypothesis import given
from hypothesis import strategies as st

from sessions import numerics, tables
from sessions.errors import SessionError
from sessions.model import Configuration, Numerics, Segment, Session
from sessions.plain_text import for_spreadsheet
from sessions.tables import Column, Measured, Table
from sessions.verdicts.comparison import compare

texts = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=12)

cells = st.one_of(
    texts,
    st.integers(),
    st.floats(),
    st.none(),
    st.builds(Measured, st.floats(), st.none() | st.floats()),
)


@st.composite
def any_table(draw) -> Table:
    width = draw(st.integers(1, 4))
    columns = draw(st.lists(st.builds(Column, texts, texts), min_size=width, max_size=width))
    row = st.lists(cells, min_size=width, max_size=width)
    return Table(draw(texts), columns, draw(st.lists(row, max_size=4)))


@given(any_table())
def test_csv_reads_back_as_the_text_of_every_cell(table):
    heading, *rows = csv.reader(io.StringIO(table.to_csv(), newline=""))
    assert heading == [for_spreadsheet(column.heading) for column in table.columns]
    assert rows == [
        ["" if cell == tables.MISSING else for_spreadsheet(cell) for cell in map(tables.text, row)]
        for row in table.rows
    ]


@given(any_table())
def test_markdown_has_one_line_a_row_and_one_field_a_column(table):
    title, empty, *lines = table.to_markdown().removesuffix("\n").split("\n")
    assert title.startswith("### ")
    assert empty == ""
    assert len(lines) == 2 + len(table.rows)
    for line in lines:
        assert len(re.findall(r"(?<!\\)(?:\\\\)*\|", line)) == len(table.columns) + 1


@given(any_table())
def test_markdown_shows_the_text_of_every_cell(table):
    lines = table.to_markdown().removesuffix("\n").split("\n")[4:]
    for line, row in zip(lines, table.rows, strict=True):
        fields = re.split(r"(?<!\\)(?:\\\\)*\|", line)[1:-1]
        shown = [re.sub(r"\\(.)", r"\1", field).strip() for field in fields]
        # A backslash before a bar is eaten by the split above; such cells are left out.
        if not any("\\" in tables.text(cell) for cell in row):
            assert shown == [" ".join(tables.text(cell).split()) for cell in row]


def test_markup_in_a_cell_is_shown_as_it_is():
    table = Table("t", [Column("a")], [["<b>|`x`*_y_ fused_adamw [z](u)"]])
    row = table.to_markdown().splitlines()[-1]
    assert row == r"| \<b\>\|\`x\`\*\_y\_ fused_adamw \[z\](u) |"


def test_a_line_break_stays_in_its_cell():
    assert Table("t", [Column("a")], [["one\ntwo"]]).to_markdown().endswith("| one two |\n")


def test_rows_of_another_width_are_refused():
    with pytest.raises(ValueError, match="row 1 of 't' has 2 cells, expected 1"):
        Table("t", [Column("a")], [["x"], ["x", "y"]])


def test_columns_of_numbers_are_aligned_to_the_right():
    table = Table("t", [Column("name"), Column("time", "ms")], [["a", 1.5], ["b", None]])
    assert table.to_markdown() == (
        "### t\n\n| name | time (ms) |\n| --- | ---: |\n| a | 1.50 |\n| b | – |\n"
    )


def session_of(*medians: float, n: int = 600) -> Session:
    segments = [
        Segment(
            index=index,
            configuration=Configuration(
                family="hydra",
                preset="tiny",
                settings={"batch": 4},
                toggles={"compile": "off" if index == 0 else "default"},
            ),
            label=f"s{index}",
            steps=samples.steps(n, seed=index, median_ms=median),
        )
        for index, median in enumerate(medians)
    ]
    return Session(title="one", segments=segments)


def test_segments_table_shows_what_differs_and_how_the_steps_compare():
    table = tables.segments_table(session_of(10.0, 8.0))
    headings = [column.heading for column in table.columns]
    assert headings == [
        "segment",
        "toggles.compile",
        "steady steps",
        "median (ms)",
        "p95 (ms)",
        "ratio (x step time)",
        "ratio from (x step time)",
        "ratio to (x step time)",
        "verdict",
        "peak memory (GiB)",
        "note",
    ]
    base, other = (dict(zip(headings, row, strict=True)) for row in table.rows)
    assert (base["toggles.compile"], other["toggles.compile"]) == ("off", "default")
    assert (base["ratio (x step time)"], base["note"]) == (1, "baseline")
    ratios = [other[f"{name} (x step time)"] for name in ("ratio", "ratio from", "ratio to")]
    assert ratios == [pytest.approx(0.8, abs=0.01), None, None]
    assert other["verdict"] == "unpaired"
    assert table.notes == [tables.UNPAIRED_NOTE]
    assert other["peak memory (GiB)"] == pytest.approx(1.9e9 / 2**30)
    assert other["steady steps"] == 600


def test_memory_that_no_allocator_counts_is_called_the_resident_set_that_it_is():
    session = session_of(10.0, 8.0)
    for segment in session.segments:
        segment.steps = {**segment.steps, "reserved": np.full(600, np.nan)}
    headings = [column.heading for column in tables.segments_table(session).columns]
    assert "peak resident set (GiB)" in headings and "peak memory (GiB)" not in headings
    uncounted = session_of(5.0)
    (kernel,) = uncounted.segments
    nothing = np.full(600, np.nan)
    kernel.steps = {**kernel.steps, "peak": nothing, "reserved": nothing}
    beside = tables.comparison_table(compare([session, uncounted]))
    assert "peak resident set (GiB)" in [column.heading for column in beside.columns]


def test_a_segment_without_memory_leaves_the_resident_set_of_the_others_its_name():
    session = session_of(10.0, 8.0)
    measured, begun = session.segments
    measured.steps = {**measured.steps, "reserved": np.full(600, np.nan)}
    begun.steps = {name: column[:0] for name, column in begun.steps.items()}
    headings = [column.heading for column in tables.segments_table(session).columns]
    assert "peak resident set (GiB)" in headings and "peak memory (GiB)" not in headings


def test_memory_that_others_held_is_told_apart_where_any_was():
    session = session_of(10.0, 8.0)
    for segment, others_bytes in zip(session.segments, (0.0, 0.0), strict=True):
        segment.ledger |= {"own_peak_bytes": 1.9e9, "others_bytes": others_bytes}
    headings = [column.heading for column in tables.segments_table(session).columns]
    assert "own peak (GiB)" not in headings, "the whole peak is"
    session.segments[1].ledger |= {"own_peak_bytes": 0.7e9, "others_bytes": 1.2e9}
    table = tables.segments_table(session)
    column_index = [column.heading for column in table.columns].index("own peak (GiB)")
    assert table.columns[column_index - 1].heading == "peak memory (GiB)"
    assert [row[column_index] for row in table.rows] == pytest.approx(
        [1.9e9 / 2**30, 0.7e9 / 2**30]
    )
    del session.segments[0].ledger["own_peak_bytes"]
    assert tables.segments_table(session).rows[0][column_index] is None, "of an earlier version"


def test_segments_table_states_the_models_share_of_the_measured_matrix_rate():
    session = session_of(10.0, 8.0)
    assert "MFU (%)" not in [column.heading for column in tables.segments_table(session).columns]
    session.segments[0].ledger |= {"model_flops": 4e9, "matrix_flops_per_s": 1e12}
    table = tables.segments_table(session)
    column_index = [column.heading for column in table.columns].index("MFU (%)")
    assert table.rows[0][column_index].value == pytest.approx(
        4e2 / table.rows[0][column_index - 7].value
    )
    assert tables.text(table.rows[1][column_index]) == tables.MISSING  # no FLOPs are known of it


def test_a_share_above_all_of_the_ceiling_is_told_as_the_ceilings_fault():
    session = session_of(10.0, 8.0)
    session.segments[0].ledger |= {"model_flops": 4e9, "matrix_flops_per_s": 1e12}
    session.segments[1].ledger |= {"model_flops": 4e10, "matrix_flops_per_s": 1e12}
    notes = [row[-1] for row in tables.segments_table(session).rows]
    assert notes[0] == "baseline"
    assert "above 100 %" in notes[1] and "workbench ceilings --measure" in notes[1]


def test_segments_table_says_of_each_segment_whether_its_numbers_were_right():
    session = session_of(10.0, 8.0, 6.0, 5.0)
    assert "numbers" not in [column.name for column in tables.segments_table(session).columns]
    for segment, ok in zip(session.segments, (True, False, None), strict=False):
        segment.ledger |= numerics.facts(Numerics(reference="float64", ok=ok, text="why"))
    table = tables.segments_table(session)
    column_index = [column.name for column in table.columns].index("numbers")
    assert [row[column_index] for row in table.rows] == ["right", "WRONG", "unknown", None]
    assert [numerics.text(segment.ledger) for segment in session.segments] == [
        "against float64: why", "against float64: why", "why", ""
    ]  # fmt: skip


def test_segments_table_can_take_another_baseline():
    table = tables.segments_table(session_of(10.0, 8.0), baseline=1)
    ratios = [row[5] for row in table.rows]
    assert ratios[1] == 1
    assert ratios[0] == pytest.approx(1.25, abs=0.02)


def test_segment_without_steady_steps_has_a_row():
    session = session_of(10.0, 8.0)
    session.segments[1].steps = dict(session.segments[1].steps, phase=np.zeros(600, "u1"))
    row = tables.segments_table(session).rows[1]
    assert row[2] == 0
    assert row[-1] == "it has no steady steps"
    assert [tables.text(cell) for cell in row[3:10]] == [tables.MISSING] * 7
    session.segments[0].steps = session.segments[1].steps
    notes = [row[-1] for row in tables.segments_table(session).rows]
    assert notes == [
        "baseline; none of its 600 steps is steady",
        "the baseline has no steady steps",
    ]


def test_session_without_segments_gives_an_empty_table():
    assert list(tables.segments_table(Session()).rows) == []


def test_baseline_that_is_not_there_is_refused():
    with pytest.raises(SessionError, match=r"there is no baseline 2; the 2 sessions are counted"):
        tables.segments_table(session_of(10.0, 8.0), baseline=2)


def test_comparison_and_differences_become_tables():
    first, second = session_of(10.0), session_of(8.0)
    first.environment, second.environment = {"gpu": "H200"}, {}
    comparison = compare([first, second])
    csv = tables.comparison_table(comparison).to_csv().splitlines()
    assert len(csv) == 3 and csv[0].startswith("session,segment,")
    assert csv[2].split(",")[1] == comparison.arms[1].segment.title
    table = tables.differences_table(comparison)
    assert [list(row) for row in table.rows] == [["environment.gpu", "H200", None]]


def test_toggles_that_not_every_session_has_leave_the_comparison_its_columns():
    made = [
        Configuration(family="f", preset="p", toggles={"triton": "on", "compile": "off"}),
        Configuration(family="f", preset="p", toggles={"triton": "off"}, model={"dim": 8}),
    ]
    sessions = [
        Session(
            title=str(index), segments=[Segment(0, configuration, "s", steps=samples.steps(200))]
        )
        for index, configuration in enumerate(made)
    ]
    comparison = compare(sessions)
    names = [column.name for column in tables.comparison_table(comparison).columns]
    assert "toggles.triton" in names and "toggles.compile" not in names
    assert "model.dim" in names  # which the other one has of its preset
    listed = [row[0] for row in tables.differences_table(comparison).rows]
    assert {"toggles.triton", "toggles.compile", "model.dim"} <= set(listed)
