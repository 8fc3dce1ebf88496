"""The menu of toggle sets, and its dialogs."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

from PySide6.QtGui import QAction
from PySide6.QtWidgets import QFileDialog, QMenu, QWidget

from sessions.plain_text import for_menu
from workbench.presets import SUFFIX
from workbench.ui.controllers.presets import Presets
from workbench.ui.dialogs import message_boxes

FILTER = f"Toggle sets (*{SUFFIX})"


def fill(menu: QMenu, presets: Presets, host: QWidget) -> None:
    """Fill a menu with toggle sets and their actions; ``host`` is the parent of dialogs."""
    menu.clear()
    for old in menu.findChildren(QMenu):
        old.deleteLater()
    why_not = presets.why_not()
    menu.setToolTipsVisible(True)
    for preset in presets.offered:
        _item(menu, preset.title, partial(presets.apply, preset), preset.help, why_not)
    menu.addSeparator()
    for name in presets.own:
        _fill_own(menu.addMenu(for_menu(name)), presets, host, name)
    menu.addSeparator()
    _item(menu, "Save these toggles as a set …", partial(ask_to_save, presets, host), "", why_not)
    _item(menu, "Add toggle sets of a file …", partial(ask_to_add, presets, host))


def ask_to_save(presets: Presets, host: QWidget) -> None:
    """Ask for a name and save the toggles as a toggle set."""
    message_boxes.ask(host, "Save toggles", "Name of the toggle set", "", presets.save)


def ask_to_add(presets: Presets, host: QWidget) -> None:
    """Ask for a file and add its toggle sets."""
    name, _ = QFileDialog.getOpenFileName(host, "Add toggle sets", message_boxes.folder(), FILTER)
    if name:
        presets.import_file(Path(name))


def ask_to_share(presets: Presets, host: QWidget, name: str) -> None:
    """Ask for a file and write one of the user's toggle sets there."""
    slug = re.sub(r"[^\w.-]+", "-", name).strip("-").lower() or "toggles"
    suggestion = str(Path(message_boxes.folder()) / f"{slug}{SUFFIX}")
    path = message_boxes.file_to_write(host, "Share a toggle set", suggestion, {SUFFIX: FILTER})
    if path is not None:
        presets.export_file(name, path)


def _fill_own(menu: QMenu, presets: Presets, host: QWidget, name: str) -> None:
    def rename() -> None:
        message_boxes.ask(host, "Rename toggle set", "Name", name, partial(presets.rename, name))

    _item(menu, "Apply", partial(presets.apply_own, name), "", presets.why_not())
    menu.addSeparator()
    _item(menu, "Rename …", rename)
    _item(menu, "Share as a file …", partial(ask_to_share, presets, host, name))
    _item(menu, "Delete", partial(presets.remove, name))


def _item(
    menu: QMenu, text: str, act: Callable[[], None], tip: str = "", why_not: str = ""
) -> None:
    action = QAction(for_menu(text), menu)
    action.setToolTip("\n".join(filter(None, (tip, why_not))))
    action.setEnabled(not why_not)
    action.triggered.connect(lambda: act())
    menu.addAction(action)
