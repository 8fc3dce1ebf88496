"""The plotting library below the plots: canvas, axes, layers, pyramids."""
