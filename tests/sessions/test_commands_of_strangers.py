"""No text of a session becomes a command, an option or a line of a script."""

from __future__ import annotations

import ast
import shlex
import subprocess
import sys

import msgspec
import numpy as np
import pytest
import session_samples as samples
from hypothesis import given
from hypothesis import strategies as st

from sessions.errors import SessionError
from sessions.model import Configuration, Order, PairedComparison, Segment, Session, Study
from sessions.plain_text import is_plain
from sessions.reproduction import command_lines
from sessions.storage import hdf5

# What a stranger would like to have run, and characters that end words, lines or quotes.
ATTACKS = [
    "--runner=sh -c 'touch INJECTED'",
    "--run=touch INJECTED",
    "-oINJECTED",
    "x\ntouch INJECTED\n",
    "x\rtouch INJECTED",
    "'; touch INJECTED; '",
    "$(touch INJECTED)",
    "`touch INJECTED`",
    "\x1b]0;title\x07",
    "\u202etouch",
    "",
    "@file.json",
    "a,b=c",
    "x" * 5000,
]
BASE = Configuration(
    family="hydra",
    preset="tiny",
    workload="train",
    settings={"batch": 2},
    toggles={"triton": "all"},
)
PLACES = ("family", "preset", "workload", "field", "setting", "toggle", "option")


def spoiled(part: str, text: str) -> Configuration:
    """Return the configuration with the text in one place of it."""
    change = {
        "field": {"model": {text: 1}},
        "setting": {"settings": {text: 1}},
        "toggle": {"toggles": {text: "all"}},
        "option": {"toggles": {"triton": text}},
    }.get(part, {part: text})
    return msgspec.structs.replace(BASE, **change)


def session_of(configuration: Configuration) -> Session:
    steps = {"t_s": np.zeros(3)}
    return Session(segments=[Segment(0, configuration, "s", steps=steps)], title="a benchmark")


def is_sentence(text: str) -> bool:
    return text.endswith(".") and "\n" not in text and text.isprintable()


@pytest.mark.parametrize("part", PLACES)
@pytest.mark.parametrize("text", ATTACKS, ids=range(len(ATTACKS)))
def test_a_script_is_refused_for_a_name_that_is_none_and_the_field_is_named(part, text):
    session = session_of(spoiled(part, text))
    for make in (command_lines.session_commands, command_lines.session_python):
        with pytest.raises(SessionError) as caught:
            make(session)
        assert is_sentence(str(caught.value)), caught.value
        assert part.removeprefix("setting") in str(caught.value)
    with pytest.raises(SessionError):
        command_lines.segment_command(session.segments[0])


@pytest.mark.parametrize("text", ATTACKS, ids=range(len(ATTACKS)))
def test_a_kernel_whose_operator_or_type_is_no_name_has_no_script(text):
    for preset, settings in (
        (text, {"dtype": "bfloat16"}),
        ("rope", {"dtype": text}),
        ("rope", {}),
    ):
        kernel = Configuration(family="kernels", preset=preset, settings=settings)
        with pytest.raises(SessionError):
            command_lines.session_commands(session_of(kernel))


def configured(configuration: Configuration = BASE) -> dict:
    return msgspec.to_builtins(configuration)


def commands(text: str) -> list[dict]:
    """Return every kind of order with the text in each place that becomes a word."""
    start = {"type": "start", "configuration": configured(), "steps": 3, "seconds": None}
    compare = {"type": "compare", "base": configured(), "other": configured(), "budget_s": 1.0,
               "region": 0.05, "predict": True}  # fmt: skip
    attribute = {"type": "attribute", "base": configured(), "toggles": {"triton": "all"},
                 "mode": "shapley", "budget_s": 1.0, "region": 0.05, "orders": 3}  # fmt: skip
    sweep = {"type": "sweep", "base": configured(), "axes": {"settings.batch": [1]},
             "arms": [{"triton": "all"}], "seconds": 1.0}  # fmt: skip
    optimize = {"type": "optimize", "base": configured(), "objective": "time", "budget_s": 1.0,
                "memory_limit": 1.0, "max_error": 1.0, "include": ["triton"], "exclude": [],
                "region": 0.05}  # fmt: skip
    profile = {"type": "profile", "configurations": [configured()], "steps": 3, "traces": False}
    validate = {"type": "validate", "configuration": configured(), "steps": 3, "batches": [1],
                "expect_speedup": None, "budget_s": 1.0}  # fmt: skip
    bench = {"type": "bench", "cases": [], "implementations": [], "forward_only": False,
             "operators": ["rope"], "dtype": "float32", "every_case": False, "tune": False,
             "budget_s": None}  # fmt: skip
    return [
        start | {"load_state": text, "save_state": text},
        start | {"steps": text},
        compare | {"order": text},
        compare | {"budget_s": text},
        attribute | {"mode": text},
        attribute | {"orders": text},
        attribute | {"toggles": {text: "all"}},
        attribute | {"toggles": {"triton": text}},
        optimize | {"objective": text},
        optimize | {"include": [text]},
        optimize | {"memory_limit": text},
        sweep | {"axes": {text: [1]}},
        sweep | {"axes": {"settings.batch": [text]}},
        sweep | {"arms": [{text: text}]},
        profile | {"steps": text},
        validate | {"batches": [text]},
        validate | {"steps": text},
        bench | {"operators": [text]},
        bench | {"operators": text},
        bench | {"dtype": text},
        bench | {"every_case": text},
        {"type": text},
        *(start | {"configuration": configured(spoiled(part, text))} for part in PLACES),
    ]


