"""``workbench ab`` and ``calibrate``: what they ask of the runner, answer, keep and exit with."""

from __future__ import annotations

import json
import math

import msgspec
import numpy as np
import pytest
import wire_samples
from sent_commands import only

from sessions.model import Prediction
from sessions.storage import hdf5
from sessions.studies import prediction
from sessions.verdicts.verdict_words import headline, ratio_line, remarks
from workbench import calibration as floors
from workbench import protocol
from workbench.calibration import Calibration
from workbench.cli import main
from workbench.client.recorder import Recorder


@pytest.fixture(autouse=True)
def own_state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def answers(catalogue, right=True, **judged):
    """Return the messages of a runner that compares, the last verdict changed to ``judged``."""
    messages = [catalogue, *wire_samples.begin(0.1, 0), *wire_samples.begin(0.2, 1)]
    messages += wire_samples.comparison(np.random.default_rng(0), 0.3)
    for message in messages:
        if isinstance(message, protocol.NumericsChecked) and right:
            message.numerics = msgspec.structs.replace(message.numerics, ok=True)
        if isinstance(message, protocol.Judged) and message.final:
            message.judgement = msgspec.structs.replace(message.judgement, **judged)
    return [*messages, protocol.Finished(t_s=9.0, reason="done", steps=9)]


def test_both_arms_share_what_is_named_for_both_and_differ_in_their_own(ran, sent, capsys):
    commands = sent(*answers(ran.catalogue))
    arguments = ["--preset", "tiny", "--workload", "train", "--set", "dim=32", "--seed", "3"]
    arguments += ["--toggle", "adamw=fused", "--a", "precision=bf16"]
    arguments += ["--b", "precision=amp_bf16,checkpointing=full", "--budget", "7"]
    arguments += ["--region", "2", "--order", "abba"]
    assert main(["ab", "hydra", *arguments]) == 0
    command = only(commands, protocol.Compare)
    for arm in (command.base, command.other):
        assert (arm.family, arm.preset, arm.workload, arm.seed) == ("hydra", "tiny", "train", 3)
        assert arm.model == {"dim": 32}
    assert command.base.toggles == {"adamw": "fused", "precision": "bf16"}
    assert command.other.toggles == {
        "adamw": "fused",
        "precision": "amp_bf16",
        "checkpointing": "full",
    }
    assert (command.budget_s, command.region, command.order) == (7.0, 0.02, "abba")


def test_a_region_of_everything_is_a_mistake_in_percent(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["ab", "hydra", "--region", "200"])
    assert ended.value.code == 2
    assert "'200' is not a percentage above 0 and below 100" in capsys.readouterr().err


def test_without_arms_a_is_compared_with_a(ran, sent, capsys):
    commands = sent(*answers(ran.catalogue))
    main(["ab", "hydra"])
    assert only(commands, protocol.Compare).base == only(commands, protocol.Compare).other


def test_prediction_measurement_and_residual_are_told_saved_and_in_the_json(
    ran, sent, tmp_path, capsys
):
    messages = list(answers(ran.catalogue))
    for message in messages:
        if isinstance(message, protocol.ComparisonStarted):
            message.prediction = Prediction(ratio=0.8, text="A needs 10 ms", base_us=1e4)
    commands = sent(*messages)
    path = tmp_path / "ab.h5"
    assert main(["ab", "hydra", "-o", str(path)]) == 0
    assert only(commands, protocol.Compare).predict
    out = capsys.readouterr().out
    assert (
        "Predicted 0.80, measured 0.90 x step time: 0.10 worse than the roofline estimate explains"
        in out
    )
    assert "the roofline estimate: A needs 10 ms" in out
    (saved,) = hdf5.load(path).comparisons
    assert prediction.of(saved).ratio == 0.8
    sent(*messages)
    main(["ab", "hydra", "--json"])
    data = json.loads(capsys.readouterr().out)
    assert data["prediction"]["ratio"] == 0.8
    assert data["residual"] == pytest.approx(0.1)


def test_where_there_is_no_prediction_the_reason_is_told(ran, sent, capsys):
    messages = list(answers(ran.catalogue))
    for message in messages:
        if isinstance(message, protocol.ComparisonStarted):
            message.prediction = prediction.none("what torch.compile fuses is not known")
    sent(*messages)
    main(["ab", "hydra"])
    assert "No prediction: what torch.compile fuses is not known" in capsys.readouterr().out


