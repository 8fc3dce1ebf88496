"""Layers of a plot: curves, markers, phases and ranges, and the strokes that paint them."""
