"""An attribution in words and tables, for the command line, the window and reports alike."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from sessions.columns import row_count
from sessions.model import ATTRIBUTION, Session, Study
from sessions.numbers import STEP_TIME, Cell, count_of, counted, interval_cells
from sessions.plain_text import sentence
from sessions.sizes import sized
from sessions.studies.attribution.estimation import WHOLE_STEP
from sessions.tables import PEAK, Column, Table
from sessions.verdicts.verdict import REGION
from sessions.verdicts.verdict_words import claim_words, duration, more_text, rebuilding
from sessions.verdicts.work import DIFFERENT_MODELS, SAME_MODEL, makes_other_model

KIND = ATTRIBUTION

ONE_BUILD = (
    "Each arm was built once, so the ratios hold for these builds only: two builds of one step may "
    "differ (by 0.14 % on one H100)."
)
TOGETHER, BLOCKED = "all together", "blocked"
# Columns of the effects.
EFFECT, RATIO, LOW, HIGH, VERDICT = "effect", "time ratio", "from", "to", "verdict"
_KINDS = {
    "step": "adds",
    "without": "adds to all the others",
    "share": "share",
    "interaction": "interaction",
    "runner-up": "against the runner-up",
    "total": TOGETHER,
}


def attributions(session: Session) -> list[Study]:
    """Return the session's attributions, the oldest first."""
    return [study for study in session.studies if study.kind == KIND]


def newest(session: Session) -> Study | None:
    """Return the session's last attribution."""
    return next(reversed(attributions(session)), None)


def rows(study: Study, table: str) -> list[dict[str, Any]]:
    """Return the rows of one of a study's tables; none if it has no such table."""
    columns: Mapping[str, Any] = study.tables.get(table, {})
    if not columns:
        return []
    return [{name: column[row] for name, column in columns.items()}
            for row in range(row_count(columns))]  # fmt: skip


def headline(study: Study) -> str:
    """Return the effect of all toggles in a few words; wrong results come first."""
    wrong, unchecked = wrong_arms(study), unchecked_arms(study)
    claim = "nothing was measured yet"
    for row in rows(study, "effects"):
        if row["kind"] == "total" and row["quantity"] == "time":
            claim = f"all together: {_effect_words(study, row)}"
    if wrong:
        claim = f"{', '.join(wrong)} computed wrong numbers; {claim}"
    return f"{claim}; numbers of {', '.join(unchecked)} not checked" if unchecked else claim


def arms_table(study: Study) -> Table:
    """Return one row for each arm: step time, ratio to the base, peak memory, path, state."""
    arms = rows(study, "arms")
    has_paths = any(path_of(row) for row in arms)
    unit, peaks = sized(float(row["peak_bytes"]) for row in arms)
    columns = [
        Column("arm"),
        Column("median", "ms"),
        *(Column(name, _unit(study)) for name in ("ratio", LOW, HIGH)),
        Column("rounds"),
        Column(PEAK, unit),
        Column("numbers"),
        *([Column("path")] if has_paths else []),
        Column("note"),
    ]
    cells: list[list[Cell]] = []
    for row, peak in zip(arms, peaks, strict=True):
        note = row["state"] if row["state"] != "measured" else ""
        if row["reason"]:
            note += f": {row['reason']}"
        cells.append(
            [
                row["title"],
                float(row["step_ms"]),
                *_ratio_cells(study, row),
                count_of(row["rounds"]),
                peak,
                {0.0: "right", 1.0: "WRONG"}.get(
                    float(row["wrong"]), "not checked" if is_unchecked(row) else ""
                ),
                *([path_of(row)] if has_paths else []),
                note,
            ]
        )
    return Table(f"{study.title}: arms", columns, cells)


def effects_table(study: Study) -> Table:
    """Return one row for each effect: on time with interval and verdict, and on memory, exact."""
    columns = [
        Column("toggle"),
        Column(EFFECT),
        *(Column(name, _unit(study)) for name in (RATIO, LOW, HIGH)),
        Column(VERDICT),
        Column("memory ratio"),
        Column("note"),
    ]
    memory = {
        (row["kind"], row["name"]): float(row["ratio"])
        for row in rows(study, "effects")
        if row["quantity"] == "memory"
    }
    cells: list[list[Cell]] = [
        [
            row["name"],
            _KINDS.get(row["kind"], row["kind"]),
            *_ratio_cells(study, row),
            _verdict_of(study, row),
            memory.get((row["kind"], row["name"]), math.nan),
            row["reason"],
        ]
        for row in rows(study, "effects")
        if row["quantity"] == "time"
    ]
    for row in rows(study, "blocked"):
        cells.append([row["toggle"], BLOCKED, None, None, None, "not measured", None,
                     row["reason"]])  # fmt: skip
    return Table(f"{study.title}: effects", columns, cells)


