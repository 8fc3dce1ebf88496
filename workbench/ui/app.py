"""Starts the window: arguments, Qt, theme, runner or replay, and recovery after a crash."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from workbench import interrupts
from workbench.client import journal, runner_command
from workbench.ui.process import platform_check

if TYPE_CHECKING:
    from workbench.ui.window import MainWindow


def run(argv: Sequence[str]) -> int:
    """Open the window and return the exit code: 0, 1 failed, 2 mistaken, 130 interrupted."""
    arguments = parse(argv)
    with runner_command.use(arguments.runner):
        return _open(arguments)


def _open(arguments: argparse.Namespace) -> int:
    trouble = platform_check.trouble()
    if trouble:
        sys.stderr.write(f"workbench: {trouble}.\n")
        return 1
    from PySide6.QtCore import QTimer
    from PySide6.QtWidgets import QApplication

    from workbench.theming import fonts
    from workbench.ui import accessible_names
    from workbench.ui.process.sigint import Interrupts
    from workbench.ui.process.uncaught import UncaughtErrors

    application = QApplication(["workbench"])
    platform_check.hush_offscreen()
    if not fonts.exist():
        sys.stderr.write(f"workbench: {fonts.NO_FONT}.\n")
    accessible_names.name_on_focus(application)
    with interrupts.handled_by(interrupts.note):  # there is a runner and a journal to close
        window = build(application, arguments)
        errors = UncaughtErrors(window.workspace.failures, window.dock_area.panels)
        watch = Interrupts(window)
        if not arguments.replay:
            offer_recovery(window)
        window.show()
        if not (arguments.replay or arguments.files or window.settings.tour_shown):
            QTimer.singleShot(0, window.start_tour)  # once the window is laid out
        code: int = application.exec()
        watch.end()
        errors.end()
        return code if interrupts.noted() is None else interrupts.INTERRUPTED


def build(application, arguments: argparse.Namespace) -> MainWindow:  # type: ignore[no-untyped-def]
    """Return the window, complete but not yet shown."""
    from workbench.ui.connection.replay import ReplayedRunner
    from workbench.ui.controllers.appearance import Appearance
    from workbench.ui.controllers.plugin_notes import PluginNotes
    from workbench.ui.settings import Settings
    from workbench.ui.window import MainWindow
    from workbench.ui.workspace import Workspace

    application.setApplicationName("workbench")
    application.setApplicationDisplayName("GPU optimization workbench")
    application.setDesktopFileName("workbench")
    settings = Settings(arguments.settings)
    if arguments.replay is not None:
        path, speed = arguments.replay, arguments.speed
        workspace = Workspace(launch=lambda _: ReplayedRunner(path, speed), replaying=True)
    else:
        workspace = Workspace()
    PluginNotes(workspace.session, workspace.run, workspace.configuration, workspace)
    appearance = Appearance(application, workspace.theme, settings)
    window = MainWindow(workspace, settings, appearance)
    workspace.run.start_runner()
    for number, path in enumerate(arguments.files):
        (workspace.compared.open if number else window.open_path)(path)
    return window


def offer_recovery(window: MainWindow) -> None:
    """Offer, in a banner, the session that an earlier window could not save."""
    workspace = window.workspace
    failed = workspace.failures.report_unread
    workspace.tasks.start(_recoverable, partial(_offer, window), failed)


def _recoverable() -> tuple[list[Path], journal.Summary | None]:
    """Return the journals that nobody saved, and what the newest holds."""
    from workbench.ui.state import session_files

    left = session_files.recoverable()
    return left, journal.summarize(left[0]) if left else None


def _offer(window: MainWindow, offer: tuple[list[Path], journal.Summary | None]) -> None:
    left, summary = offer
    if summary is None:
        return
    newest, when = left[0], summary.text()
    older = len(left) - 1
    older_note = f" There {'is an older one' if older == 1 else f'are {older} older ones'}."
    older_note = older_note if older else ""
    banner = window.failures.show_banner(
        "info",
        f"Not saved: {when}. Its journal has everything.{older_note}",
        "Recover opens it here. Later leaves it: File, Recover journal.",
    )
    banner.add("Recover", lambda: window.workspace.session.open(newest))
    banner.add("Discard", lambda: _ask_to_discard(window, newest, when))
    banner.add("Later", lambda: None)


def _ask_to_discard(window: MainWindow, path: Path, when: str) -> None:
    banner = window.failures.show_banner(
        "warning",
        f"Delete {when}? It is saved nowhere else.",
        "This cannot be undone.",
    )
    banner.add("Delete", lambda: journal.discard(path))
    banner.add("Keep", lambda: None)


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the window's arguments; a mistake ends the process with exit code 2."""
    parser = argparse.ArgumentParser(prog="workbench", description=__doc__)
    parser.add_argument(
        "files", nargs="*", type=Path, help="sessions: the first opens, the others are compared"
    )
    parser.add_argument(
        "--replay", type=Path, metavar="FILE", help="play a journal, without a runner"
    )
    parser.add_argument(
        "--speed", type=float, default=1.0, help="speed of the replay; 0 does not wait"
    )
    parser.add_argument("--settings", type=Path, help="an ini file instead of the user's settings")
    parser.add_argument(runner_command.OPTION, metavar="COMMAND", help=runner_command.HELP)
    arguments = parser.parse_args(argv)
    if arguments.replay and arguments.runner is not None:
        parser.error(
            f"--replay plays a journal without a runner; leave {runner_command.OPTION} out"
        )
    try:
        with runner_command.use(arguments.runner):
            pass
    except ValueError as error:
        parser.error(str(error))
    for path in (*arguments.files, *filter(None, [arguments.replay])):
        # Not of Path, which raises where a folder may not be entered.
        if not os.path.exists(path):  # noqa: PTH110
            parser.error(f"{path}: there is no such file")
        if os.path.isdir(path):  # noqa: PTH112
            parser.error(f"{path} is a folder; name a file in it")
    return arguments
