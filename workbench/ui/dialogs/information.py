"""Texts of the Help menu: this machine, the runner's log, the keyboard shortcuts, the version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from PySide6.QtGui import QFont, QKeySequence
from PySide6.QtWidgets import QMenu, QWidget

from workbench.titles import Titles
from workbench.ui.dialogs.message_boxes import show_text
from workbench.ui.panels._plot_keys import PLOT_KEYS
from workbench.ui.state.configuration import ConfigurationModel

_KEYS = 16  # letters of the column of shortcuts
_PLOT_KEYS = 24


def doctor(parent: QWidget, configuration: ConfigurationModel, titles: Titles) -> None:
    """Show what the runner found on this machine."""
    show_text(parent, "Doctor", doctor_text(configuration, titles))


def doctor_text(configuration: ConfigurationModel, titles: Titles) -> str:
    """Return device, environment, operators and blocked options as lines of text."""
    catalogue, availability = configuration.catalogue, configuration.availability
    if catalogue is None:
        return "Nothing is known about this machine until the runner has started."
    lines = [catalogue.device_title, ""]
    lines += [f"{name}: {value}" for name, value in catalogue.environment.items()]
    lines += ["", "Operators"]
    lines += [f"  {name}: {text}" for name, text in catalogue.operators.items()]
    blocked = availability.blocked if availability is not None else {}
    if blocked:
        lines += ["", "Blocked options"]
    for toggle, options in blocked.items():
        lines += [
            f"  {titles.choice(toggle, name)}: {why.reason_with_fix}"
            for name, why in options.items()
        ]
    return "\n".join(lines)


def log(parent: QWidget, lines: Sequence[str]) -> None:
    """Show what the libraries printed in the runner."""
    show_text(parent, "Runner log", "\n".join(lines) or "Nothing has been printed.")


def shortcuts(parent: QWidget, menus: Mapping[str, QMenu]) -> None:
    """Show what each key does, menu by menu, and in a plot."""
    from workbench.ui.panels._moments import MOMENT_KEYS  # brings the plots

    lines: list[str] = []
    for name, menu in menus.items():
        keyed = [action for action in menu.actions() if not action.shortcut().isEmpty()]
        if keyed:
            lines += ["", name] if lines else [name]
        for action in keyed:
            keys = action.shortcut().toString(QKeySequence.SequenceFormat.NativeText)
            lines.append(f"  {keys:<{_KEYS}}{action.text().removesuffix(' …')}")
    lines += ["", "In a plot, after a click on it, or after Tab to its menu"]
    lines += [f"  {', '.join(key.keys):<{_PLOT_KEYS}}{key.text}" for key in PLOT_KEYS]
    lines += [f"  {key.key:<{_PLOT_KEYS}}{key.text}" for key in MOMENT_KEYS]
    lines += [f"  {'Shift and drag':<{_PLOT_KEYS}}Mark a range and measure it"]
    show_text(parent, "Keyboard shortcuts", "\n".join(lines))


def about(parent: QWidget) -> None:
    """Show the version and the licence."""
    from importlib import metadata  # brings the e-mail library, and few ask for the version

    try:
        version = metadata.version("gpu-optimization-workbench")
    except metadata.PackageNotFoundError:
        version = "not installed"
    show_text(
        parent,
        "About",
        f"GPU optimization workbench {version}\n\n"
        "Toggle GPU optimizations while the model runs, and see whether they really helped.\n\n"
        "Icons: Phosphor. Colours of series: after Okabe and Ito.\n"
        "The licence is in the file LICENSE.",
        QFont(),
        (480, 250),
    )
