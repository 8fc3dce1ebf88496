"""Arguments that several commands take, and the kinds of number that argparse does not know."""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from sessions.verdicts.verdict import REGION


def result_arguments(parser: argparse.ArgumentParser) -> None:
    """Add ``--output`` and ``--json``: the destinations of the session and the result."""
    parser.add_argument("-o", "--output", type=Path, metavar="FILE.h5", help="save the session")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def verbose_argument(parser: argparse.ArgumentParser) -> None:
    """Add ``--verbose``: all evidence, also of options that nobody chose."""
    parser.add_argument(
        "-v",
        "--verbose",
        action="store_true",
        help="print all evidence, with details, also of default options",
    )


def budget_argument(
    parser: argparse.ArgumentParser, default_s: float, spent: str = "longest time of alternating"
) -> None:
    """Add ``--budget``: the seconds to spend on what ``spent`` names."""
    parser.add_argument(
        "--budget",
        type=positive_float,
        default=default_s,
        metavar="SECONDS",
        help=f"{spent}; default: {default_s:g}",
    )


def region_argument(parser: argparse.ArgumentParser) -> None:
    """Add ``--region``: the percentage within which a difference counts as none."""
    parser.add_argument(
        "--region",
        type=percent,
        default=100 * REGION,
        metavar="PERCENT",
        help=f"a smaller difference counts as the same; default: {100 * REGION:g}",
    )


def names(text: str) -> list[str]:
    """Return the names of a list with commas, for argparse."""
    return [name for part in text.split(",") if (name := part.strip())]


def counts(text: str, expected: str) -> list[int]:
    """Return the whole numbers above 0 of a list that is ``expected``, for argparse."""
    listed = [count for name in names(text) if (count := whole_number(name))]
    if not listed or len(listed) < len(names(text)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of {expected}")
    return listed


def whole_number(text: str) -> int | None:
    """Return the number that is written in digits; None for other text, or too many digits."""
    try:
        return int(text) if text.isdecimal() else None
    except ValueError:  # Python reads at most 4,300 digits
        return None


def percent(text: str) -> float:
    """Parse a number above 0 and below 100, for argparse."""
    return float(_positive(text, float, "a percentage above 0 and below 100", below=100))


def integer(text: str) -> int:
    """Parse a whole number, for argparse."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None


def positive_int(text: str) -> int:
    """Parse an integer above 0, for argparse."""
    return int(_positive(text, int, "a whole number above 0"))


def positive_float(text: str) -> float:
    """Parse a number above 0, for argparse."""
    return float(_positive(text, float, "a number above 0"))


def _positive(
    text: str, kind: type[int] | type[float], expected: str, below: float = math.inf
) -> float:
    try:
        value = kind(text)
    except ValueError:
        value = 0
    if not 0 < value < below:
        raise argparse.ArgumentTypeError(f"{text!r} is not {expected}")
    return value
