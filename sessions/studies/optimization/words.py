"""An optimization in words and tables, for the command line, the window and reports alike."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

import msgspec

from sessions.model import OPTIMIZATION, Session, Study
from sessions.numbers import (
    STEP_TIME,
    Cell,
    count_of,
    counted,
    interval_cells,
    interval_text,
    number,
)
from sessions.plain_text import sentence
from sessions.sizes import sized
from sessions.studies.attribution import words as attribution_words
from sessions.studies.attribution.words import rows
from sessions.studies.optimization.rows import BEST, START
from sessions.studies.optimization.space import BATCH, ENERGY, MEMORY, RACED
from sessions.studies.optimization.verdicts import GAIN, WITHOUT
from sessions.tables import PEAK, Column, Table
from sessions.verdicts.verdict import REGION
from sessions.verdicts.verdict_words import claim_words, duration, more_text, rebuilding

KIND = OPTIMIZATION
CANDIDATES, OPTIONS, EFFECTS, BLOCKS = "candidates", "options", "effects", "blocks"
_ACTIVITIES = ("build", "race", "check", "prediction", "verdicts")


def optimizations(session: Session) -> list[Study]:
    """Return the session's optimizations, the oldest first."""
    return [study for study in session.studies if study.kind == KIND]


def newest(session: Session) -> Study | None:
    """Return the session's last optimization."""
    return next(reversed(optimizations(session)), None)


def best_row(study: Study) -> dict[str, Any] | None:
    """Return the row of the candidate that is proposed; None if none can be."""
    return next((row for row in rows(study, CANDIDATES) if row["role"] == BEST), None)


def toggles_of(study: Study, row: Mapping[str, Any]) -> dict[str, str]:
    """Return the options of a candidate, for every toggle of its configuration; no batch."""
    try:
        base = msgspec.json.decode(str(study.request.get("base", "{}")), type=dict[str, str])
    except msgspec.MsgspecError:  # another version may have written it
        base = {}
    options = [text.partition("=") for text in study.request.get("start", [])]
    options += [text.partition("=") for text in sorted(changed_options(row))]
    return base | {name: option for name, _, option in options if name != BATCH}


def batch_of(study: Study, row: Mapping[str, Any]) -> int | None:
    """Return the batch size of a candidate; None where it was not searched."""
    options = [*study.request.get("start", []), *changed_options(row)]
    batches = [text.partition("=")[2] for text in options if text.startswith(f"{BATCH}=")]
    return int(batches[-1]) if batches and batches[-1].isdecimal() else None


def changed_options(row: Mapping[str, Any]) -> set[str]:
    """Return the options of a configuration that are not the start's: NAME=OPTION."""
    title = str(row["title"])
    return set() if title == START else set(title.split(", "))


def headline(study: Study, *, named: bool = True) -> str:
    """Return the gain of the best configuration; the words claim no more than its verdict.

    ``named``: they begin with the options of the configuration.
    """
    candidates = rows(study, CANDIDATES)
    tried = sum(row["state"] == RACED and row["candidate"] != 0 for row in candidates)
    counted = f"{tried} other configuration{'' if tried == 1 else 's'} measured"
    best = best_row(study)
    if best is None:
        reason = next((row["reason"] for row in candidates if row["candidate"] == 0), "")
        return f"no configuration can be proposed: {reason or 'nothing was measured yet'}"
    if best["candidate"] == 0:
        if not tried:
            return "only the start was measured"
        return f"nothing was shown to be better than the start among {counted}"
    gains = [row for row in rows(study, EFFECTS) if row["kind"] == GAIN]
    gain = {row["quantity"]: row for row in gains}
    if not study.facts.get("final") or "time" not in gain:
        return f"best so far: {best['title']}, {counted}" if named else f"{counted} so far"
    claim = _claim(study, gain["time"])
    words = [f"{best['title']}: {claim}" if named else claim]
    objective = str(study.request.get("objective"))
    if objective in (MEMORY, ENERGY) and objective in gain:
        words.insert(1, _objective_words(study, gain[objective], objective))
    return ", ".join(words)


def candidates_table(study: Study) -> Table:
    """Return one row for each candidate: estimates of the search, which are no verdicts."""
    candidates = rows(study, CANDIDATES)
    unit, peaks = sized(float(row["peak_bytes"]) for row in candidates)
    has_energy = any(math.isfinite(row["joules"]) for row in candidates)
    columns = [
        Column("configuration"),
        Column("role"),
        Column("estimate", STEP_TIME),
        Column("median", "ms"),
        Column(PEAK, unit),
        *([Column("energy", "J")] if has_energy else []),
        Column("largest error"),
        Column("rounds"),
        Column("build", "s"),
        Column("numbers"),
        Column("front"),
        Column("note"),
    ]
    table: list[list[Cell]] = []
    for row, peak in zip(candidates, peaks, strict=True):
        state = "" if row["state"] == RACED else str(row["state"])
        table.append(
            [
                row["title"],
                row["role"],
                float(row["estimate"]),
                float(row["step_ms"]),
                peak,
                *([float(row["joules"])] if has_energy else []),
                float(row["max_error"]),
                count_of(row["rounds"]),
                float(row["build_s"]),
                {0.0: "right", 1.0: "WRONG"}.get(float(row["wrong"]), "not checked"),
                "yes" if row["front"] == 1 else "",
                ": ".join(filter(None, (state, str(row["reason"])))),
            ]
        )
    return Table(f"{study.title}: configurations", columns, table)


