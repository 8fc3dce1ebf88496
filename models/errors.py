"""The exception for invalid requests to a model."""

from __future__ import annotations


class ConfigurationError(ValueError):
    """Request that cannot be built or run: one sentence for the user."""
