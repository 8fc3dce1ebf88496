"""Evaluation of profiled steps: spans and kernels by module, memory by role."""
