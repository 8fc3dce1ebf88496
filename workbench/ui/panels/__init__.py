"""The panels of the window, one per file; each takes the models it uses, and no other panel."""
