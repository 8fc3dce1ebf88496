"""How the configuration that is being edited stands to the runner, and to the run in progress."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sessions.model import Configuration
from workbench.ui.controllers import config_edit
from workbench.ui.controllers.undo import Choices

if TYPE_CHECKING:
    from workbench.ui.state import AppState


def refused(state: AppState) -> Choices:
    """The toggles whose chosen option cannot be used, with the option that leaves all alone."""
    availability, catalogue = state.availability, state.catalogue
    if availability is None or catalogue is None:
        return {}
    chosen = availability.configuration.toggles
    return {
        toggle.name: toggle.options[0].name
        for toggle in catalogue.toggles
        if chosen.get(toggle.name) in availability.blocked.get(toggle.name, {})
    }


def problems(state: AppState) -> list[str]:
    """Why the configuration cannot start as it is: a sentence for each toggle, or the runner's."""
    availability, catalogue = state.availability, state.catalogue
    if availability is None or catalogue is None or not availability.problems:
        return []
    found = []
    for name in refused(state):
        toggle, option = (
            config_edit.toggle_of(catalogue, name),
            availability.configuration.toggles[name],
        )
        why = availability.blocked[name][option]
        title = config_edit.option_title(toggle, option)
        found.append(f"{toggle.title}: {title} cannot be used: {why.said}")
    return found or availability.problems


def problem(state: AppState) -> str:
    """The first reason why the configuration cannot start as it is; empty where it can."""
    return next(iter(problems(state)), "")


def continued(state: AppState) -> Configuration | None:
    """What goes on running: none of the arms of a study, which nobody chose."""
    if not state.active:
        return None
    return state.verdicts.goes_on if state.measures else state.running


def away(state: AppState) -> bool:
    """Whether the run in progress is of another family or workload than what is being edited."""
    running, edited = continued(state), state.configuration
    return (
        running is not None and edited is not None and not config_edit.of_one_run(running, edited)
    )


def pending(state: AppState) -> Choices:
    """Toggles that were chosen but that the run in progress does not have yet."""
    running, edited = continued(state), state.configuration
    if running is None or edited is None or away(state):
        return {}
    runs = running.toggles  # none while kernels are timed
    return {name: one for name, one in edited.toggles.items() if runs.get(name, one) != one}


def left_behind(state: AppState) -> list[str]:
    """What was edited that the run in progress will not have, called as the forms call it."""
    running, edited = continued(state), state.configuration
    if running is None or edited is None or not config_edit.has(state.catalogue, running.family):
        return []
    if running.family != edited.family:
        found = ["family"]
    else:
        found = config_edit.other_parts(edited, running)
        if running.preset == edited.preset and running.workload == edited.workload:
            names = [name for name, value in edited.settings.items()
                     if running.settings.get(name, value) != value]  # fmt: skip
            found += [state.titles.name(f"settings.{name}").lower() for name in names]
    return [*found, "toggles"] if away(state) else found
