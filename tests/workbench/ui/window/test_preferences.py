"""Tests of preferences, shortcuts, named layouts, limits of fields and names of controls."""

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QKeySequence
from PySide6.QtWidgets import (
    QAbstractButton,
    QAbstractItemView,
    QAbstractSpinBox,
    QApplication,
    QComboBox,
    QDialog,
    QDialogButtonBox,
    QDockWidget,
    QGridLayout,
    QLabel,
    QLineEdit,
    QSpinBox,
    QStyle,
    QStyleOptionViewItem,
    QToolButton,
    QWidget,
)

from sessions import sizes
from sessions.studies import claims
from workbench.ui.accessible_names import CONTROLS, name_controls
from workbench.ui.controllers.appearance import Appearance
from workbench.ui.dialogs import message_boxes
from workbench.ui.dialogs.preferences import Preferences
from workbench.ui.panels._claim_row import MARKS, ClaimRow


@pytest.fixture
def preferences(qtbot, ready):
    before = QApplication.font()
    ready.actions_["preferences"].trigger()
    yield ready.findChild(Preferences)
    QApplication.setFont(before)
    sizes.use_decimal(False)
    message_boxes.use_folder(None)


def test_accepted_preferences_are_used_and_remembered(
    qtbot, ready, settings, preferences, tmp_path
):
    preferences.units.setCurrentIndex(1)
    preferences.folder.setText(str(tmp_path))
    preferences.budget.setValue(45)
    preferences.region.setValue(2)
    preferences.share.setValue(10)
    preferences._accept()
    assert sizes.size_text(2e9) == "2.00 GB"
    assert message_boxes.folder() == str(tmp_path)
    workspace = ready.workspace
    assert (workspace.verdicts.budget_s, workspace.verdicts.region) == (45, 0.02)
    assert workspace.runs.pairing_share == 0.1
    remembered = (settings.decimal_units, settings.folder, settings.budget_s, settings.region)
    assert remembered == (True, tmp_path, 45, 0.02) and settings.pairing_share == 0.1


def test_a_folder_that_cannot_exist_is_no_folder_of_dialogs(preferences):
    before = message_boxes.folder()
    preferences.folder.setText("x" * 300)
    preferences._accept()
    assert message_boxes.folder() == before


def test_a_larger_type_reaches_the_controls_and_their_own_fonts(qtbot, ready, preferences):
    title = ready._title
    before = title.font().pointSizeF(), QApplication.font().pointSizeF()
    preferences.font_size.setValue(before[1] * 1.5)
    preferences._accept()
    assert QApplication.font().pointSizeF() == pytest.approx(before[1] * 1.5, abs=0.1)
    assert title.font().pointSizeF() == pytest.approx(before[0] * 1.5, abs=0.2)


def test_a_larger_type_reaches_controls_with_a_style_sheet_at_once_and_fits_into_them(
    qtbot, ready, preferences
):
    points = round(QApplication.font().pointSizeF() * 1.6, 1)
    preferences.font_size.setValue(points)
    preferences._accept()
    build = ready.dock_area.docks["build"]
    controls = [*build.findChildren(QComboBox), *build.findChildren(QAbstractSpinBox)]
    controls = [control for control in controls if control.isVisible()]
    assert {control.font().pointSizeF() for control in (*controls, ready.menuBar())} == {points}
    for control in controls:
        assert control.height() > control.fontMetrics().height(), control.accessibleName()


def test_a_larger_type_reaches_plots_and_cells_of_tables(qtbot, judged, ready, preferences):
    ready.resize(1440, 1000)
    ready.dock_area.bring("verdict")
    panel = ready.verdict
    ready.workspace.session.sessionChanged.emit()
    qtbot.waitUntil(lambda: panel.chart.isVisible() and panel.table.rowCount() > 0)
    options = QStyleOptionViewItem()
    before_px = panel.chart.canvas.chart_style.font_px

    def cell_points() -> float:
        panel.table.initViewItemOption(options)
        index = panel.table.model().index(0, 0)
        panel.table.itemDelegate().initStyleOption(options, index)
        return options.font.pointSizeF()

    points = round(1.5 * QApplication.font().pointSizeF(), 1)
    preferences.font_size.setValue(points)
    preferences._accept()
    assert panel.chart.canvas.chart_style.font_px == pytest.approx(1.5 * before_px, abs=1)
    assert cell_points() == points


def test_in_large_type_no_word_of_a_column_of_fixed_width_is_cut_off(qtbot, ready, preferences):
    build = ready.dock_area.docks["build"]
    words = QWidget(build)
    claim = claims.Row(document="a", experiment="b", row="A1", claim="c", says="2x", unit="x")
    row = ClaimRow(claim, lambda: None, repeated=False)
    row.arrange(QGridLayout(words), 0, narrow=False)
    words.show()
    preferences.font_size.setValue(1.6 * QApplication.font().pointSizeF())
    preferences._accept()
    labels = [label for label in build.findChildren(QLabel) if label.buddy() is not None]
    texts = {label: label.text() for label in labels if label.isVisible()}
    assert len(texts) > 3
    for label, text in [*texts.items(), *((row.word, word) for word, _, _ in MARKS.values())]:
        longest = text if label is row.word else max(text.split(), key=len)
        assert label.fontMetrics().horizontalAdvance(longest) <= label.width(), text


