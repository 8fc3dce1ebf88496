"""The validation checklist as a run: what it checks, sends and keeps, and what ends it."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
import torch
from recording_wire import RecordingWire

from sessions.model import Judgement
from sessions.studies import checklist
from sessions.verdicts import verdict
from workbench import protocol
from workbench.client.recorder import Recorder
from workbench.runner.context import RunnerContext
from workbench.runner.experiments import validate
from workbench.runner.experiments.run import RunEnded
from workbench.runner.experiments.validate import ValidateRun
from workbench.runner.failures import Cancelled, Mistake

BF16 = {"precision": "amp_bf16"}


@pytest.fixture
def context():
    return RunnerContext(RecordingWire(), torch.device("cpu"))


@pytest.fixture
def layer(small):
    """One layer, and no eager pass through Dynamo, which other tests have."""
    model = small.model | {"n_layers": 1}
    return msgspec.structs.replace(small, model=model, toggles=BF16)


@pytest.fixture(autouse=True)
def untraced(monkeypatch):
    result = validate.checks.not_applicable("nothing is compiled")
    monkeypatch.setattr(validate.checks, "_if_it_were_compiled", lambda arm: result)


def run(context, configuration, **options):
    options = {"steps": 4, "budget_s": 0.3, "expect_speedup": 1e-3} | options
    ValidateRun(context, protocol.Validate(configuration=configuration, **options)).execute()


def recorded(context):
    recorder = Recorder()
    for message in context.wire.sent:
        recorder.record(message)
    return recorder.session


def rows(context):
    return {row.name: row for row in checklist.rows(checklist.newest(recorded(context)))}


def test_six_checks_are_done_one_by_one_each_with_its_evidence(context, layer):
    run(context, layer)
    checks_done = rows(context)
    speedup = checks_done.pop(
        "speedup"
    )  # whether so short a budget shows it is the machine's affair
    assert "expected at least 0.001" in speedup.evidence
    assert {name: row.status for name, row in checks_done.items()} == {
        "numerics": "pass",
        "syncs": "pass",
        "graph": "not applicable",
        "memory": "pass",
        "batches": "pass",
    }
    assert all(row.evidence for row in checks_done.values())
    assert checks_done["batches"].evidence.startswith("batch 2: against float64")
    sent = [m.columns["check"] for m in context.wire.sent if isinstance(m, protocol.StudyRows)]
    assert sent == [[name] for name in checklist.CHECKS]
    session = recorded(context)
    study = checklist.newest(session)
    assert study.title == "hydra tiny forward: Precision: AMP BF16"
    assert study.request["batches"] == [2]  # the configuration's own is 1
    assert len(session.comparisons) == 1
    assert context.variants.count <= 2  # those that were compared, and none that was checked


def test_speed_is_compared_with_the_same_model_and_everything_off(context, layer):
    run(context, msgspec.structs.replace(layer, toggles={**BF16, "attention": "chunked"}))
    base, other = (
        recorded(context).segments[index].configuration.toggles
        for index in recorded(context).comparisons[0].facts["segments"]
    )
    assert (base["precision"], other["precision"]) == ("fp32", "amp_bf16")
    assert other["attention"] == "chunked" != base["attention"]


@pytest.mark.parametrize(
    ("low", "high", "expected", "status", "reason"),
    [
        (0.45, 0.55, 1.5, "pass", "2.0x faster (95 % interval 1.8 to 2.2) compared with "),
        (0.45, 0.55, 3.0, "fail", "expected at least 3"),
        (0.45, 0.55, 2.0, "undecided", "the interval includes that limit; measuring about "),
        (0.97, 1.005, None, "pass", "expected not slower"),
        (
            1.05,
            1.10,
            None,
            "fail",
            "1.08x slower (95 % interval 1.05 to 1.10) compared with everything off",
        ),
        (
            None,
            None,
            None,
            "undecided",
            "no ratio yet compared with everything off, 1 pair; expected not slower",
        ),
        (
            None,
            None,
            None,
            "undecided",
            "measured 1 of at least 8 pairs; measuring about 14 s",
        ),
    ],
)
def test_a_speedup_counts_only_when_its_interval_shows_it(
    context, layer, monkeypatch, low, high, expected, status, reason
):
    class Compared:
        steps, seconds = 5, 2.0
        interval = verdict.interval([0.0] if low is None else np.log([low, high] * 5))
        judgement = Judgement(
            verdict=(
                "UNDECIDED"
                if low is None
                else "FASTER"
                if high < 1
                else "SLOWER"
                if low > 1
                else "SAME"
            ),
            pairs=interval.n,
            ratio=low and (low + high) / 2,
            low=low,
            high=high,
            reasons=["measured 1 of at least 8 pairs"] if low is None else [],
        )

        def __init__(self, *_, **__):
            pass

        def execute(self):
            pass

    monkeypatch.setattr(validate, "CompareRun", Compared)
    run(context, layer, expect_speedup=expected, batches=[1])
    speedup = rows(context)["speedup"]
    assert speedup.status == status and reason in speedup.evidence
    study = checklist.newest(recorded(context))
    assert (checklist.budget_s(study) is not None) is (status == "undecided")
    assert checklist.is_open(study) is (status == "undecided")


def test_a_budget_of_too_few_pairs_is_undecided_and_says_how_long_deciding_takes(context, layer):
    run(context, layer, budget_s=1e-3, expect_speedup=None, batches=[1])
    speedup = rows(context)["speedup"]
    assert speedup.status == "undecided"
    assert "measured 1 of at least 8 pairs; measuring about " in speedup.evidence
    study = checklist.newest(recorded(context))
    assert study.facts["more_s"] == pytest.approx(7 * study.facts["seconds"])
    assert checklist.is_open(study) and not checklist.is_shown(study)


def test_a_model_with_everything_off_has_no_speedup_to_show(context, layer):
    run(context, msgspec.structs.replace(layer, toggles={}))
    assert rows(context)["speedup"].status == "not applicable"


def at_other_batches(context, monkeypatch, act):
    """Let ``act`` happen to the output of every arm that is built for a batch of 3."""
    build = context.variants._build

    def built(situation, phases, copy):
        arm = build(situation, phases, copy)
        if situation.configuration.settings["batch"] == 3:
            arm.model.register_forward_hook(lambda module, inputs, output: act(output))
        return arm

    monkeypatch.setattr(context.variants, "_build", built)


def refuse(output):
    raise RuntimeError("shape '[1, 16]' is invalid for input of size 48")


@pytest.mark.parametrize(
    ("act", "reason"),
    [(lambda output: output * 2, "relative error 1"), (refuse, "RuntimeError in the model: shape")],
    ids=["wrong", "refused"],
)
def test_another_batch_size_that_is_wrong_or_does_not_run_fails(
    context, layer, monkeypatch, act, reason
):
    at_other_batches(context, monkeypatch, act)
    run(context, msgspec.structs.replace(layer, toggles={}), batches=[2, 3])
    batches = rows(context)["batches"]
    assert batches.status == "fail"
    first, second = batches.evidence.split("; batch 3: ")
    assert "at most" in first and reason in second


def test_a_check_that_breaks_has_failed_and_the_others_go_on(context, layer, monkeypatch):
    def broken(*_):
        raise RuntimeError("no such thing")

    monkeypatch.setattr(validate.checks, "no_syncs", broken)
    run(context, msgspec.structs.replace(layer, toggles={}), batches=[1])
    checks_done = rows(context)
    assert (
        checks_done["syncs"].status == "fail" and "no such thing" in checks_done["syncs"].evidence
    )
    assert checks_done["batches"].status == "pass"


@pytest.mark.parametrize(
    ("command", "error"), [(protocol.Stop(), RunEnded), (protocol.Cancel(), Cancelled)]
)
def test_a_command_ends_it_between_two_checks_and_what_was_found_is_kept(
    context, layer, command, error
):
    send = context.wire.send

    def order(message):
        send(message)
        if isinstance(message, protocol.StudyRows) and message.columns["check"] == ["syncs"]:
            context.wire.commands.append(command)

    context.wire.send = order
    with pytest.raises(error):
        run(context, layer)
    study = checklist.newest(recorded(context))
    assert [row.status for row in checklist.rows(study)][:3] == ["pass", "pass", "waiting"]
    assert not checklist.complete(study) and "4 not done" in checklist.headline(study)
    assert context.variants.count == 0


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"steps": 3}, "steps = 3 is outside of 4 to 10000"),
        ({"budget_s": -1.0}, "budget_s = -1: expected more than 0 and at most 1e+09"),
        ({"floor": 1.0}, "floor = 1: expected at least 0 and less than 1"),
        ({"expect_speedup": 0.0}, "expect_speedup = 0: expected more than 0 and less than 1e6"),
        ({"batches": [2, 0]}, "batches: 0 is no batch size; the smallest is 1"),
    ],
)
def test_what_cannot_be_checked_is_refused_in_one_sentence(context, layer, options, sentence):
    with pytest.raises(Mistake) as refusal:
        run(context, layer, **options)
    assert str(refusal.value) == sentence
    assert context.wire.sent == []


def test_the_real_runner_checks_a_model_and_traces_what_it_does_not_compile(runner, small):
    layer = msgspec.structs.replace(small, workload="train", toggles={})
    runner.send(protocol.Validate(configuration=layer, steps=4, batches=[2]))
    # The fixture that leaves tracing out reaches only this process, and not the runner's.
    assert runner.finish().reason == "done", runner.describe()
    checks_done = {row.name: row for row in checklist.rows(checklist.newest(runner.session))}
    states = {name: row.status for name, row in checks_done.items()}
    assert states["numerics"] == states["syncs"] == states["memory"] == "pass", checks_done
    assert states["batches"] == "pass" and states["speedup"] == "not applicable"
    assert "torch.compile would make 1 graph, with 0 graph breaks" in checks_done["graph"].evidence
    assert "over 8 training steps" in checks_done["numerics"].evidence
