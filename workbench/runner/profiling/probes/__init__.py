"""Collectors that inspect an arm during steps that are not timed: one collector per file."""
