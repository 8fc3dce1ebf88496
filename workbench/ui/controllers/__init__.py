"""Controllers: one for each kind of task that the window starts."""
