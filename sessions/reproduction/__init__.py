"""Command lines and Python code that repeat what a session measured."""
