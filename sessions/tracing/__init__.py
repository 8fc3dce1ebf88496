"""Kineto traces: read, attributed to modules, summed, and kept as a timeline."""
