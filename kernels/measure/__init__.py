"""Measurements of operators and devices: benchmark, timing in rounds, host cost, rates, clocks."""