def options_table(study: Study) -> Table:
    """Return one row for each option: whether it was tried, and why not."""
    columns = [
        Column("option"),
        Column("state"),
        Column("configurations"),
        Column("estimate", STEP_TIME),
        Column("note"),
    ]
    table: list[list[Cell]] = [
        [
            f"{row['toggle']}={row['option']}",
            row["state"],
            count_of(row["tried"]),
            float(row["estimate"]),
            row["reason"],
        ]
        for row in rows(study, OPTIONS)
    ]
    return Table(f"{study.title}: options", columns, table)


def verdicts_table(study: Study) -> Table:
    """Return one row for each verdict, from new blocks."""
    table = attribution_words.effects_table(study)
    energy = {
        (row["kind"], row["name"]): interval_cells(*_ends(row), _region(study))
        for row in rows(study, EFFECTS)
        if row["quantity"] == ENERGY
    }
    columns, cells = list(table.columns), [list(row) for row in table.rows]
    if energy:
        times = [(r["kind"], r["name"]) for r in rows(study, EFFECTS) if r["quantity"] == "time"]
        columns[-1:-1] = [Column(name) for name in ("energy ratio", "energy from", "energy to")]
        for row, effect in itertools.zip_longest(cells, times):
            row[-1:-1] = energy.get(effect, [None, None, None])
    return Table(f"{study.title}: verdicts", columns, cells)


def remarks(study: Study) -> list[str]:
    """Return remarks on the result and its certainty, the briefest first."""
    facts = study.facts
    words = []
    if facts.get("final"):
        brief = payoff_words(facts), _unshown_words(study), _certainty(study)
        words.append(" ".join(filter(None, brief)))
        words.append(_format_times(facts))
        seconds = float(facts["seconds"])
        words.append(
            f"The verdicts use {counted(facts['rounds'], 'round')} of new blocks in "
            f"{duration(seconds)}, none from the search{_builds(facts)}."
        )
        if facts.get("more_s") is not None:
            words.append(sentence(f"undecided effects: {more_text(facts['more_s'], seconds)}"))
    if memory := facts.get("memory"):
        words.append(f"Peak memory: {memory}.")
    if note := study.request.get("floor_note"):
        words.append(sentence(str(note)))
    return words + rebuilding(facts)


def _builds(facts: Mapping[str, Any]) -> str:
    """Say how many builds the verdicts hold for, as the end of a sentence."""
    if (builds := facts.get("builds", 1)) > 1:
        return f", and {builds} builds of every configuration"
    why = f": {facts['one_build']}" if facts.get("one_build") else ""
    return f", and hold for the builds that were measured{why}"


def payoff_words(facts: Mapping[str, Any]) -> str:
    """Say after how many steps the build of the best configuration pays off; empty if unknown."""
    steps = facts.get("payoff_steps")
    if steps is None or math.isnan(steps):
        return ""
    if steps == 0:
        return "It takes no longer to build than the start."
    return f"Its longer build pays off after at most {counted(round(steps), 'step')}."


def _certainty(study: Study) -> str:
    """Say how much of the space was tried."""
    options, facts = rows(study, OPTIONS), study.facts
    tried = sum(row["tried"] > 0 for row in options)
    words = f"measured {tried} of {counted(len(options), 'option')}"
    if facts.get("complete"):
        return f"Search complete: {words}, with every single change of the result that may help."
    untried = f"{words}, and not every single change of the result"
    return f"Search incomplete: {untried}; a larger budget tries more."


def _unshown_words(study: Study) -> str:
    """Name the options without which the result was not shown to be slower or to need more."""
    effects = rows(study, EFFECTS)
    helping = {
        row["name"]
        for row in effects
        if row["verdict"] == "FASTER"
        or (row["quantity"] == MEMORY and row["ratio"] < 1 - _region(study))
    }
    without = {
        str(row["name"]): row["verdict"]
        for row in effects
        if row["kind"] == WITHOUT and row["quantity"] == "time" and row["verdict"]
    }
    unshown = [name for name in without if name not in helping]
    slower = [name for name in unshown if without[name] == "SLOWER"]
    words = [f"Slower with {', '.join(slower)} than without."] if slower else []
    if unshown := [name for name in unshown if name not in slower]:
        words.append(f"Not shown to help: {', '.join(unshown)}.")
    return " ".join(words)


def _format_times(facts: Mapping[str, Any]) -> str:
    parts = [
        f"{activity} {duration(float(facts[f'{activity}_s']))}"
        for activity in _ACTIVITIES
        if facts.get(f"{activity}_s")
    ]
    return f"Time: {', '.join(parts)}."


def _claim(study: Study, row: Mapping[str, Any]) -> str:
    if not math.isfinite(row["ratio"]):
        return "not measured"
    return f"{claim_words(str(row['verdict']), *_ends(row), _region(study))} against the start"


def _objective_words(study: Study, row: Mapping[str, Any], objective: str) -> str:
    """Say the ratio of memory, which is counted exactly, or of energy, with its interval."""
    unit = f" x the start's {objective}"
    if objective == MEMORY:
        return f"{number(float(row['ratio']))}{unit}"
    undecided = ", undecided" if row["verdict"] == "UNDECIDED" else ""
    return f"{interval_text(*_ends(row), _region(study), unit)}{undecided}"


def _ends(row: Mapping[str, Any]) -> tuple[float, float, float]:
    return float(row["ratio"]), float(row["low"]), float(row["high"])


def _region(study: Study) -> float:
    return float(max(study.request.get("region", REGION), study.request.get("floor", 0.0)))
