"""One choice out of a few: segments side by side where they fit, a drop-down list where not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from PySide6.QtCore import QEvent, QSignalBlocker, Qt, Signal
from PySide6.QtGui import QHelpEvent, QPaintEvent, QStandardItemModel, QWheelEvent
from PySide6.QtWidgets import (
    QButtonGroup,
    QComboBox,
    QHBoxLayout,
    QSizePolicy,
    QStyle,
    QStyledItemDelegate,
    QStyleOptionComboBox,
    QStylePainter,
    QToolButton,
    QToolTip,
    QWidget,
)

from sessions.plain_text import wrapped
from workbench.theming import fonts

WIDTH = 160
ROW_SHARE, MOST_GROWTH = 0.36, 1.5  # share of the row; largest width as a multiple of the least
POPUP_PADDING = 24
SEGMENT_PADDING = 22  # left and right of a segment's text, with its border


class NoWheelComboBox(QComboBox):
    """Drop-down list that the mouse wheel does not change."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)
        self.setMinimumContentsLength(8)
        self.setItemDelegate(QStyledItemDelegate(self))  # the only one that a style sheet reaches
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)

    def wheelEvent(self, event: QWheelEvent) -> None:
        """Leave the wheel to the panel that scrolls."""
        event.ignore()

    def showPopup(self) -> None:
        """Open the list wide enough for its longest line."""
        self.view().setMinimumWidth(self.view().sizeHintForColumn(0) + POPUP_PADDING)
        super().showPopup()

    def paintEvent(self, event: QPaintEvent) -> None:
        """Draw a text that is too long with an ellipsis; a style sheet would cut it off."""
        option = QStyleOptionComboBox()
        self.initStyleOption(option)
        painter = QStylePainter(self)
        painter.drawComplexControl(QStyle.ComplexControl.CC_ComboBox, option)
        option.currentText = self._elided(option.currentText)
        painter.drawControl(QStyle.ControlElement.CE_ComboBoxLabel, option)

    def event(self, event: QEvent) -> bool:
        """Show all of an elided text in the tool tip, above what explains the control."""
        text = self.currentText()
        is_tip = event.type() == QEvent.Type.ToolTip
        if is_tip and isinstance(event, QHelpEvent) and self._elided(text) != text:
            above = self.parentWidget()
            tip = self.toolTip() or (above.toolTip() if above is not None else "")
            QToolTip.showText(event.globalPos(), wrapped(f"{text}\n{tip}".strip()), self)
            return True
        return super().event(event)

    def _elided(self, text: str) -> str:
        """Return the text as it fits into the control."""
        option = QStyleOptionComboBox()
        self.initStyleOption(option)
        field = QStyle.SubControl.SC_ComboBoxEditField
        control = QStyle.ComplexControl.CC_ComboBox
        room = self.style().subControlRect(control, option, field, self).width()
        return self.fontMetrics().elidedText(text, Qt.TextElideMode.ElideRight, room)


class OptionPicker(QWidget):
    """Control for an option: it shows titles, and its signal carries the chosen name.

    The first option is the one that leaves things alone; any other is drawn with the accent.
    """

    chosen = Signal(str)

    def __init__(
        self,
        options: Sequence[tuple[str, str]],
        width: int = WIDTH,
        parent: QWidget | None = None,
        *,
        dense: bool = False,  # less high, for a list of many
    ) -> None:
        super().__init__(parent)
        self._dense = dense
        self._names = [name for name, _ in options]
        self._buttons: dict[str, QToolButton] = {}
        self._combo: NoWheelComboBox | None = None
        layout = QHBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(0)
        self._least, self._row_px = width, 0
        fonts.follow(self, self._fit)
        letters = self.fontMetrics().horizontalAdvance("".join(title for _, title in options))
        if letters + SEGMENT_PADDING * len(options) <= self.width():
            self._add_buttons(options, layout)
        else:
            self._combo = NoWheelComboBox()
            self._combo.setProperty("dense", dense)
            self._combo.addItems([title for _, title in options])
            self._combo.activated.connect(lambda row: self.chosen.emit(self._names[row]))
            layout.addWidget(self._combo)

    def fit_row(self, row_px: int) -> None:
        """Set the width to a share of the row's width, within the limits of the control."""
        self._row_px = row_px
        self._fit()

    def _fit(self) -> None:
        least = fonts.in_type(self._least, self.font())
        share_px = min(ROW_SHARE * self._row_px, MOST_GROWTH * least)
        self.setFixedWidth(max(least, round(share_px)))

    @property
    def value(self) -> str:
        """The option that is shown as chosen."""
        if self._combo is not None:
            return self._names[self._combo.currentIndex()]
        return next((name for name, button in self._buttons.items() if button.isChecked()), "")

    def set_title(self, title: str) -> None:
        """Name the control for screen readers: the buttons by their options, the box by this."""
        self.setAccessibleName(title)
        if self._combo is not None:
            self._combo.setAccessibleName(title)
        for button in self._buttons.values():
            button.setAccessibleName(f"{title}: {button.text()}")

    def set_value(self, name: str) -> None:
        """Show an option as chosen, without announcing it."""
        if name not in self._names:
            return
        if self._combo is None:
            self._buttons[name].setChecked(True)
            return
        with QSignalBlocker(self._combo):
            self._combo.setCurrentIndex(self._names.index(name))
        strong = name != self._names[0]
        if self._combo.property("strong") != strong:
            self._combo.setProperty("strong", strong)
            self._combo.style().polish(self._combo)

    def set_blocked(self, reasons: Mapping[str, str]) -> None:
        """Disable the options of these names; each reason is also its tool tip."""
        for name, button in self._buttons.items():
            button.setEnabled(name not in reasons)
            button.setToolTip(reasons.get(name, ""))
        if self._combo is not None:
            items = self._combo.model()
            assert isinstance(items, QStandardItemModel)
            for row, name in enumerate(self._names):
                items.item(row).setEnabled(name not in reasons)
                items.item(row).setToolTip(reasons.get(name, ""))

    def focus_target(self) -> QWidget:
        """Return the widget that gets the keyboard from a label's mnemonic."""
        chosen = (button for button in self._buttons.values() if button.isChecked())
        return self._combo or next(chosen, next(iter(self._buttons.values())))

    def _add_buttons(self, options: Sequence[tuple[str, str]], layout: QHBoxLayout) -> None:
        group = QButtonGroup(self)
        group.setExclusive(True)
        layout.addStretch(1)
        for row, (name, title) in enumerate(options):
            button = QToolButton()
            button.setText(title)
            button.setCheckable(True)
            position = "first" if row == 0 else "last" if row == len(options) - 1 else "middle"
            button.setProperty("segment", position)
            button.setProperty("strong", row > 0)
            button.setProperty("dense", self._dense)
            button.setAccessibleName(title)
            button.clicked.connect(lambda _=False, name=name: self.chosen.emit(name))
            group.addButton(button)
            layout.addWidget(button)
            self._buttons[name] = button
