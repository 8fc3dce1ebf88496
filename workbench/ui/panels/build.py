"""The form of a run: family, preset, model fields, workload and its settings, data, seed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
from PySide6.QtCore import QSignalBlocker, Qt
from PySide6.QtWidgets import (
    QFormLayout,
    QHBoxLayout,
    QLabel,
    QVBoxLayout,
    QWidget,
)

from sessions.model import OWN, Scalar
from workbench.protocol import Field
from workbench.theming import fonts
from workbench.ui.controllers.run_control import RunControl
from workbench.ui.dialogs import runner_files
from workbench.ui.menus.option_picker import NoWheelComboBox
from workbench.ui.panels import _editors, _widgets
from workbench.ui.panels._own_model import OwnModelRow
from workbench.ui.panels.empty import Empty
from workbench.ui.state import config_edit
from workbench.ui.state.configuration import ConfigurationModel
from workbench.ui.state.run import RunModel
from workbench.ui.state.session import SessionModel
from workbench.ui.state.theme import ThemeModel

LABEL_WIDTH = 88
SEED = Field(name="seed", title="Seed", help="For weights and synthetic tokens.", default=0)
SYNTHETIC = "synthetic"


class BuildPanel(QWidget):
    """Form of the configuration that Run starts; its fields come from the runner's catalogue."""

    def __init__(
        self,
        session: SessionModel,
        run: RunModel,
        configuration: ConfigurationModel,
        run_control: RunControl,
        theme: ThemeModel,
        parent: QWidget | None = None,
    ) -> None:
        super().__init__(parent)
        self._session, self._run = session, run
        self._configuration, self._theme = configuration, theme
        self._run_control = run_control
        self._shows: dict[tuple[str, str], _editors.Show] = {}
        self._shown = ("", "")  # family and workload that the forms were made for
        self._shown_problems: object = None
        self._waiting = Empty(
            theme,
            "build",
            "Waiting for the runner",
            "It reports which models this machine can run.",
        )
        self._body = QWidget()
        layout = _widgets.tight(QVBoxLayout(self), 0)
        layout.addWidget(self._waiting)
        layout.addWidget(self._body, 1)
        self._body.hide()
        self._problems_host = QWidget()
        self._problems_host.setProperty("panel", True)
        footer = _widgets.tight(QVBoxLayout(self._problems_host), 8)
        footer.setContentsMargins(12, 0, 12, 8)
        footer.addWidget(_widgets.rule())
        self._problems = _widgets.tight(QVBoxLayout(), 4)
        footer.addLayout(self._problems)
        layout.addWidget(self._problems_host)
        self._make_body()
        configuration.catalogueChanged.connect(self._fill)
        configuration.editedChanged.connect(self._refresh)
        run.stateChanged.connect(self._show_waiting)
        for changed in (
            configuration.availabilityChanged,
            run.stateChanged,
            session.segmentsChanged,
            theme.changed,
        ):
            changed.connect(self._show_problems)
        session.segmentsChanged.connect(self._show_size)
        session.sessionChanged.connect(self._show_size)
        self._fill()

    def _make_body(self) -> None:
        layout = _widgets.column(self._body)
        self._family = self._combo("family")
        self._preset = self._combo("preset")
        self._workload = self._combo("workload")
        self._family.activated.connect(lambda row: self._choose("family", row))
        self._preset.activated.connect(lambda row: self._choose("preset", row))
        self._workload.activated.connect(lambda row: self._choose("workload", row))
        self._data = self._combo("data")
        self._data.activated.connect(self._choose_data)
        self._size = _widgets.note()
        more_fields = QWidget()
        self._more_head = _widgets.expander("", self._theme.current, more_fields)
        self._reset = _widgets.link("Reset")  # short: it stands beside how many were changed
        self._reset.setToolTip("Back to the preset")
        self._reset.setAccessibleName("Reset the model fields to the preset")
        self._reset.clicked.connect(self._reset_model)
        top = _form()
        model = _widgets.tight(QHBoxLayout(), 6)
        model.addWidget(self._family, 1)
        model.addWidget(self._preset, 1)
        for combo in (self._family, self._preset):
            combo.setMinimumContentsLength(3)  # two boxes fit into the narrowest column
        self._preset.setAccessibleName("Preset")
        self._preset.setToolTip("Preset: the size of the model")
        _row(top, "Model", self._family, model)
        _row(top, "Workload", self._workload)
        layout.addLayout(top)
        self._own_model_row = OwnModelRow(self._choose_file)
        layout.addWidget(self._own_model_row)
        self._settings_form = _form()
        layout.addLayout(self._settings_form)
        head = _widgets.tight(QHBoxLayout())
        head.addWidget(self._more_head)
        head.addStretch(1)
        head.addWidget(self._reset)
        layout.addLayout(head)
        layout.addWidget(more_fields)
        column = _widgets.tight(QVBoxLayout(more_fields), 6)
        data_form = _form()
        self._data_form = data_form
        _row(data_form, "Data", self._data)
        seed, self._shows["", "seed"] = _editors.editor(SEED, self._set_seed)
        _row(data_form, SEED.title, seed)
        column.addLayout(data_form)
        column.addWidget(_widgets.rule())
        column.addWidget(self._size)
        self._model_form = _form()
        column.addLayout(self._model_form)
        layout.addStretch(1)

    def _combo(self, name: str) -> NoWheelComboBox:
        combo = NoWheelComboBox()
        combo.setObjectName(name)
        return combo

    def _show_waiting(self) -> None:
        if self._run.state == "dead" and self._configuration.catalogue is None:
            self._waiting.say("No runner", "Start a new runner to see the models it offers.")
        elif self._configuration.catalogue is None:
            self._waiting.say(
                "Waiting for the runner", "It reports which models this machine can run."
            )

    def _fill(self) -> None:
        catalogue = self._configuration.catalogue
        known = catalogue is not None and self._configuration.edited is not None
        self._waiting.setVisible(not known)
        self._body.setVisible(known)
        if catalogue is None:
            return
        with QSignalBlocker(self._family):
            self._family.clear()
            for family in catalogue.families:
                self._family.addItem(family.title, family.name)
                tip = Qt.ItemDataRole.ToolTipRole
                self._family.setItemData(self._family.count() - 1, family.help, tip)
        self._shown = ("", "")
        self._refresh()

    def _refresh(self) -> None:
        catalogue, configuration = self._configuration.catalogue, self._configuration.edited
        if catalogue is None or configuration is None:
            return
        family = config_edit.family_of(catalogue, configuration.family)
        workload = config_edit.workload_of(catalogue, configuration.workload)
        if self._shown != (family.name, workload.name):
            self._shown = (family.name, workload.name)
            self._make_forms()
        _select(self._family, configuration.family)
        _select(self._preset, configuration.preset)
        _select(self._workload, configuration.workload)
        self._show_data(configuration.data)
        is_own = configuration.family == OWN
        self._own_model_row.setVisible(is_own)
        self._preset.setVisible(not is_own)
        self._data_form.setRowVisible(self._data, not is_own)
        if is_own:
            self._own_model_row.show_source(str(configuration.model.get("source", "")), catalogue)
        for field in family.fields:
            if ("model", field.name) not in self._shows:
                continue
            preset = config_edit.preset_value(family, configuration.preset, field.name)
            self._shows["model", field.name](configuration.model.get(field.name, preset))
        for field in workload.fields:
            if ("settings", field.name) not in self._shows:
                continue
            value = configuration.settings.get(field.name, field.default)
            self._shows["settings", field.name](value)
        self._shows["", "seed"](configuration.seed)
        changed = 0 if is_own else len(configuration.model)
        count = f" ({changed} changed)" if changed else ""
        self._more_head.setText(f"Data, seed, fields{count}")
        self._reset.setVisible(bool(changed))
        self._show_size()
        self._show_problems()

    def _make_forms(self) -> None:
        catalogue, configuration = self._configuration.catalogue, self._configuration.edited
        assert catalogue is not None and configuration is not None
        family = config_edit.family_of(catalogue, configuration.family)
        with QSignalBlocker(self._preset):
            self._preset.clear()
            for name in family.presets:
                self._preset.addItem(_preset_title(name, family.parameters.get(name)), name)
        with QSignalBlocker(self._workload):
            self._workload.clear()
            for name in family.workloads:
                workload = config_edit.workload_of(catalogue, name)
                self._workload.addItem(workload.title, name)
                tip = Qt.ItemDataRole.ToolTipRole
                self._workload.setItemData(self._workload.count() - 1, workload.help, tip)
        self._make_form(self._model_form, "model", family.fields)
        fields = config_edit.workload_of(catalogue, configuration.workload).fields
        self._make_form(self._settings_form, "settings", fields)
        _widgets.settle(self._body)

    def _make_form(self, form: QFormLayout, group: str, fields: list[Field]) -> None:
        while form.rowCount():
            form.removeRow(0)
        configuration = self._configuration.edited
        assert configuration is not None
        for field in fields:
            if not config_edit.applies(configuration.family, group, field.name):
                self._shows.pop((group, field.name), None)
                continue
            changed = self._changer(group, field.name)
            widget, self._shows[group, field.name] = _editors.editor(field, changed)
            _row(form, field.title, widget)

    def _changer(self, group: str, name: str) -> _editors.Changed:
        def changed(value: Scalar) -> None:
            catalogue, configuration = self._configuration.catalogue, self._configuration.edited
            assert catalogue is not None and configuration is not None
            if group == "model":
                self._configuration.edit(
                    config_edit.with_model(catalogue, configuration, name, value)
                )
            else:
                self._configuration.edit(config_edit.with_setting(configuration, name, value))

        return changed

    def _choose(self, field_name: str, row: int) -> None:
        catalogue, configuration = self._configuration.catalogue, self._configuration.edited
        assert catalogue is not None and configuration is not None
        combo: NoWheelComboBox = getattr(self, f"_{field_name}")
        choose = {
            "family": config_edit.with_family,
            "preset": config_edit.with_preset,
            "workload": config_edit.with_workload,
        }[field_name]
        self._configuration.edit(choose(catalogue, configuration, combo.itemData(row)))

    def _choose_data(self, row: int) -> None:
        configuration = self._configuration.edited
        assert configuration is not None
        data = self._data.itemData(row)
        if data is None:
            title = "Text file whose bytes are the tokens"
            data = runner_files.existing(self._configuration.catalogue, self, title)
        self._configuration.edit(
            msgspec.structs.replace(configuration, data=data or configuration.data)
        )
        self._show_data(data or configuration.data)

    def _show_data(self, data: str) -> None:
        with QSignalBlocker(self._data):
            self._data.clear()
            self._data.addItem("Synthetic tokens", SYNTHETIC)
            if data != SYNTHETIC:
                self._data.addItem(Path(data).name, data)
                self._data.setItemData(1, data, Qt.ItemDataRole.ToolTipRole)
            self._data.addItem("Bytes of a file …", None)
            self._data.setCurrentIndex(0 if data == SYNTHETIC else 1)

    def _choose_file(self, source: str) -> None:
        catalogue, configuration = self._configuration.catalogue, self._configuration.edited
        assert catalogue is not None and configuration is not None
        self._configuration.edit(config_edit.with_own_model(catalogue, configuration, source))

    def _set_seed(self, value: Scalar) -> None:
        assert self._configuration.edited is not None
        self._configuration.edit(
            msgspec.structs.replace(self._configuration.edited, seed=int(value))
        )

    def _reset_model(self) -> None:
        assert self._configuration.edited is not None
        self._configuration.edit(msgspec.structs.replace(self._configuration.edited, model={}))

    def _size_text(self) -> str:
        catalogue, configuration = self._configuration.catalogue, self._configuration.edited
        assert catalogue is not None and configuration is not None
        family = config_edit.family_of(catalogue, configuration.family)
        count = family.parameters.get(configuration.preset)
        if not configuration.model and count is not None:
            return f"{count:,} parameters"
        model = (configuration.family, configuration.preset, configuration.model)
        for segment in reversed(self._session.shown.segments):
            built, count = segment.configuration, segment.ledger.get("parameters")
            if (built.family, built.preset, built.model) == model and isinstance(count, int):
                return f"{count:,} parameters, as last built"
        return "Parameters are counted when it is built."

    def _show_size(self) -> None:
        if self._configuration.catalogue is not None and self._configuration.edited is not None:
            self._size.setText(self._size_text())

    def _show_problems(self) -> None:
        """Show why this cannot start, and the changes that the run in progress does not have."""
        problems, left = self._configuration.problems(), self._left_behind()
        unusable = self._configuration.unusable()
        shown = (problems, left, unusable, self._theme.current.name)
        if shown == self._shown_problems:
            return
        self._shown_problems = shown
        _widgets.clear(self._problems)
        self._problems_host.setVisible(bool(problems or left))
        edited = self._configuration.edited
        is_unfinished = edited is not None and config_edit.lacks_own_model(edited)
        icon_and_role = ("info", "accent") if is_unfinished else ("error", "bad")
        for problem in problems:
            last = self._add_line(problem, "problem", *icon_and_role)
        if unusable:
            title = "Switch them off" if len(unusable) > 1 else "Switch it off"
            _offer(
                last,
                title,
                lambda: self._configuration.choose(unusable, "Switch off unusable options"),
            )
        if left:
            text = f"These changes apply to the next run: {', '.join(left)}."
            line = self._add_line(text, "left", "info", "accent")
            if not problems:
                _offer(line, "Restart now", self._run_control.restart)
            _offer(line, "Revert", self._revert)

    def _left_behind(self) -> list[str]:
        """Return the form titles of changes that the run in progress does not include."""
        titles = self._session.titles
        return [
            titles.name(part).lower() if part.startswith("settings.") else part
            for part in self._configuration.left_behind()
        ]

    def _revert(self) -> None:
        if (running := self._run.continued) is not None:
            self._configuration.edit(running)

    def _add_line(self, text: str, name: str, mark: str, role: str) -> QWidget:
        label = _widgets.note(text, role)
        label.setObjectName(name)
        line = _widgets.marked(label, mark, self._theme.current, role)
        self._problems.addWidget(line)
        return line


