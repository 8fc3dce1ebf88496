"""State of a model and of the process that a check must leave as it was: read, kept, put back."""
