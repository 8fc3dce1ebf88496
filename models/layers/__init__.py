"""Layers that the families are built from."""
