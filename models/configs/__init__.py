"""Configurations of the families: their fields, and which sizes fit together."""