def test_keys_can_be_changed_and_no_two_actions_have_the_same(ready, settings, preferences):
    preferences._keys["rename"].setKeySequence(QKeySequence("Ctrl+Alt+R"))
    assert preferences._ok_button.isEnabled()
    preferences._keys["notes"].setKeySequence(QKeySequence("Ctrl+Alt+R"))
    assert not preferences._ok_button.isEnabled() and "Ctrl+Alt+R" in preferences.problem.text()
    preferences._keys["notes"].clear()
    preferences._accept()
    assert ready.actions_["rename"].shortcut() == QKeySequence("Ctrl+Alt+R")
    assert "Ctrl+Alt+R" in ready.actions_["rename"].toolTip()
    assert settings.shortcuts == {"rename": "Ctrl+Alt+R"}


def test_buttons_of_dialogs_have_no_icons_of_the_desktop(ready):
    dialog = QDialog(ready)
    box = QDialogButtonBox(QDialogButtonBox.StandardButton.Ok, dialog)
    (button,) = box.buttons()
    button.setIcon(dialog.style().standardIcon(QStyle.StandardPixmap.SP_DialogOkButton))
    assert not button.icon().isNull()
    dialog.open()
    QApplication.processEvents()
    assert button.icon().isNull()


def test_defaults_can_be_restored(ready, preferences):
    preferences._keys["rename"].setKeySequence(QKeySequence("Ctrl+Alt+R"))
    preferences.budget.setValue(99)
    box = preferences.findChild(QDialogButtonBox)
    box.button(QDialogButtonBox.StandardButton.RestoreDefaults).click()
    assert preferences.shortcuts()["rename"] == "F2" and preferences.budget.value() == 20


def test_a_layout_is_saved_under_a_name_and_restored(qtbot, ready, settings):
    settings.save_named_layout("wide / plots", ready.dock_area.save_layout())
    ready.dock_area.docks["events"].close()
    assert settings.named_layouts == ["wide / plots"]
    ready.restore_layout("wide / plots")
    assert ready.dock_area.docks["events"].toggleViewAction().isChecked()
    settings.delete_named_layout("wide / plots")
    assert settings.named_layouts == []


def test_a_number_beyond_its_limits_becomes_the_limit_which_is_shown(qtbot, ready):
    box = ready.dock_area.docks["build"].widget().findChild(QSpinBox, "field-n_layers")
    box.selectAll()
    qtbot.keyClicks(box, "99999")
    qtbot.keyClick(box, Qt.Key.Key_Return)
    assert box.value() == box.maximum() == 512
    assert "at most 512" in box.text()
    box.selectAll()
    qtbot.keyClicks(box, "13")
    qtbot.keyClick(box, Qt.Key.Key_Return)
    assert box.text() == "13" and ready.workspace.configuration.edited.model["n_layers"] == 13


def nameless(window):
    """Return the controls that a screen reader could not name."""
    controls = [control for kind in CONTROLS for control in window.findChildren(kind)]
    return [
        f"{type(control).__name__} of {type(control.parent()).__name__} in {dock_of(control)}"
        for control in dict.fromkeys(controls)
        if not is_part(control) and not name_of(control)
    ]


def is_part(control):
    """Return True for the line inside a box, and for what Qt makes for itself."""
    parent = control.parent()
    inside = isinstance(parent, (QAbstractSpinBox, QComboBox, QAbstractItemView, QLineEdit))
    inside = inside or parent.metaObject().className().startswith("QComboBoxPrivate")
    return inside or control.objectName().startswith("qt_")


def name_of(control):
    text = control.text() if isinstance(control, QAbstractButton) else ""
    return control.accessibleName() or text


@pytest.mark.usefixtures("complete_window")
def test_a_button_that_gets_its_text_later_is_named_by_it(qtbot):
    host = QWidget()
    qtbot.addWidget(host)
    host.setAccessibleName("Build")
    button = QToolButton(host)
    name_controls(host)
    assert button.accessibleName() == "Build"
    button.setText("Data, seed, fields")
    name_controls(host)
    assert button.accessibleName() == "", "its text names it"


def test_every_control_has_a_name(ready):
    missing = nameless(ready)
    assert not missing, "\n".join(missing)


def dock_of(control):
    """Return the name of the panel that holds a control."""
    while control is not None and not isinstance(control, QDockWidget):
        control = control.parent()
    return "" if control is None else control.objectName()


@pytest.mark.parametrize("theme", ["dark", "light"])
def test_a_window_begins_in_the_theme_that_was_chosen(qapp, workspace, settings, theme):
    settings.theme = theme
    appearance = Appearance(qapp, workspace.theme, settings)
    container = QWidget()
    part = QWidget(container)
    appearance.dress(container)
    container.show()
    assert workspace.theme.current.name == theme
    assert workspace.theme.current.surface in part.styleSheet()
