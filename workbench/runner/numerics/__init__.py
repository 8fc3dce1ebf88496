"""Checks of a variant's numbers against a reference."""
