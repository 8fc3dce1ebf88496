"""The table of all actions: menus, toolbar, shortcuts and palette are made from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from workbench.ui.dialogs import information, session_dialogs
from workbench.ui.panel_window import PanelWindow
from workbench.ui.state import config_edit
from workbench.ui.workspace import Workspace

MENUS = ("File", "Edit", "Run", "View", "Compare", "Help")


def _always(_: Workspace) -> str:
    return ""


def _plain(_: Workspace) -> str:
    return ""


@dataclass(frozen=True)
class Action:
    """Action of the user; ``why_not`` returns an empty text if it is possible now.

    ``words`` find it in the palette, as those of its text and its tip do.
    """

    id: str
    text: str
    menu: str
    icon: str
    handler: Callable[[PanelWindow], None]
    shortcut: str = ""
    tip: str = ""
    why_not: Callable[[Workspace], str] = _always
    now: Callable[[Workspace], str] = _plain  # text that replaces ``text`` at the moment
    checked: Callable[[Workspace], bool] | None = None
    group: int = 0  # groups of a menu are separated by lines
    words: str = ""


def _cannot_run(workspace: Workspace) -> str:
    if workspace.run.replaying:
        return "This is a replay; open the window without --replay to run."
    if workspace.run.state == "dead":
        return "The runner has ended; start a new one."
    if workspace.run.state != "idle":
        return (
            "A run is in progress." if workspace.run.active else "The runner has not started yet."
        )
    if workspace.configuration.edited is None:
        return "The runner offers no model."
    return workspace.configuration.problem()


def _no_own_models(workspace: Workspace) -> str:
    if workspace.run.replaying:
        return "This is a replay; open the window without --replay to run."
    if workspace.configuration.catalogue is None:
        return "The runner has not started yet."
    if workspace.run.active:
        return "A run is in progress."
    families = [family.name for family in workspace.configuration.catalogue.families]
    return "" if config_edit.OWN in families else "This runner cannot load models from files."


def _not_active(workspace: Workspace) -> str:
    return "" if workspace.run.active else "No run is in progress."


def _cannot_stop(workspace: Workspace) -> str:
    replay = "A replay cannot stop or pause; Cancel ends it." if workspace.run.replaying else ""
    return _not_active(workspace) or replay


def _cannot_pause(workspace: Workspace) -> str:
    is_pausable = workspace.run.state in ("running", "paused")
    return _cannot_stop(workspace) if is_pausable else "There is no run to pause."


def _pause_text(workspace: Workspace) -> str:
    return "Resume" if workspace.run.state == "paused" else ""


def _pause(window: PanelWindow) -> None:
    run = window.workspace.run
    (run.resume if run.state == "paused" else run.pause)()


def _toggle_automatic(window: PanelWindow) -> None:
    prompt = window.workspace.verdict_prompt
    prompt.set_automatic(not prompt.automatic)


def _toggle_check(window: PanelWindow) -> None:
    runs = window.workspace.runs
    runs.set_checks_numbers(not runs.checks_numbers)


def _opening(workspace: Workspace) -> str:
    """Return why the shown session is not to be changed: it is about to be another."""
    path = workspace.session.opening
    return "" if path is None else f"{path.name} is being opened."


def _no_data(workspace: Workspace) -> str:
    if reason := _opening(workspace):
        return reason
    return "" if workspace.session.shown.segments else "Nothing has been measured yet."


def _nothing_to_report(workspace: Workspace) -> str:
    if reason := _opening(workspace):
        return reason
    session = workspace.session.shown
    measured = session.segments or session.comparisons or session.studies
    return "" if measured else "Nothing has been measured yet."


def _not_live(workspace: Workspace) -> str:
    if workspace.session.live:
        return _opening(workspace)
    return "Notes belong to the live session; this session is a file."


def _no_undo(workspace: Workspace) -> str:
    return "" if workspace.configuration.undo.canUndo() else "No toggle has been changed."


def _no_redo(workspace: Workspace) -> str:
    return "" if workspace.configuration.undo.canRedo() else "Nothing was undone."


def _undo_text(workspace: Workspace) -> str:
    undo = workspace.configuration.undo
    return f"Undo {undo.undoText()}" if undo.canUndo() else ""


def _redo_text(workspace: Workspace) -> str:
    undo = workspace.configuration.undo
    return f"Redo {undo.redoText()}" if undo.canRedo() else ""


def _undo(window: PanelWindow) -> None:
    window.workspace.configuration.undo.undo()


def _redo(window: PanelWindow) -> None:
    window.workspace.configuration.undo.redo()


def _begin_session(window: PanelWindow) -> None:
    window.workspace.run.begin_session(window.workspace.configuration.catalogue)


def _open_session(window: PanelWindow) -> None:
    session_dialogs.open_session(window, window.open_path)


def _open_trace(window: PanelWindow) -> None:
    session_dialogs.open_trace(window, window.open_path)


def _open_model(window: PanelWindow) -> None:
    session_dialogs.open_model(window, window.workspace.configuration)


def _save(window: PanelWindow) -> None:
    session_dialogs.save(window, window.workspace.session, window.save_path)


def _save_as(window: PanelWindow) -> None:
    session_dialogs.save_as(window, window.workspace.session, window.save_path)


def _rename(window: PanelWindow) -> None:
    session_dialogs.rename(window, window.workspace.session)


def _edit_notes(window: PanelWindow) -> None:
    session_dialogs.notes(window, window.workspace.session)


def _add_note(window: PanelWindow) -> None:
    session_dialogs.add_note(window, window.workspace.session)


def _report(window: PanelWindow) -> None:
    workspace = window.workspace
    session_dialogs.report(window, workspace.session, workspace.compared, workspace.tasks)


def _compare(window: PanelWindow) -> None:
    session_dialogs.compare(window, window.workspace.compared)


def _doctor(window: PanelWindow) -> None:
    workspace = window.workspace
    information.doctor(window, workspace.configuration, workspace.session.titles)


def _log(window: PanelWindow) -> None:
    information.log(window, window.workspace.run.log)


def _start_runner(window: PanelWindow) -> None:
    window.workspace.run.start_runner()


def _show_live(window: PanelWindow) -> None:
    window.workspace.session.show_live()


def _no_comparison(workspace: Workspace) -> str:
    return "" if workspace.compared.sessions else "No session is compared."


def _no_runner_wanted(workspace: Workspace) -> str:
    return "This is a replay." if workspace.run.replaying else ""


def _live_already(workspace: Workspace) -> str:
    is_shown = workspace.session.live and workspace.session.opening is None
    return "The live session is shown." if is_shown else ""


def _jump(window: PanelWindow) -> None:
    window.workspace.session.show_live()
    window.workspace.session.set_follow(True)


ACTIONS = (
    Action("open", "Open …", "File", "folder", _open_session, "Ctrl+O",
           "Show the session of a file or journal", words="load h5 hdf5"),
    Action("open-trace", "Open trace …", "File", "folder", _open_trace, "",
           "Show the Kineto trace or Nsight Compute report of another program",
           words="profiler chrome perfetto nsys ncu"),
    Action("open-model", "Open model …", "File", "folder", _open_model, "",
           "Run your own model: a Python file whose build() returns it", _no_own_models,
           words="load pytorch module"),
    Action("save", "Save", "File", "save", _save, "Ctrl+S",
           "Write the session to its file", _nothing_to_report, group=1, words="store"),
    Action("save-as", "Save as …", "File", "save", _save_as, "Ctrl+Shift+S",
           "Write the session to another file", _nothing_to_report, group=1),
    Action("rename", "Rename session …", "File", "rename", _rename, "F2",
           "Give the session another title", _opening, group=1, words="name"),
    Action("notes", "Session notes …", "File", "note", _edit_notes, "",
           "Edit the notes for readers of this session", _opening, group=1),
    Action("new", "New session", "File", "new", _begin_session, "Ctrl+Shift+N",
           "Begin another session; this session stays in its journal or file",
           _no_runner_wanted, group=1, words="start begin clear"),
    Action("export", "Export plot …", "File", "export", lambda w: w.export_plot(), "Ctrl+E",
           "Write a plot as PNG, SVG, PDF or CSV", _no_data, group=2,
           words="image picture chart save"),
    Action("report", "Report …", "File", "report", _report, "Ctrl+R",
           "Write one HTML page of the sessions: charts, tables, verdicts, evidence",
           _nothing_to_report, group=2, words="export print share"),
    Action("quit", "Quit", "File", "quit", lambda w: w.quit(), "Ctrl+Q",
           "End the runner and close the window", group=3, words="exit leave"),
    Action("undo", "Undo", "Edit", "undo", _undo, "Ctrl+Z",
           "Undo the last change of toggles", _no_undo,
           now=_undo_text, words="revert"),
    Action("redo", "Redo", "Edit", "redo", _redo, "Ctrl+Shift+Z",
           "Repeat the change of toggles that was undone", _no_redo,
           now=_redo_text, words="again"),
    Action("preferences", "Preferences …", "Edit", "preferences",
           lambda w: w.preferencesWanted.emit(""), "Ctrl+,",
           "Font size, units, folders, defaults of verdicts, shortcuts", group=2,
           words="settings options"),
    Action("note", "Add note …", "Edit", "note", _add_note, "Ctrl+N",
           "Mark this moment of the timeline", _not_live, group=1, words="bookmark marker comment"),
    Action("copy-image", "Copy plot as image", "Edit", "image", lambda w: w.copy_plot(),
           "Ctrl+Shift+C", "Copy an image of the plots to the clipboard", _no_data, group=1,
           words="screenshot picture chart"),
    Action("run", "Run", "Run", "run", lambda w: w.workspace.runs.start(), "F5",
           "Build the configuration and run it", _cannot_run, words="start begin launch play"),
    Action("pause", "Pause", "Run", "pause", _pause, "F6",
           "Pause the steps; the built model stays in memory", _cannot_pause, now=_pause_text,
           words="resume continue"),
    Action("stop", "Stop", "Run", "stop", lambda w: w.workspace.run.stop(), "Shift+F5",
           "End the run after the current step", _cannot_stop, words="finish"),
    Action("cancel", "Cancel", "Run", "cancel", lambda w: w.workspace.run_control.cancel(),
           "Shift+Esc", "End the build or run immediately, by force if necessary", _not_active,
           words="abort kill interrupt"),
    Action("restart", "Start a new runner", "Run", "restart", _start_runner,
           "", "Replace the runner; the session continues", _no_runner_wanted, group=1,
           words="restart reconnect process"),
    Action("palette", "Command palette", "View", "palette", lambda w: w.paletteWanted.emit(),
           "Ctrl+Shift+P", "Find any command, toggle, set, preset, panel or preference"),
    Action("jump", "Jump to live", "View", "jump", _jump, "Ctrl+End",
           "Follow the newest step again", group=1, words="newest latest end"),
    Action("pause-view", "Pause view", "View", "view-pause",
           lambda w: w.workspace.session.set_follow(not w.workspace.session.follow), "Ctrl+Space",
           "Stop moving the plots; the run continues",
           checked=lambda s: not s.session.follow, group=1, words="freeze hold"),
    Action("show-live", "Show the live session", "View", "live", _show_live, "",
           "Close the opened file and show the session that is being recorded",
           _live_already, group=1),
    Action("next-panel", "Next panel", "View", "layout", lambda w: w.step_panel(1),
           "Ctrl+Tab", "Move the keyboard focus to the next panel", group=2),
    Action("previous-panel", "Previous panel", "View", "layout",
           lambda w: w.step_panel(-1), "Ctrl+Shift+Tab",
           "Move the keyboard focus to the previous panel", group=2),
    Action("float-panel", "Float panel, or dock it again", "View", "float",
           lambda w: w.float_panel(), "Ctrl+Shift+F",
           "Detach the panel with the keyboard focus from the window, or dock it again", group=2,
           words="undock window"),
    Action("close-panel", "Close panel", "View", "close", lambda w: w.close_panel(), "Ctrl+W",
           "Close the panel with the keyboard focus; this menu opens it again", group=2),
    Action("reset-layout", "Reset layout", "View", "layout", lambda w: w.reset_layout(), "",
           "Restore the default layout of the panels", group=3, words="arrange docks"),
    Action("verdict", "Verdict against the configuration before", "Run", "verdict",
           lambda w: w.judge(), "F8", "Run the configuration before the last change and this "
           "configuration in alternating blocks, until it is clear which is faster",
           lambda s: s.verdicts.why_not_before(), group=2, words="compare faster slower benchmark"),
    Action("measure-more", "Measure more", "Run", "pending", lambda w: w.judge_longer(), "Shift+F8",
           "Extend the last comparison; its interval stays valid however often it is extended",
           lambda s: s.verdicts.why_not_more(), now=lambda s: s.verdicts.more_text(), group=2,
           words="longer continue"),
    Action("calibrate", "Calibrate (A against A)", "Run", "verdict", lambda w: w.calibrate(), "",
           "Compare this configuration with itself to measure the machine's noise; verdicts claim "
           "no smaller differences", lambda s: s.verdicts.why_not_calibrate(), group=2,
           words="floor"),
    Action("attribution", "Attribution …", "Run", "attribution", lambda w: w.attribute(), "F9",
           "Measure how much time and memory each toggle saves, alone and combined", group=2,
           words="waterfall"),
    Action("optimize", "Optimize …", "Run", "optimize", lambda w: w.search(), "Ctrl+F9",
           "Search for the best configuration with correct results, and measure it again", group=2,
           words="best fastest autotune"),
    Action("sweep", "Sweep …", "Run", "sweep", lambda w: w.vary(), "Shift+F7",
           "Measure how time and memory grow with the size of model or workload", group=2,
           words="scaling batch"),
    Action("validate", "Validation checklist", "Run", "checklist", lambda w: w.validate(), "F7",
           "Check numbers, synchronization, graph, memory, speed-up and other batch sizes",
           lambda s: s.checklists.why_not(), group=2, words="correct accuracy numerics"),
    Action("claims", "Claims of the documents …", "Run", "claims", lambda w: w.reproduce(), "F10",
           "Measure what each model family's document claims: holds, or does not hold", group=2,
           words="paper reproduce"),
    Action("profile", "Profile these steps", "Run", "breakdown", lambda w: w.profile(), "Shift+F9",
           "Show where the time and the memory of a step go, module by module",
           lambda s: s.breakdowns.why_not(), group=2, words="profiler trace kernels"),
    Action("auto-verdict", "Auto-verdict", "Run", "verdict", _toggle_automatic, "",
           "Compare the configurations before and after every change of a toggle, then continue "
           "with the changed configuration", checked=lambda s: s.verdict_prompt.automatic, group=2),
    Action("check-numbers", "Check each segment's numbers", "Run", "checklist", _toggle_check, "",
           "Pause each new configuration once and compare its results with a reference in FP64 or "
           "FP32", checked=lambda s: s.runs.checks_numbers, group=2),
    Action("compare", "Compare with …", "Compare", "compare", _compare, "Ctrl+Shift+O",
           "Compare the sessions of files with this session", words="difference diff"),
    Action("clear-compared", "Clear comparison", "Compare", "close",
           lambda w: w.workspace.compared.clear(), "",
           "Remove all other sessions from the comparison", _no_comparison),
    Action("help", "Usage", "Help", "help", lambda w: w.show_help("usage"), "F1",
           "How to use the window, step by step", words="manual documentation guide"),
    Action("help-verdict", "What a verdict is", "Help", "help", lambda w: w.show_help("verdict"),
           "", "How two configurations are compared, and when there is no verdict"),
    Action("help-plots", "How to read each plot", "Help", "help", lambda w: w.show_help("plots"),
           "", "What each plot shows and what to look for", words="chart zoom legend"),
    Action("help-models", "Your own model", "Help", "help", lambda w: w.show_help("models"), "",
           "How a Python file provides your own model"),
    Action("help-gpus", "Several GPUs", "Help", "help", lambda w: w.show_help("gpus"), "",
           "Data, tensor, sequence and pipeline parallelism"),
    Action("help-commands", "Commands", "Help", "help",
           lambda w: w.show_help("commands"), "",
           "The commands of the terminal: tables, cost and CO2 of energy, other hosts, scripts"),
    Action("tour", "Tour", "Help", "tour", lambda w: w.tourWanted.emit(), "",
           "Explain the window in five callouts", words="tutorial introduction"),
    Action("doctor", "Doctor", "Help", "doctor", _doctor, "",
           "What this machine has and lacks, and what the missing parts would enable", group=1,
           words="hardware device system GPU versions"),
    Action("log", "Runner log", "Help", "log", _log, "",
           "What the libraries printed in the runner", group=1, words="output console stderr"),
    Action("shortcuts", "Keyboard shortcuts", "Help", "palette",
           lambda w: w.shortcutsWanted.emit(), "Ctrl+/", "What each key does", group=1,
           words="hotkeys bindings zoom"),
    Action("about", "About", "Help", "about", information.about, "", "Version and licence",
           group=1, words="license"),
)  # fmt: skip

TOOLBAR = ("run", "pause", "stop", "verdict", "", "undo", "redo", "note", "",
           "open", "save", "compare", "export")  # fmt: skip
