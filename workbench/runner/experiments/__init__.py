"""Experiments: a run, a comparison, a sweep and others."""
