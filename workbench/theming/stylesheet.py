"""The look of the widgets: a palette and one compact style sheet, both made from the tokens."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from string import Template

from PySide6.QtCore import QTemporaryDir
from PySide6.QtGui import QColor, QFontMetrics, QPalette
from PySide6.QtWidgets import QApplication

from workbench.theming import fonts
from workbench.theming.icons import mixed
from workbench.theming.theme import Theme

# Shapes that a style sheet can only take from a file; paths in a 16 x 16 box.
_SHAPES = {
    "down": ("M4 6.5 8 10.5 12 6.5", "muted"),
    "up": ("M4 9.5 8 5.5 12 9.5", "muted"),
    "right": ("M6.5 4 10.5 8 6.5 12", "muted"),
    "check": ("M3.5 8.5 6.5 11.5 12.5 5", "on_accent"),
    "menu_check": ("M3.5 8.5 6.5 11.5 12.5 5", "text"),
}
_SVG = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="16" height="16" viewBox="0 0 16 16">'
    '<path d="{path}" fill="none" stroke="{colour}" stroke-width="1.6"'
    ' stroke-linecap="round" stroke-linejoin="round"/></svg>'
)

# Style of the widgets that contain the styled parts; the same in every theme.
CONTAINER = """
QMainWindow::separator { background: palette(window); width: 6px; height: 6px; }
QMainWindow::separator:hover { background: palette(highlight); }
"""

_LINE_PX, _ROOM_PX = 20, 6  # height of a field of one line: at least, and more than its text
_GAP_PX = 6  # beside an icon: Qt draws a button's text right at it
_MORE_PX = 4  # for an icon of the toolbar
_SHEET = Template("""
/* $font */
* { outline: 0; }
QDialog { background: $window; }
QToolTip { background: $raised; color: $text; border: 1px solid $line; padding: 4px 6px;
           qproperty-textFormat: PlainText; }
QLabel { qproperty-textFormat: PlainText; }
QLabel[markup="true"] { qproperty-textFormat: RichText; }

QMenuBar { background: $window; padding: 2px 4px; border-bottom: 1px solid $line; }
QMenuBar::item { padding: 4px 8px; border-radius: 4px; background: transparent; }
QMenuBar::item:selected { background: $raised; }
QMenu { background: $surface; border: 1px solid $line; padding: 4px; icon-size: ${icon_px}px; }
QMenu::item { padding: 5px 28px 5px 8px; border-radius: 4px; }
QMenu::item:selected { background: $hover; }
QMenu::item:disabled { color: $faint; }
QMenu::separator { height: 1px; background: $line; margin: 4px 8px; }
QMenu::icon { padding-left: 6px; }
QMenu::indicator { width: 16px; height: 16px; margin-left: 6px; }
QMenu::indicator:checked { image: url($menu_check); }
QMenu::right-arrow { image: url($right); width: 16px; height: 16px; }

QToolBar { background: $window; border: 0; border-bottom: 1px solid $line; spacing: 2px;
           padding: 4px 8px; }
QToolBar::separator { background: $line; width: 1px; margin: 5px 6px; }
QToolButton { background: transparent; border: 1px solid transparent; border-radius: 4px;
              padding: 4px 6px; color: $text; qproperty-iconSize: ${icon_px}px; }
QAbstractItemView { qproperty-iconSize: ${icon_px}px; }
QToolButton:hover { background: $raised; }
QToolButton:pressed, QToolButton:checked { background: $hover; }
QToolButton:focus { border-color: $accent; }
QToolButton:disabled { color: $faint; }
QToolButton::menu-indicator { image: none; }
QToolButton[toolButtonStyle="ToolButtonTextBesideIcon"] {
    qproperty-iconSize: ${wide_px}px ${icon_px}px; }
QToolButton[bare="true"] { padding: 2px 4px 2px 0; margin-left: -6px;
                           qproperty-iconSize: ${icon_px}px; }