def test_the_verdict_its_reasons_and_the_order_are_told_and_saved(ran, sent, tmp_path, capsys):
    sent(*answers(ran.catalogue))
    path = tmp_path / "ab.h5"
    assert main(["ab", "hydra", "-o", str(path)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("B is FASTER than A\nB against A: 1.111x faster")
    assert "(95 % interval 1.098 to 1.125), 9 pairs in 0.9 s" in out
    assert "1 of 19 blocks was void" in out
    assert "A: off" in out and "B: on" in out and "A: numbers right against float64" in out
    assert "ABBABABAB" in out
    (saved,) = hdf5.load(path).comparisons
    assert (saved.verdict, saved.ratio, len(saved.order)) == ("FASTER", 0.9, 19)
    assert saved.voids.count("") == 18


def test_the_answer_for_programs_has_all_of_it(ran, sent, capsys):
    sent(*answers(ran.catalogue))
    assert main(["ab", "hydra", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["verdict"], answer["ratio"], answer["pairs"]) == ("FASTER", 0.9, 9)
    assert answer["low"] < 0.9 < answer["high"]
    assert answer["order"][:4] == [0, 1, 1, 0] and len(answer["medians_ms"]) == 19
    assert answer["reasons"] == ["1 of 19 blocks was void"]
    assert answer["clocks_mhz"][:2] == [None, None] and answer["clocks_mhz"][-1] == 1980
    assert len(answer["arms"]) == 2 and answer["wrong"] == []
    assert answer["numerics"]["0"]["reference"] == "float64"


def test_wrong_numbers_are_said_first_and_exit_with_1_however_fast(ran, sent, capsys):
    sent(*answers(ran.catalogue, right=False))
    assert main(["ab", "hydra"]) == 1
    out = capsys.readouterr().out
    assert out.startswith("B computed wrong numbers; by time: B is FASTER than A")
    assert "B: numbers WRONG" in out


@pytest.mark.parametrize(
    ("expected", "verdict", "code"),
    [
        ("faster", "FASTER", 0),
        ("not-slower", "SAME", 0),
        ("not-slower", "FASTER", 0),
        ("faster", "UNDECIDED", 3),
        ("same", "SLOWER", 1),
        ("slower", "SLOWER", 0),
    ],
)
def test_what_is_expected_decides_the_exit_code(ran, sent, capsys, expected, verdict, code):
    sent(*answers(ran.catalogue, verdict=verdict))
    assert main(["ab", "hydra", "--expect", expected]) == code
    assert ("the verdict is" in capsys.readouterr().err) is (code != 0)


@pytest.mark.parametrize(
    ("low", "high", "pairs", "code"),
    [(0.985, 0.995, 9, 0), (0.985, 1.02, 9, 3), (0.90, 0.95, 9, 3), (0.985, 0.995, 7, 3)],
    ids=["over the lower edge", "over both edges", "at other clocks", "too few pairs"],
)
def test_not_slower_is_shown_by_an_interval_below_the_edge_of_slower(
    ran, sent, low, high, pairs, code
):
    sent(*answers(ran.catalogue, ratio=0.99, low=low, high=high, verdict="UNDECIDED", pairs=pairs))
    assert main(["ab", "hydra", "--expect", "not-slower"]) == code


@pytest.mark.parametrize("expected", ["faster", "slower", "same", "not-slower"])
def test_no_speed_can_be_expected_of_different_models(ran, sent, capsys, expected):
    """Only the runner knows: an option of a toggle may equal the model's own field."""
    refusal = protocol.Failure(kind="mistake", sentence="A and B are different models (window)")
    commands = sent(ran.catalogue, refusal, protocol.Finished(reason="failed", steps=0))
    assert main(["ab", "hydra", "--b", "window=512", "--expect", expected]) == 2
    assert "A and B are different models (window)" in capsys.readouterr().err
    command = only(commands, protocol.Compare)
    assert command.require_same_work
    commands = sent(*answers(ran.catalogue, verdict="FASTER"))
    assert main(["ab", "hydra", "--b", "window=512"]) == 0, "without an expectation it is measured"
    command = only(commands, protocol.Compare)
    assert not command.require_same_work


def test_an_undecided_comparison_names_the_budget_of_one_that_should_decide(ran, sent, capsys):
    sent(*answers(ran.catalogue, verdict="UNDECIDED", more_s=12.5))
    assert main(["ab", "hydra"]) == 0
    out = capsys.readouterr().out
    assert ", 9 pairs in 0.9 s" in out and "A new comparison needs --budget 14: " in out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--b", "turbo=on"], "unknown toggle 'turbo'; expected one of "),
        (["--a", "precision=fp7"], "toggle precision: unknown option 'fp7'; expected one of fp32,"),
    ],
)
def test_an_arm_that_cannot_be_is_a_mistake(ran, sent, capsys, arguments, sentence):
    commands = sent(ran.catalogue)
    assert main(["ab", "hydra", *arguments]) == 2
    assert sentence in capsys.readouterr().err
    assert not any(isinstance(command, protocol.Compare) for command in commands)


# Calibration


def test_calibrating_keeps_the_floor_which_later_verdicts_respect(ran, sent, capsys):
    commands = sent(*answers(ran.catalogue, ratio=1.0, low=0.98, high=1.01, verdict="UNDECIDED"))
    assert main(["calibrate", "--preset", "tiny"]) == 0
    assert only(commands, protocol.Compare).base == only(commands, protocol.Compare).other
    assert "identical arms differ by up to 2.05 % on" in capsys.readouterr().out
    (floor,) = floors.load(ran.catalogue)
    assert floor.floor == pytest.approx(1 / 0.98 - 1)
    assert (floor.pairs, floor.measured_with) == (9, "hydra tiny forward")
    commands = sent(*answers(ran.catalogue))
    main(["ab", "hydra"])
    assert only(commands, protocol.Compare).floor == floor.floor
    capsys.readouterr()
    sent(ran.catalogue)
    main(["doctor"])
    assert "identical arms differ by up to 2.05 %" in capsys.readouterr().out


def test_a_machine_that_was_never_calibrated_is_told_how(ran, sent, capsys):
    commands = sent(*answers(ran.catalogue))
    main(["ab", "hydra"])
    assert only(commands, protocol.Compare).floor == 0
    capsys.readouterr()
    sent(ran.catalogue)
    main(["doctor"])
    assert "workbench calibrate" in capsys.readouterr().out


def test_too_few_pairs_calibrate_nothing(ran, sent, capsys):
    sent(*answers(ran.catalogue, pairs=5, verdict="UNDECIDED"))
    assert main(["calibrate"]) == 1
    assert "measured 5 pairs, but at least 8 are needed" in capsys.readouterr().err
    assert floors.load(ran.catalogue) == []


def test_each_machine_has_a_floor_of_its_own_and_a_broken_file_is_no_calibration(ran):
    def machine(device, **environment):
        return msgspec.structs.replace(ran.catalogue, device_title=device, environment=environment)

    base, other_driver, other_torch = (
        machine("one", torch="2.11", driver="570"),
        machine("one", torch="2.11", driver="580"),
        machine("one", torch="2.12", driver="570"),
    )
    calibration = Calibration(
        device="one",
        software="driver 570, torch 2.11",
        floor=0.01,
        created=1.7e9,
        pairs=9,
        seconds=3.0,
        measured_with="hydra",
    )
    floors.store(calibration)
    floors.store(msgspec.structs.replace(calibration, device="other", floor=0.02))
    assert [known.floor for known in floors.load(base)] == [0.01]
    assert floors.load(other_driver) == floors.load(other_torch) == []
    (other,) = floors.load(machine("other", torch="2.11", driver="570"))
    assert other.floor == 0.02
    floors.path().write_text("{")
    assert floors.load(base) == []


# In words


def judged(**changes):
    recorder = Recorder()
    for message in answers(wire_samples.catalogue(), **changes):
        recorder.record(message)
    return recorder.session.comparisons[0]


def test_an_undecided_verdict_says_how_long_deciding_takes():
    undecided = judged(verdict="UNDECIDED", more_s=400.0, reasons=["it is at the edge"])
    assert headline(undecided) == "UNDECIDED"
    assert remarks(undecided) == [
        "It is at the edge.",
        "They do not fit: each block built its arm again.",
        "Measuring about 7 min more should decide.",
    ]


def test_without_pairs_no_ratio_is_made_up():
    nothing = judged(verdict="UNDECIDED", pairs=0, ratio=None, low=None, high=None)
    assert ratio_line(nothing) == "no ratio yet (0 pairs in 0.9 s)"
    assert math.isnan(nothing.ratio)
    comparison = judged(verdict="UNDECIDED", pairs=1, low=None, high=None)
    assert "(no interval yet), 1 pair in" in ratio_line(comparison)


def test_the_same_says_within_what():
    assert headline(judged(verdict="SAME")) == "B is the SAME as A within ±1 %"
