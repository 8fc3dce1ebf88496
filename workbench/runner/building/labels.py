"""Names of configurations in a few words."""

from __future__ import annotations

import torch

from sessions.model import Configuration
from workbench.runner.toggles import all_toggles

MOST_LETTERS = 24  # the last ones of a value in a title: a path ends with the file


def label(configuration: Configuration, device: torch.device) -> str:
    """Return the options of a configuration that are not the defaults, in a few words."""
    parts = [
        f"{toggle.title}: {toggle.options[option]}"
        for toggle in all_toggles().values()
        if (option := configuration.toggles[toggle.name]) != toggle.default_option(device)
    ]
    return ", ".join(parts) or "defaults"


def title(configuration: Configuration, other: Configuration, device: torch.device) -> str:
    """Return a variant's name: what else differs from the other variant, then its toggles."""
    switched = label(configuration, device)
    if configuration.family != other.family:
        return f"{configuration.family} {configuration.preset}: {switched}"
    flat, shared = configuration.flat(), other.flat().items()
    differences = [
        f"{name.rpartition('.')[2].replace('_', ' ')} {str(value)[-MOST_LETTERS:]}"
        for name, value in flat.items()
        if not name.startswith("toggles.") and (name, value) not in shared
    ]
    return f"{', '.join(differences)}: {switched}" if differences else switched
