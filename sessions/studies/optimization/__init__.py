"""The search for the best configuration: its space, races, verdicts, tables and words."""
