"""On a GPU host: how often identical arms are called different, by the real runner.

    python tests/gpu/run_aa.py OUT [--count 60] [--budget 1.0]

One runner compares a configuration with itself ``--count`` times, each for ``--budget`` seconds of
alternating, by default on a captured step of well under a millisecond. Prints every verdict and
what all come to, with the exact binomial interval, and writes ``aa.json`` to OUT. Exit code 1 if
more than 5 % are called different and chance alone does not explain it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "workbench"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from identical_pairs import compare, summary
from runner_driver import Driver

from sessions.model import Configuration, PairedComparison
from sessions.verdict_words import ratio_line


def main() -> int:
    """Compare so often, say what came of it, write it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--budget", type=float, default=1.0, metavar="SECONDS")
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
    driver = Driver()
    driver.until_state("idle")
    try:
        made = compare(driver, both, options.count, options.budget, show)
    finally:
        driver.close()
    found = summary(made)
    rows = [{"verdict": c.verdict, "ratio": c.ratio, "low": c.low, "high": c.high,
             "pairs": c.facts["pairs"], "reasons": c.facts["reasons"]} for c in made]  # fmt: skip
    told = {**found, "environment": driver.session.environment, "comparisons": rows}
    (options.out / "aa.json").write_text(json.dumps(told, indent=1))
    step_ms = statistics.median(time_ms for one in made for time_ms in one.medians_ms)
    print(f"{found['words']} A step took {step_ms:.3g} ms.")
    return 1 if found["too_high"] else 0


def show(number: int, comparison: PairedComparison) -> None:
    """One line for each comparison, as it ends."""
    print(f"{number:3} {comparison.verdict:9} {ratio_line(comparison)}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
