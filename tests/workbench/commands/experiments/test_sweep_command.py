"""``workbench sweep``: what it asks the runner for, the table and the exponents that it answers."""

from __future__ import annotations

import json

import pytest
from sent_commands import only

from sessions.model import Configuration
from sessions.storage import hdf5
from sessions.studies import sweep
from workbench import protocol
from workbench.cli import main

SIZES = (128, 256, 512, 1024, 2048)


def answers(catalogue, over: float = 1.0, reason: str = "done") -> list[protocol.Message]:
    """Return the messages of a sweep of two arms; one is out of memory at its last size."""
    request = {
        "fields": ["settings.sequence"],
        "values_0": [*SIZES],
        "arms": ["defaults", "Triton kernels, all: On"],
        "toggles": ["{}", '{"triton":"on"}'],
        "points": 2 * len(SIZES),
        "order": "sizes in random order, and the arms of each size in random order",
        "seed": 7,
    }
    columns: dict[str, list] = {}
    for size in reversed(SIZES):
        for arm in (0, 1):
            fits = (size, arm) != (SIZES[-1], 1)
            ms = 0.01 * size**over * (1 - 0.5 * arm) * (1 + 0.01 * (size % 3)) if fits else None
            row = {
                "x": float(size),
                "arm": float(arm),
                "outcome": sweep.MEASURED if fits else sweep.OUT_OF_MEMORY,
                "reason": "" if fits else "Out of memory: 9 GiB more was needed.",
                "median_ms": ms,
                "low_ms": ms and 0.99 * ms,
                "high_ms": ms and 1.01 * ms,
                "error": ms and 0.004,
                "tokens_per_s": ms and 1e3 * size / ms,
                "peak_bytes": 2.0**20 * size if fits else None,
                "blocks": 10.0 if fits else 0.0,
            }
            for name, cell in row.items():
                columns.setdefault(name, []).append(cell)
    rows = protocol.StudyRows(study=0, table=sweep.POINTS, columns=columns)
    fits = protocol.StudyRows(study=0, table=sweep.FITS, columns=sweep.fits(columns))
    started = protocol.StudyStarted(
        index=0, kind=sweep.KIND, title="hydra forward over settings.sequence", request=request
    )
    ended = protocol.Finished(reason=reason, steps=1)
    segment = protocol.SegmentStarted(
        index=0, configuration=Configuration(family="hydra", preset="tiny"), label="one"
    )
    return [catalogue, segment, started, rows, fits, ended]


COMMAND = ("sweep", "hydra", "--preset", "tiny", "--toggle", "precision=bf16")
OVER = ("--over", "settings.sequence=128,256,512,1024,2048")
ARMS = ("--arm", "", "--arm", "triton=on,precision=fp32")


def test_the_runner_is_asked_for_what_the_arguments_say(ran, sent):
    commands = sent(*answers(ran.catalogue))
    more = ("--over", "preset=tiny,small", "--seconds-per-point", "1.5", "--seed", "7")
    assert main([*COMMAND, *OVER, *ARMS, *more]) == 0
    command = only(commands, protocol.Sweep)
    assert command.base.toggles == {"precision": "bf16"} and command.base.preset == "tiny"
    assert command.axes == {"settings.sequence": [*SIZES], "preset": ["tiny", "small"]}
    assert command.arms == [{}, {"triton": "on", "precision": "fp32"}]
    assert (command.seconds, command.seed) == (1.5, 7)


def test_the_table_has_every_point_and_the_exponents_with_their_intervals(
    ran, sent, capsys, tmp_path
):
    sent(*answers(ran.catalogue, over=1.5))
    assert main([*COMMAND, *OVER, *ARMS, "-o", str(tmp_path / "swept.h5")]) == 0
    out = capsys.readouterr().out
    rows = [line.split(" | ") for line in out.splitlines() if line.startswith("| ")][2:]
    assert len(rows) == 10
    assert [row[0].strip("| ") for row in rows] == [str(size) for size in SIZES] * 2
    assert rows[-1][2] == "out of memory" and "9 GiB more was needed" in rows[-1][-1]
    assert "defaults: time grows as sequence to the power of 1.50" in out
    assert "defaults: time grows as sequence to the power of 1.5" in out.split("longer half")[0]
    loaded = hdf5.load(tmp_path / "swept.h5")
    assert sweep.sweeps(loaded.studies)[0].request["values_0"] == [*SIZES]


def test_an_arm_with_wrong_numbers_is_said_and_exits_with_1_however_fast(ran, sent, capsys):
    checked = protocol.StudyRows(
        study=0,
        table=sweep.NUMBERS,
        columns={"arm": [0, 1], "right": [1.0, 0.0], "text": ["as expected", "far off"]},
    )
    messages = answers(ran.catalogue)
    sent(*messages[:-1], checked, messages[-1])
    assert main([*COMMAND, *OVER, *ARMS]) == 1
    out = capsys.readouterr().out
    assert "Triton kernels, all: On: numbers WRONG: far off" in out
    assert "WRONG numbers: Triton kernels, all: On: time grows" in out
    sent(*messages[:-1], checked, messages[-1])
    assert main([*COMMAND, *OVER, *ARMS, "--json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert answer["wrong"] == ["Triton kernels, all: On"]
    assert [row["right"] for row in answer["numbers"]] == [1, 0]


def test_programs_get_points_and_exponents_as_json(ran, sent, capsys):
    sent(*answers(ran.catalogue, over=2.0))
    assert main([*COMMAND, *OVER, *ARMS, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["points_asked"] == 10 and len(answer["points"]) == 10
    missed = [row for row in answer["points"] if row["outcome"] != sweep.MEASURED]
    assert [row["x"] for row in missed] == [2048] and missed[0]["median_ms"] is None
    full_fits = [row for row in answer["fits"] if row["part"] == sweep.ALL]
    for row in full_fits:
        assert row["low"] < 2.0 < row["high"] and row["exponent"] == pytest.approx(2, abs=0.02)
    assert [row["n"] for row in full_fits] == [5, 4]


def test_a_sweep_that_was_interrupted_keeps_its_points_and_says_so_in_its_exit_code(
    ran, sent, capsys
):
    sent(*answers(ran.catalogue, reason="cancelled"))
    assert main([*COMMAND, *OVER]) == 130
    assert "| 128 |" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--over", "settings.sequence"), "--over settings.sequence: expected FIELD=VALUE,VALUE"),
        (("--over", "a=1,,2"), "--over a=1,,2: expected FIELD=VALUE,VALUE"),
        ((*OVER, *OVER), "--over: each field can be given once"),
        ((*OVER, "--arm", "triton=maybe"), "toggle triton: unknown option 'maybe'"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(ran, sent, capsys, arguments, sentence):
    sent(ran.catalogue)
    assert main([*COMMAND, *arguments]) == 2
    assert sentence in capsys.readouterr().err
