"""A window for a test, shown on Qt's offscreen platform and gone afterwards."""

from __future__ import annotations

import gc
from contextlib import contextmanager

from PySide6.QtCore import QCoreApplication, QEvent

from workbench.ui.controllers.appearance import Appearance
from workbench.ui.window import MainWindow


@contextmanager
def opened(qapp, workspace, settings):
    """A dark window that is shown, and gone afterwards."""
    settings.theme = "dark"
    window = MainWindow(workspace, settings, Appearance(qapp, workspace.theme, settings))
    window.resize(1280, 800)
    window.show()
    yield window
    window.close()
    gc.disable()  # until its widgets are gone too
    window.deleteLater()
    # At once: the next window's style sheet would dress the widgets of this one too, for a second.
    QCoreApplication.sendPostedEvents(window, QEvent.Type.DeferredDelete)
