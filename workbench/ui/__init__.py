"""The window (PySide6, pyqtgraph, numpy): never imports torch, kernels, models or the runner."""
