"""What the window knows: plain data and a few signals; the single thing that panels take."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from PySide6.QtCore import QObject, QTimer, Signal
from PySide6.QtGui import QUndoStack

from sessions.model import Configuration, Session
from workbench import protocol
from workbench.client.journal import Journal
from workbench.client.recorder import Recorder
from workbench.client.runner_process import Runner
from workbench.titles import Titles, offered
from workbench.ui.connection import runner_failures
from workbench.ui.connection.message_signals import MEASURED, touched
from workbench.ui.connection.runner_clock import RunnerClock
from workbench.ui.connection.runner_link import RunnerLink
from workbench.ui.connection.stream_reader import Client
from workbench.ui.controllers import config_edit, pending_changes
from workbench.ui.controllers.attributions import Attributions
from workbench.ui.controllers.breakdowns import Breakdowns
from workbench.ui.controllers.checklists import Checklists
from workbench.ui.controllers.comparison_set import Compared
from workbench.ui.controllers.presets import Presets
from workbench.ui.controllers.reproductions import Reproductions
from workbench.ui.controllers.run_control import RunControl
from workbench.ui.controllers.sweeps import Sweeps
from workbench.ui.controllers.undo import Change, Choices
from workbench.ui.controllers.verdict_prompt import Offers
from workbench.ui.controllers.verdicts import Verdicts
from workbench.ui.dialogs import session_files
from workbench.ui.process.thread_pool import Tasks
from workbench.ui.theming.theme import DARK, Theme

LOG_LINES, MOST_FAILURES, CHECK_DELAY_MS = 1000, 1000, 120  # after the last edit
REMARKS = ("nan", "slower", "unwritten", protocol.JOURNAL)  # refused nothing: the run goes on
ACTIVE = ("building", "running", "paused", "stopping")

Launch = Callable[[Journal | None], Client]


class AppState(QObject):
    """Data of the window; every change is announced by one of the signals.

    Panels read attributes, subscribe to signals and call methods. ``session`` is shown: the live
    one (``live`` is true) or one from a file. Only ending it waits, for what is being saved.
    """

    catalogueChanged = Signal()
    configurationChanged = Signal()
    availabilityChanged = Signal()
    stateChanged = Signal()  # runner_state, runner_text, progress, saved or not
    dataArrived = Signal()  # steps or telemetry were appended; at most 60 times a second
    textChanged = Signal()  # more of what a model generates
    segmentsChanged = Signal()  # a segment began, or its evidence or the baseline changed
    eventsChanged = Signal()
    sessionChanged = Signal()  # another session is shown, or it was renamed
    comparedChanged = Signal()
    comparisonsChanged = Signal()  # blocks, numbers or a verdict of a paired comparison arrived
    studiesChanged = Signal()  # rows or facts of a study arrived
    themeChanged = Signal()
    selectionChanged = Signal()
    followChanged = Signal()
    focusRequested = Signal(float)  # show this time (seconds of the session) in the plots
    failed = Signal(object)  # a protocol.Failure
    heard = Signal(object)  # each message of the runner, once it is taken

    def __init__(
        self,
        theme: Theme = DARK,
        launch: Launch | None = None,
        replaying: bool = False,
        parent: QObject | None = None,
    ) -> None:
        super().__init__(parent)
        self.theme, self.replaying = theme, replaying
        self.catalogue: protocol.Catalogue | None = None
        self.titles = Titles()
        self.configuration: Configuration | None = None  # being edited: what Run would start
        self.running: Configuration | None = None  # of the segment that runs
        self.availability: protocol.Availability | None = None
        # none, starting, idle, building, running, paused, stopping, dead
        self.runner_state, self.runner_text = "none", ""
        self.progress: protocol.Progress | None = None
        self.recorder = Recorder()
        self.session: Session = self.recorder.session
        self.path: Path | None = None  # the file of the shown session
        self.saved = True  # nothing was measured or noted since the live session was saved
        self.compared = Compared(self)
        self.baseline = 0  # index of the segment that ratios refer to
        self.selection: int | None = None  # index of the selected segment
        self.follow = True  # the plots scroll with the newest step
        self.failures: list[protocol.Failure] = []
        self.journal: Journal | None = None
        self.undo = QUndoStack(self)
        self.tasks = Tasks(self)
        self.verdicts, self.attributions = Verdicts(self), Attributions(self)
        self.checklists, self.breakdowns = Checklists(self), Breakdowns(self)
        self.offers, self.presets, self.runs = Offers(self), Presets(self), RunControl(self)
        self.sweeps, self.reproductions = Sweeps(self), Reproductions(self)
        self.log: deque[str] = deque(maxlen=LOG_LINES)  # what libraries printed in the runner
        self._launch = launch or (lambda journal: Runner(journal, log=self.log.append))
        self._clock = RunnerClock()
        self._link = RunnerLink(self)
        self._link.arrived.connect(self._drain)
        self._link.silent.connect(lambda seconds: self.fail(runner_failures.no_answer(seconds)))
        self._live_path: Path | None = None
        self._changes = 0  # of the live session, counted
        self._written: tuple[Recorder, int] | None = None  # the last that reached a file
        self.measures = False  # a comparison or study in place of a run
        self._refused = False  # a toggle of the run failed, and none was chosen since
        self.cancelled = False  # the run in progress, or the last, was to be ended at once
        self._began = 0.0  # monotonic time of the run's start, 0 when none runs
        self._check_timer = QTimer(self, singleShot=True)
        self._check_timer.timeout.connect(self._send_check)

    # What is shown

    @property
    def live(self) -> bool:
        """Whether the session that is shown is the one being recorded."""
        return self.session is self.recorder.session

    @property
    def active(self) -> bool:
        """Whether a run is in progress."""
        return self.runner_state in ACTIVE

    @property
    def elapsed_s(self) -> float:
        """Seconds since the run in progress was started, 0 when there is none."""
        return time.monotonic() - self._began if self._began else 0.0

    @property
    def pending(self) -> Choices:
        """Toggles that were chosen but that the run in progress does not have yet."""
        return pending_changes.pending(self)

    def titled(self, text: str) -> str:
        """A session's text with the toggles and fields in it by their titles."""
        return self.titles.of(text)

    def retitle(self) -> None:
        """Take the titles of all that is shown; the runner's, if there is one, before others."""
        titles = [session.titles for session in (*self.compared.sessions, self.session)]
        self.titles = Titles(*titles, offered(self.catalogue) if self.catalogue else {})

    def set_theme(self, theme: Theme) -> None:
        """Show the window in these colours."""
        if theme is not self.theme:
            self.theme = theme
            self.themeChanged.emit()

    def set_baseline(self, index: int) -> None:
        """Make one segment the one that ratios refer to."""
        self.baseline = index
        self.segmentsChanged.emit()

    def select(self, index: int | None) -> None:
        """Select one segment in every panel, or none."""
        if index != self.selection:
            self.selection = index
            self.selectionChanged.emit()

    def set_follow(self, follow: bool) -> None:
        """Let the plots scroll with the newest step, or hold the view where it is."""
        if follow != self.follow:
            self.follow = follow
            self.followChanged.emit()

    def focus(self, t_s: float) -> None:
        """Hold the view and show this time, in seconds of the session."""
        self.set_follow(False)
        self.focusRequested.emit(t_s)

    def fail(self, failure: protocol.Failure) -> None:
        """Tell a person that something went wrong."""
        self.failures[:] = [*self.failures[1 - MOST_FAILURES :], failure]
        self.failed.emit(failure)

    # The configuration

    def edit(self, configuration: Configuration) -> None:
        """Take an edited configuration; the runner is asked what it blocks."""
        if configuration != self.configuration:
            was_away, self.configuration = pending_changes.away(self), configuration
            if was_away and not pending_changes.away(self):
                self._apply(self.pending)
            self.configurationChanged.emit()
            self.check()

    def set_toggle(self, name: str, option: str) -> None:
        """Choose an option: at once when a run is in progress, else for the next run."""
        assert self.catalogue is not None
        toggle = config_edit.toggle_of(self.catalogue, name)
        self.choose({name: option}, f"{toggle.title}: {config_edit.option_title(toggle, option)}")

    def choose(self, choices: Choices, text: str) -> None:
        """Make several choices as one step of undo: toggles, ``workload``, or ``batch``."""
        assert self.configuration is not None
        now = config_edit.choices(self.configuration)
        before = {name: now[name] for name in choices if now.get(name) != choices[name]}
        if before:
            after = {name: choices[name] for name in before}
            self.undo.push(Change(text, before, after, self._make))

    def revert(self) -> None:
        """Give up the toggles that are chosen but not running."""
        if (running := pending_changes.continued(self)) is not None:
            self.choose({name: running.toggles[name] for name in self.pending}, "Revert")

    def check(self) -> None:
        """Ask the runner, after a short delay, which options the configuration blocks."""
        if self._link.open and not self.replaying:
            self._check_timer.start(CHECK_DELAY_MS)

    def blocked(self, toggle: str) -> dict[str, protocol.Blocked]:
        """Options of a toggle that cannot be used now, with the reason, by name."""
        return {} if self.availability is None else self.availability.blocked.get(toggle, {})

    def _make(self, choices: Choices) -> None:
        assert self.configuration is not None and self.catalogue is not None
        choices = dict(choices)
        configuration = self.configuration
        workload = choices.pop("workload", None)
        known = config_edit.family_of(self.catalogue, configuration.family).workloads
        if workload in known:  # a step of undo may be of another family
            configuration = config_edit.with_workload(self.catalogue, configuration, workload)
        if (batch := choices.pop("batch", None)) is not None:
            configuration = config_edit.with_setting(configuration, "batch", int(batch))
        self.edit(config_edit.with_toggles(configuration, choices))
        self._refused = False
        if not pending_changes.away(self):
            self._apply(choices)

    def _apply(self, toggles: Choices) -> None:
        if toggles and self.active and not self.measures:
            self._link.send(protocol.Apply(toggles=toggles))

    # The runner

    def start_runner(self) -> None:
        """Launch a runner, in place of a present one; its catalogue, when it comes, fills forms."""
        if self.journal is None and not self.replaying:
            self.journal = Journal()
        journal = self.journal
        self._link.start(lambda: self._launch(journal))
        self._set_state("starting", "Starting the runner")

    def new_session(self) -> None:
        """Leave the live session as it is in its journal or file, and begin another."""
        self._link.retire()
        self._close_journal()
        self.recorder = Recorder()
        self.saved, self.path, self._live_path = True, None, None
        self._show(self.recorder.session)
        self.offers.dismiss()
        self.start_runner()

    def start(self) -> None:
        """Run the configuration that is being edited."""
        if self.configuration is not None and self.runner_state == "idle":
            self.show_live()
            self.set_follow(True)
            self.send(self.checklists.start_of(self.configuration))

    def perform(self, command: protocol.Command) -> None:
        """Run a command that takes a while (a comparison, a study) in place of what runs now."""
        self.show_live()
        self.send(command)

    def send(self, command: protocol.Command) -> None:
        """Send one command to the runner."""
        if isinstance(command, protocol.RunCommand):
            self.measures = not isinstance(command, protocol.Start)
        self._link.send(command)

    def stop(self) -> None:
        """End the run after the current step."""
        if self.active:
            self._link.send(protocol.Stop())

    def pause(self) -> None:
        """Stop stepping, keeping everything built."""
        if self.runner_state == "running":
            self._link.send(protocol.Pause())

    def resume(self) -> None:
        """Go on stepping."""
        if self.runner_state == "paused":
            self._link.send(protocol.Resume())

    def cancel(self) -> None:
        """End the run as soon as possible, by force if need be."""
        if self.active or self.reproductions.measuring:  # even before its command was heard
            self.cancelled = True
            self._link.cancel()

    def _send_check(self) -> None:
        if self.configuration is not None and self.runner_state not in ("none", "dead"):
            self._link.send(protocol.Check(configuration=self.configuration))

    def _drain(self) -> None:
        due: set[str] = set()
        for message in self._link.drain():
            due |= self._take(message)
            self.heard.emit(message)
        for name in sorted(due):
            getattr(self, name).emit()

    def _take(self, message: protocol.AnyMessage) -> set[str]:
        """Take one message; returns the names of the signals that are due."""
        self._clock.hear(message)
        if isinstance(message, protocol.Failure) and not message.t_s:
            message.t_s = self._clock.now()
        try:
            self.recorder.record(message)
        except (protocol.WireError, ValueError, KeyError) as error:
            message = runner_failures.does_not_fit(error)
        match message:
            case protocol.Catalogue():
                self._take_catalogue(message)
                return {"catalogueChanged", "configurationChanged"}
            case protocol.Availability():
                if message.configuration != self.configuration:
                    return set()
                self.availability = message
                return {"availabilityChanged"}
            case protocol.State():
                self._set_state(message.state, message.text)
            case protocol.Progress():
                self.progress = message
            case protocol.SegmentStarted():
                self.running = message.configuration
                if self.replaying and config_edit.has(self.catalogue, message.configuration.family):
                    self.configuration = message.configuration
                if self._refused:
                    self._take_back()
                self._changed()
                return {"segmentsChanged", "configurationChanged"}
            case protocol.Failure():
                if message.fatal:
                    self._set_state("dead", message.sentence)
                if message.kind not in REMARKS:
                    self._refused = self.active
                    self._take_back()
                self.fail(message)
                return {"eventsChanged", "configurationChanged"}
        if isinstance(message, MEASURED):
            self._changed()
        return touched(message)

    def _take_back(self) -> None:
        """Toggles that the run refused, or could not be built with, are chosen no longer."""
        if self.pending and self.configuration is not None and self.running is not None:
            self.configuration = config_edit.with_toggles(self.configuration, self.running.toggles)
            self.check()

    def _take_catalogue(self, catalogue: protocol.Catalogue) -> None:
        self.catalogue = catalogue
        self.retitle()
        if catalogue.version != protocol.VERSION:
            self.fail(runner_failures.other_version(catalogue.version))
        if self.configuration is None:
            self.configuration = config_edit.first(catalogue)
        else:
            self.configuration = config_edit.adopt(catalogue, self.configuration)
        self.check()

    def _set_state(self, state: str, text: str) -> None:
        self.runner_state, self.runner_text = state, text
        if state in ("idle", "dead", "starting"):
            self._began, self.running, self.progress = 0.0, None, None
        elif not self._began:
            self._began, self.cancelled = time.monotonic(), False
        if state == "running":
            self.progress = None
        self.stateChanged.emit()

    # Sessions

    def show_live(self) -> None:
        """Show the session that is being recorded."""
        self.path = self._live_path
        self._show(self.recorder.session)

    def open_session(self, path: Path) -> None:
        """Show the session of a file, or of a journal, once it is read."""
        self.tasks.start(
            lambda: session_files.read(path),
            lambda session: self._opened(session, path),
            self.refuse,
        )

    def save_session(self, path: Path) -> None:
        """Write the session that is shown, as it is now, to a file."""
        shown, session = self.session, session_files.snapshot(self.session)
        written = (self.recorder, self._changes) if self.live else None
        source = None if self.live else self.path

        def write() -> None:
            session_files.write(session, path, source)
            self._written = written or self._written  # known, should nobody hear the answer

        self.tasks.start(write, lambda _: self._wrote(path, shown, written), self._not_saved)

    def rename(self, title: str) -> None:
        """Give the session that is shown another title."""
        self.describe(title, self.session.notes)

    def describe(self, title: str, notes: str) -> None:
        """Give the session that is shown a title and notes."""
        self.session.title, self.session.notes = title, notes
        if self.live:
            self._journal(protocol.Described(title=title, notes=notes))
        elif self.path is not None and not session_files.is_journal(self.path):
            path = self.path
            if path == self._live_path:  # the live one's, which is written over it later
                self.recorder.session.title, self.recorder.session.notes = title, notes
                self._journal(protocol.Described(title=title, notes=notes))
            self.tasks.start(
                lambda: session_files.describe(path, title, notes), lambda _: None, self._not_saved
            )
        self.sessionChanged.emit()

    def add_note(self, text: str) -> None:
        """Mark the present moment of the live session with a note."""
        self.write(protocol.Note(kind="note", text=text))

    def write(self, message: protocol.AnyMessage) -> None:
        """Add a message of the window's own to the live session and its journal."""
        message.t_s = self._clock.now()
        self.recorder.record(message)
        self._journal(message)
        for name in sorted(touched(message)):
            getattr(self, name).emit()

    def close(self) -> None:
        """End the runner, the threads and the timers; returns when they are gone."""
        self._check_timer.stop()
        self.undo.blockSignals(True)  # it would announce its own end
        self._link.close()
        self.tasks.close()
        self._close_journal()

    def _opened(self, session: Session, path: Path) -> None:
        self.path = path
        self._show(session)

    def _show(self, session: Session) -> None:
        if session is not self.session:
            self.session = session
            self.baseline, self.selection = 0, None
            self.retitle()
            for changed in (self.sessionChanged, self.segmentsChanged, self.eventsChanged):
                changed.emit()

    def _wrote(self, path: Path, shown: Session, written: tuple[Recorder, int] | None) -> None:
        """``shown`` was written; by now another may be shown, or another be recorded."""
        if written is not None and written[0] is self.recorder:
            self._live_path = path
            self.saved = written[1] == self._changes
        if self.session is shown:
            self.path = path
        self.stateChanged.emit()

    def _changed(self) -> None:
        self._changes += 1
        self.saved = False
        session = self.recorder.session
        if session.title == "Untitled" and self.running is not None:
            session.title = self.running.title
            self._journal(protocol.Described(title=session.title, notes=session.notes))
            self.sessionChanged.emit()

    def _journal(self, message: protocol.Message) -> None:
        self._changes += 1
        self.saved = False
        if self.journal is not None:
            self.journal.write(message)
        self.stateChanged.emit()

    def _close_journal(self) -> None:
        if self.journal is not None:
            self.tasks.wait()  # what is being written is saved, though the answer has yet to come
            saved = self.saved or self._written == (self.recorder, self._changes)
            self.journal.close(keep=not saved)
            self.journal = None

    def refuse(self, error: Exception, detail: str) -> None:
        """Tell of a file that could not be read."""
        self.fail(session_files.not_read(error, detail))

    def _not_saved(self, error: Exception, detail: str) -> None:
        self.fail(session_files.not_saved(error, detail))
