"""What marked steps of a profiler tell: spans and kernels by module, memory by role."""
