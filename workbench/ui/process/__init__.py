"""The window's own process: signals, threads, garbage collection."""
