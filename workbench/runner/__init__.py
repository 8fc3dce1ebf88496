"""The process that owns the GPU: builds, toggles, steps and measures (torch; never Qt)."""
