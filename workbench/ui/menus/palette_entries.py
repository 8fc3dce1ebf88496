"""The entries of the command palette: actions, preferences, panels, choices and submenus."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from PySide6.QtGui import QAction
from PySide6.QtWidgets import QMenu

from sessions.model import Configuration
from workbench.protocol import Catalogue
from workbench.theming.icons import icon
from workbench.ui.controllers.appearance import CHOICES
from workbench.ui.menus.action_set import ActionSet
from workbench.ui.menus.actions import ACTIONS
from workbench.ui.menus.palette import Entry
from workbench.ui.panel_window import PanelWindow
from workbench.ui.state import config_edit
from workbench.ui.state.configuration import ConfigurationModel

_CHOSEN = "Already chosen."
# Words that a person may type for a preference, by its title.
PREFERENCES = {
    "Font size": "text larger smaller zoom scale points",
    "Theme": "colour color",
    "Memory units": "GiB GB bytes binary decimal",
    "Default folder": "directory path files",
    "Budget": "seconds time of verdicts",
    "Same within": "region difference threshold of verdicts",
    "Background pairing": "baseline share",
    "Shortcuts": "keys hotkeys bindings",
}
# Submenus whose items have no entries of their own.
_SUBMENUS = ("Open recent", "Recover journal", "Saved configurations", "Background pairing",
             "Builds of a verdict", "Layouts")  # fmt: skip


def list_entries(window: PanelWindow, actions: ActionSet) -> list[Entry]:
    """Return the entries as they are now, without the items of submenus."""
    return [
        *_actions(window, actions),
        *_preferences(window),
        *_themes(window),
        *_panels(window),
        *_options(window),
        *_models(window),
        *_toggle_sets(window),
    ]


def list_submenus(window: PanelWindow, actions: ActionSet) -> list[Entry]:
    """Return the items of submenus, which may read files: once for each use of the palette."""
    parts = [part.menu() for menu in actions.menus.values() for part in menu.actions()]
    submenus = [menu for menu in parts if isinstance(menu, QMenu) and menu.title() in _SUBMENUS]
    image = icon("palette", window.workspace.theme.current)
    entries = []
    for submenu in submenus:
        submenu.aboutToShow.emit()
        for action in submenu.actions():
            if action.text() and action.menu() is None and (action.isEnabled() or action.toolTip()):
                text = f"{submenu.title()}: {action.text().replace('&&', '&')}"
                why_not = _why_not(action)
                entries.append(Entry(text, action.trigger, image, "", why_not, action.toolTip()))
    return entries


def _why_not(action: QAction) -> str:
    if action.isChecked():
        return _CHOSEN
    return "" if action.isEnabled() else action.toolTip()


def _actions(window: PanelWindow, actions: ActionSet) -> Iterator[Entry]:
    workspace = window.workspace
    for action in ACTIONS:
        if action.id != "palette":
            yield Entry(
                action.now(workspace) or action.text,
                actions[action.id].trigger,
                icon(action.icon, workspace.theme.current),
                actions[action.id].shortcut().toString(),
                action.why_not(workspace),
                action.tip,
                f"{action.text} {action.menu} {action.words}",
            )


def _preferences(window: PanelWindow) -> Iterator[Entry]:
    image = icon("preferences", window.workspace.theme.current)
    for title, words in PREFERENCES.items():
        show = partial(window.preferencesWanted.emit, title)
        yield Entry(f"Preferences: {title} …", show, image, words=words)


def _themes(window: PanelWindow) -> Iterator[Entry]:
    image = icon("theme", window.workspace.theme.current)
    for name in CHOICES:
        why_not = _CHOSEN if name == window.appearance.choice else ""
        choose = partial(window.set_theme, name)
        yield Entry(f"Theme: {name.capitalize()}", choose, image, "", why_not, words="colour color")


def _panels(window: PanelWindow) -> Iterator[Entry]:
    image = icon("layout", window.workspace.theme.current)
    for name, dock in window.dock_area.docks.items():
        enter = partial(window.enter, name)
        words = window.dock_area.words[name]
        yield Entry(f"Panel: {dock.windowTitle()}", enter, image, words=words)


def _options(window: PanelWindow) -> Iterator[Entry]:
    """Yield the options of toggles."""
    model, image = window.workspace.configuration, icon("toggle", window.workspace.theme.current)
    if model.catalogue is None or model.edited is None:
        return
    for toggle in model.catalogue.toggles:
        blocked = model.blocked(toggle.name)
        for option in toggle.options:
            why_not = blocked[option.name].reason if option.name in blocked else ""
            if model.edited.toggles.get(toggle.name) == option.name:
                why_not = _CHOSEN
            choose = partial(model.set_toggle, toggle.name, option.name)
            text = f"{toggle.title}: {option.title}"
            words = f"{toggle.group} {toggle.name} {option.name}"
            yield Entry(text, choose, image, "", why_not, toggle.help, words)


def _models(window: PanelWindow) -> Iterator[Entry]:
    """Yield the model families, and the presets and workloads of the chosen family."""
    model, image = window.workspace.configuration, icon("preset", window.workspace.theme.current)
    catalogue, edited = model.catalogue, model.edited
    if catalogue is None or edited is None:
        return
    for info in catalogue.families:
        why_not = _CHOSEN if info.name == edited.family else ""
        choose = partial(_edit, model, config_edit.with_family, info.name)
        yield Entry(f"Model: {info.title}", choose, image, "", why_not, info.help, info.name)
    family = config_edit.family_of(catalogue, edited.family)
    for name in family.presets:
        why_not = _CHOSEN if name == edited.preset and not edited.model else ""
        choose = partial(_edit, model, config_edit.with_preset, name)
        yield Entry(f"Preset: {name}", choose, image, "", why_not, words="model size")
    for name in family.workloads:
        why_not = _CHOSEN if name == edited.workload else ""
        workload = config_edit.workload_of(catalogue, name)
        choose = partial(_edit, model, config_edit.with_workload, name)
        yield Entry(f"Workload: {workload.title}", choose, image, "", why_not, workload.help, name)


def _edit(
    model: ConfigurationModel,
    change: Callable[[Catalogue, Configuration, str], Configuration],
    name: str,
) -> None:
    assert model.catalogue is not None and model.edited is not None
    model.edit(change(model.catalogue, model.edited, name))


def _toggle_sets(window: PanelWindow) -> Iterator[Entry]:
    presets, image = window.workspace.presets, icon("preset", window.workspace.theme.current)
    why_not = presets.why_not()
    for preset in presets.offered:
        apply = partial(presets.apply, preset)
        yield Entry(f"Toggle set: {preset.title}", apply, image, "", why_not, preset.help)
    for name in presets.own:
        yield Entry(f"Toggle set: {name}", partial(presets.apply_own, name), image, "", why_not)
