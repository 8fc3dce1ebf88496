"""Costs of the families: sizes, FLOPs and peak memory."""
