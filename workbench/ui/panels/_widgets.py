"""Parts that several panels are made of: headings, notes, rules, columns, budgets."""

from __future__ import annotations

import re
from functools import partial
from typing import Protocol, TypeVar

from PySide6.QtCore import QCoreApplication, QEvent, QObject, QSize, Qt
from PySide6.QtGui import QIcon, QResizeEvent
from PySide6.QtWidgets import (
    QAbstractButton,
    QFrame,
    QHBoxLayout,
    QLabel,
    QLayout,
    QPushButton,
    QScrollArea,
    QSizePolicy,
    QStyle,
    QToolButton,
    QVBoxLayout,
    QWidget,
)

from sessions.plain_text import NO_BREAK, clip, unbroken, wrapped
from workbench.theming import fonts
from workbench.theming.icons import icon
from workbench.theming.theme import Theme
from workbench.ui.panels._editors import NoWheelDoubleSpinBox

_Layout = TypeVar("_Layout", bound=QLayout)

BRIEF = 140  # characters, about three lines of the toggles' panel
_SNUG_LINES = 4  # lines of a scrolling body that stay visible
_SNUG_EVENTS = (
    QEvent.Type.LayoutRequest,
    QEvent.Type.ShowToParent,
    QEvent.Type.HideToParent,
)
_ENDS = (re.compile(r"[;.] "), re.compile(r"[:,] "), re.compile(" "))  # the best first


class Budgeted(Protocol):
    """Controller whose measurement lasts as long as its budget."""

    budget_s: float


