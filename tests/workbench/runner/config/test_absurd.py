"""Impossible requests are refused by one sentence before anything is allocated."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sessions.model import Configuration
from workbench import protocol

# What is changed of a configuration that can run: a sentence must say what is wrong with it.
ABSURD = [
    ({"model": {"n_layers": 0}}, "n_layers = 0 is outside of 1 to 1024"),
    ({"model": {"n_layers": -3}}, "n_layers = -3 is outside"),
    ({"model": {"n_layers": 10**9}}, "n_layers = 1000000000 is outside"),
    ({"model": {"n_layers": 2.5}}, "n_layers = 2.5 is not a whole number"),
    ({"model": {"n_layers": "many"}}, "n_layers = 'many' is not a whole number"),
    ({"model": {"n_layers": True}}, "n_layers = True is not a whole number"),
    ({"model": {"n_layers": "9" * 5000}}, "n_layers"),
    ({"model": {"dim": 30, "n_heads": 4}}, "dim = 30 cannot be divided into n_heads = 4 heads"),
    ({"model": {"dim": 33, "n_heads": 3}}, "head"),
    ({"model": {"n_heads": 2, "n_kv_heads": 3}}, "n_heads = 2 is not a multiple of n_kv_heads = 3"),
    ({"model": {"dim": 65536, "n_layers": 1024}}, "can be used; choose a smaller model or batch"),
    ({"model": {"vocabulary": 1}}, "vocabulary = 1 is outside"),
    ({"model": {"norm_eps": 0.0}}, "norm_eps = 0.0 is outside"),
    ({"model": {"norm_eps": "nan"}}, "norm_eps = 'nan' is not a number"),
    ({"model": {"tie_embeddings": "perhaps"}}, "tie_embeddings = 'perhaps' is not true or false"),
    ({"model": {"wheels": 4}}, "unknown field 'wheels'; expected one of"),
    ({"settings": {"batch": 0}}, "setting batch = 0 is outside of 1 to 65536"),
    ({"settings": {"batch": 10**9}}, "setting batch = 1000000000 is outside of 1 to 65536"),
    ({"settings": {"batch": -1}}, "setting batch = -1 is outside"),
    ({"settings": {"batch": 1.5}}, "setting batch = 1.5 is not a whole number"),
    ({"settings": {"batch": 1e300}}, "setting batch = "),
    ({"settings": {"batch": True}}, "setting batch = True is not a whole number"),
    ({"settings": {"batch": "four"}}, "setting batch = 'four' is not a whole number"),
    ({"settings": {"batch": "9" * 5000}}, "... (5002 characters) is not a whole number"),
    ({"settings": {"sequence": 4096}}, "a sequence of 4096 is longer than max_sequence = 256"),
    ({"settings": {"new_tokens": 5}}, "setting of forward: unknown 'new_tokens'"),
    (
        {
            "model": {"max_sequence": 1048576},
            "settings": {"batch": 65536, "sequence": 1048576},
        },
        "can be used; choose a smaller model or batch",
    ),
    ({"family": "gpt-9"}, "family: unknown 'gpt-9'; expected one of "),
    ({"family": ""}, "family: unknown ''"),
    ({"preset": "gigantic"}, "unknown preset 'gigantic'; expected one of tiny, "),
    ({"workload": "dream"}, "workload: unknown 'dream'; expected one of "),
    ({"toggles": {"turbo": "on"}}, "names; the nearest are triton"),
    (
        {"toggles": {"compile": "harder"}},
        "toggle compile: unknown 'harder'; expected one of off",
    ),
    ({"toggles": {"cuda_graphs": "on"}}, "toggle cuda_graphs=on cannot be used: needs a CUDA"),
    ({"seed": -1}, "seed = -1 is outside of 0 to 2^63 - 1"),
    ({"seed": 2**63}, "seed = 9223372036854775808 is outside"),
]


def assert_sentence(text: str, part: str = "") -> None:
    assert part in text
    assert 10 < len(text) < 500 and "\n" not in text
    assert "Traceback" not in text and "Error" not in text and "object at 0x" not in text


def absurd(small: Configuration, changes: dict) -> Configuration:
    model = {**small.model, **changes.get("model", {})}
    group = {
        name: {**getattr(small, name), **changes[name]}
        for name in changes
        if name != "seed" and isinstance(changes[name], dict)
    }
    return msgspec.structs.replace(small, **{**changes, **group, "model": model})


@pytest.mark.parametrize(("changes", "sentence"), ABSURD, ids=lambda value: repr(value)[:60])
def test_a_check_says_what_is_wrong(runner, small, changes, sentence):
    configuration = absurd(small, changes)
    runner.send(protocol.Check(configuration=configuration))
    answer = runner.until(protocol.Availability)
    (problem,) = answer.problems
    assert_sentence(problem, sentence)


def test_starting_what_is_absurd_is_one_mistake_each_and_the_runner_stays(runner, small):
    runner.start(small, steps=1)
    runner.finish()
    segments = len(runner.session.segments)
    for changes, sentence in ABSURD:
        runner.start(absurd(small, changes), steps=2)
        failure = runner.until(protocol.Failure)
        assert (failure.kind, failure.fatal, failure.detail) == ("mistake", False, "")
        assert_sentence(failure.sentence, sentence)
        finished = runner.finish()
        assert (finished.reason, finished.steps) == ("failed", 0)
    assert len(runner.session.segments) == segments, "something was built"
    runner.start(small, steps=2)
    assert runner.until(protocol.SegmentStarted).reused, "a mistake cost what was built"
    assert runner.finish().reason == "done"


@pytest.mark.parametrize(
    ("limits", "sentence"),
    [
        ({"steps": 0}, "steps = 0: a run has at least one step"),
        ({"steps": -5}, "steps = -5"),
        ({"seconds": 0.0}, "seconds = 0: expected more than 0"),
        ({"seconds": -1.0}, "seconds = -1: expected more than 0"),
        ({"seconds": 1e300}, "seconds = 1e+300: expected more than 0"),
    ],
)
def test_a_length_that_is_none_is_a_mistake(runner, small, limits, sentence):
    runner.start(small, **limits)
    failure = runner.until(protocol.Failure)
    assert failure.kind == "mistake"
    assert_sentence(failure.sentence, sentence)
    assert runner.finish().reason == "failed"


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("none.txt", None, "No such file"),
        ("short.txt", b"abc", "a sequence needs 17 bytes, but the size of"),
        ("empty.txt", b"", " is 0"),
        (".", None, "it is not a regular file"),
        ("/dev/zero", None, "it is not a regular file"),
        ("nul\0.txt", None, "null"),
    ],
)
def test_data_that_cannot_serve_is_a_mistake(runner, small, tmp_path, name, content, sentence):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    runner.start(msgspec.structs.replace(small, data=str(path)), steps=2)
    failure = runner.until(protocol.Failure)
    assert failure.kind == "mistake"
    assert_sentence(failure.sentence, sentence)
    assert runner.finish().reason == "failed"


scalars = st.one_of(
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8),
    st.sampled_from(["", "nan", "inf", "-inf", "1e999", "0x10", "1_000", "²", "9" * 5000]),
)


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_no_configuration_at_all_silences_the_runner(runner, small, data):
    catalogue = runner.messages[0]
    names = st.sampled_from
    fields = [field.name for family in catalogue.families for field in family.fields]
    settings_ = [field.name for workload in catalogue.workloads for field in workload.fields]
    options = [option.name for toggle in catalogue.toggles for option in toggle.options]
    configuration = Configuration(
        family=data.draw(names(["hydra", "hydra", "other"])),
        preset=data.draw(names(["tiny", "large", "", "no"])),
        model=data.draw(st.dictionaries(names([*fields, "other"]), scalars, max_size=2)),
        workload=data.draw(names([*(w.name for w in catalogue.workloads), "other"])),
        settings=data.draw(st.dictionaries(names([*settings_, "other"]), scalars, max_size=2)),
        toggles=data.draw(
            st.dictionaries(
                names([*(t.name for t in catalogue.toggles), "other"]),
                names([*options, ""]),
                max_size=3,
            )
        ),
        seed=data.draw(st.integers(-(2**70), 2**70) | st.just(0)),
    )
    runner.send(protocol.Check(configuration=configuration))
    answer = runner.until(
        lambda m: isinstance(m, (protocol.Availability, protocol.Failure)), limit_s=30
    )
    assert isinstance(answer, protocol.Availability), answer
    for problem in answer.problems:
        assert_sentence(problem)
