"""The package's long description has no link that leads nowhere on a package index."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from workbench.packaging.long_description import with_absolute_links

README = (Path(__file__).parents[3] / "README.md").read_text(encoding="utf-8")
URL = "https://host.example/owner/name/blob/main"


@pytest.mark.parametrize("url", ["", URL, URL + "/"])
def test_no_link_of_the_readme_stays_relative(url):
    text = with_absolute_links(README, url)
    targets = re.findall(r"\]\(([^)]+)\)", text)
    assert all(target.startswith(("https://", "http://", "#")) for target in targets)
    assert bool(targets) == bool(url)
    assert "# GPU optimization workbench" in text


def test_files_and_pictures_have_their_addresses_and_other_links_stay():
    text = "![A picture](a/b.png) [page](c.md#part) [else](https://other.example) [here](#below)"
    assert with_absolute_links(text, URL) == (
        "![A picture](https://host.example/owner/name/raw/main/a/b.png) "
        "[page](https://host.example/owner/name/blob/main/c.md#part) "
        "[else](https://other.example) [here](#below)"
    )
    assert with_absolute_links(text, "") == " page [else](https://other.example) [here](#below)"
