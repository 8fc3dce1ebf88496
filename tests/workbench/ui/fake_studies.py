"""Samples of studies and comparisons for the fake runner, imported when one is requested.

The processes that ``process_forks.py`` forks have it from the start.
"""

from __future__ import annotations

import attribution_samples
import optimization_samples
from fake_session import checked, comparison
from fake_sweep import swept

from sessions.verdicts import intervals

__all__ = ["attribution_samples", "checked", "comparison", "optimization_samples", "swept"]

# The bootstrap's library takes a second to load, and what is tested here is the window.
intervals._fixed = lambda series, alpha: (-1e-3 + float(series.mean()), float(series.mean()), 1e-3)