def _offer(line: QWidget, text: str, act: Callable[[], None]) -> None:
    """Show a button beside a line."""
    button = _widgets.compact(text)
    button.clicked.connect(act)
    row = line.layout()
    assert row is not None
    row.addWidget(button)


def _form() -> QFormLayout:
    form = QFormLayout()
    form.setContentsMargins(0, 0, 0, 0)
    form.setHorizontalSpacing(8)
    form.setVerticalSpacing(6)
    form.setFieldGrowthPolicy(QFormLayout.FieldGrowthPolicy.ExpandingFieldsGrow)
    form.setLabelAlignment(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter)
    return form


def _row(
    form: QFormLayout, title: str, widget: QWidget, controls: QHBoxLayout | None = None
) -> None:
    """Add a labelled line; ``controls`` holds the widget where there is more than one."""
    label = QLabel(title)
    fonts.fix_width(label, LABEL_WIDTH, 0.5)
    label.setProperty("muted", True)
    label.setWordWrap(True)
    label.setToolTip(widget.toolTip())
    label.setBuddy(widget)
    widget.setAccessibleName(widget.accessibleName() or title)
    if controls is None:
        form.addRow(label, widget)
    else:
        form.addRow(label, controls)


def _select(combo: NoWheelComboBox, data: str) -> None:
    with QSignalBlocker(combo):
        combo.setCurrentIndex(combo.findData(data))


def _preset_title(name: str, parameters: int | None) -> str:
    if parameters is None:
        return name
    for limit, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if parameters >= limit:
            return f"{name}   {parameters / limit:.3g} {unit}"
    return f"{name}   {parameters}"
