"""The claims panel: what is listed, what is asked for, and what is shown as it comes."""

from __future__ import annotations

import claims_samples
import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QLabel

from sessions.storage import hdf5
from sessions.studies import claims
from workbench import protocol
from workbench.claims import _course, documents
from workbench.client import journal
from workbench.client.recorder import Recorder

SPEED = "x as fast as the baseline"
LADDER = ("moe", "inference ladder")


def key(claim, document="moe", experiment="inference ladder", unit=SPEED):
    return next(k for k in keys() if k[:3] == (document, experiment, claim) and k[4] == unit)


def keys():
    return [row.key for row in claims_samples.rows()]


def shown(panel, claim, **where) -> tuple[str, str, str]:
    row = panel.rows[key(claim, **where)]
    return row.word.text(), row.measured.text(), row.reason.text()


@pytest.fixture
def panel(qtbot, ready):
    ready.reproduce()
    qtbot.waitUntil(lambda: ready.claims.run_all.isEnabled())
    return ready.claims


def test_every_claim_of_every_document_is_listed_before_any_is_measured(panel):
    assert list(panel.rows) == keys() and len(panel.rows) > 40
    assert list(panel.run) == list(documents())
    assert {row.word.text() for row in panel.rows.values()} == {"Not yet"}
    assert {row.measured.text() for row in panel.rows.values()} == {"–"}
    titles = {label.text() for label in panel.findChildren(QLabel)}
    assert {document.title for document in documents().values()} <= titles
    assert "not measured yet" in panel.headline.text()
    assert not panel.copy.isEnabled() and not panel.stop.isVisibleTo(panel)
    assert panel.copy.toolTip() == "No claim has been measured yet."


def test_one_claims_experiment_is_measured_live_by_the_runner_and_kept(
    qtbot, ready, panel, tmp_path, hold
):
    workspace = ready.workspace
    panel.budget.setValue(4)
    hold.touch()
    qtbot.mouseClick(
        panel.rows[key("+ torch.compile, inference")].button, Qt.MouseButton.LeftButton
    )
    qtbot.waitUntil(lambda: shown(panel, "+ torch.compile, inference")[0] == "Measuring")
    assert not panel.run_all.isEnabled() and panel.stop.isVisibleTo(panel)
    assert panel.headline.text() == "Measuring moe: inference ladder"
    assert shown(panel, "GraphDiffusionMemory", document="mahia", experiment="components",
                 unit="x as fast as the standard path")[0] == "Not yet"  # fmt: skip
    so_far = panel.rows[key("+ torch.compile, inference")].measured
    qtbot.waitUntil(lambda: so_far.text().endswith("so far"))
    hold.unlink()
    qtbot.waitUntil(lambda: not workspace.reproductions.measuring)
    qtbot.waitUntil(lambda: shown(panel, "+ torch.compile, inference")[0] == "Holds")
    assert shown(panel, "CUDA graphs on top of it", unit="x as fast as without graphs")[0] == (
        "Does not hold"
    )
    assert panel.headline.text() == "3 claims: 2 hold, 1 does not hold"
    assert panel.run_all.isEnabled() and not workspace.session.saved
    (study,) = claims.studies(workspace.session.shown)
    assert study.request["budget_s"] == 4 and study.facts["final"]
    workspace.session.save(tmp_path / "c.h5")
    qtbot.waitUntil(lambda: workspace.session.saved)
    (study,) = claims.studies(hdf5.load(tmp_path / "c.h5"))
    assert [row.result for row in claims.rows(study)] == ["holds", "holds", "does not hold"]
    again = Recorder()
    for message in journal.replay(workspace.session.journal.path):
        again.record(message)
    (rebuilt,) = claims.studies(again.session)
    assert claims.columns(claims.rows(rebuilt)) == claims.columns(claims.rows(study))


def test_claims_are_measured_in_place_of_a_run_that_is_in_progress(qtbot, ready, panel):
    workspace = ready.workspace
    workspace.runs.start()
    qtbot.waitUntil(lambda: workspace.run.state == "running")
    qtbot.waitUntil(panel.run_all.isEnabled)
    before = workspace.run.running
    panel.rows[key("+ torch.compile, inference")].button.click()
    qtbot.waitUntil(lambda: not workspace.reproductions.measuring)
    qtbot.waitUntil(lambda: shown(panel, "+ torch.compile, inference")[0] == "Holds")
    run = workspace.run  # goes on
    qtbot.waitUntil(lambda: run.state == "running" and run.running == before)


