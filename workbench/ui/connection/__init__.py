"""The window's connection to its runner."""
