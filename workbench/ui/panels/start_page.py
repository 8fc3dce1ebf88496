"""The first page: what the tool is for, and ways to begin."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from PySide6.QtWidgets import QWidget

from workbench.titles import distinct_files
from workbench.ui.panels import _widgets
from workbench.ui.panels.empty import Empty
from workbench.ui.state.session import SessionModel
from workbench.ui.state.theme import ThemeModel

PURPOSE = "Switch optimizations while a model runs; see if they help"
START = "Press Run (F5) to build the model and watch it here, or drop a session file (.h5)."
SAMPLE = Path(__file__).parents[1] / "sample" / "session.h5"
MOST_RECENT = 4


class StartPage(Empty):
    """The page of an empty session, with a sample, a tour and the files of last time."""

    def __init__(
        self, session: SessionModel, theme: ThemeModel, parent: QWidget | None = None
    ) -> None:
        super().__init__(theme, "live", PURPOSE, START, parent)
        self.sample = self.offer("Open a sample session", lambda: session.open(SAMPLE))

    def offer_more(
        self, tour: Callable[[], None], recent: Sequence[Path], open_path: Callable[[Path], None]
    ) -> None:
        """Offer actions of the window: the tour, and the files that were opened last."""
        self.offer("Take the tour", tour)
        shown = recent[:MOST_RECENT]
        for path, name in zip(shown, distinct_files(shown), strict=True):
            button = _widgets.link(f"Open {name}")
            button.setToolTip(str(path))
            button.clicked.connect(lambda _=False, path=path: open_path(path))
            self.append(button)
