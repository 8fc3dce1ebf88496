"""The panels of the window, one per file; each takes the ``AppState`` and calls no other panel."""