QToolButton[bare="true"]:checked, QToolButton[bare="true"]:hover { background: transparent; }
QToolButton[small="true"] { padding: 1px 2px; }
QToolButton[primary="true"] { background: $accent; color: $on_accent; padding: 4px 10px; }
QToolButton[primary="true"]:hover { background: $accent_hover; }
QToolButton[primary="true"]:disabled { background: $raised; color: $faint; }

QToolBar, QToolBar QToolButton { qproperty-iconSize: ${toolbar_px}px; }
QToolBar QToolButton[primary="true"] { qproperty-iconSize: ${run_px}px ${toolbar_px}px; }

QDialogButtonBox { dialogbuttonbox-buttons-have-icons: 0; }
QPushButton { background: $raised; border: 1px solid $line; border-radius: 4px;
              padding: 4px 12px; min-height: 16px; }
QPushButton::menu-indicator { image: none; }
QPushButton:hover { background: $hover; }
QPushButton:pressed { background: $line; }
QPushButton:focus { border-color: $accent; }
QPushButton:disabled { color: $faint; background: $surface; }
QPushButton[primary="true"] { background: $accent; color: $on_accent; border-color: $accent; }
QPushButton[primary="true"]:hover { background: $accent_hover; }
QPushButton[compact="true"] { padding: 1px 8px; min-height: 14px; }
QPushButton:checked { background: $hover; border-color: $muted; }
QPushButton[link="true"] { background: transparent; border: 0; padding: 2px 0; color: $accent;
                           text-align: left; }
QPushButton[link="true"]:hover { text-decoration: underline; }

QToolButton[segment] { background: $field; border: 1px solid $line; border-radius: 0;
                       padding: 2px 10px; min-height: ${segment_px}px; color: $muted; }
QToolButton[segment="first"] { border-top-left-radius: 4px; border-bottom-left-radius: 4px; }
QToolButton[segment="middle"] { border-left: 0; }
QToolButton[segment="last"] { border-left: 0; border-top-right-radius: 4px;
                              border-bottom-right-radius: 4px; }
QToolButton[segment][dense="true"] { padding: 1px 10px; }
QToolButton[segment]:hover { background: $raised; color: $text; }
QToolButton[segment]:checked { background: $hover; color: $text; }
QToolButton[segment][strong="true"]:checked { background: $accent; color: $on_accent;
                                              border-color: $accent; }
QToolButton[segment]:disabled { color: $faint; background: $surface; }
QToolButton[segment]:focus { border-color: $accent; }

QLineEdit, QSpinBox, QDoubleSpinBox, QComboBox, QPlainTextEdit {
    background: $field; border: 1px solid $line; border-radius: 4px; padding: 2px 6px;
    min-height: ${line_px}px; selection-background-color: $accent; selection-color: $on_accent; }
QLineEdit, QComboBox, QPlainTextEdit { placeholder-text-color: $muted; }
QLineEdit:disabled, QComboBox:disabled { placeholder-text-color: $faint; }
QLineEdit:hover, QSpinBox:hover, QDoubleSpinBox:hover, QComboBox:hover { border-color: $muted; }
QLineEdit:focus, QSpinBox:focus, QDoubleSpinBox:focus, QComboBox:focus, QPlainTextEdit:focus {
    border-color: $accent; }
QLineEdit:disabled, QSpinBox:disabled, QDoubleSpinBox:disabled, QComboBox:disabled {
    color: $faint; background: $surface; }
QLineEdit, QSpinBox, QDoubleSpinBox, QComboBox { max-height: ${line_px}px; }
QComboBox { padding-right: 2px; }
QComboBox[dense="true"] { padding: 0 2px 0 6px; min-height: ${line_px}px;
    max-height: ${line_px}px; }
QComboBox[strong="true"] { border-color: $accent; }
QComboBox::drop-down { border: 0; width: ${wide_px}px; }
QComboBox::down-arrow { image: url($down); width: ${icon_px}px; height: ${icon_px}px; }
QComboBox QAbstractItemView { background: $surface; border: 1px solid $line; padding: 4px;
    selection-background-color: $hover; selection-color: $text; }
