"""Every option that this device allows can be switched in any order, and shows that it took effect.

A random walk, from a seed that a failure names, over all toggles and every workload.
"""

from __future__ import annotations

import random

import msgspec
import pytest

from sessions.model import Phase
from workbench import protocol

MOVES = 7  # of the training walk; every option that is allowed is visited at least once
SEED = 20260101
AT_ONCE = 6  # options that are changed together


def allowed(runner, configuration) -> dict[str, list[str]]:
    """Return the options of every toggle that are not blocked under the configuration."""
    runner.send(protocol.Check(configuration=configuration))
    answer = runner.until(protocol.Availability)
    assert not answer.problems
    return {
        toggle.name: [
            option.name
            for option in toggle.options
            if option.name not in answer.blocked.get(toggle.name, {})
        ]
        for toggle in runner.messages[0].toggles
    }


SAME_AS_OFF = (
    "the model's fields already have this value",
    "because its other fields require it",
    "the same as without this option",
    "outputs and operators are identical with the option off",
    "no rank was reduced",
    "which is a part of fused",
)


def off(runner) -> dict[str, str]:
    return {toggle.name: toggle.options[0].name for toggle in runner.messages[0].toggles}


def assert_effective(runner, evidence: protocol.EvidenceFound) -> None:
    """Check that every option reports its effect, or that off does the same here."""
    segment = runner.session.segments[-1]
    switched = {
        name: option
        for name, option in segment.configuration.toggles.items()
        if option != off(runner)[name]
    }
    requested = {finding.toggle: finding.requested for finding in evidence.evidence}
    requested = {toggle: option for toggle, option in requested.items() if option != "auto"}
    assert requested == switched  # beside the choice that was left to "auto"
    for finding in evidence.evidence:
        same_as_off = finding.status in ("no effect", "as default") and any(
            reason in finding.text for reason in SAME_AS_OFF
        )
        effective = finding.status == "effective" or same_as_off
        assert effective, f"{finding} in {segment.configuration.toggles}"
        assert finding.text


def apply(runner, toggles: dict[str, str]) -> None:
    runner.send(protocol.Apply(toggles=toggles))
    started = runner.until(
        lambda message: isinstance(message, (protocol.SegmentStarted, protocol.Failure))
    )
    assert isinstance(started, protocol.SegmentStarted), started
    assert toggles.items() <= started.configuration.toggles.items()
    finding = runner.until(lambda m: isinstance(m, (protocol.EvidenceFound, protocol.Failure)))
    assert isinstance(finding, protocol.EvidenceFound), finding
    assert finding.segment == started.index
    assert_effective(runner, finding)


def walk(runner, configuration, moves: int, compiles: bool) -> None:
    rng, since = random.Random(SEED), len(runner.messages)
    options = allowed(runner, configuration)
    options["context_parallel"] = ["off"]  # not with layers that choose among all tokens
    if not compiles:
        options["compile"] = ["off"]  # tens of seconds each on the CPU
    runner.start(configuration)
    assert_effective(runner, runner.until(protocol.EvidenceFound))
    unseen = [(name, option) for name, choices in options.items() for option in choices[1:]]
    rng.shuffle(unseen)
    now = dict(runner.session.segments[-1].configuration.toggles)
    for _ in range(moves):
        changed: dict[str, str] = {}
        while unseen and len(changed) < AT_ONCE and unseen[-1][0] not in changed:
            changed |= [unseen.pop()]
        for name in rng.sample(sorted(options), rng.randint(0 if changed else 1, 3)):
            changed.setdefault(name, rng.choice(options[name]))
        if changed.items() <= now.items():
            continue
        apply(runner, changed)
        now |= changed
    assert not unseen, f"the walk was too short for {unseen}"
    rng.shuffle(names := [name for name in now if now[name] != off(runner)[name]])
    for number in range(0, len(names), AT_ONCE):  # and back
        apply(runner, {name: off(runner)[name] for name in names[number : number + AT_ONCE]})
    assert runner.finish(protocol.Stop()).reason == "stopped"
    assert not [m for m in runner.messages[since:] if isinstance(m, protocol.Failure)]


@pytest.mark.parametrize(
    "workload",
    [pytest.param(w, marks=pytest.mark.slow) for w in ("forward", "prefill", "decode")],
)
def test_options_of_inference_in_any_order(runner, small, workload):
    walk(runner, msgspec.structs.replace(small, workload=workload, settings={}), 13, False)


def test_options_of_training_in_any_order(runner, small):
    walk(runner, msgspec.structs.replace(small, workload="train"), MOVES, False)


@pytest.mark.slow
def test_a_compiled_step_can_be_left_and_reached_again_without_compiling(runner, small):
    configuration = msgspec.structs.replace(
        small, workload="train", toggles={"adamw": "foreach", "rope_cache": "shared"}
    )
    assert "default" in allowed(runner, configuration)["compile"], "install g++"
    runner.start(configuration)
    runner.until(protocol.EvidenceFound)
    since = len(runner.messages)
    apply(runner, {"compile": "default"})
    compiled = runner.session.segments[-1]
    tasks = {m.task for m in runner.messages[since:] if isinstance(m, protocol.Progress)}
    assert "compile" in tasks, "nothing said that it was compiling"
    assert compile_seconds(compiled) >= 1.0, "the compile phase is too short to be true"
    for toggles in (
        {"compile": "off"},
        {"compile": "default"},
        {"compile": "off", "attention": "manual"},
        {"compile": "default", "attention": "auto"},
    ):
        apply(runner, toggles)
        segment = runner.session.segments[-1]
        reused = [m for m in runner.messages if isinstance(m, protocol.SegmentStarted)][-1].reused
        assert reused == ("attention" not in toggles or toggles["attention"] == "auto")
        assert compile_seconds(segment) == 0.0, "it was compiled again"
    assert runner.finish(protocol.Stop()).reason == "stopped"


def compile_seconds(segment) -> float:
    """Seconds that the segment spent compiling."""
    return sum(span.stop_s - span.start_s for span in segment.phases if span.phase == Phase.COMPILE)
