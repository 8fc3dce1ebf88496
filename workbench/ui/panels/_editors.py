"""Controls made from a field's description: a number, a switch, a choice or a text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from PySide6.QtCore import QSignalBlocker, Qt
from PySide6.QtGui import QValidator, QWheelEvent
from PySide6.QtWidgets import QCheckBox, QDoubleSpinBox, QLineEdit, QSizePolicy, QSpinBox, QWidget

from sessions.model import Scalar
from workbench.protocol import Field
from workbench.theming import fonts
from workbench.ui.menus.option_picker import NoWheelComboBox

INT_RANGE = 2**31 - 1  # limit of Qt's spin box

Changed = Callable[[Scalar], None]
Show = Callable[[Scalar], None]


class NoWheelSpinBox(QSpinBox):
    """Integer box that the mouse wheel does not change.

    A number beyond its limits may be typed: it becomes the limit, which is then shown beside it.
    """

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.valueChanged.connect(lambda: self.setSuffix(""))

    def wheelEvent(self, event: QWheelEvent) -> None:
        """Leave the wheel to the panel that scrolls."""
        event.ignore()

    def validate(self, text: str, position: int) -> tuple[Any, str, int]:
        """Allow typing a number beyond the limits."""
        return _validated(self, super().validate(text, position), text)

    def fixup(self, text: str) -> str:  # type: ignore[override]
        """Return the limit nearest to the typed number, and show it."""
        return _limited(self, text)


class NoWheelDoubleSpinBox(QDoubleSpinBox):
    """Right-aligned number box that the mouse wheel does not change.

    Its limits are shown as those of ``NoWheelSpinBox``.
    """

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setAlignment(Qt.AlignmentFlag.AlignRight)
        self._unit = ""
        self.valueChanged.connect(lambda: super(NoWheelDoubleSpinBox, self).setSuffix(self._unit))

    def setSuffix(self, suffix: str) -> None:
        """Show this unit behind the number."""
        self._unit = suffix
        super().setSuffix(suffix)

    def show_limit(self, words: str) -> None:
        """Show a limit behind the unit until the number changes."""
        super().setSuffix(f"{self._unit}{words}")

    def wheelEvent(self, event: QWheelEvent) -> None:
        """Leave the wheel to the panel that scrolls."""
        event.ignore()

    def validate(self, text: str, position: int) -> tuple[Any, str, int]:
        """Allow typing a number beyond the limits."""
        return _validated(self, super().validate(text, position), text)

    def fixup(self, text: str) -> str:  # type: ignore[override]
        """Return the limit nearest to the typed number, and show it."""
        return _limited(self, text)

    def textFromValue(self, value: float) -> str:
        """Return the value with at most six significant digits."""
        return f"{value:.6g}"


Box = NoWheelSpinBox | NoWheelDoubleSpinBox


def _typed(box: Box, text: str) -> float | None:
    """Return the typed number; None if the text is not a number."""
    words = text.removesuffix(box.suffix()).strip()
    number, is_number = box.locale().toDouble(words.replace("−", "-"))
    return number if is_number else None


def _validated(box: Box, validated: tuple[Any, str, int], text: str) -> tuple[Any, str, int]:
    """Return Qt's answer to a text, but accept a number beyond the limits while it is typed."""
    number = _typed(box, text)
    if number is None or box.minimum() <= number <= box.maximum():
        return validated
    return QValidator.State.Intermediate, text, len(text.removesuffix(box.suffix()))


def _limited(box: Box, text: str) -> str:
    """Set the limit nearest to the typed number, and show it behind the number."""
    number = _typed(box, text)
    if number is None or box.minimum() <= number <= box.maximum():
        return box.text()
    is_high = number > box.maximum()
    limit = box.maximum() if is_high else box.minimum()
    box.setValue(limit)  # type: ignore[arg-type]
    words = f"  ({'at most' if is_high else 'at least'} {box.textFromValue(limit)})"  # type: ignore[arg-type]
    if isinstance(box, NoWheelDoubleSpinBox):
        box.show_limit(words)
    else:
        box.setSuffix(words)
    return box.text()


def editor(field: Field, changed: Changed) -> tuple[QWidget, Show]:
    """Return a control for a field, and a function that shows a value in it without a signal."""
    if field.choices:
        widget, show = _choice(field, changed)
    elif isinstance(field.default, bool):
        widget, show = _switch(changed)
    elif isinstance(field.default, int):
        widget, show = _whole(field, changed)
    elif isinstance(field.default, float):
        widget, show = _real(field, changed)
    else:
        widget, show = _text(changed)
    widget.setToolTip(field.help)
    widget.setAccessibleName(field.title)
    widget.setObjectName(f"field-{field.name}")
    return widget, show


def _choice(field: Field, changed: Changed) -> tuple[QWidget, Show]:
    combo = NoWheelComboBox()
    for value in field.choices:
        combo.addItem(str(value))
    combo.activated.connect(lambda row: changed(field.choices[row]))

    def show(value: Scalar) -> None:
        if value in field.choices:
            with QSignalBlocker(combo):
                combo.setCurrentIndex(field.choices.index(value))

    return combo, show


def _switch(changed: Changed) -> tuple[QWidget, Show]:
    box = QCheckBox()
    box.clicked.connect(lambda: changed(box.isChecked()))
    return box, lambda value: box.setChecked(bool(value))


def _whole(field: Field, changed: Changed) -> tuple[QWidget, Show]:
    box = NoWheelSpinBox()
    low = -INT_RANGE if field.minimum is None else field.minimum
    high = INT_RANGE if field.maximum is None else field.maximum
    box.setRange(int(max(low, -INT_RANGE)), int(min(high, INT_RANGE)))
    box.setGroupSeparatorShown(True)
    return _spin(box, changed)


def _real(field: Field, changed: Changed) -> tuple[QWidget, Show]:
    box = NoWheelDoubleSpinBox()
    box.setDecimals(9)
    box.setRange(
        -1e12 if field.minimum is None else field.minimum,
        1e12 if field.maximum is None else field.maximum,
    )
    box.setStepType(QDoubleSpinBox.StepType.AdaptiveDecimalStepType)
    return _spin(box, changed)


def _spin(box: QSpinBox | QDoubleSpinBox, changed: Changed) -> tuple[QWidget, Show]:
    box.setKeyboardTracking(False)
    box.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
    box.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
    box.setAlignment(Qt.AlignmentFlag.AlignRight)
    box.setFont(fonts.numbers())
    box.valueChanged.connect(changed)

    def show(value: Scalar) -> None:
        with QSignalBlocker(box):
            box.setValue(value)  # type: ignore[arg-type]

    return box, show


def _text(changed: Changed) -> tuple[QWidget, Show]:
    line = QLineEdit()
    line.editingFinished.connect(lambda: changed(line.text()))
    return line, lambda value: line.setText(str(value))