QComboBox QAbstractItemView::item { min-height: 24px; padding: 0 6px; border-radius: 4px; }
QComboBox QAbstractItemView::item:selected { background: $hover; color: $text; }
QComboBox QAbstractItemView::item:disabled { color: $faint; }
QSpinBox::up-button, QDoubleSpinBox::up-button { border: 0; width: ${icon_px}px;
    subcontrol-position: top right; }
QSpinBox::down-button, QDoubleSpinBox::down-button { border: 0; width: ${icon_px}px;
    subcontrol-position: bottom right; }
QSpinBox::up-arrow, QDoubleSpinBox::up-arrow { image: url($up); width: ${arrow_px}px;
    height: ${arrow_px}px; }
QSpinBox::down-arrow, QDoubleSpinBox::down-arrow { image: url($down); width: ${arrow_px}px;
    height: ${arrow_px}px; }
QCheckBox { spacing: 6px; }
QListWidget::item:disabled { color: $muted; }  /* it says why */
QCheckBox::indicator, QListWidget::indicator {
    width: ${icon_px}px; height: ${icon_px}px;
    border: 1px solid $muted; border-radius: 3px; background: $field; }
QCheckBox::indicator:checked, QListWidget::indicator:checked {
    background: $accent; border-color: $accent; image: url($check); }
QCheckBox::indicator:focus { border-color: $accent; }
QComboBox[strong="true"]:focus, QToolButton[primary="true"]:focus,
QPushButton[primary="true"]:focus,
QToolButton[segment][strong="true"]:checked:focus, QCheckBox::indicator:checked:focus {
    border-color: $text; }
QPushButton[link="true"]:focus { text-decoration: underline; }

QTabBar { background: $window; qproperty-drawBase: 0; }
QAbstractScrollArea::corner { background: transparent; border: 0; }
QTabBar::tab { background: $window; color: $muted; padding: 5px 12px; border: 0;
               border-bottom: 2px solid transparent; }
QTabBar::tab:hover { color: $text; }
QTabBar QToolButton { padding: 0; }
QTabBar::tab:selected { color: $text; border-bottom-color: $accent; }
QTabBar::tab:selected:focus { background: $hover; border-bottom-color: $text; }
QWidget[panel="true"], QScrollArea[panel="true"] { background: $surface; border: 0; }
QWidget[dock_title="true"] { background: $window; }
QLabel[muted="true"] { color: $muted; }
QLabel[faint="true"] { color: $faint; }
QLabel[tone="good"] { color: $good; }
QLabel[tone="warning"] { color: $warning; }
QLabel[tone="bad"] { color: $bad; }
QLabel[tone="accent"] { color: $accent; }
QFrame[rule="true"] { background: $line; border: 0; max-height: 1px; min-height: 1px; }
QFrame[banner="true"] { background: $surface; border: 1px solid $line; border-left: 4px solid $line;
                        border-radius: 4px; }
QFrame[banner="true"][tone="bad"] { border-left-color: $bad; }
QFrame[banner="true"][tone="warning"] { border-left-color: $warning; }
QFrame[banner="true"][tone="info"] { border-left-color: $accent; }
QFrame[spotlight="true"] { background: transparent; border: 2px solid $accent; border-radius: 6px; }
QTextBrowser { background: $surface; border: 1px solid $line; border-radius: 4px; padding: 8px; }
QFrame[popup="true"] { background: $surface; border: 1px solid $muted; border-radius: 6px; }

QTableView, QTreeView, QListView { background: $surface; gridline-color: $grid;
    border: 1px solid transparent;
    alternate-background-color: $stripe; selection-background-color: $selection;
    selection-color: $text; }
QTableView:focus, QTreeView:focus, QListView:focus { border-color: $accent; }
QTableView::item { padding: 0 8px; }
QHeaderView { background: $surface; }
QHeaderView::section { background: $surface; color: $muted; border: 0;
    border-bottom: 1px solid $line; padding: 4px 8px; }
QTableCornerButton::section { background: $surface; border: 0; }

