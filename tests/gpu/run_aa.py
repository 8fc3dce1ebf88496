"""On a GPU host: how often identical arms are called different, over fresh processes and builds.

    python tests/gpu/run_aa.py OUT [--processes 30] [--budget 4] [--builds 4] [--limit 330]

Each runner process compares a configuration with itself once, by default a captured step of well
under a millisecond, and builds both arms ``--builds`` times within ``--budget`` seconds. The next
process starts once the one before has ended, and none after ``--limit`` seconds. Each also compares
for a second with a single build, which shows by how far two builds differ. Prints each verdict and
what all come to, with exact binomial intervals, and writes ``aa.json`` and ``aa.md`` (a table for
RESULTS) to OUT. ``--cpu`` takes an uncaptured step, and is meant for a host without a
GPU. Exit code 1 if more than 5 % are called different, or more than 6 % of the intervals leave out
a ratio of 1, and chance alone does not explain it.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "workbench" / "processes"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from identical_pairs import compare, summary
from runner_driver import Driver

from sessions.model import Configuration, PairedComparison
from sessions.verdicts.verdict_words import ratio_line

MISSED = 0.06  # of the intervals, at most, that may leave out a ratio of 1


def main() -> int:
    """Compare in one process after the other, and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--processes", type=int, default=30)
    parser.add_argument("--budget", type=float, default=4.0, metavar="SECONDS")
    parser.add_argument("--builds", type=int, default=4, help="0: as many as are cheap")
    parser.add_argument("--limit", type=float, default=330.0, metavar="SECONDS")
    parser.add_argument("--cpu", action="store_true", help="an uncaptured step, on the CPU")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    both = Configuration(
        family="hydra",
        preset="tiny",
        model={"dim": 32, "n_layers": 2, "n_heads": 2, "n_kv_heads": 1, "max_sequence": 256},
        settings={"batch": 1, "sequence": 16},
        toggles={} if options.cpu else {"cuda_graphs": "on"},
    )
    made: list[PairedComparison] = []
    single: list[PairedComparison] = []
    environment: dict[str, str] = {}
    ends = time.monotonic() + options.limit
    while len(made) < options.processes and time.monotonic() < ends:
        driver = Driver()
        try:
            driver.until_state("idle")
            made += compare(driver, both, 1, options.budget, show, options.builds, seed=len(made))
            single += compare(driver, both, 1, 1.0, lambda *_: None, 1, seed=len(made))
            environment = driver.session.environment
        finally:
            driver.close()
    counts, alone = summary(made), summary(single)
    write(options, both, environment, {"rebuilt": made, "built once": single})
    step_ms = statistics.median(time_ms for row in made for time_ms in row.medians_ms)
    print(f"{len(made)} processes. {counts['words']} A step took {step_ms:.3g} ms.")
    print(f"Built once, for comparison: {alone['words']}")
    missed = counts["interval_without_1"]["low"] > MISSED
    return 1 if counts["too_high"] or missed else 0


def write(
    options: argparse.Namespace,
    both: Configuration,
    environment: dict[str, str],
    kinds: dict[str, Sequence[PairedComparison]],
) -> None:
    """Write all that was measured as JSON, and the table as Markdown."""
    report: dict[str, Any] = {"environment": environment, "budget_s": options.budget}
    rows = []
    for kind, made in kinds.items():
        counts = summary(made)
        report[kind] = {**counts, "comparisons": [row_of(row) for row in made]}
        missed, different = counts["interval_without_1"], counts["called_different"]
        known = [row for row in made if math.isfinite(row.low)]
        width = statistics.median((row.high - row.low) / 2 for row in known) if known else math.nan
        rows.append(
            f"| {kind} | {len(made)} | {statistics.median(builds_of(row) for row in made):g} "
            f"| {different['hits']} ({100 * different['high']:.0f} % at most) "
            f"| {missed['count'] - missed['hits']} of {missed['count']} | ±{100 * width:.2g} % |"
        )
    (options.out / "aa.json").write_text(json.dumps(report, indent=1))
    table = [
        f"Identical arms of `{both.title}`, one comparison a process, "
        f"{environment.get('gpu') or environment.get('cpu', 'unknown device')}:",
        "",
        "| arms | processes | builds | called different | intervals that hold 1 | half-width |",
        "|---|---:|---:|---:|---:|---:|",
        *rows,
    ]
    (options.out / "aa.md").write_text("\n".join(table) + "\n")


def builds_of(comparison: PairedComparison) -> int:
    """Return how many builds count."""
    return int(comparison.facts["builds"])


def row_of(comparison: PairedComparison) -> dict[str, Any]:
    """One comparison for the file."""
    facts = comparison.facts
    names = ("pairs", "builds", "seconds", "reasons", "one_build", "others")
    return {
        "verdict": comparison.verdict,
        "ratio": comparison.ratio,
        "low": comparison.low,
        "high": comparison.high,
        **{name: facts.get(name) for name in names},
    }


def show(number: int, comparison: PairedComparison) -> None:
    """Print one line for each comparison, as it ends."""
    print(f"{comparison.verdict:9} {ratio_line(comparison)}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
