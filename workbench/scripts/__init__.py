"""Training scripts that run unchanged: how they are started, watched and compared."""
