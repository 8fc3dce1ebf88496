"""Configurations: their allowed values, and how a runner resolves them."""