QScrollBar { background: transparent; }
QScrollBar:vertical { width: 10px; margin: 0; }
QScrollBar:horizontal { height: 10px; margin: 0; }
QScrollBar::handle { background: $line; border-radius: 3px; margin: 2px; }
QScrollBar::handle:vertical { min-height: 32px; }
QScrollBar::handle:horizontal { min-width: 32px; }
QScrollBar::handle:hover { background: $muted; }
QScrollBar::add-line, QScrollBar::sub-line { width: 0; height: 0; }
QScrollBar::add-page, QScrollBar::sub-page { background: transparent; }

QStatusBar { background: $window; border-top: 1px solid $line; color: $muted; }
QStatusBar::item { border: 0; }
QProgressBar { background: $raised; border: 0; border-radius: 3px; max-height: 6px; }
QProgressBar::chunk { background: $accent; border-radius: 3px; }
""")


def palette(theme: Theme) -> QPalette:
    """Return the tokens as Qt's colour roles, for what the style sheet does not reach."""
    roles = QPalette.ColorRole
    colours = {
        roles.Window: theme.window,
        roles.WindowText: theme.text,
        roles.Base: theme.surface,
        roles.AlternateBase: theme.raised,
        roles.Text: theme.text,
        roles.PlaceholderText: theme.muted,
        roles.Button: theme.raised,
        roles.ButtonText: theme.text,
        roles.BrightText: theme.bad,
        roles.Highlight: theme.accent,
        roles.HighlightedText: theme.on_accent,
        roles.Link: theme.accent,
        roles.LinkVisited: theme.accent,
        roles.ToolTipBase: theme.raised,
        roles.ToolTipText: theme.text,
        roles.Light: theme.raised,
        roles.Midlight: theme.raised,
        roles.Mid: theme.line,
        roles.Dark: theme.line,
        roles.Shadow: theme.window,
        roles.Accent: theme.accent,
    }
    made = QPalette()
    for role, colour in colours.items():
        made.setColor(role, QColor(colour))
    faint = QColor(_faint(theme))
    for role in (roles.WindowText, roles.Text, roles.ButtonText):
        made.setColor(QPalette.ColorGroup.Disabled, role, faint)
    return made


def sheet(theme: Theme) -> str:
    """Return the style sheet in one theme's colours, for the application's font.

    It differs for every font size: widgets with a style sheet adopt another font of the
    application only together with another style sheet.
    """
    font = QApplication.font()
    line_px = max(_LINE_PX, QFontMetrics(font).height() + _ROOM_PX)
    return _sheet(theme, font.key(), line_px, fonts.icon_px(font))


@cache
def _sheet(theme: Theme, font: str, line_px: int, icon_px: int) -> str:
    tokens = {
        "font": font,
        "line_px": str(line_px),
        "segment_px": str(line_px - 2),  # as high as a field with its padding
        "icon_px": str(icon_px),
        "arrow_px": str(icon_px * 10 // 14),  # two of them are as high as a field
        "wide_px": str(icon_px + _GAP_PX),
        "run_px": str(icon_px + _MORE_PX + _GAP_PX),
        "toolbar_px": str(icon_px + _MORE_PX),
        "hover": mixed(theme.text, theme.raised, 0.10),
        "faint": _faint(theme),
        "field": mixed(theme.raised, theme.surface, 0.45),
        "grid": mixed(theme.line, theme.surface, 0.5),
        "stripe": mixed(theme.raised, theme.surface, 0.35),
        "selection": mixed(theme.accent, theme.surface, 0.28),
        "accent_hover": mixed(theme.text, theme.accent, 0.15),
    }
    plain = {name: value for name, value in vars(theme).items() if isinstance(value, str)}
    return _SHEET.substitute(plain, **tokens, **_shapes(theme))


def _faint(theme: Theme) -> str:
    return mixed(theme.muted, theme.surface, 0.6)


@cache
def _folder() -> QTemporaryDir:
    return QTemporaryDir()


def _shapes(theme: Theme) -> dict[str, str]:
    paths = {}
    for name, (path, role) in _SHAPES.items():
        file = Path(_folder().path()) / f"{theme.name}-{name}.svg"
        file.write_text(_SVG.format(path=path, colour=getattr(theme, role)))
        paths[name] = file.as_posix()
    return paths
