"""Collectors that inspect a variant during steps that are not timed: one collector per file."""
