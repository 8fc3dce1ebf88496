"""Configurations: what they may hold, and what a runner makes of them."""
