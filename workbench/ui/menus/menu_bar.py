"""Menus whose content changes: recent files, journals, presets, sets, themes; and dropped files."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from PySide6.QtCore import QMimeData
from PySide6.QtGui import QAction
from PySide6.QtWidgets import QMenu

from sessions.plain_text import for_menu
from sessions.tracing.files import is_foreign
from workbench.titles import distinct_files
from workbench.ui.controllers.appearance import CHOICES
from workbench.ui.controllers.runs import Runs
from workbench.ui.controllers.verdicts import Verdicts
from workbench.ui.dialogs import message_boxes, session_dialogs
from workbench.ui.menus import preset_menu
from workbench.ui.menus.action_set import ActionSet
from workbench.ui.panel_window import PanelWindow
from workbench.ui.state import config_edit, session_files

SHARES = (0.0, 0.02, 0.05, 0.1, 0.2)  # shares of a run's time
BUILD_COUNTS = (0, 1, 3, 5, 10)
MODEL_SUFFIX = ".py"  # the file of a user's model
SUFFIXES = (".h5", ".hdf5", ".journal")


def add_dynamic(window: PanelWindow, actions: ActionSet) -> None:
    """Add the submenus that are filled whenever they open."""
    top, save = actions.menus, actions["save"]
    _submenu(top["File"], "Open recent", lambda menu: _recent(window, menu), save)
    _submenu(top["File"], "Recover journal", lambda menu: _journals(window, menu), save)
    _submenu(top["Run"], "Preset", lambda menu: _presets(window, menu))
    _submenu(top["Run"], "Saved configurations", lambda menu: _configurations(window, menu))
    workspace = window.workspace
    _submenu(
        top["Run"], "Toggle sets", lambda menu: preset_menu.fill(menu, workspace.presets, window)
    )
    _submenu(top["Run"], "Background pairing", lambda menu: _pairing_shares(workspace.runs, menu))
    _submenu(
        top["Run"], "Builds of a verdict", lambda menu: _build_counts(workspace.verdicts, menu)
    )
    top["View"].addSeparator()
    for dock in window.dock_area.docks.values():
        top["View"].addAction(dock.toggleViewAction())
    _submenu(top["View"], "Theme", lambda menu: _themes(window, menu))
    _submenu(top["View"], "Layouts", lambda menu: _layouts(window, menu))


def dropped(data: QMimeData) -> list[Path]:
    """Return the dragged files that the window can open."""
    paths = [Path(url.toLocalFile()) for url in data.urls() if url.isLocalFile()]
    return [
        path
        for path in paths
        if path.suffix.lower() in (*SUFFIXES, MODEL_SUFFIX) or is_foreign(path)
    ]


def _submenu(
    menu: QMenu, title: str, fill: Callable[[QMenu], None], before: QAction | None = None
) -> None:
    submenu = QMenu(title, menu)
    submenu.setToolTipsVisible(True)
    if before is None:
        menu.addMenu(submenu)
    else:
        menu.insertMenu(before, submenu)

    def refill() -> None:
        submenu.clear()
        fill(submenu)
        if submenu.isEmpty():
            _item(submenu, "None", lambda: None)
            submenu.actions()[0].setEnabled(False)

    submenu.aboutToShow.connect(refill)


def _recent(window: PanelWindow, menu: QMenu) -> None:
    paths = window.settings.recent
    for path, name in zip(paths, distinct_files(paths), strict=True):
        _item(menu, name, partial(window.open_path, path), tip=str(path))


def _journals(window: PanelWindow, menu: QMenu) -> None:
    for path in session_files.recoverable():
        _item(menu, path.name, partial(window.workspace.session.open, path), tip=str(path))


def _presets(window: PanelWindow, menu: QMenu) -> None:
    configuration = window.workspace.configuration
    catalogue, edited = configuration.catalogue, configuration.edited
    if catalogue is None or edited is None:
        return
    for name in config_edit.family_of(catalogue, edited.family).presets:
        chosen = name == edited.preset and not edited.model
        _item(menu, name, partial(window.choose_preset, name), chosen)


def _configurations(window: PanelWindow, menu: QMenu) -> None:
    configuration = window.workspace.configuration
    catalogue = configuration.catalogue
    if catalogue is None or configuration.edited is None:
        return
    for name, preset in window.settings.presets.items():
        missing = config_edit.missing(catalogue, preset)
        tip = f"The runner has no {missing}." if missing else ""
        use = partial(configuration.edit, config_edit.adopt(catalogue, preset))
        _item(menu, name, use, tip=tip).setEnabled(not missing)
    menu.addSeparator()
    save = partial(session_dialogs.save_preset, window, configuration, window.settings)
    _item(menu, "Save this configuration …", save)


def _pairing_shares(runs: Runs, menu: QMenu) -> None:
    """Offer shares of a run's time for measuring its baseline again."""
    for share in dict.fromkeys((*SHARES, runs.pairing_share)):
        text = f"{100 * share:g} % of the time" if share else "Off"
        tip = (
            "After a toggle, return to the baseline in short blocks, for a paired ratio"
            if share
            else "Ratios to the baseline stay unpaired until a verdict is measured"
        )
        choose = partial(runs.set_pairing_share, share)
        _item(menu, text, choose, share == runs.pairing_share, tip)


def _build_counts(verdicts: Verdicts, menu: QMenu) -> None:
    """Offer numbers of builds of both configurations for a verdict."""
    tips = {0: "Several builds if building is cheap for the budget, else a single build",
            1: "The interval holds for the two measured builds, not for others"}  # fmt: skip
    several = "The interval includes differences between builds of the same configuration"
    for count in dict.fromkeys((*BUILD_COUNTS, verdicts.build_count)):
        text = str(count) if count else "Automatic"
        choose = partial(verdicts.set_build_count, count)
        _item(menu, text, choose, count == verdicts.build_count, tips.get(count, several))


def _layouts(window: PanelWindow, menu: QMenu) -> None:
    """Offer to restore, save and delete layouts."""
    names = window.settings.named_layouts
    for name in names:
        _item(menu, name, partial(window.restore_layout, name))
    menu.addSeparator()
    _item(menu, "Save layout as …", partial(_save_layout, window))
    if names:
        delete = menu.addMenu("Delete")
        for name in names:
            _item(delete, name, partial(window.settings.delete_named_layout, name))


def _save_layout(window: PanelWindow) -> None:
    """Ask for a name and save the layout of the panels under it."""

    def save_under(name: str) -> None:
        window.settings.save_named_layout(name, window.dock_area.save_layout())

    message_boxes.ask(window, "Save layout", "Name of the layout", "", save_under)


def _themes(window: PanelWindow, menu: QMenu) -> None:
    for name in CHOICES:
        chosen = name == window.appearance.choice
        _item(menu, name.capitalize(), partial(window.set_theme, name), chosen)


def _item(
    menu: QMenu, text: str, act: Callable[[], None], checked: bool | None = None, tip: str = ""
) -> QAction:
    action = QAction(for_menu(text), menu)
    action.setToolTip(tip)
    if checked is not None:
        action.setCheckable(True)
        action.setChecked(checked)
    action.triggered.connect(lambda: act())
    menu.addAction(action)
    return action
