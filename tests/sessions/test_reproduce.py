"""The command and the Python that run a segment again."""

from __future__ import annotations

import argparse
import ast
import shlex
import signal
import subprocess

import msgspec
import numpy as np
import pytest
import session_samples as samples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sessions.errors import SessionError
from sessions.model import Configuration, PairedComparison, Segment, Session
from sessions.plain_text import is_plain
from sessions.reproduction import command_lines

names = st.from_regex(r"[a-z][a-z0-9_]{0,9}", fullmatch=True)
# argparse of Python 3.11 takes a lone -- for the end of the options even in --data=--.
words = samples.texts.filter(lambda text: text and text != "--" and is_plain(text))
values = st.booleans() | st.integers() | st.floats(allow_nan=False) | words
configurations = st.builds(
    Configuration,
    family=names,
    preset=names,
    model=st.dictionaries(names, values, max_size=3),
    workload=names,
    settings=st.dictionaries(names, values, max_size=3),
    toggles=st.dictionaries(
        names, st.from_regex(r"[a-z0-9][a-z0-9_.-]{0,9}", fullmatch=True), max_size=3
    ),
    seed=st.integers(),
    data=words,
)


def parse(arguments: list[str]) -> argparse.Namespace:
    """Parse the command line as the issue describes it."""
    parser = argparse.ArgumentParser(exit_on_error=False)
    run = parser.add_subparsers().add_parser("run", exit_on_error=False)
    run.add_argument("family")
    run.add_argument("--preset")
    run.add_argument("--workload")
    run.add_argument("--set", action="append", default=[])
    run.add_argument("--toggle", action="append", default=[])
    run.add_argument("--data", default="synthetic")
    run.add_argument("--steps", type=int)
    run.add_argument("--seed", type=int)
    run.add_argument("-o")
    return parser.parse_args(arguments)


@settings(suppress_health_check=[HealthCheck.too_slow])  # a busy machine is no fault of the code
@given(configurations, st.none() | st.integers(1), st.none() | words)
def test_command_says_all_of_the_configuration(configuration, steps, output):
    line = command_lines.command(configuration, steps, output).splitlines()[-1]
    program, *arguments = shlex.split(line)
    assert program == "workbench"
    parsed = parse(arguments)
    plain = {True: "true", False: "false"}
    settings = [*sorted(configuration.model.items()), *sorted(configuration.settings.items())]
    assert parsed.family == configuration.family
    assert (parsed.preset, parsed.workload) == (configuration.preset, configuration.workload)
    assert parsed.set == [
        f"{name}={plain[value] if isinstance(value, bool) else value}" for name, value in settings
    ]
    assert parsed.toggle == [f"{k}={v}" for k, v in sorted(configuration.toggles.items())]
    assert (parsed.seed, parsed.data) == (configuration.seed, configuration.data)
    assert (parsed.steps, parsed.o) == (steps, output)


@settings(suppress_health_check=[HealthCheck.too_slow])  # a busy machine is no fault of the code
@given(configurations, words)
def test_python_and_shell_make_the_same_calls(configuration, stem):
    session = Session(segments=[Segment(0, configuration, "s", steps={"t_s": np.zeros(3)})] * 2)
    script = command_lines.session_python(session, stem)
    script = script.replace("from workbench.cli import main\n", "")
    calls: list[list[str]] = []
    with pytest.raises(SystemExit):
        exec(script, {"main": calls.append})
    assert calls == [
        command_lines.arguments(configuration, 3, f"{stem}-{index:04d}.h5") for index in range(2)
    ]
    shell = command_lines.session_commands(session, stem)
    assert all(f"\n{shlex.join(['workbench', *call])}\n" in shell for call in calls)


def test_command_reads_as_the_issue_spells_it():
    configuration = Configuration(
        family="hydra",
        preset="tiny",
        workload="train",
        settings={"batch": 4},
        toggles={"triton": "all"},
    )
    assert command_lines.command(configuration, steps=200, output="my run.h5") == (
        "workbench run hydra --preset tiny --workload train --set batch=4 --toggle triton=all "
        "--steps 200 --seed 0 -o 'my run.h5'"
    )


def test_segment_is_run_for_as_many_steps_as_it_has():
    segment = samples.session(n=17).segments[0]
    assert "--steps 17 " in command_lines.segment_command(segment)


def test_segment_without_steps_gives_no_number_of_steps():
    segment = Segment(0, Configuration(family="f", preset="p"), "s", steps={"t_s": np.array([])})
    assert "--steps" not in command_lines.segment_command(segment)


def test_session_runs_every_segment_into_a_file_of_its_own():
    session = samples.session(n=17, segments=3)
    lines = command_lines.session_commands(session, "again it").splitlines()
    assert [shlex.split(line)[-1] for line in lines if line.startswith("workbench ")] == [
        "again it-0000.h5",
        "again it-0001.h5",
        "again it-0002.h5",
    ]


ENDINGS = pytest.mark.parametrize(
    ("codes", "called", "code"),
    [([0, 0, 0], 3, 0), ([1, 0, 0], 3, 1), ([0, 3, 2], 3, 1), ([1, 130, 0], 2, 130)],
)


def is_told(output: str, codes: list[int]) -> bool:
    """Return True if exactly the calls that did not end with 0 are named with their exit code."""
    lines = [(line.split(": workbench ")[0], line.split()[-1]) for line in output.splitlines()]
    return lines == [
        (f"exit code {code}", f"again-{index:04d}.h5") for index, code in enumerate(codes) if code
    ]


