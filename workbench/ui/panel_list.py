"""The panels of the window; each takes only the models and controllers that it uses."""

from __future__ import annotations

import importlib

from PySide6.QtWidgets import QWidget

from workbench.ui.docks import Panel
from workbench.ui.panels.build import BuildPanel
from workbench.ui.panels.events import EventsPanel
from workbench.ui.panels.generated import GeneratedPanel
from workbench.ui.panels.lazy_panel import LazyPanel
from workbench.ui.panels.segments import SegmentsPanel
from workbench.ui.panels.toggles import TogglesPanel
from workbench.ui.workspace import Workspace


def build(workspace: Workspace) -> BuildPanel:
    """Make the form of the configuration."""
    return BuildPanel(
        workspace.session,
        workspace.run,
        workspace.configuration,
        workspace.run_control,
        workspace.theme,
    )


def toggles(workspace: Workspace) -> TogglesPanel:
    """Make the panel of the optimizations."""
    return TogglesPanel(
        workspace.session,
        workspace.run,
        workspace.configuration,
        workspace.verdicts,
        workspace.verdict_prompt,
        workspace.presets,
        workspace.theme,
    )


def segments(workspace: Workspace) -> SegmentsPanel:
    """Make the table of segments."""
    return SegmentsPanel(
        workspace.session,
        workspace.configuration,
        workspace.verdicts,
        workspace.failures,
        workspace.theme,
        workspace.tasks,
    )


def events(workspace: Workspace) -> EventsPanel:
    """Make the log of the session."""
    return EventsPanel(workspace.session, workspace.run, workspace.configuration, workspace.theme)


def text(workspace: Workspace) -> GeneratedPanel:
    """Make the panel of generated text."""
    return GeneratedPanel(workspace.session, workspace.theme)


def live(workspace: Workspace) -> QWidget:
    """Make the panel of live plots."""
    # Importing pyqtgraph takes longer than the rest of the window.
    from workbench.ui.panels.live import LivePanel

    importlib.import_module("scipy.special")  # now, and not when the first steps arrive
    return LivePanel(workspace.session, workspace.theme, workspace.tasks)


def compare(workspace: Workspace) -> QWidget:
    """Make the panel of the comparison."""
    from workbench.ui.panels.compare import ComparePanel

    return ComparePanel(
        workspace.session,
        workspace.compared,
        workspace.verdicts,
        workspace.failures,
        workspace.theme,
        workspace.tasks,
    )


def verdict(workspace: Workspace) -> QWidget:
    """Make the panel of the verdict."""
    from workbench.ui.panels.verdict import VerdictPanel

    return VerdictPanel(
        workspace.session,
        workspace.run,
        workspace.configuration,
        workspace.verdicts,
        workspace.theme,
        workspace.tasks,
    )


def attribution(workspace: Workspace) -> QWidget:
    """Make the panel of the attribution."""
    from workbench.ui.panels.attribution import AttributionPanel

    return AttributionPanel(
        workspace.session,
        workspace.run,
        workspace.configuration,
        workspace.attributions,
        workspace.theme,
        workspace.tasks,
    )


def optimize(workspace: Workspace) -> QWidget:
    """Make the panel of the best configuration."""
    from workbench.ui.panels.optimize import OptimizePanel

    return OptimizePanel(
        workspace.session,
        workspace.run,
        workspace.configuration,
        workspace.presets,
        workspace.optimizations,
        workspace.theme,
        workspace.tasks,
    )


def checklist(workspace: Workspace) -> QWidget:
    """Make the panel of the validation checklist."""
    from workbench.ui.panels.checklist import ChecklistPanel

    return ChecklistPanel(
        workspace.session,
        workspace.run,
        workspace.configuration,
        workspace.checklists,
        workspace.theme,
    )


def breakdown(workspace: Workspace) -> QWidget:
    """Make the panel of profiles."""
    from workbench.ui.panels.breakdown import BreakdownPanel

    return BreakdownPanel(
        workspace.session,
        workspace.run,
        workspace.configuration,
        workspace.compared,
        workspace.breakdowns,
        workspace.next_steps,
        workspace.theme,
        workspace.tasks,
    )


def sweep(workspace: Workspace) -> QWidget:
    """Make the panel of the sweep."""
    from workbench.ui.panels.sweep import SweepPanel

    return SweepPanel(
        workspace.session,
        workspace.run,
        workspace.configuration,
        workspace.presets,
        workspace.sweeps,
        workspace.theme,
        workspace.tasks,
    )


def kernels(workspace: Workspace) -> QWidget:
    """Make the panel of timed kernels."""
    from workbench.ui.panels.kernels import KernelsPanel

    return KernelsPanel(workspace.session, workspace.theme)


def claims(workspace: Workspace) -> QWidget:
    """Make the panel of the documents' claims."""
    from workbench.ui.panels.claims import ClaimsPanel

    return ClaimsPanel(
        workspace.session,
        workspace.run,
        workspace.configuration,
        workspace.reproductions,
        workspace.theme,
    )


def panels(workspace: Workspace) -> tuple[Panel, ...]:
    """Return every panel of the window."""
    return (
        Panel("build", "Build", lambda: build(workspace),
              "configuration model family preset workload batch sequence seed data fields"),
        Panel("toggles", "Toggles", lambda: toggles(workspace), "optimizations options"),
        Panel("live", "Live", lambda: LazyPanel(lambda: live(workspace)),
              "plots charts timeline step time memory utilization power throughput metrics"),
        Panel("verdict", "Verdict", lambda: LazyPanel(lambda: verdict(workspace)),
              "faster slower same ratio interval energy comparison"),
        Panel("breakdown", "Breakdown", lambda: LazyPanel(lambda: breakdown(workspace)),
              "profile trace modules kernels timeline roofline memory"),
        Panel("attribution", "Attribution", lambda: LazyPanel(lambda: attribution(workspace)),
              "waterfall interactions of toggles"),
        Panel("optimize", "Optimize", lambda: LazyPanel(lambda: optimize(workspace)),
              "search best fastest configuration"),
        Panel("checklist", "Checklist", lambda: LazyPanel(lambda: checklist(workspace)),
              "validation checks correct numbers"),
        Panel("sweep", "Sweep", lambda: LazyPanel(lambda: sweep(workspace)), "scaling sizes ranks"),
        Panel("kernels", "Kernels", lambda: LazyPanel(lambda: kernels(workspace)),
              "benchmark operators"),
        Panel("claims", "Claims", lambda: LazyPanel(lambda: claims(workspace)), "documents papers"),
        Panel("compare", "Compare", lambda: LazyPanel(lambda: compare(workspace)),
              "sessions side by side box distribution history table"),
        Panel("segments", "Segments", lambda: segments(workspace), "baseline runs table rows"),
        Panel("events", "Events", lambda: events(workspace), "notes bookmarks warnings log"),
        Panel("text", "Generated text", lambda: text(workspace), "output tokens"),
    )  # fmt: skip
