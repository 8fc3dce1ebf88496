"""What the window does with its own process: signals, threads, garbage."""
