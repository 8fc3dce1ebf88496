"""Paired comparisons: verdicts, intervals, corrections for many."""
