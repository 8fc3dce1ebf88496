"""The optimizations: every toggle by group, live while a run is in progress."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QSize
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QHBoxLayout, QLabel, QSizePolicy, QVBoxLayout, QWidget

from sessions.model import Configuration, Evidence
from sessions.numbers import counted
from workbench.ui.controllers.presets import Presets
from workbench.ui.controllers.toggle_verdicts import last_verdicts
from workbench.ui.controllers.verdict_prompt import VerdictPrompt
from workbench.ui.controllers.verdicts import Verdicts
from workbench.ui.panels import _widgets
from workbench.ui.panels._evidence import evidence_of, through_newest
from workbench.ui.panels._preset_bar import PresetBar
from workbench.ui.panels._toggle_groups import Filter, ToggleGroups
from workbench.ui.panels._toggle_row import RowState, ToggleRow
from workbench.ui.panels._verdict_bar import VerdictBar
from workbench.ui.panels.empty import Empty
from workbench.ui.state import config_edit
from workbench.ui.state.configuration import ConfigurationModel
from workbench.ui.state.run import RunModel
from workbench.ui.state.session import SessionModel
from workbench.ui.state.theme import ThemeModel

MINIMUM_HEIGHT = 120
LEAST_PX = 64  # least height of the toggles below a bar: two toggles


class _Body(QWidget):
    """Host of the toggles that announces another size when its content has been laid out."""

    def __init__(self, resized: Callable[[], None]) -> None:
        super().__init__()
        self._resized = resized

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Announce the size."""
        super().resizeEvent(event)
        self._resized()


