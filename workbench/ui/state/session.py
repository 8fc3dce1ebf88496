"""The shown session, and the live one that grows with what the runner measures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from PySide6.QtCore import QObject, Signal, SignalInstance

from sessions import numerics, session_log
from sessions.model import Configuration, Event, Phase, Segment, Session
from sessions.plain_text import clip
from sessions.storage import content
from sessions.verdicts.work import INVALID
from workbench import protocol
from workbench.client.journal import Journal
from workbench.client.recorder import Recorder
from workbench.titles import Titles
from workbench.ui.connection.runner_clock import RunnerClock
from workbench.ui.process.thread_pool import Tasks
from workbench.ui.state import session_files
from workbench.ui.state.failures import FailureModel

MEASURED = (  # messages that make the live session worth saving
    protocol.Steps,
    protocol.BlockDone,
    protocol.Judged,
    protocol.NumericsChecked,
    protocol.StudyStarted,
    protocol.StudyRows,
    protocol.StudyFacts,
)
UNTITLED = "Untitled"


@dataclass(frozen=True)
class LiveSession:
    """A live session that was replaced, with everything that restores it."""

    recorder: Recorder
    journal: Journal | None
    saved: bool
    path: Path | None
    changes: int


class SessionModel(QObject):
    """The shown session with its file and view; the live session with its journal.

    ``shown`` is the live session (``live`` is true, it grows) or one that was opened from a file.
    """

    sessionChanged = Signal()  # another session is shown, or it was renamed
    left = Signal()  # the live session of before is in ``previous``
    begun = Signal()  # an empty live session replaced the one before
    openingChanged = Signal()  # a file is being read, or no longer
    openingLeft = Signal(object)  # the path of a file that will not be shown once it is read
    savedChanged = Signal()  # the live session was saved, or has something that is not
    dataArrived = Signal()  # steps or telemetry were appended; at most 60 times a second
    textChanged = Signal()  # more of what a model generates
    segmentsChanged = Signal()  # a segment began, or its evidence or the baseline changed
    eventsChanged = Signal()
    comparisonsChanged = Signal()  # blocks, numbers or a verdict of a paired comparison arrived
    studiesChanged = Signal()  # rows or facts of a study arrived
    selectionChanged = Signal()
    followChanged = Signal()
    focusRequested = Signal(float)  # show this time (seconds of the session) in the plots
    eventsWanted = Signal(float)  # show the events near this time

    def __init__(
        self,
        tasks: Tasks,
        failures: FailureModel,
        clock: RunnerClock,
        parent: QObject | None = None,
    ) -> None:
        super().__init__(parent)
        self._tasks, self._failures, self._clock = tasks, failures, clock
        self.recorder = Recorder()
        self.shown: Session = self.recorder.session
        self.path: Path | None = None  # the file of the shown session
        self.opening: Path | None = None  # the file that is being read to be shown
        self.saved = True  # nothing was measured or noted since the live session was saved
        self.journal: Journal | None = None
        self.previous: LiveSession | None = None  # the one that ``begin`` left
        self.baseline = 0  # index of the segment that ratios refer to
        self.baseline_chosen = False  # by the user
        self._scanned = 0  # segments without steady steps, before the last
        self.baseline_settled = False  # the user chose it, or ran it and it has steady steps
        self.selection: int | None = None  # index of the selected segment
        self.follow = True  # the plots scroll with the newest step
        self.titles = Titles()
        self._compared_titles: Sequence[Mapping[str, str]] = ()
        self._runner_titles: Mapping[str, str] = {}
        self._live_path: Path | None = None
        self._changes = 0  # number of changes of the live session
        self._written: tuple[Recorder, int] | None = None  # the last that reached a file

    @property
    def live(self) -> bool:
        """True if the shown session is the one being recorded."""
        return self.shown is self.recorder.session

    # Titles

    def titled(self, text: str) -> str:
        """Return a session's text with titles instead of the names of toggles and fields."""
        return self.titles.of(text)

    def set_runner_titles(self, titles: Mapping[str, str]) -> None:
        """Prefer the titles of a runner's catalogue to those of files."""
        self._runner_titles = titles
        self._update_titles()

    def set_compared_titles(self, titles: Sequence[Mapping[str, str]]) -> None:
        """Add the titles of the sessions that are compared."""
        self._compared_titles = titles
        self._update_titles()

    def _update_titles(self) -> None:
        self.titles = Titles(*self._compared_titles, self.shown.titles, self._runner_titles)

    # The view

    def set_baseline(self, index: int) -> None:
        """Choose the segment that ratios refer to."""
        self.baseline, self.baseline_chosen, self.baseline_settled = index, True, True
        self.segmentsChanged.emit()

    def settle_baseline(self) -> None:
        """Make the first segment with steady steps the baseline, unless the user chose one.

        The first of a study gives way to the first that the user ran.
        """
        if self.baseline_settled:
            return
        segments = self.shown.segments
        first, self._scanned = self._scanned, max(0, len(segments) - 1)
        steady = [segment.index for segment in segments[first:] if _is_steady(segment)]
        made = session_log.study_segments(self.shown) if steady else {}
        own = next((index for index in steady if index not in made), None)
        self.baseline_settled = own is not None
        if own is None and (not steady or _is_steady(segments[self.baseline])):
            return
        baseline = steady[0] if own is None else own
        if baseline != self.baseline:
            self.baseline = baseline
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

    # Sessions and their files

    def begin(self) -> None:
        """Begin another live session; the current one stays in its journal or file."""
        self._leave_opening()
        self._forget_previous()
        if not self.recorder.session.segments or self._is_saved():
            self.close_journal()
        if self.recorder.session.segments:
            self.previous = LiveSession(
                self.recorder, self.journal, self.journal is None, self._live_path, self._changes
            )
            self.journal = None
        self.recorder = Recorder()
        self.saved, self.path, self._live_path = True, None, None
        self.show(self.recorder.session)
        self.begun.emit()
        if self.previous is not None:
            self.left.emit()

    def introduce(self, catalogue: protocol.Catalogue) -> None:
        """Let the new session begin with a runner that has been introduced to the one before."""
        facts = {} if self.previous is None else self.previous.recorder.session.environment
        for message in (catalogue, protocol.EnvironmentFound(facts=dict(facts))):
            self.recorder.record(message)
            if self.journal is not None:
                self.journal.write(message)

    def restore(self) -> bool:
        """Make the previous session live again; return False if the new one has data."""
        previous = self.previous
        if previous is None or self.recorder.session.segments:
            return False
        self.previous = None
        self.saved = True  # an empty session has nothing to save
        self.close_journal()
        self.recorder, self.journal = previous.recorder, previous.journal
        self.saved, self._changes = previous.saved, previous.changes
        self._live_path = previous.path
        self.show_live()
        self.savedChanged.emit()
        return True

    def _forget_previous(self) -> None:
        """Close the previous session's journal; from then on only its file restores it."""
        if self.previous is not None:
            self._close(self.previous.journal, self.previous.saved)
            self.previous = None

    def show(self, session: Session) -> None:
        """Show a session in every panel."""
        if session is not self.shown:
            self.shown = session
            self.baseline, self.selection = 0, None
            self.baseline_chosen = self.baseline_settled = False
            self._scanned = 0
            self._update_titles()
            for changed in (self.sessionChanged, self.segmentsChanged, self.eventsChanged):
                changed.emit()
            self.settle_baseline()

    def show_live(self) -> None:
        """Show the session that is being recorded, also after a file in progress is read."""
        self._leave_opening()
        self.path = self._live_path
        self.show(self.recorder.session)

    def open(self, path: Path, then: Callable[[], None] | None = None) -> None:
        """Show the session of a file, or of a journal, once it is read; then call ``then``."""
        self._set_opening(path)

        def finish(session: Session) -> None:
            self._opened(session, path)
            if then is not None:
                then()

        def refuse(error: Exception, detail: str) -> None:
            if path == self.opening:
                self._set_opening(None)
            self._failures.report_unread(error, detail)

        self._tasks.start(lambda: session_files.read(path), finish, refuse)

    def _leave_opening(self) -> None:
        """Do not show the file that is being read: the live session was chosen since."""
        if (path := self.opening) is not None:
            self._set_opening(None)
            self.openingLeft.emit(path)

    def _set_opening(self, path: Path | None) -> None:
        self.opening = path
        self.openingChanged.emit()

    def save(self, path: Path, then: Callable[[], None] | None = None) -> None:
        """Write the shown session, as it is now, to a file; call ``then`` afterwards."""
        shown, session = self.shown, session_files.snapshot(self.shown)
        written = (self.recorder, self._changes) if self.live else None
        source = None if self.live else self.path

        def write() -> None:
            session_files.write(session, path, source)
            self._written = written or self._written  # known, should nobody receive the answer

        def finish(_: None) -> None:
            self._wrote(path, shown, written)
            if then is not None:
                then()

        has_journal = self.live and self.journal is not None
        failed = partial(self._failures.report_unsaved, has_journal=has_journal)
        self._tasks.write(write, finish, failed)

    def rename(self, title: str) -> None:
        """Give the shown session another title."""
        self.describe(title, self.shown.notes)

    def describe(self, title: str, notes: str) -> None:
        """Give the shown session a title and notes."""
        title, notes = clip(title, content.LONGEST_NAME), clip(notes, content.LONGEST_TEXT)
        self.shown.title, self.shown.notes = title, notes
        if self.live:
            self._journal(protocol.Described(title=title, notes=notes))
        elif self.path is not None and session_files.is_session(self.path):
            path = self.path
            if path == self._live_path:  # the live session's file, which is overwritten later
                self.recorder.session.title, self.recorder.session.notes = title, notes
                self._journal(protocol.Described(title=title, notes=notes))
            self._tasks.write(
                lambda: session_files.describe(path, title, notes),
                lambda _: None,
                self._failures.report_unsaved,
            )
        self.sessionChanged.emit()

    def _opened(self, session: Session, path: Path) -> None:
        if path == self.opening:  # otherwise a new path was chosen during the read
            self._set_opening(None)
            self.path = path
            self.show(session)

    def _wrote(self, path: Path, shown: Session, written: tuple[Recorder, int] | None) -> None:
        """``shown`` was written; by now another may be shown, or another be recorded."""
        if written is not None and written[0] is self.recorder:
            self._live_path = path
            self.saved = written[1] == self._changes
        if self.shown is shown:
            self.path = path
        self.savedChanged.emit()

    # Records of the live session

    def add_note(self, text: str, t_s: float | None = None, kind: str = "note") -> None:
        """Mark a moment of the shown session with a note or a bookmark.

        Without a moment it is now, or the end of an opened session: nothing came after it.
        """
        if self.live:
            runner_t_s = None if t_s is None else t_s - self.recorder.offset_s
            self.write(protocol.Note(kind=kind, text=text), runner_t_s)
            return
        event = Event(session_log.last_s(self.shown) if t_s is None else t_s, kind, text)
        self.shown.events.append(event)
        if self.path is not None and session_files.is_session(self.path):
            path = self.path
            if path == self._live_path:  # the live session's file, which is overwritten later
                self.write(protocol.Note(kind=kind, text=text), event.t_s - self.recorder.offset_s)
            self._tasks.write(
                lambda: session_files.add_event(path, event),
                lambda _: None,
                self._failures.report_unsaved,
            )
        self.eventsChanged.emit()

    def write(self, message: protocol.AnyMessage, t_s: float | None = None) -> None:
        """Add a message of the window's own to the live session and its journal.

        ``t_s`` is a time of the runner's clock, now if none is given.
        """
        message.t_s = self._clock.now() if t_s is None else t_s
        self.recorder.record(message)
        self._journal(message)
        for changed in self.changed_by(message):
            changed.emit()

    def mark_changed(self, running: Configuration | None) -> None:
        """Note that the live session has something that is not saved; ``running`` titles it."""
        self._changes += 1
        self.saved = False
        session = self.recorder.session
        if session.title == UNTITLED and running is not None:
            session.title = running.title
            self._journal(protocol.Described(title=session.title, notes=session.notes))
            self.sessionChanged.emit()

    def changed_by(self, message: protocol.AnyMessage) -> list[SignalInstance]:
        """Return the signals that announce a recorded message."""
        match message:
            case (
                protocol.Steps()
                | protocol.TelemetrySamples()
                | protocol.Sampling()
                | protocol.Metrics()
            ):
                return [self.dataArrived]
            case protocol.Generated():
                return [self.textChanged]
            case (
                protocol.ComparisonStarted()
                | protocol.ComparisonFacts()
                | protocol.BlockDone()
                | protocol.Judged()
                | protocol.NumericsChecked()
            ):
                return [self.comparisonsChanged]
            case protocol.StudyStarted() | protocol.StudyRows() | protocol.StudyFacts():
                return [self.studiesChanged]
            case protocol.SegmentStarted() | protocol.PhaseChanged() | protocol.EvidenceFound():
                return [self.segmentsChanged]
            case protocol.Facts(ledger=ledger) if numerics.was_checked(ledger) or INVALID in ledger:
                return [self.segmentsChanged]
            case protocol.Note() | protocol.Failure():
                return [self.eventsChanged]
        return []

    # The journal

    def open_journal(self) -> Journal:
        """Return the live session's journal; begin one if there is none."""
        if self.journal is None:
            self.journal = Journal()
        return self.journal

    def close_journal(self) -> None:
        """Close the journals; they are kept unless their sessions are saved."""
        self._forget_previous()
        if self.journal is not None:
            self._close(self.journal, self._is_saved())
            self.journal = None

    def _is_saved(self) -> bool:
        """Return True if the live session is in a file; wait for writes in progress."""
        self._tasks.wait()
        return self.saved or self._written == (self.recorder, self._changes)

    @staticmethod
    def _close(journal: Journal | None, saved: bool) -> None:
        if journal is not None:
            journal.close(keep=not saved)

    def _journal(self, message: protocol.Message) -> None:
        self._changes += 1
        self.saved = False
        if self.journal is not None:
            self.journal.write(message)
        self.savedChanged.emit()


def _is_steady(segment: Segment) -> bool:
    """Return True if a segment has steady steps."""
    return any(span.phase == Phase.STEADY for span in segment.phases)