class OneLine(QLabel):
    """A line that is elided where there is no room for it; pointing at it then shows all of it.

    ``tip`` explains the line and is shown in any case.
    """

    def __init__(
        self, elide: Qt.TextElideMode = Qt.TextElideMode.ElideMiddle, tip: str = ""
    ) -> None:
        super().__init__()
        self.setTextFormat(Qt.TextFormat.PlainText)
        self._elide, self._tip = elide, tip
        self._whole = ""

    def say(self, text: str, tip: str | None = None) -> None:
        """Show this text; replace the tip unless it is None."""
        self._whole = clip(text)
        self._tip = self._tip if tip is None else tip
        self.updateGeometry()
        self._elide_text()

    def sizeHint(self) -> QSize:
        """Return the width of the complete text."""
        margins = self.contentsMargins()
        width = self.fontMetrics().horizontalAdvance(self._whole) + 2
        width += margins.left() + margins.right()
        return QSize(width, super().sizeHint().height())

    def minimumSizeHint(self) -> QSize:
        """Return no width: the widgets beside it come first."""
        return QSize(0, super().minimumSizeHint().height())

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Show as much of it as there is room for."""
        super().resizeEvent(event)
        self._elide_text()

    def _elide_text(self) -> None:
        room = self.contentsRect().width()
        shown = self.fontMetrics().elidedText(self._whole, self._elide, room)
        self.setText(shown)
        full = "" if shown == self._whole else self._whole
        self.setToolTip(wrapped("\n".join(filter(None, (full, self._tip)))))


class WrappedText(QLabel):
    """A text of several lines; no line ends between a number and its unit."""

    def __init__(self, text: str = "") -> None:
        super().__init__()
        self.setWordWrap(True)
        self.setText(text)

    def setText(self, text: str) -> None:
        """Show this text."""
        super().setText(unbroken(text))

    def text(self) -> str:
        """Return the text with ordinary spaces."""
        return super().text().replace(NO_BREAK, " ")


class Mark(QLabel):
    """An icon that is as high as its type."""

    def __init__(self) -> None:
        super().__init__()
        self._icon = QIcon()
        fonts.follow(self, self._draw)

    def show_icon(self, name: str, theme: Theme, role: str) -> None:
        """Show the icon for a purpose in a colour of the theme."""
        self._icon = icon(name, theme, role)
        self._draw()

    def _draw(self) -> None:
        side = fonts.icon_px(self.font())
        self.setFixedSize(side, side)
        self.setPixmap(self._icon.pixmap(side, side))


def heading(text: str) -> QLabel:
    """Return a label with the name of a group of controls."""
    label = QLabel(text)
    label.setProperty("muted", True)
    label.setFont(fonts.heading())
    return label


def title() -> QLabel:
    """Return a label for the sentence at the head of a panel: its result."""
    label = WrappedText()
    label.setFont(fonts.title())
    return label


def muted(text: str) -> QLabel:
    """Return a label with the name of a control, for the place beside it."""
    label = QLabel(text)
    label.setProperty("muted", True)
    return label


def note(text: str = "", tone: str = "") -> QLabel:
    """Return a label of small wrapped text; ``tone`` is ``good``, ``warning``, ``bad``, or none."""
    label = WrappedText(text)
    label.setProperty("tone" if tone else "muted", tone or True)
    label.setFont(fonts.small())
    label.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
    policy = QSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Minimum)
    policy.setHeightForWidth(True)  # a policy of its own would forget that it is wrapped
    label.setSizePolicy(policy)
    return label


def brief_note(text: str, tone: str = "") -> QLabel:
    """Return a note shortened to ``BRIEF`` characters; its tool tip shows the complete text."""
    label = note(text, tone)
    if len(text) > BRIEF:
        ends = ([match.start() for match in kind.finditer(text, 0, BRIEF)] for kind in _ENDS)
        end = next((max(at) for at in ends if at and max(at) > BRIEF / 3), BRIEF)
        label.setText(f"{text[:end]} …")
        label.setToolTip(wrapped(text))
    return label


def set_tone(label: QLabel, tone: str) -> None:
    """Colour a label by its meaning: ``good``, ``warning``, ``bad``, ``accent``, or none."""
    if label.property("tone") != tone:
        label.setProperty("tone", tone)
        label.style().unpolish(label)
        label.style().polish(label)


def marked(label: QLabel, name: str, theme: Theme, role: str) -> QWidget:
    """Return a note with an icon, because colour alone must not carry the meaning."""
    row = QWidget()
    layout = tight(QHBoxLayout(row), spacing=6)
    mark = Mark()
    mark.show_icon(name, theme, role)
    layout.addWidget(mark, 0, Qt.AlignmentFlag.AlignTop)
    layout.addWidget(label, 1)
    return row


def rule() -> QFrame:
    """Return a thin line between groups."""
    frame = QFrame()
    frame.setProperty("rule", True)
    return frame


def button(text: str = "") -> QPushButton:
    """Return a button that the Return key presses too: Qt does that only in dialogs."""
    push_button = QPushButton(text)
    push_button.setAutoDefault(True)
    return push_button


def link(text: str) -> QPushButton:
    """Return a button that looks like a link."""
    link_button = button(text)
    link_button.setProperty("link", True)
    link_button.setCursor(Qt.CursorShape.PointingHandCursor)
    return link_button


def compact(text: str) -> QPushButton:
    """Return a button that fits into a line of small text."""
    compact_button = button(text)
    compact_button.setProperty("compact", True)
    compact_button.setFont(fonts.small())
    compact_button.setSizePolicy(QSizePolicy.Policy.Fixed, QSizePolicy.Policy.Fixed)
    return compact_button


def allow(button: QAbstractButton, why_not: str, tip: str = "") -> None:
    """Enable a button with ``tip``, or disable it with the reason ``why_not`` as its tool tip."""
    button.setEnabled(not why_not)
    button.setToolTip(why_not or tip)


def budget_box(controller: Budgeted, most_s: float, tip: str) -> NoWheelDoubleSpinBox:
    """Return a box for seconds that sets ``controller.budget_s``."""
    box = NoWheelDoubleSpinBox()
    box.setRange(1, most_s)
    box.setDecimals(0)
    box.setSuffix(" s")
    box.setValue(controller.budget_s)
    box.setToolTip(tip)
    box.setAccessibleName("Budget in seconds")
    box.valueChanged.connect(partial(setattr, controller, "budget_s"))
    return box


def expander(text: str, theme: Theme, body: QWidget) -> QToolButton:
    """Return a button that shows and hides ``body``, which starts hidden."""
    button = QToolButton()
    button.setText(text)
    button.setCheckable(True)
    button.setProperty("bare", True)
    button.setToolButtonStyle(Qt.ToolButtonStyle.ToolButtonTextBesideIcon)
    button.setIcon(icon("closed", theme, "muted"))
    body.setVisible(False)

    def toggled(opened: bool) -> None:
        body.setVisible(opened)
        button.setIcon(icon("opened" if opened else "closed", theme, "muted"))

    button.toggled.connect(toggled)
    return button


def tight(layout: _Layout, spacing: int = 8, margin: int = 0) -> _Layout:
    """Return the layout with the window's spacing and margins instead of the style's."""
    layout.setSpacing(spacing)
    layout.setContentsMargins(margin, margin, margin, margin)
    return layout


def inset(label: QLabel, above: int, below: int) -> QVBoxLayout:
    """Return a layout with margins around a widget.

    Qt removes a label's own margins if the label has no room when the style sheet changes.
    """
    layout = tight(QVBoxLayout(), 0)
    layout.setContentsMargins(12, above, 12, below)
    layout.addWidget(label)
    return layout


def surface() -> QWidget:
    """Return an empty page with a panel's background."""
    page = QWidget()
    page.setProperty("panel", True)
    page.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
    return page


def head(*rows: QWidget | QLayout, below: int = 8) -> QVBoxLayout:
    """Return the lines at the head of a panel, ``below`` pixels above its content."""
    layout = tight(QVBoxLayout(), 4)
    layout.setContentsMargins(12, 8, 12, below)
    for row in rows:
        if isinstance(row, QWidget):
            layout.addWidget(row)
        else:
            layout.addLayout(row)
    return layout


def named(text: str, control: QWidget) -> QWidget:
    """Return a control behind its name."""
    pair = QWidget()
    row = tight(QHBoxLayout(pair))
    row.addWidget(muted(text))
    row.addWidget(control, 1)
    return pair


