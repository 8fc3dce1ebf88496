"""One self-contained HTML page of saved sessions: what was measured, judged, checked; with charts.

Every file of this folder that has no leading underscore is a section of the page, and ends in
``SECTION``. Plug-ins may bring others.
"""

from __future__ import annotations

from workbench import plugins
from workbench.report._section import Section

__all__ = ["SECTIONS", "Section"]

SECTIONS: dict[str, Section] = dict(  # in the order of a page
    sorted(
        plugins.gather(__name__, "SECTION", Section, "sections").items(),
        key=lambda item: item[1].order,
    )
)
