"""The one exception for what a person asked of a model and cannot have."""

from __future__ import annotations


class ConfigurationError(ValueError):
    """What was asked cannot be built or run: one sentence for the person who asked."""
