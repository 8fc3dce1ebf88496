"""State of a model and of the process that a check must not change: recorded and restored."""
