"""Names of controls for screen readers, from what names them on the screen."""

from __future__ import annotations

from PySide6.QtWidgets import (
    QAbstractButton,
    QAbstractItemView,
    QAbstractSpinBox,
    QApplication,
    QComboBox,
    QDockWidget,
    QLabel,
    QLineEdit,
    QPlainTextEdit,
    QStackedWidget,
    QTabWidget,
    QWidget,
)

_AUTOMATIC = "automatic_name"  # property of a control: the name that it got here
CONTROLS = (
    QAbstractButton,
    QAbstractItemView,
    QAbstractSpinBox,
    QComboBox,
    QLineEdit,
    QPlainTextEdit,
)


def name_on_focus(application: QApplication) -> None:
    """Name each control without a name when it gets the keyboard focus."""
    application.focusChanged.connect(lambda _, control: _name(control, {}) if control else None)


def name_controls(root: QWidget) -> None:
    """Name the controls within a widget that have no name yet."""
    labels = {label.buddy(): label.text() for label in root.findChildren(QLabel) if label.buddy()}
    for kind in CONTROLS:
        for control in root.findChildren(kind):
            _name(control, labels)


def _name(control: QWidget, labels: dict[QWidget, str]) -> None:
    has_text = isinstance(control, QAbstractButton) and control.text()
    if has_text and control.accessibleName() == control.property(_AUTOMATIC):
        control.setAccessibleName("")  # it had no text when it was named
    if isinstance(control, CONTROLS) and not control.accessibleName() and not has_text:
        control.setAccessibleName(labels.get(control) or _own_words(control) or _place(control))
        control.setProperty(_AUTOMATIC, control.accessibleName())


def _own_words(control: QWidget) -> str:
    """Return a control's placeholder or the first line of its tool tip."""
    placeholder = getattr(control, "placeholderText", str)()
    return placeholder or control.toolTip().partition("\n")[0]


def _place(control: QWidget) -> str:
    """Return the name of the nearest widget around a control: another name, a tab, a dock."""
    child, parent = control, control.parentWidget()
    while parent is not None:
        if isinstance(parent, QStackedWidget) and isinstance(parent.parentWidget(), QTabWidget):
            tabs = parent.parentWidget()
            assert isinstance(tabs, QTabWidget)
            return tabs.tabText(tabs.indexOf(child))
        if parent.accessibleName():
            return parent.accessibleName()
        if isinstance(parent, QDockWidget):
            return parent.windowTitle()
        child, parent = parent, parent.parentWidget()
    return control.window().windowTitle()
