"""Make the package's long description of the README when a wheel or an sdist is built.

A package index shows no files of the repository, so that relative links lead nowhere there. With
``WORKBENCH_REPOSITORY_URL`` (such as ``https://HOST/OWNER/NAME/blob/main``) they become absolute.
Without it they become plain text, and pictures are left out.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

VARIABLE = "WORKBENCH_REPOSITORY_URL"
_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?://|#)([^)]+)\)")


def with_absolute_links(text: str, url: str) -> str:
    """Return Markdown without relative links; ``url`` is where the files are, or empty."""

    def replace(link: re.Match[str]) -> str:
        is_picture, title, path = link.groups()
        if not url:
            return "" if is_picture else title
        base = url.replace("/blob/", "/raw/") if is_picture else url
        return f"{is_picture}[{title}]({base.rstrip('/')}/{path})"

    return _LINK.sub(replace, text)


def get_metadata_hook() -> type:
    """Return the hook that Hatchling calls."""
    from hatchling.metadata.plugin.interface import MetadataHookInterface

    class LongDescription(MetadataHookInterface):
        """Sets the field ``readme``."""

        def update(self, metadata: dict[str, Any]) -> None:
            """Set the text."""
            text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
            made = with_absolute_links(text, os.environ.get(VARIABLE, ""))
            metadata["readme"] = {"content-type": "text/markdown", "text": made}

    return LongDescription
