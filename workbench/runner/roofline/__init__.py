"""Counted work, measured ceilings, and predictions from both."""
