"""The status bar: device, what the runner does, step rate, memory, time, and where the data is."""

from __future__ import annotations

import time
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from PySide6.QtCore import Qt, QTimer
from PySide6.QtWidgets import QHBoxLayout, QLabel, QProgressBar, QStatusBar, QWidget

from sessions.numbers import number
from sessions.plain_text import capitalized, clip
from sessions.sizes import size_text
from workbench.client import runner_command
from workbench.theming import fonts
from workbench.ui.controllers.run_control import RunControl
from workbench.ui.panels import _widgets
from workbench.ui.state.configuration import ConfigurationModel
from workbench.ui.state.run import RunModel
from workbench.ui.state.session import SessionModel
from workbench.ui.state.theme import ThemeModel

_Label = TypeVar("_Label", bound=QLabel)

PERIOD_MS = 500
RATE_WINDOW_S = 2.0
SILENCE_S, SILENT_STEPS = 5.0, 3.0  # without a step, in seconds and in steps, before it is shown
_LONGEST_TEXT = 200  # characters of what the runner is doing
_STATES = {  # by the runner's state: the word, its icon and its colour
    "none": ("No runner", "stop", "muted"),
    "starting": ("Starting", "pending", "accent"),
    "idle": ("Idle", "stop", "muted"),
    "building": ("Building", "build", "accent"),
    "running": ("Running", "run", "good"),
    "paused": ("Paused", "pause", "warning"),
    "stopping": ("Stopping", "pending", "warning"),
    "dead": ("Runner ended", "error", "bad"),
}
_TASKS = {  # phases that take long, as a sentence about the runner names them
    "build": "Building the model",
    "compile": "Compiling",
    "autotune": "Autotuning",
    "capture": "Capturing CUDA graphs",
}
_CANCELLING = ("Cancelling", "pending", "warning")


