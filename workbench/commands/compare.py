"""Compare saved sessions: ratios of step time to the first, and what else differs.

A ratio has an interval and a verdict only if a file has a paired comparison of the two
configurations, or if both ran in turn, in three sessions each. Others are marked unpaired.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import msgspec

from sessions import numerics
from sessions.ceilings import ceiling_words, utilization
from sessions.reproduction import command_lines
from sessions.tables import comparison_table, differences_table, escaped
from sessions.verdicts.comparison import MOST, Comparison, compare
from workbench.commands._arguments import whole_number
from workbench.commands._command import (
    DONE,
    Command,
    Mistaken,
    answer,
    answer_json,
    check_output,
    load_together,
    print_status,
    write_text,
)
from workbench.commands._tables import render

_SUFFIXES = (".md", ".csv")


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("base", type=Path, metavar="BASE.h5", help="baseline of the ratios")
    parser.add_argument(
        "compared", type=Path, nargs="+", metavar="OTHER.h5", help=f"up to {MOST - 1} other files"
    )
    parser.add_argument(
        "--segments",
        metavar="N,N,...",
        help="one of each file, counted from 0 as `workbench info` lists them; default: the one "
        "with the most steady steps",
    )
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE.md|FILE.csv", help="write the table too"
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def _run(arguments: argparse.Namespace) -> int:
    from sessions.storage import hdf5

    paths = [arguments.base, *arguments.compared]
    if arguments.output is not None:
        check_output(arguments.output, _SUFFIXES)
    places = _places(arguments.segments, len(paths))
    sessions = load_together(paths)
    with hdf5.held_open(sessions):
        comparison = compare(sessions, segments=places)
    for warning in comparison.warnings:
        print_status(f"warning: {warning}")
    if arguments.output is not None:
        is_csv = arguments.output.suffix.lower() == ".csv"
        table = comparison_table(comparison).to_csv() if is_csv else _markdown(comparison)
        write_text(arguments.output, table)
    if arguments.json:
        answer_json(_as_data(comparison))
    else:
        answer(_markdown(comparison))
        if hint := command_lines.verdict_hint(comparison.arms, sessions[0].titles):
            answer(hint)
    return DONE


def _places(text: str | None, count: int) -> list[int] | None:
    """Return the named segments, one for each file; raise ``Mistaken`` for other text."""
    if text is None:
        return None
    named = [whole_number(word.strip()) for word in text.split(",")]
    numbers = [number for number in named if number is not None]
    if not len(named) == len(numbers) == count:
        raise Mistaken(f"--segments {text}: expected {count} whole numbers, one for each file")
    return numbers


def _markdown(comparison: Comparison) -> str:
    """Return the comparison and its differences as Markdown."""
    parts = [render(comparison_table(comparison))]
    if comparison.differences:
        parts.append(render(differences_table(comparison)))
    parts += [f"**Warning:** {escaped(warning)}\n" for warning in comparison.warnings]
    return "\n".join(parts)


def _as_data(comparison: Comparison) -> dict[str, object]:
    return {
        "reason": "done",
        "baseline": comparison.baseline,
        "warnings": comparison.warnings,
        "arms": [
            {
                "title": arm.title,
                "segment": arm.segment.title,
                "clock": arm.clock,
                "n": arm.summary.n,
                "median_ms": arm.summary.median,
                "p95_ms": arm.summary.p95,
                "ratio": arm.ratio and arm.ratio.ratio,
                "ratio_low": arm.ratio and arm.ratio.low,
                "ratio_high": arm.ratio and arm.ratio.high,
                "ratio_source": arm.ratio and arm.ratio.source,
                "verdict": arm.ratio and arm.ratio.verdict,
                "note": arm.ratio.note if arm.ratio else "baseline",
                "other_work": arm.other_work,
                "peak_bytes": arm.peak_bytes,
                "own_peak_bytes": arm.own_peak_bytes,
                "numbers": numerics.mark(arm.segment.ledger),
                "model_flops_utilization": utilization(arm.segment, arm.summary.median),
                "ceiling": ceiling_words(arm.segment),
                "configuration": msgspec.to_builtins(arm.segment.configuration),
            }
            for arm in comparison.arms
        ],
        "differences": {
            difference.name: difference.values for difference in comparison.differences
        },
    }


COMMAND = Command(name="compare", help=__doc__, arguments=_arguments, run=_run, tabular=True)
