"""The workbench: a runner that owns the GPU, a window that watches it, and a command line."""
