"""On a GPU host: every option of every toggle in every family, and whether it took effect.

    python tests/gpu/run_toggles.py OUT [--only hydra ...] [--workloads train forward decode]
                                        [--toggles moe_buffers ...]

A family's runner switches one option on at a time, all others off, in the first of the workloads
that allows the option, and waits for the evidence. The families run beside one another: nothing is
timed. Writes ``toggles.json`` and ``toggles.md``, a row an option and a column a family, to OUT.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "workbench" / "processes"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from runner_driver import Driver

from models import FAMILIES
from sessions.model import Configuration
from workbench import protocol

PRESETS = {"hydra": "small", "mamba2": "tiny", "adaattn": "small", "mahia": "base", "moe": "small"}
SLOW = {"max-autotune", "max-autotune-no-cudagraphs"}  # minutes: `run_hydra.py` has them
LIMIT_S = 120.0
Row = dict[str, Any]


def main() -> int:
    """Run all families side by side; 1 if an option failed that was not blocked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", nargs="+", default=sorted(FAMILIES))
    parser.add_argument("--workloads", nargs="+", default=["train", "forward", "decode"])
    parser.add_argument("--toggles", nargs="+", metavar="NAME", help="default: all")
    parser.add_argument("--preset", help="of all families; default: one of each that fills a GPU")
    parser.add_argument("--minutes", type=float, default=4.0)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    presets = {name: options.preset or PRESETS[name] for name in options.only}
    deadline = time.monotonic() + 60 * options.minutes
    rows: list[Row] = []
    threads = [
        threading.Thread(target=try_all, args=(name, presets, options, deadline, rows))
        for name in options.only
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (options.out / "toggles.json").write_text(json.dumps(rows, indent=1))
    (options.out / "toggles.md").write_text(table(rows, options.only))
    bad = [row for row in rows if row["status"] in ("failed", "no effect", "unknown")]
    for row in bad:
        print(f"{row['family']:8}{row['toggle']}={row['option']}: {row['status']}: {row['text']}")
    counts = {status: sum(row["status"] == status for row in rows) for status in SIGNS}
    print(counts)
    return 1 if any(row["status"] == "failed" for row in rows) else 0


def try_all(
    family: str, presets: dict[str, str], options: Any, deadline: float, rows: list[Row]
) -> None:
    """Every option of one family, in a runner of its own; rows are added as they come."""
    driver = Driver()
    driver.until_state("idle")
    left = {
        (toggle.name, option.name): ""
        for toggle in driver.messages[0].toggles
        for option in toggle.options[1:]
        if option.name not in SLOW and (options.toggles is None or toggle.name in options.toggles)
    }
    off = {toggle.name: toggle.options[0].name for toggle in driver.messages[0].toggles}
    for workload in options.workloads:
        if workload not in FAMILIES[family].workloads:
            continue
        requested = Configuration(
            family=family, preset=presets[family], workload=workload, toggles=off
        )
        driver.send(protocol.Check(configuration=requested))
        blocked = driver.until(protocol.Availability).blocked
        driver.start(requested)
        driver.until(protocol.EvidenceFound, LIMIT_S)
        for toggle, option in list(left):
            reason = blocked.get(toggle, {}).get(option)
            if reason is not None:
                left[toggle, option] = left[toggle, option] or reason.reason  # the first one's
            elif time.monotonic() < deadline:
                del left[toggle, option]
                status, text = switch(driver, {**off, toggle: option}, toggle)
                rows.append(row(family, workload, toggle, option, status, text))
                print(f"{family:8}{toggle}={option}: {status}: {text[:120]}", flush=True)
                if status == "lost":
                    return
            else:
                left[toggle, option] = "not reached: the time was up"
        driver.finish(protocol.Stop())
    for (toggle, option), reason in left.items():
        status = "not reached" if reason.startswith("not reached") else "blocked"
        rows.append(row(family, "", toggle, option, status, reason))
    driver.close()


def row(family: str, workload: str, toggle: str, option: str, status: str, text: str) -> Row:
    """One result."""
    return {
        "family": family,
        "workload": workload,
        "toggle": toggle,
        "option": option,
        "status": status,
        "text": text,
    }


def switch(driver: Driver, toggles: dict[str, str], tried: str) -> tuple[str, str]:
    """Apply; what the evidence says of the toggle tried, or why it could not be had."""
    driver.send(protocol.Apply(toggles=toggles))
    try:
        driver.until(protocol.SegmentStarted, LIMIT_S)
        answer = driver.until(_answers, LIMIT_S)
    except AssertionError as error:
        return "lost", str(error)[:300]
    if isinstance(answer, protocol.Failure):
        if not answer.fatal:
            driver.until(protocol.EvidenceFound, LIMIT_S)  # of the configuration gone back to
        return ("lost" if answer.fatal else "failed"), answer.sentence
    evidence = {item.toggle: item for item in answer.evidence}.get(tried)
    if evidence is None or evidence.requested != toggles[tried]:
        return "unknown", "no evidence"
    return evidence.status, evidence.text


def _answers(message: protocol.Message) -> bool:
    """Return True if it ends the waiting: what an option failed of comes before its failure."""
    if isinstance(message, protocol.EvidenceFound):
        return all(item.status != "failed" for item in message.evidence)
    return isinstance(message, protocol.Failure)


SIGNS = {
    "effective": "✓",
    "no effect": "○",
    "as default": "=",
    "unknown": "?",
    "blocked": "–",
    "failed": "✗",
    "lost": "✗✗",
    "not reached": "…",
}


def table(rows: list[Row], families: list[str]) -> str:
    """Markdown: a row an option, a column a family."""
    cells = {(row["toggle"], row["option"], row["family"]): SIGNS[row["status"]] for row in rows}
    options = sorted({(row["toggle"], row["option"]) for row in rows})
    lines = [f"| toggle | {' | '.join(families)} |", "|---|" + ":-:|" * len(families)]
    for toggle, option in options:
        signs = [cells.get((toggle, option, family), "") for family in families]
        lines.append(f"| {toggle}={option} | {' | '.join(signs)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    raise SystemExit(main())
