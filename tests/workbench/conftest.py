"""Places of their own for what the workbench writes."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def own_places(tmp_path, monkeypatch):
    """No test writes to the user's journals or settings."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