OPTIONS = {
    "--preset", "--workload", "--set", "--toggle", "--data", "--check", "--load-state",
    "--save-state", "--only", "--budget", "--limit", "-o", "--a", "--b", "--region", "--order",
    "--steps", "--seconds", "--toggles", "--mode", "--orders", "--over", "--arm", "--trace",
    "--seconds-per-point", "--batch", "--expect-speedup", "--dtype", "--every-case", "--tune",
    "--seed",
}  # fmt: skip


def require_harmless(session: Session) -> None:
    """Assert that both scripts are refused, or hold nothing but calls with known options."""
    try:
        shell, python = (
            command_lines.session_commands(session),
            command_lines.session_python(session),
        )
    except SessionError as error:
        assert is_sentence(str(error)), error
        return
    body = shell.partition("}\n\n")[2].partition('\n\n[ -z "$failed" ]')[0]
    for line in filter(None, body.split("\n")):
        if line.startswith("# "):
            assert is_plain(line), line
            continue
        program, _, *words = shlex.split(line)
        assert program == "workbench" and is_plain(line)
        options = [word for word in words if word.startswith("-")]
        assert all(word.partition("=")[0] in OPTIONS for word in options), line
    statement = ast.parse(python).body[3]
    assert isinstance(statement, ast.Assign) and isinstance(ast.literal_eval(statement.value), list)
    assert len(ast.parse(python).body) == 8


@pytest.mark.parametrize("text", ATTACKS, ids=range(len(ATTACKS)))
def test_no_order_becomes_an_option_or_another_line(text):
    for command in commands(text):
        session = session_of(BASE)
        session.orders = [Order(start_s=0.0, command=command)]
        require_harmless(session)


@given(text=st.text(max_size=60))
def test_no_title_ends_its_comment(text):
    session = session_of(BASE)
    session.title = text
    session.studies = [Study(kind=text, title=text, start_s=0.0)]
    session.orders = [Order(start_s=0.0, command={"type": "bench", "operators": text})]
    session.orders += [Order(start_s=0.0, command={"type": "start"}, segments=1)]
    require_harmless(session)


@pytest.mark.parametrize("places", [[0.0, 1.0], [True, 0], ["0", "1"], [0, 10**30], [[], {}]])
def test_segments_of_a_comparison_that_are_no_places_are_run_by_themselves(places):
    session = samples.session(n=5)
    facts = {"segments": places, "budget_s": 1, "region": 0.1}
    session.comparisons = [
        PairedComparison(arms=["a", "b"], order=[], medians_ms=[], ratio=1.0, low=1.0, high=1.0,
                         verdict="SAME", facts=facts)
    ]  # fmt: skip
    require_harmless(session)


def test_a_script_says_before_the_call_that_it_runs_the_code_of_a_file():
    source = "/tmp/it's.py:build"
    own = Configuration(family="own", preset="own", model={"source": source}, workload="train")
    session = session_of(own)
    line = command_lines.segment_command(session.segments[0])
    for script in (
        line,
        command_lines.session_commands(session),
        command_lines.session_python(session),
    ):
        caution, call = [
            part for part in script.splitlines() if "it's.py" in part or "'\"'" in part
        ][:2]
        assert caution.strip().startswith("# CAUTION: the next command runs the Python code of")
        assert "--set" in call
    require_harmless(session)


@pytest.mark.parametrize("family", ["--runner=sh -c 'touch INJECTED'", "kernels"])
def test_the_command_line_refuses_to_print_a_script_with_a_strangers_command(family, tmp_path):
    preset = "--runner=sh -c 'touch INJECTED'"
    configuration = Configuration(family=family, preset=preset, settings={"dtype": "float32"})
    hdf5.save(session_of(configuration), tmp_path / "family.h5")
    for form in ("--command", "--python"):
        done = subprocess.run(
            [sys.executable, "-m", "workbench", "info", str(tmp_path / "family.h5"), form],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 1 and not done.stdout
        assert is_sentence(done.stderr.strip()) and "is not safe in a command" in done.stderr
