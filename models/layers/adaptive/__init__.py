"""Attention whose heads adapt their rank and their precision as they run."""
