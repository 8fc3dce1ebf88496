"""Compare saved sessions: ratios with intervals against the first, and what else differs."""

from __future__ import annotations

import argparse
from pathlib import Path

import msgspec

from sessions.comparison import Comparison, compare
from sessions.tables import comparison_table, differences_table
from workbench.commands._command import DONE, Command, Mistaken, answer, answer_json, load, say


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("base", type=Path, metavar="BASE.h5", help="what the ratios refer to")
    parser.add_argument("others", type=Path, nargs="+", metavar="OTHER.h5")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE.md|FILE.csv")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def _run(arguments: argparse.Namespace) -> int:
    paths = [arguments.base, *arguments.others]
    sessions = [load(path) for path in paths]
    for path, session in zip(paths, sessions, strict=True):
        session.title = path.stem  # titles may repeat; names on the command line do not
    comparison = compare(sessions)
    for warning in comparison.warnings:
        say(f"warning: {warning}")
    if arguments.json:
        answer_json(_as_data(comparison))
    else:
        text = markdown(comparison)
        answer(text)
    if arguments.output is not None:
        write(comparison, arguments.output)
    return DONE


def markdown(comparison: Comparison) -> str:
    """The comparison and its differences as Markdown."""
    parts = [comparison_table(comparison).to_markdown()]
    if comparison.differences:
        parts.append(differences_table(comparison).to_markdown())
    parts += [f"**Warning:** {warning}\n" for warning in comparison.warnings]
    return "\n".join(parts)


def write(comparison: Comparison, path: Path) -> None:
    """Write the comparison as .md or .csv; raises ``Mistaken`` for another suffix."""
    if path.suffix == ".md":
        content = markdown(comparison)
    elif path.suffix == ".csv":
        content = comparison_table(comparison).to_csv()
    else:
        raise Mistaken(f"{path}: unknown suffix {path.suffix!r}; expected .md or .csv")
    try:
        path.write_text(content)
    except OSError as error:
        raise Mistaken(f"{path} cannot be written: {error.strerror}") from None


def _as_data(comparison: Comparison) -> dict[str, object]:
    return {
        "baseline": comparison.baseline,
        "warnings": comparison.warnings,
        "arms": [
            {
                "title": arm.title,
                "clock": arm.clock,
                "n": arm.summary.n,
                "median_ms": arm.summary.median,
                "p95_ms": arm.summary.p95,
                "ratio": arm.ratio and arm.ratio.ratio,
                "ratio_low": arm.ratio and arm.ratio.low,
                "ratio_high": arm.ratio and arm.ratio.high,
                "note": arm.ratio.reason if arm.ratio else "baseline",
                "peak_bytes": arm.peak_bytes,
                "configuration": msgspec.to_builtins(arm.segment.configuration),
            }
            for arm in comparison.arms
        ],
        "differences": {one.name: one.values for one in comparison.differences},
    }


COMMAND = Command(name="compare", help=__doc__, arguments=_arguments, run=_run)