@ENDINGS
def test_a_shell_script_repeats_all_and_tells_at_its_end_what_did_not_end_well(
    codes, called, code, tmp_path
):
    stand_in = tmp_path / "workbench"
    stand_in.write_text(
        f'#!/bin/sh\necho "$*" >> {tmp_path}/called\n'
        f"set -- {' '.join(map(str, codes))}\nshift $(($(wc -l < {tmp_path}/called) - 1))\nexit $1"
    )
    stand_in.chmod(0o755)
    script = command_lines.session_commands(samples.session(n=17, segments=3))
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    done = subprocess.run(
        ["sh", "-c", script], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == code and is_told(done.stderr, codes[:called]), done.stderr
    assert len((tmp_path / "called").read_text().splitlines()) == called


@pytest.fixture
def not_ignored():
    """Handle Ctrl+C as in a terminal: tests in the background ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_a_script_that_is_interrupted_tells_what_had_not_ended_well_before(tmp_path, not_ignored):
    """The terminal sends Ctrl+C to the shell too, which dash would die of without a word."""
    stand_in = tmp_path / "workbench"
    stand_in.write_text(
        '#!/bin/sh\ncase "$*" in *0000.h5) exit 1;; esac\ntrap "exit 130" INT\n'
        f'echo "$*" >> {tmp_path}/called\nkill -INT 0\nsleep 5\n'
    )
    stand_in.chmod(0o755)
    script = command_lines.session_commands(samples.session(n=17, segments=3))
    done = subprocess.run(
        ["sh", "-c", script], env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, start_new_session=True,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 130 and "exit code 1: workbench run" in done.stderr
    assert len((tmp_path / "called").read_text().splitlines()) == 1


@ENDINGS
def test_a_python_script_repeats_all_and_tells_at_its_end_what_did_not_end_well(
    codes, called, code, capsys
):
    left = iter(codes)
    script = command_lines.session_python(samples.session(n=17, segments=3))
    script = script.replace("from workbench.cli import main\n", "")
    with pytest.raises(SystemExit) as ended:
        exec(script, {"main": lambda call: next(left)})
    assert ended.value.code == code and is_told(capsys.readouterr().err, codes[:called])
    assert len([*left]) == 3 - called


def test_a_study_of_a_file_without_orders_is_said_not_to_be_repeated_in_shell_and_in_python():
    session = samples.session(n=17)
    session.studies[0].title = "a title\nrm -rf of two lines"
    refusal = "# The survey 'a title rm -rf of two lines' is not repeated: this file does not"
    assert refusal in command_lines.session_commands(session)
    script = command_lines.session_python(session)
    assert refusal in script
    ast.parse(script)
    after = command_lines.session_commands(session).partition("}\n\n")[2].partition("\n\n")[0]
    assert all(line.startswith(("#", "workbench run ")) for line in after.splitlines())


def calls_of(session: Session) -> list[list[str]]:
    """Return the calls, without what is said of parts that have none."""
    return [call for call in command_lines._calls(session, "again") if isinstance(call, list)]


def compared(base: dict, other: dict, segments=(0, 1), **changes) -> Session:
    """Return a session of three segments, two of which were compared."""
    session = samples.session(n=17, segments=3)
    for segment, toggles in zip(session.segments, (base, other), strict=False):
        segment.configuration = msgspec.structs.replace(
            session.segments[0].configuration, toggles=toggles
        )
    facts = {"segments": [*segments], "budget_s": 2.5, "region": 0.03, "order": "abba"} | changes
    session.comparisons = [
        PairedComparison(
            arms=["a", "b"], order=[], medians_ms=[], ratio=1.0, low=1.0, high=1.0,
            verdict="SAME", facts=facts,
        )
    ]  # fmt: skip
    return session


def test_a_comparison_is_made_again_and_its_segments_are_not_run_by_themselves():
    session = compared({"x": "1", "y": "on", "z": "no"}, {"x": "2", "y": "on", "z": "yes"})
    first, second = calls_of(session)
    base = session.segments[0].configuration
    assert first[:2] == ["ab", base.family] and second[0] == "run"
    after = first.index("--a")
    assert first[after:] == [
        "--a", "x=1,z=no", "--b", "x=2,z=yes", "--budget", "2.5", "--region", "3",
        "--order", "abba", "--seed", str(base.seed), "-o", "again-0000.h5",
    ]  # fmt: skip
    assert [word for word in first if word.startswith("y=")] == ["y=on"]
    assert second[-1] == "again-0001.h5"


def test_identical_arms_are_compared_without_options_of_their_own():
    first, _ = calls_of(compared({"x": "1"}, {"x": "1"}))
    assert first[0] == "ab" and "--a" not in first and "x=1" in first


@pytest.mark.parametrize(
    "changes", [{"segments": (0, 9)}, {"segments": ()}, {"budget_s": None}, {"segments": (0,)}]
)
def test_a_comparison_that_says_too_little_has_its_segments_run(changes):
    calls = calls_of(compared({"x": "1"}, {"x": "2"}, **changes))
    assert [call[0] for call in calls] == ["run"] * 3


def test_arms_that_differ_in_more_than_toggles_are_run_each():
    session = compared({"x": "1"}, {"x": "2"})
    other = session.segments[1]
    other.configuration = msgspec.structs.replace(other.configuration, settings={"batch": 77})
    assert [call[0] for call in calls_of(session)] == ["run"] * 3


def test_session_without_segments_cannot_be_run_again():
    with pytest.raises(SessionError, match="'Untitled' has no segments"):
        command_lines.session_commands(Session())
