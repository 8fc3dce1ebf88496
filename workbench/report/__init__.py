"""One self-contained HTML page of saved sessions: what was measured, judged, checked; with charts.

Every file of this folder that has no leading underscore is a section of the page, and ends in
``SECTION``.
"""

from __future__ import annotations

import importlib
import pkgutil

from workbench.report._section import Section

__all__ = ["SECTIONS", "Section"]


def _discover() -> dict[str, Section]:
    names = [one.name for one in pkgutil.iter_modules(__path__) if not one.name.startswith("_")]
    sections = [importlib.import_module(f"{__name__}.{name}").SECTION for name in names]
    return {section.name: section for section in sorted(sections, key=lambda one: one.place)}


SECTIONS: dict[str, Section] = _discover()  # in the order of a page
