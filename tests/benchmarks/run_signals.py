"""Ends every command and the window at random moments, by Ctrl+C and by SIGKILL.

``python tests/benchmarks/run_signals.py [--count 1000] [--seed 0] [--only NAME ...]``: prints each
fault, and a table of how often each command was ended and how.
"""

from __future__ import annotations

import argparse
import collections
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

sys.path[:0] = [
    str(Path(__file__).parents[1] / "workbench" / folder) for folder in ("processes", "samples")
]

import signalled_commands as commands  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000, help="of each signal, over all commands")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", default=list(commands.COMMANDS))
    arguments = parser.parse_args()
    # A shell lets what it starts in the background ignore Ctrl+C, and children inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    moments = random.Random(arguments.seed)
    results: collections.Counter[tuple[str, str, int | str]] = collections.Counter()
    faults = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        commands.prepare(folder)
        duration_s = {}
        for command in arguments.only:
            began = time.monotonic()
            commands.run(commands.COMMANDS[command], folder, commands.LONGEST_S, signal.SIGKILL)
            duration_s[command] = min(time.monotonic() - began, commands.LONGEST_S)
        for trial in range(2 * arguments.count):
            command = arguments.only[trial // 2 % len(arguments.only)]
            number = (signal.SIGINT, signal.SIGKILL)[trial % 2]
            after_s = moments.uniform(0, duration_s[command])
            ended = commands.run(commands.COMMANDS[command], folder, after_s, number)
            how = "ended before" if ended.had_ended else ended.code
            results[command, number.name, how] += 1
            wrong = list(ended.faults)
            if not ended.had_ended and not commands.is_reported(number, ended):
                wrong.append(f"exit code {ended.code}")
            if wrong:
                faults += 1
                print(f"{command}, {number.name} after {after_s:.3f} s: {wrong}", flush=True)
                print(f"  {ended.errors[-600:]}", flush=True)
    for (command, signal_name, how), count in sorted(results.items(), key=str):
        print(f"{command:<16} {signal_name:<8} {how!s:<14} {count}")
    print(f"{sum(results.values())} trials, {faults} with a fault")
    return 1 if faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