class StatusBar(QStatusBar):
    """Line of facts, with the progress of a long operation and its Cancel button."""

    def __init__(
        self,
        session: SessionModel,
        run: RunModel,
        configuration: ConfigurationModel,
        run_control: RunControl,
        theme: ThemeModel,
        parent: QWidget | None = None,
    ) -> None:
        super().__init__(parent)
        self._session, self._run = session, run
        self._configuration, self._theme = configuration, theme
        self._run_control = run_control
        self.setSizeGripEnabled(False)
        self._mark = _widgets.Mark()
        self.runner = QLabel()
        self.runner.setObjectName("runner-state")
        self._progress_text = _widgets.OneLine(Qt.TextElideMode.ElideRight)
        self._progress = QProgressBar()
        self._progress.setFixedWidth(120)
        self._progress.setTextVisible(False)
        self._cancel = _widgets.compact("Cancel")
        self._cancel.clicked.connect(run_control.cancel)
        host = QWidget()
        left = _widgets.tight(QHBoxLayout(host), 6)
        left.setContentsMargins(8, 0, 8, 0)
        for widget in (self._mark, self.runner, self._progress_text, self._progress, self._cancel):
            left.addWidget(widget)
        left.addStretch(1)
        self.addWidget(host)
        self.setFixedHeight(self._cancel.sizeHint().height() + 6)  # with or without progress
        numbers = {name: self._add_fact(name, QLabel()) for name in ("rate", "memory", "elapsed")}
        # Elided where there is no room: no name widens the window.
        self._names = {
            name: self._add_fact(name, _widgets.OneLine()) for name in ("file", "device")
        }
        self._facts: dict[str, QLabel] = {**numbers, **self._names}
        self._newest_s, self._arrived = 0.0, 0.0  # time of the newest step; when it was first seen
        self._timer = QTimer(self)
        self._timer.setInterval(PERIOD_MS)
        self._timer.timeout.connect(self._show_numbers)
        for changed in (
            run.stateChanged,
            session.savedChanged,
            theme.changed,
            session.sessionChanged,
        ):
            changed.connect(self._refresh)
        configuration.catalogueChanged.connect(self._refresh)
        self._refresh()

    def close_timer(self) -> None:
        """Stop counting."""
        self._timer.stop()

    def _add_fact(self, name: str, label: _Label) -> _Label:
        label.setObjectName(name)
        label.setTextFormat(Qt.TextFormat.PlainText)
        label.setProperty("muted", True)
        label.setFont(fonts.numbers())
        label.setContentsMargins(8, 0, 8, 0)
        self.addPermanentWidget(label)
        return label

    def _refresh(self) -> None:
        word, icon_name, role = _STATES.get(
            self._run.state, (self._run.state.capitalize(), "info", "muted")
        )
        if self._run_control.cancelling:
            word, icon_name, role = _CANCELLING
        if self._run.replaying:
            word = f"Replay: {word.lower()}"
        self.runner.setText(word)
        self._mark.show_icon(icon_name, self._theme.current, role)
        progress = self._run.progress
        busy = progress is not None or self._run.state in ("starting", "building")
        fraction = None if progress is None else progress.fraction
        text = self._run.text
        if progress is not None:
            task = capitalized(_TASKS.get(progress.task, progress.task))
            text = ": ".join(filter(None, (task, progress.text)))
        has_text = busy or self._run.state == "running"  # beside its steps
        text = clip(self._session.titled(text), _LONGEST_TEXT)
        text = text if has_text and text != word else ""
        repeats = text.startswith(word)  # Starting the runner
        self.runner.setVisible(not repeats)
        self._progress_text.say(text if repeats or not text else f"· {text}")
        self._progress.setVisible(busy)
        self._progress.setRange(0, 0 if fraction is None else 1000)
        self._progress.setValue(0 if fraction is None else round(1000 * fraction))
        can_cancel = self._run.active and not self._run_control.cancelling
        self._cancel.setVisible(can_cancel and (busy or self._run.state == "stopping"))
        self._show_device()
        self._names["file"].say(self._file_text())
        if self._run.active != self._timer.isActive():
            (self._timer.start if self._run.active else self._timer.stop)()
        self._show_numbers()

    def _show_device(self) -> None:
        """Show the device, and its host if a custom command started the runner."""
        catalogue, label = self._configuration.catalogue, self._names["device"]
        if catalogue is None:
            label.say("", "")
            return
        elsewhere = runner_command.is_custom() and not self._run.replaying
        host_suffix = runner_command.host_suffix(catalogue.environment) if elsewhere else ""
        tip = (
            f"The runner was started by {runner_command.shown(runner_command.command())}. "
            "Models, data and traces are files of that host, sessions of this one."
        )
        label.say(f"{catalogue.device_title}{host_suffix}", tip if elsewhere else "")

    def _file_text(self) -> str:
        if not self._session.live:
            return (
                f"Opened: {self._session.path.name}" if self._session.path is not None else "Opened"
            )
        if not self._session.shown.segments:
            return ""
        if self._session.path is not None:
            return f"{'Saved:' if self._session.saved else 'Newer than'} {self._session.path.name}"
        return "Not saved, journaled" if self._session.journal is not None else "Not saved"

    def _show_numbers(self) -> None:
        # The run in progress has numbers, whichever session is shown: nothing else measures now.
        segments = self._session.recorder.session.segments if self._run.active else ()
        rate = memory = ""
        steps = segments[-1].steps if segments else {}
        # A benchmark of kernels measures no memory, and its calls are no steps.
        if len(steps.get("allocated", ())) and not np.isnan(steps["allocated"][-1]):
            if self._run.state == "running":
                rate = self._rate_text(steps["t_s"][-4096:])
            kind = "resident" if np.isnan(steps["reserved"][-1]) else "allocated"
            memory = f"{size_text(float(steps['allocated'][-1]))} {kind}"
        self._facts["rate"].setText(rate)
        self._facts["memory"].setText(memory)
        self._facts["elapsed"].setText(clock_text(self._run.elapsed_s) if self._run.active else "")
        self._names["file"].say(self._file_text())

    def _rate_text(self, times: NDArray[np.float64]) -> str:
        """Return the rate of the newest steps, or the time without a step: the runner may hang."""
        newest = float(times[-1])
        if newest != self._newest_s:
            self._newest_s, self._arrived = newest, time.monotonic()
        recent = int((times >= newest - RATE_WINDOW_S).sum())
        span = newest - float(times[-recent])
        if recent < 2 or span <= 0:
            return ""
        silent_s = time.monotonic() - self._arrived
        if silent_s > max(SILENCE_S, SILENT_STEPS * span / (recent - 1)) and not self._run.measures:
            return f"no step for {silent_s:.0f} s"
        return f"{number((recent - 1) / span)} steps/s"


def clock_text(seconds: float) -> str:
    """Return hours, minutes and seconds; more than 24 hours stay hours."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60:02}:{minutes % 60:02}:{rest:02}"
