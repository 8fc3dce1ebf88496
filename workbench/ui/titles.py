"""Toggles and fields by the titles that forms give them, where files and commands have names.

A session keeps ``precision=amp_bf16`` and ``settings.batch``: that is what a command takes. People
read ``Precision: AMP BF16`` and ``Batch``. What the catalogue does not know stays as it is.
"""

from __future__ import annotations

import re

from workbench.protocol import Catalogue

_CHOICE = re.compile(r"(?<![\w.=-])(\w+) ?= ?(\w[\w.+/-]*\w|\w)(:?)")
_FIELD = re.compile(r"\b(?:settings|model|toggles)\.\w+")
_WHOLE = {"family": "Family", "preset": "Preset", "workload": "Workload", "seed": "Seed"}


class Titles:
    """The titles of one catalogue; of none, everything keeps its name."""

    def __init__(self, catalogue: Catalogue | None) -> None:
        self._options: dict[str, dict[str, str]] = {}
        self._names = dict(_WHOLE)
        self._values: dict[str, dict[str, str]] = {}
        if catalogue is None:
            return
        for toggle in catalogue.toggles:
            self._options[toggle.name] = {one.name: one.title for one in toggle.options}
            self._names[f"toggles.{toggle.name}"] = toggle.title
            self._values[f"toggles.{toggle.name}"] = self._options[toggle.name]
        called: dict[str, set[str]] = {}  # one name may be another thing to another workload
        for group, owners in (("model", catalogue.families), ("settings", catalogue.workloads)):
            for owner in owners:
                for field in owner.fields:
                    called.setdefault(f"{group}.{field.name}", set()).add(field.title)
        self._names |= {name: min(titles) for name, titles in called.items() if len(titles) == 1}
        self._values["family"] = {one.name: one.title for one in catalogue.families}
        self._values["workload"] = {one.name: one.title for one in catalogue.workloads}

    def choice(self, name: str, option: str) -> str:
        """A toggle's option: ``AdamW: Fused``."""
        return self.setting(f"toggles.{name}", option)

    def setting(self, name: str, value: str) -> str:
        """One entry of a flat configuration: ``AdamW: Fused``, ``Batch: 16``."""
        return f"{self.name(name)}: {self._values.get(name, {}).get(value, value)}"

    def name(self, name: str) -> str:
        """What a name of a flat configuration is called; its last part where that is not known."""
        return self._names.get(name, name.rpartition(".")[2].replace("_", " ").capitalize())

    def of(self, text: str) -> str:
        """A text with every choice and field in it by its titles."""
        return _FIELD.sub(self._field, _CHOICE.sub(self._choice, text))

    def _choice(self, found: re.Match[str]) -> str:
        name, option, colon = found.groups()
        title = self._options.get(name, {}).get(option)
        if title is None:
            return found[0]
        return f"{self._names[f'toggles.{name}']}: {title}{',' if colon else ''}"

    def _field(self, found: re.Match[str]) -> str:
        return self.name(found[0]).lower() if self._options else found[0]
