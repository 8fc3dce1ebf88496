"""The documents' claims, one document per file: what each says, and how it is measured here.

Every number of a document is covered by a claim, or by an omission that states why it has none.

A file ends in ``DOCUMENT``; ``documents()`` is the registry, in alphabetical order.
"""

from __future__ import annotations

from functools import cache

from workbench import plugins
from workbench.claims._claim import Document as Document


@cache
def documents() -> dict[str, Document]:
    """Return every document by name."""
    return plugins.gather(__name__, "DOCUMENT", Document, "documents")