def remarks(study: Study) -> list[str]:
    """Return sentences on how it was measured that a reader must know."""
    facts = study.facts
    sentences = [
        f"Ratios of {timed_words(study)}, each with a 95 % interval; below 1 means less. FASTER "
        "and SLOWER are corrected for the number of effects (Holm).",
        f"Peak memory: {facts.get('memory', 'not measured')}.",
    ]
    if facts.get("final"):
        seconds = float(facts["seconds"])
        count = facts["rounds"]
        if count and not facts.get("rebuilt_each_block"):
            sentences.append(ONE_BUILD)
        sentences.append(f"{counted(count, 'round')} in {duration(seconds)}.")
        if facts.get("more_s") is not None:
            sentences.append(sentence(f"undecided effects: {more_text(facts['more_s'], seconds)}"))
    if note := study.request.get("floor_note"):
        sentences.append(sentence(note))
    sentences += rebuilding(facts)
    for clause, arms in [*_paths(study).items(), *_without_effect(study).items()]:
        sentences.append(f"{clause} ({', '.join(arms)}).")
    return sentences


def _paths(study: Study) -> dict[str, list[str]]:
    """Return each path that ran, and the arms that took it."""
    paths: dict[str, list[str]] = {}
    for row in rows(study, "arms"):
        if path := path_of(row):
            paths.setdefault(path, []).append(str(row["title"]))
    return paths


def _without_effect(study: Study) -> dict[str, list[str]]:
    """Return the requested options that did nothing, and in which arms."""
    arms: dict[str, list[str]] = {}
    for row in rows(study, "arms"):
        for entry in without_effect(row):
            arms.setdefault(entry, []).append(str(row["title"]))
    return arms


def without_effect(row: Mapping[str, Any]) -> list[str]:
    """Return the evidence of the options of an arm that did nothing, each with its reason."""
    entries = re.split(r"; (?=\w+=[^\s:;]+: [a-z ]+: )", str(row["evidence"]))
    return [entry for entry in entries if re.match(r"\w+=[^\s:;]+: no effect: ", entry)]


def wrong_arms(study: Study) -> list[str]:
    """Return the titles of the arms whose numbers are out of tolerance."""
    return [row["title"] for row in rows(study, "arms") if row["wrong"] == 1]


def unchecked_arms(study: Study) -> list[str]:
    """Return the titles of the arms whose numbers could not be checked."""
    return [row["title"] for row in rows(study, "arms") if is_unchecked(row)]


def path_of(row: Mapping[str, Any]) -> str:
    """Return what computed an arm's experts, and its heads' ranks; older files do not say."""
    return str(row.get("path", ""))


def is_unchecked(row: Mapping[str, Any]) -> bool:
    """Return True if a check of an arm's results was tried, but not possible."""
    return math.isnan(row["wrong"]) and bool(row["numerics"])


def is_measured(study: Study) -> bool:
    """Return True if any effect on time is known."""
    return any(
        row["quantity"] == "time" and math.isfinite(row["ratio"]) for row in rows(study, "effects")
    )


def timed_words(study: Study) -> str:
    """Return what the study timed, for a sentence."""
    timed = str(study.request.get("timed", WHOLE_STEP))
    return "step time" if timed == WHOLE_STEP else f"{timed} pass's time"


def _effect_words(study: Study, row: Mapping[str, Any]) -> str:
    """Describe one effect in words that claim no more than its verdict does."""
    if not math.isfinite(row["ratio"]):
        return "not measured"
    ratio, low, high = (float(row[name]) for name in ("ratio", "low", "high"))
    claim = claim_words(_verdict_of(study, row), ratio, low, high, _region(study))
    claim = claim.replace(STEP_TIME, _unit(study))
    timed = str(study.request.get("timed", WHOLE_STEP))
    return claim if timed == WHOLE_STEP or timed in claim else f"{claim} in the {timed} pass"


def _unit(study: Study) -> str:
    """Return the unit of ratios: what the study timed."""
    return f"x {timed_words(study)}"


def _verdict_of(study: Study, row: Mapping[str, Any]) -> str:
    """Return the verdict of an effect, or "different models" if a toggle makes another."""
    toggles, same = study.request.get("toggles", []), study.request.get(SAME_MODEL, [])
    options = toggles if row["kind"] == "total" else str(row["name"]).replace("=", " ").split()
    names = {str(option).partition("=")[0] for option in options}
    is_other = any(makes_other_model(name) and name not in same for name in names)
    verdict = str(row["verdict"]) or "not measured"
    return DIFFERENT_MODELS if is_other and row["verdict"] else verdict


def _region(study: Study) -> float:
    return float(max(study.request.get("region", REGION), study.request.get("floor", 0.0)))


def _ratio_cells(study: Study, row: Mapping[str, Any]) -> list[Cell]:
    ratio, low, high = (float(row[name]) for name in ("ratio", "low", "high"))
    return interval_cells(ratio, low, high, _region(study))
