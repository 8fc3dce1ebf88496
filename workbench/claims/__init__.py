"""The documents' claims, one document per file: what each says, and how it is measured here.

Every number of a document is covered by a claim, or by an omission that states why it has none.

A file ends in ``DOCUMENT``; ``documents()`` is the registry, in alphabetical order.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from workbench.claims._claim import Document as Document


@cache
def documents() -> dict[str, Document]:
    """Every document by name."""
    names = (module.name for module in pkgutil.iter_modules(__path__))
    found = [
        importlib.import_module(f"{__name__}.{name}").DOCUMENT
        for name in sorted(names)
        if not name.startswith("_")
    ]
    return {document.name: document for document in found}
