"""What a session is, its HDF5 file, its statistics and comparisons (no torch, no Qt)."""