def test_a_saved_session_shows_its_claims_again_and_copies_them(qtbot, ready, panel, tmp_path):
    recorder = Recorder()
    for message in claims_samples.messages(1.0):
        recorder.record(message)
    hdf5.save(recorder.session, tmp_path / "old.h5")
    ready.open_path(tmp_path / "old.h5")
    qtbot.waitUntil(lambda: not ready.workspace.session.live)
    words = {row.word.text() for row in panel.rows.values()}
    assert words == {"Holds", "Does not hold", "Undecided", "Not measured"}
    for name, made in claims.newest(recorder.session).items():
        row = panel.rows[name]
        assert (row.word.text() == "Holds") == (made.result == claims.HOLDS)
        assert row.measured.text() == (claims.measured_text(made) or "–")
    assert panel.headline.text() == claims.count(claims_samples.rows())
    panel.copy_table(".md")
    assert QGuiApplication.clipboard().text().count("| not measured: ") == sum(
        row.result == claims.NOT_MEASURED for row in claims_samples.rows()
    )
    panel.copy_table(".csv")
    assert QGuiApplication.clipboard().text().startswith("document,claim,document says,measured")


def test_claims_that_are_stopped_are_not_measured_and_say_so(qtbot, ready, panel):
    workspace = ready.workspace
    panel.run["moe"].click()
    qtbot.waitUntil(
        lambda: "attribution" in [study.kind for study in workspace.session.shown.studies]
    )
    panel.stop.click()
    qtbot.waitUntil(lambda: not workspace.reproductions.measuring)
    qtbot.waitUntil(lambda: workspace.run.state == "idle")
    name = {
        "document": "moe",
        "experiment": "torch.compile max-autotune",
        "unit": "x as fast as eager",
    }
    qtbot.waitUntil(lambda: shown(panel, "torch.compile max-autotune", **name)[0] == "Not measured")
    assert shown(panel, "torch.compile max-autotune", **name)[2] == "Stopped"
    assert panel.run_all.isEnabled()


def test_a_command_that_takes_too_long_is_cut_off_and_the_next_goes_on_with_another_runner(
    qtbot, impatient, ready, panel, monkeypatch
):
    monkeypatch.setattr(_course, "SLACK_S", 0.3)
    first, second = documents()["moe"].experiments[:2]
    monkeypatch.setitem(vars(first), "build_s", 0.1)
    commands = first.commands

    def hanging(catalogue, budget_s):
        (command,) = commands(catalogue, 0.1)
        return [protocol.Start(configuration=_data(command.base, "hang"), seconds=0.1)]

    monkeypatch.setitem(vars(first), "commands", hanging)
    workspace = ready.workspace
    monkeypatch.setattr(
        workspace.reproductions,
        "experiments",
        lambda *_: [(documents()["moe"], experiment) for experiment in (first, second)],
    )
    workspace.reproductions.measure()
    qtbot.waitUntil(lambda: not workspace.reproductions.measuring)
    rows = {row.key: row for row in workspace.reproductions.rows()}
    assert "cut off after" in rows[key("+ AMP", experiment=first.name)].reason
    assert rows[key("+ torch.compile, inference")].result == claims.HOLDS


def _data(configuration, data):
    import msgspec

    return msgspec.structs.replace(configuration, data=data)


def test_a_new_session_ends_the_measuring_and_begins_without_claims(qtbot, ready, panel):
    workspace = ready.workspace
    panel.run["moe"].click()
    qtbot.waitUntil(lambda: bool(workspace.session.shown.studies))
    workspace.run.begin_session()
    assert not workspace.reproductions.measuring
    qtbot.waitUntil(lambda: workspace.run.state == "idle")
    assert not workspace.session.shown.studies
    qtbot.waitUntil(lambda: "not measured yet" in panel.headline.text())


def test_a_file_that_knows_of_one_document_is_opened_at_it(qtbot, ready, panel):
    ready.workspace.session.show_live()
    last = list(documents())[-1]
    known = [row for row in claims_samples.rows() if row.document == last]
    recorder, own = Recorder(), protocol.OWN_STUDY
    recorder.record(protocol.StudyStarted(index=own, kind=claims.KIND, title="claims", request={}))
    columns = claims.columns(known)
    recorder.record(protocol.StudyRows(study=own, table=claims.TABLE, columns=columns))
    bar, area = panel._area.verticalScrollBar(), panel._area.viewport()
    qtbot.waitUntil(lambda: bar.maximum() > 0)
    assert bar.value() == 0
    ready.workspace.session.show(recorder.session)
    word = panel.rows[known[0].key].word

    def in_sight() -> bool:
        return 0 <= word.mapTo(area, word.rect().topLeft()).y() <= area.height() - word.height()

    assert not in_sight()
    qtbot.waitUntil(in_sight)
    bar.setValue(0)
    panel._show()
    qtbot.wait(50)
    assert bar.value() == 0, "only once: where one has scrolled since, it stays"


def test_claims_of_one_name_show_it_once(panel):
    names = {}
    for key, row in panel.rows.items():
        names.setdefault(key[:3], []).append(row.claim)
    repeated = [labels for labels in names.values() if len(labels) > 1]
    assert repeated
    for first, *next_labels in repeated:
        assert first.text() and not any(label.text() for label in next_labels)
        assert all(label.accessibleName() == first.text() for label in next_labels)
