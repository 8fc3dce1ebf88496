"""Titles of toggles and fields as forms show them, for the names in files and commands.

A session keeps ``precision=amp_bf16`` and ``settings.batch``: that is what a command takes. People
read ``Precision: AMP BF16`` and ``Batch``. A name without a title is not changed.
"""

from __future__ import annotations

import re
from collections import ChainMap, Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sessions.numbers import moment
from sessions.plain_text import clip

if TYPE_CHECKING:
    from sessions.model import Session
    from workbench.protocol import Catalogue

_CHOICE = re.compile(r"(?<![\w.=-])(\w+) ?= ?(\w[\w.+/-]*\w|\w)(:?)")
_FIELD = re.compile(r"\b(?:settings|model|toggles)\.\w+")
_PARTS = {"family": "Family", "preset": "Preset", "workload": "Workload", "seed": "Seed"}


def offered(catalogue: Catalogue) -> dict[str, str]:
    """Return every title of a catalogue, for a session to store: a reader may have no runner.

    ``toggles.adamw`` is called ``AdamW``, ``toggles.adamw=fused`` ``Fused``; what one workload
    calls differently from another has no title.
    """
    titles_by_name: dict[str, str] = {}
    for toggle in catalogue.toggles:
        titles_by_name[f"toggles.{toggle.name}"] = toggle.title
        titles_by_name |= {
            f"toggles.{toggle.name}={choice.name}": choice.title for choice in toggle.options
        }
    called: dict[str, set[str]] = {}
    for group, owners in (("model", catalogue.families), ("settings", catalogue.workloads)):
        for owner in owners:
            for field in owner.fields:
                called.setdefault(f"{group}.{field.name}", set()).add(field.title)
    titles_by_name |= {name: min(titles) for name, titles in called.items() if len(titles) == 1}
    titles_by_name |= {f"family={family.name}": family.title for family in catalogue.families}
    return titles_by_name | {
        f"workload={workload.name}": workload.title for workload in catalogue.workloads
    }


def distinct_files(paths: Sequence[Path]) -> list[str]:
    """Return the names of files, each behind as many folders as tell it apart from the rest."""
    names = []
    for path in paths:
        rest = [other.parts for other in paths if other != path]
        count = 1
        while count < len(path.parts) and path.parts[-count:] in [p[-count:] for p in rest]:
            count += 1
        names.append(str(Path(*path.parts[-count:])))
    return names


def distinct(sessions: Sequence[Session]) -> list[str]:
    """Return distinct titles of sessions: equal titles are followed by the time."""
    labels = [session.title for session in sessions]
    for form in ("%H:%M", "%H:%M:%S", "%d %B %Y, %H:%M:%S"):
        counts = Counter(labels)
        times = [moment(_first_segment_s(session), form) for session in sessions]
        labels = [
            label if counts[label] == 1 else f"{session.title}, {when}"
            for label, session, when in zip(labels, sessions, times, strict=True)
        ]
    counts, occurrences = Counter(labels), Counter[str]()
    for index, label in enumerate(labels):
        occurrences[label] += 1
        if counts[label] > 1:
            labels[index] = f"{label} ({occurrences[label]})"
    return labels


def _first_segment_s(session: Session) -> float:
    """Return the Unix time at which a session's first segment began."""
    return session.created + (session.segments[0].start_s if session.segments else 0.0)


class Titles:
    """Titles of any number of catalogues, as ``offered`` returns them; the last one wins."""

    def __init__(self, *sources: Mapping[str, str]) -> None:
        self._titles = ChainMap(*map(dict, reversed(sources)), _PARTS)
        self._known = any(sources)

    def choice(self, name: str, option: str) -> str:
        """Return a toggle's option as ``AdamW: Fused``."""
        return self.setting(f"toggles.{name}", option)

    def setting(self, name: str, value: str) -> str:
        """Return one entry of a flat configuration: ``AdamW: Fused``, ``Batch: 16``."""
        return f"{self.name(name)}: {self._titles.get(f'{name}={value}', value)}"

    def name(self, name: str) -> str:
        """Return the title of a name of a flat configuration; its last part if there is none."""
        return self._titles.get(name, name.rpartition(".")[2].replace("_", " ").capitalize())

    def of(self, text: str) -> str:
        """Return a text to show, with every choice and field in it by its titles."""
        return _FIELD.sub(self._field, _CHOICE.sub(self._choice, clip(text)))

    def _choice(self, match: re.Match[str]) -> str:
        name, option, colon = match.groups()
        if f"toggles.{name}={option}" not in self._titles:
            return match[0]
        return f"{self.choice(name, option)}{',' if colon else ''}"

    def _field(self, match: re.Match[str]) -> str:
        return self.name(match[0]).lower() if self._known else match[0]
