"""The numbers of each segment in the window; it requests them unless this is switched off."""

from __future__ import annotations

import pytest
from fake_session import session
from PySide6.QtCore import Qt
from test_panels import panel, show

from sessions import numerics
from sessions.model import Numerics
from sessions.tables import segments_table
from sessions.verdicts.comparison import compare_segments
from sessions.verdicts.work import INVALID
from workbench import protocol
from workbench.titles import Titles
from workbench.ui.panels import _compare_tables as compare_tables
from workbench.ui.panels._segment_model import condensed

FOREGROUND, TIP = Qt.ItemDataRole.ForegroundRole, Qt.ItemDataRole.ToolTipRole
NUMERICS = {
    1: Numerics(reference="float64", ok=True, text="as expected"),
    2: Numerics(reference="float64", ok=False, text="far off"),
    3: Numerics(reference="", ok=None, text="not checked: no memory"),
}


@pytest.fixture
def measured():
    """Return a session of six segments, with the numbers of some."""
    made = session()
    for index, result in NUMERICS.items():
        made.segments[index].ledger |= numerics.facts(result)
    return made


def test_a_faster_segment_with_wrong_numbers_is_red_and_an_unknown_one_amber(
    qtbot, ready, measured
):
    show(ready, measured)
    model, theme = panel(ready, "segments").model, ready.workspace.theme.current
    qtbot.waitUntil(lambda: model.rowCount() == 6)
    headings = [
        model.headerData(at, Qt.Orientation.Horizontal) for at in range(model.columnCount())
    ]
    ratio, numbers = headings.index("x step time"), headings.index("Numbers")
    words = [model.index(row, numbers).data() for row in range(6)]
    assert words[1:4] == ["right", "WRONG", "unknown"]
    assert words[0] == words[4] == words[5] != ""

    def color(row, column):
        brush = model.index(row, column).data(FOREGROUND)
        return None if brush is None else brush.name()

    muted = theme.muted.lower()
    assert float(model.index(2, ratio).data()) < 1, "it is faster, and yet"
    assert color(2, ratio) == color(2, numbers) == theme.bad.lower()
    assert color(3, numbers) == theme.warning.lower() and color(3, ratio) == muted
    assert color(1, numbers) == theme.good.lower() and color(1, ratio) == muted
    assert color(0, ratio) is color(0, numbers) is None
    assert model.index(2, numbers).data(TIP) == "against float64: far off"
    assert model.index(3, numbers).data(TIP) == "not checked: no memory"
    icons = [model.index(row, numbers).data(Qt.ItemDataRole.DecorationRole) for row in range(6)]
    assert [icon is not None for icon in icons] == [False, True, True, True, False, False]


def test_an_unpaired_ratio_has_the_word_and_no_interval_and_a_missing_one_its_reason():
    made = session()
    shown = condensed(segments_table(made), 0, Titles())
    column = shown.headings.index("95 % interval")
    assert [row[column] for row in shown.cells] == ["–", *["unpaired"] * 5]
    assert {shown.tone(row, at) for row in range(1, 6) for at in (column - 1, column)} == {"muted"}
    segment = made.segments[1]
    segment.steps = {name: column[:0] for name, column in dict(segment.steps).items()}
    shown = condensed(segments_table(made), 0, Titles())
    assert shown.cells[1][column] == "no steady steps"
    assert shown.notes[1] == "it has no steady steps"


def test_a_ratio_of_other_work_says_so_and_has_no_colour():
    made = session()
    segment = made.segments[1]
    segment.configuration = segment.configuration.replaced("settings.sequence", 32)
    shown = condensed(segments_table(made), 0, Titles())
    column = shown.headings.index("95 % interval")
    assert shown.cells[1][column] == "other work" and shown.tone(1, column) == ""
    assert not shown.is_offer(1, column) and shown.is_offer(2, column)


@pytest.mark.parametrize("row_number", [0, 1])
def test_an_invalid_segment_is_amber_and_says_why_as_the_baseline_too(row_number):
    made = session()
    made.segments[row_number].ledger[INVALID] = "a step is faster than this GPU can run it"
    shown = condensed(segments_table(made), 0, Titles())
    column = shown.headings.index("95 % interval")
    words = [row[column] for row in shown.cells]
    assert words == (["invalid"] * 6 if row_number == 0 else ["–", "invalid", *["unpaired"] * 4])
    assert shown.tone(row_number, column) == shown.tone(row_number, column - 1) == "warning"
    assert shown.notes[row_number].endswith("invalid: a step is faster than this GPU can run it")
    assert shown.notes[1].startswith(
        "the baseline is invalid: " if row_number == 0 else "invalid: "
    )
    runs = [(made, segment) for segment in made.segments]
    arms, _ = compare_segments(runs, ["s"] * 6, 0)
    assert compare_tables.tone(arms[row_number]) == "warning"
    assert "invalid" in compare_tables.verdict(arms[row_number])


def test_a_segment_that_turns_out_invalid_renews_the_table(workspace):
    facts = protocol.Facts(segment=0, ledger={INVALID: "why"})
    assert workspace.session.changed_by(facts) == [workspace.session.segmentsChanged]


def test_beside_other_sessions_wrong_numbers_come_before_the_ratio(measured):
    runs = [(measured, measured.segments[index]) for index in (0, 2)]
    arms, _ = compare_segments(runs, ["one", "other"], 0)
    assert compare_tables.tone(arms[1]) == "bad"
    text = compare_tables.verdict(arms[1])
    assert text.startswith("WRONG numbers; by time 0.") and text.endswith("x step time, unpaired")
    del measured.segments[2].ledger[numerics.RIGHT], measured.segments[2].ledger[numerics.TEXT]
    assert compare_tables.tone(arms[1]) == "muted"


def test_numbers_that_arrive_renew_the_table_and_other_facts_do_not(workspace):
    session = workspace.session
    facts = protocol.Facts(segment=0, ledger=numerics.facts(NUMERICS[1]))
    assert session.changed_by(facts) == [session.segmentsChanged]
    assert not session.changed_by(protocol.Facts(segment=0, ledger={"prefills": 3}))


def test_a_run_checks_each_segment_unless_the_setting_says_no_which_is_remembered(ready, settings):
    sent = []
    ready.workspace._link.send = sent.append
    action = ready.actions_["check-numbers"]
    assert action.isChecked()
    ready.workspace.runs.start()
    action.trigger()
    assert not action.isChecked() and not settings.check_numbers
    ready.workspace.run.set_state("idle", "")  # the first run has ended
    ready.workspace.runs.start()
    assert [start.check for start in sent] == ["steady", "never"]


def test_memory_of_its_own_stands_beside_the_peak_where_others_held_some(measured):
    def shown():
        table = segments_table(measured)
        return condensed(table, 0, Titles())

    assert not any(heading.startswith("Own ") for heading in shown().headings)
    for segment in measured.segments:
        segment.ledger |= {"own_peak_bytes": 3.0 * 2**30, "others_bytes": 2.0**30}
    table = shown()
    column = next(index for index, name in enumerate(table.headings) if name.startswith("Own "))
    assert table.headings[column - 1].startswith("Peak ") and table.numeric[column]
    assert {row[column] for row in table.cells} == {"3.00"}
    assert len(set(map(len, table.cells))) == 1 and len(table.cells[0]) == len(table.headings)