class _Body(QWidget):
    """Body that is as high as its width needs, not as its layout's narrowest lines need."""

    def minimumSizeHint(self) -> QSize:
        least = super().minimumSizeHint()
        return QSize(least.width(), 0) if self.hasHeightForWidth() else least


def scrolled(body: QWidget) -> QScrollArea:
    """Return a scroll area for a body that may be higher than a small window."""
    area = QScrollArea()
    area.setProperty("panel", True)
    area.setWidgetResizable(True)
    area.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
    area.setWidget(body)
    return area


def area_of(widget: QWidget) -> QScrollArea | None:
    """Return the area that the widget scrolls in, if there is one."""
    above = widget.parentWidget()
    while above is not None and not isinstance(above, QScrollArea):
        above = above.parentWidget()
    return above


class FittedScrollArea(QScrollArea):
    """Scroll area that is as high as its body needs at this width, if there is room."""

    def __init__(self, body: QWidget, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setProperty("panel", True)
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setWidgetResizable(True)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Maximum)
        self._held = _Body()
        tight(QVBoxLayout(self._held), 0).addWidget(body)
        self.setWidget(self._held)

    def sizeHint(self) -> QSize:
        """Return the body's height at the current width; 0 while it is hidden.

        Beside a scroll bar the body needs more, without which Qt would keep the bar.
        """
        body, width = self._held, self.viewport().width()
        wrapped = body.hasHeightForWidth()
        height = body.heightForWidth(width) if wrapped else body.sizeHint().height()
        return QSize(body.sizeHint().width(), height)

    def minimumSizeHint(self) -> QSize:
        """Return the height of a few lines, or of the body if that is less."""
        least = min(_SNUG_LINES * self.fontMetrics().height(), self.sizeHint().height())
        return QSize(0, least)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        """Ask for another height when the body has other lines, or comes and goes."""
        is_wider = (
            isinstance(event, QResizeEvent) and event.oldSize().width() != event.size().width()
        )
        if is_wider or event.type() in _SNUG_EVENTS:
            self.updateGeometry()
        return super().eventFilter(watched, event)

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Another width needs another height."""
        super().resizeEvent(event)
        if event.oldSize().width() != event.size().width():
            self.updateGeometry()


def column(host: QWidget) -> QVBoxLayout:
    """Fill ``host`` with a scrolling column of controls and return its layout."""
    body = _Body()
    body.setProperty("panel", True)
    outer = tight(QVBoxLayout(host), 0)
    outer.addWidget(scrolled(body))
    inner = QVBoxLayout(body)
    inner.setContentsMargins(12, 8, 12, 12)
    inner.setSpacing(8)
    return inner


class FormColumn(QWidget):
    """Scrolling column of controls of fixed width.

    It is ``width`` pixels wide in small type, and ``growth`` times as much wider as larger type is.
    It is never narrower than its controls, which the column would cut off.
    """

    def __init__(self, width: int, growth: float) -> None:
        super().__init__()
        self._width, self._growth = width, growth
        self.rows = column(self)
        self._body = self.rows.parentWidget()
        self._body.installEventFilter(self)
        fonts.follow(self, self._fit)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        """Follow the controls, which need more room with other texts or in larger type."""
        if event.type() == QEvent.Type.LayoutRequest:
            self._fit()
        return super().eventFilter(watched, event)

    def _fit(self) -> None:
        bar = self.style().pixelMetric(QStyle.PixelMetric.PM_ScrollBarExtent)
        needed = self._body.minimumSizeHint().width() + bar
        self.setFixedWidth(max(needed, fonts.in_type(self._width, self.font(), self._growth)))


def settle(widget: QWidget) -> None:
    """Lay out a changed widget at once, instead of in a later turn of the event loop.

    Qt asks one layout after the other, from the inside. Before the outermost layout has answered, a
    new widget in a ``FittedScrollArea`` without height has no height, and a click misses it.
    """
    above: QWidget | None = widget
    areas = []
    while above is not None:
        layout = above.layout()
        if layout is None:
            above.updateGeometry()
        else:
            layout.activate()
        if isinstance(above, QScrollArea):
            areas.append(above)
        above = above.parentWidget()
    for area in areas:  # an area of unchanged height updates its scroll range
        QCoreApplication.sendEvent(area, QEvent(QEvent.Type.LayoutRequest))


def discard(widget: QWidget) -> None:
    """Remove a widget from the window and delete it; it disappears at once.

    Hide it first: a widget that its layout was about to show would appear as a separate window and
    get the keyboard focus.
    """
    widget.hide()
    widget.setParent(None)
    widget.deleteLater()


def clear(layout: QLayout) -> None:
    """Remove and delete everything in a layout."""
    while item := layout.takeAt(0):
        if widget := item.widget():
            discard(widget)
        elif inner := item.layout():
            clear(inner)
            inner.deleteLater()
