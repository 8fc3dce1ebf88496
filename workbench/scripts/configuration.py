"""The configuration of a script in a session: its command, and the settings."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import PurePath

from sessions.model import SCRIPT, Configuration
from workbench.instrument.settings import DEFAULT

COMMAND = "command"  # the setting that holds the words of the command, quoted for a shell


def configuration_of(argv: Sequence[str], chosen: Mapping[str, str]) -> Configuration:
    """Return the configuration of a command under these settings."""
    return Configuration(
        family=SCRIPT,
        preset=title_of(argv),
        workload="train",
        settings={COMMAND: shlex.join(argv)},
        toggles=dict(chosen),
        data="script",
    )


def title_of(argv: Sequence[str]) -> str:
    """Return the name of the script in a command line: ``train.py`` of ``python -u train.py``."""
    for word in argv:
        if word.endswith(".py"):
            return PurePath(word).name
    if "-m" in argv[:-1]:
        return argv[argv.index("-m") + 1]
    return PurePath(argv[0]).name


def label_of(argv: Sequence[str], chosen: Mapping[str, str]) -> str:
    """Return the label of a segment: the script, and the settings that are no defaults."""
    settings = [f"{name}={option}" for name, option in chosen.items() if option != DEFAULT]
    return f"{title_of(argv)}: {', '.join(settings)}" if settings else title_of(argv)