class TogglesPanel(QWidget):
    """Panel of the toggles: their options, and the evidence and verdicts on them."""

    def __init__(
        self,
        session: SessionModel,
        run: RunModel,
        configuration: ConfigurationModel,
        verdicts: Verdicts,
        prompt: VerdictPrompt,
        presets: Presets,
        theme: ThemeModel,
        parent: QWidget | None = None,
    ) -> None:
        super().__init__(parent)
        self._session, self._run, self._configuration = session, run, configuration
        self._verdicts, self._theme = verdicts, theme
        self.rows: dict[str, ToggleRow] = {}
        self._empty = Empty(
            theme, "toggle", "No toggles yet", "The runner lists its optimizations when it starts."
        )
        self._body = _Body(self._keep_place)
        self._top, self._has_bars = 0, False  # where the toggles begin, and if bars are above
        self._chosen = ""  # the toggle that the user chose last
        self._pending = self._make_pending()
        layout = _widgets.tight(QVBoxLayout(self), 0)
        self._filter = Filter()
        self.presets = PresetBar(session, prompt, presets, theme)
        self.presets.filterChanged.connect(self._set_filter)
        self.presets.collapseAll.connect(self._collapse)
        self.verdict = VerdictBar(session, run, verdicts, prompt, theme)
        for widget in (self.presets, self.verdict, self._pending, self._empty, self._body):
            layout.addWidget(widget, 1 if widget is self._body else 0)
        # The bars above have what they need first; the toggles scroll in the rest.
        self._body.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Ignored)
        self._body.setMinimumHeight(LEAST_PX)
        self._column = _widgets.column(self._body)
        self._column.setSpacing(4)
        self._column.setContentsMargins(12, 4, 8, 8)
        configuration.catalogueChanged.connect(self._fill)
        for changed in (
            configuration.editedChanged,
            configuration.availabilityChanged,
            session.segmentsChanged,
            run.stateChanged,
            session.sessionChanged,
            session.comparisonsChanged,
            theme.changed,
        ):
            changed.connect(self._refresh)
        self._fill()

    def minimumSizeHint(self) -> QSize:
        """Return a small size: a bar above takes room from the toggles, not from other docks."""
        return QSize(super().minimumSizeHint().width(), MINIMUM_HEIGHT)

    def reveal(self, name: str) -> None:
        """Scroll to a toggle."""
        row = self.rows.get(name)
        if row is not None and (area := _widgets.area_of(row)) is not None:
            area.ensureWidgetVisible(row)

    def _keep_place(self) -> None:
        """Scroll by as much as the bars above grew: no toggle moves away under the mouse."""
        before, top = self._top, self._body.y()
        had_bars, has_bars = (
            self._has_bars,
            not (self.verdict.bar.isHidden() and self._pending.isHidden()),
        )
        self._top, self._has_bars = top, has_bars
        if before == top or not self.rows or not (had_bars or has_bars):
            return
        area, row = _widgets.area_of(self._groups), self.rows.get(self._chosen)
        assert area is not None
        was_seen = row is not None and not row.visibleRegion().isEmpty()
        bar = area.verticalScrollBar()
        bar.setValue(bar.value() + top - before)
        if row is not None and was_seen:  # a bar does not cover the toggle that it is about
            area.ensureWidgetVisible(row, 0, 0)

    def _make_pending(self) -> QWidget:
        pending_bar = QWidget()
        pending_bar.setProperty("panel", True)
        layout = _widgets.tight(QHBoxLayout(pending_bar), 8)
        layout.setContentsMargins(12, 4, 12, 4)
        self._pending_text = QLabel()
        self._pending_text.setProperty("tone", "accent")
        revert = _widgets.compact("Revert")
        revert.setToolTip("Return to the toggles of the segment that runs")
        revert.clicked.connect(self._configuration.revert)
        layout.addWidget(self._pending_text, 1)
        layout.addWidget(revert)
        pending_bar.hide()
        return pending_bar

    def _fill(self) -> None:
        catalogue = self._configuration.catalogue
        toggles = [] if catalogue is None else catalogue.toggles
        if toggles and toggles == [row.toggle for row in self.rows.values()]:
            return  # a new runner with the same toggles
        _widgets.clear(self._column)
        self.rows.clear()
        self._empty.setVisible(not toggles)
        self._body.setVisible(bool(toggles))
        for toggle in toggles:
            assert catalogue is not None
            row = ToggleRow(toggle, catalogue)
            row.chosen.connect(self._choose)
            row.fix.connect(self._configuration.choose)
            self.rows[toggle.name] = row
        self._groups = ToggleGroups(list(self.rows.values()), self._theme.current)
        self._column.addWidget(self._groups)
        self._column.addStretch(1)
        self._refresh()
        self._groups.show()
        _widgets.settle(self._groups)  # or the rows are squeezed until the event loop goes on

    def _choose(self, name: str, option: str) -> None:
        self._chosen = name
        self._configuration.set_toggle(name, option)

    def _set_filter(self, row_filter: Filter) -> None:
        self._filter = row_filter
        self._refresh()

    def _collapse(self, collapsed: bool) -> None:
        self._groups.set_collapsed(collapsed)

    def _refresh(self) -> None:
        configuration = self._configuration.edited
        if configuration is None:
            return
        pending = self._configuration.pending
        evidence = self._evidence()
        segments = self._session.shown.segments
        verdicts = last_verdicts(segments, self._verdicts.all, configuration)
        for name, row in self.rows.items():
            option = configuration.toggles.get(name, row.toggle.default)
            shown_evidence = evidence.get(name)
            if (
                shown_evidence is not None
                and shown_evidence.requested != option
                and not self._gone_back(shown_evidence, option)
            ):
                shown_evidence = None
            blocked = self._configuration.blocked(name)
            shown = RowState(option, blocked, shown_evidence, verdicts.get(name), name in pending)
            row.show_state(shown, self._theme.current)
        self._arrange(configuration)
        count = len(pending)
        self._pending.setVisible(bool(pending))
        waits = "after the verdict" if self._verdicts.busy else "pending"
        self._pending_text.setText(f"{counted(count, 'change')} {waits}")

    def _arrange(self, configuration: Configuration) -> None:
        reasons = {name: self._unavailable(name, configuration) for name in self.rows}
        unavailable = {name: reason for name, reason in reasons.items() if reason}
        changed = frozenset(
            name
            for name, row in self.rows.items()
            if configuration.toggles.get(name, row.toggle.default) != row.toggle.default
        )
        self._groups.show_rows(unavailable, changed, self._filter, self._theme.current)

    def _unavailable(self, name: str, configuration: Configuration) -> str:
        """Return why no other option of a toggle that is off can be chosen; empty if one can.

        Options that a click on Fix makes available do not move.
        """
        toggle, blocked = self.rows[name].toggle, self._configuration.blocked(name)
        off_option, *options = (option.name for option in toggle.options)
        if configuration.toggles.get(name, toggle.default) != off_option or not options:
            return ""
        reasons = [blocked[option] for option in options if option in blocked]
        if len(reasons) < len(options) or off_option in blocked:
            return ""
        if all(why.absent for why in reasons):
            return "model"
        if any(why.set for why in reasons):
            return ""
        return "gpu" if all("CUDA GPU" in why.reason for why in reasons) else "here"

    def _evidence(self) -> dict[str, Evidence]:
        segments, edited = self._session.shown.segments, self._configuration.edited
        if not (self._session.live and segments and edited is not None):
            return {}
        shown = segments if self._run.active else through_newest(segments, edited)
        known = config_edit.of_one_run(shown[-1].configuration, edited)
        return evidence_of(shown) if known else {}

    def _gone_back(self, evidence: Evidence, option: str) -> bool:
        """Return True if the option replaced an option that failed, and still runs."""
        runs = self._session.shown.segments[-1].configuration.toggles
        return evidence.status == "failed" and runs.get(evidence.toggle) == option
