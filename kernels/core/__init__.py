"""Shared machinery of the operators: descriptors, dispatch, launches, tuning."""
