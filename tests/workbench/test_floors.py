"""Noise floors belong to what was calibrated: a machine, and a family, workload and precision."""

from __future__ import annotations

import json
import math

import msgspec
import pytest
import wire_samples

from sessions.model import OWN, PairedComparison
from sessions.verdicts.verdict_words import remarks
from workbench import calibration, protocol
from workbench.protocol.catalogue import OptionInfo, ToggleInfo

OPTIONS = [OptionInfo(name=name, title=name) for name in ("fp32", "bf16")]
PRECISION = ToggleInfo(
    name="precision", title="", help="", group="", options=OPTIONS, default="fp32"
)
ENVIRONMENT = {"torch": "0", "cpu": "Xeon", "cpu_cores": "16", "gpu_power_limit_w": "700"}
CATALOGUE = msgspec.structs.replace(
    wire_samples.catalogue(), toggles=[PRECISION], environment=ENVIRONMENT
)
FORWARD = wire_samples.configuration()
TRAIN = msgspec.structs.replace(FORWARD, workload="train")
# As the file was written before kinds were told apart.
OLD = {
    "none, torch 0": {
        "device": "none",
        "software": "torch 0",
        "floor": 0.03,
        "created": 1.7e9,
        "pairs": 9,
        "seconds": 3.0,
        "measured_with": "moe base decode",
    }
}


@pytest.fixture(autouse=True)
def own_state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def in_(configuration, precision):
    return msgspec.structs.replace(configuration, toggles={"precision": precision})


def on_host(**facts):
    """Return the runner of a host that has the same device and software."""
    return msgspec.structs.replace(CATALOGUE, environment=ENVIRONMENT | facts)


def calibrate(configuration, floor, catalogue=CATALOGUE, **facts):
    """Keep what identical arms of a configuration were measured to differ by."""
    measured = PairedComparison(
        arms=["A", "A"],
        order=[],
        medians_ms=[],
        ratio=1.0,
        low=1 / (1 + floor),
        high=1.0,
        verdict="SAME",
        facts={"pairs": 9, "seconds": 3.0, **facts},
    )
    calibration.store(calibration.calibrated(catalogue, measured, configuration))


def keep_old():
    calibration.path().parent.mkdir(parents=True, exist_ok=True)
    calibration.path().write_text(json.dumps(OLD))


def compared(base, other):
    return calibration.respected(CATALOGUE, protocol.Compare(base=base, other=other))


def test_each_kind_has_the_floor_that_it_was_calibrated_with():
    kinds = [(FORWARD, "fp32", 0.02), (FORWARD, "bf16", 0.01), (TRAIN, "fp32", 0.004)]
    for configuration, precision, floor in kinds:
        calibrate(in_(configuration, precision), floor)
    for configuration, precision, floor in kinds:
        arm = in_(configuration, precision)
        command = compared(arm, arm)
        assert command.floor == pytest.approx(floor) and command.floor_note == ""
    calibrate(in_(TRAIN, "fp32"), 0.006)
    assert [row.floor for row in calibration.load(CATALOGUE)] == pytest.approx([0.02, 0.01, 0.006])


def test_a_precision_that_is_not_named_is_the_default_one():
    calibrate(TRAIN, 0.004)
    assert calibration.load(CATALOGUE)[0].kind == "hydra train in fp32"
    assert compared(in_(TRAIN, "fp32"), TRAIN).floor_note == ""


def test_arms_of_two_kinds_have_the_larger_floor():
    calibrate(in_(TRAIN, "fp32"), 0.004)
    calibrate(in_(TRAIN, "bf16"), 0.02)
    command = compared(in_(TRAIN, "fp32"), in_(TRAIN, "bf16"))
    assert command.floor == pytest.approx(0.02) and command.floor_note == ""


def test_what_was_never_calibrated_has_the_machines_largest_floor_and_the_reader_is_told():
    calibrate(in_(FORWARD, "fp32"), 0.02)
    calibrate(in_(FORWARD, "bf16"), 0.01)
    command = compared(in_(FORWARD, "bf16"), in_(TRAIN, "bf16"))
    assert command.floor == pytest.approx(0.02)
    assert command.floor_note == (
        "hydra train in bf16 was never calibrated, so the largest noise floor of this machine is "
        "used: 2 % with hydra tiny forward"
    )
    facts = {"floor_note": command.floor_note, "others": "others used 9 %"}
    comparison = PairedComparison(
        arms=[], order=[], medians_ms=[], ratio=1.0, low=math.nan, high=math.nan,
        verdict="UNDECIDED", facts=facts,
    )  # fmt: skip
    disturbance, note = remarks(comparison)
    assert disturbance == "Others used 9 % while A and B alternated."
    assert note.startswith("Hydra train in bf16 was never")


def test_a_floor_that_was_measured_beside_others_says_so_wherever_it_is_told():
    calibrate(TRAIN, 0.8, **{"others": "others used 67 % of the CPU"})
    (stored,) = calibration.load(CATALOGUE)
    doubt = "may be too large, because others used 67 % of the CPU meanwhile: calibrate again"
    assert doubt in calibration.describe(stored)
    assert doubt in calibration.floor_sentence([stored], stored.kind)
    calibrate(TRAIN, 0.01)
    assert "may be too large" not in calibration.describe(calibration.load(CATALOGUE)[0])


def test_files_of_before_hold_a_floor_for_every_kind_until_it_has_its_own():
    keep_old()
    kind = calibration.kind_of(CATALOGUE, TRAIN)
    command = compared(TRAIN, TRAIN)
    assert command.floor == 0.03 and command.floor_note.endswith("3 % with moe base decode")
    assert "hydra train in fp32 was never" in calibration.floor_sentence(
        calibration.load(CATALOGUE), kind
    )
    calibrate(TRAIN, 0.004)
    assert compared(TRAIN, TRAIN).floor == pytest.approx(0.004)
    assert compared(FORWARD, FORWARD).floor == 0.03, "the old one is kept beside it"
    sentence = calibration.floor_sentence(calibration.load(CATALOGUE), kind)
    assert "0.4 %, calibrated today with hydra tiny train in fp32; smaller" in sentence


@pytest.mark.parametrize(
    "other", [{"cpu": "Epyc"}, {"cpu_cores": "8"}, {"gpu_power_limit_w": "350"}]
)
def test_hosts_that_differ_have_floors_of_their_own_though_their_gpus_are_equal(other):
    there = on_host(**other)
    calibrate(TRAIN, 0.004)
    assert calibration.load(there) == [] and len(calibration.load(CATALOGUE)) == 1
    calibrate(TRAIN, 0.02, there)
    assert [row.floor for row in calibration.load(there)] == pytest.approx([0.02])
    assert [row.floor for row in calibration.load(CATALOGUE)] == pytest.approx([0.004])
    assert len(calibration.load(on_host(host="another name", python="3.14"))) == 1, (
        "all else is alike"
    )


def test_a_cpu_that_is_the_device_is_named_once():
    catalogue = msgspec.structs.replace(on_host(gpu_power_limit_w=""), device_title="Xeon")
    calibrate(TRAIN, 0.004, catalogue)
    assert "on Xeon, 16 cores (" in calibration.describe(calibration.load(catalogue)[0])


def test_a_floor_of_which_nobody_knows_the_host_counts_until_there_is_one_of_the_host():
    keep_old()
    old = json.loads(calibration.path().read_text())["none, torch 0"]
    calibration.path().write_text(json.dumps({"x": old | {"kind": "hydra train in fp32"}}))
    for catalogue in (CATALOGUE, on_host(cpu="Epyc")):
        (stored,) = calibration.load(catalogue)
        assert stored.floor == 0.03
        assert "3 %" in calibration.describe(
            stored
        ) and "its host not recorded" in calibration.describe(stored)
        assert "its host not recorded" in calibration.floor_sentence([stored], stored.kind)
    calibrate(TRAIN, 0.004)
    (stored,) = calibration.load(CATALOGUE)
    assert stored.floor == pytest.approx(0.004)
    assert "on none, Xeon, 16 cores, GPU limited to 700 W (" in calibration.describe(stored)
    assert [row.floor for row in calibration.load(on_host(cpu="Epyc"))] == [0.03], (
        "still its only one"
    )


def test_a_machine_without_any_calibration_claims_whatever_it_measures():
    command = compared(TRAIN, FORWARD)
    assert (command.floor, command.floor_note) == (0.0, "")
    assert calibration.floor_sentence([], "any").startswith("Noise floor not known")


def test_an_attribution_and_a_checklist_respect_the_floors_of_all_that_they_compare():
    calibrate(in_(TRAIN, "fp32"), 0.02)
    calibrate(in_(TRAIN, "bf16"), 0.004)
    attribution = protocol.Attribute(base=TRAIN, toggles={"precision": "bf16"})
    checklist = protocol.Validate(configuration=in_(TRAIN, "bf16"))
    for command in (attribution, checklist):
        command_with_floor = calibration.respected(CATALOGUE, command)
        assert (
            command_with_floor.floor == pytest.approx(0.02) and command_with_floor.floor_note == ""
        )


@pytest.mark.parametrize(
    ("facts", "allow"),
    [
        ({"pairs": 3, "seconds": 0.7}, "3 pairs?, but .* allow about 2 s in total"),
        ({"pairs": 0, "seconds": 5.0}, "0 pairs?, but .* allow more time"),
        ({"pairs": 7}, "7 pairs?, but .* allow more time"),
    ],
)
def test_too_few_pairs_make_no_floor_and_say_how_long_enough_of_them_take(facts, allow):
    measured = PairedComparison(
        arms=["A", "A"], order=[], medians_ms=[], ratio=1.0, low=0.99, high=1.01,
        verdict="UNDECIDED", facts=facts,
    )  # fmt: skip
    with pytest.raises(ValueError, match=allow):
        calibration.floor(measured)


def test_a_floor_of_one_own_model_is_not_called_that_of_another():
    """The floor of a small file counted, without a word, for every file and configuration."""
    small, large, hugging_face = (
        msgspec.structs.replace(TRAIN, family=OWN, preset="file", model={"source": source})
        for source in ("/a/small.py:build", "/a/large.py:build", "hf:gpt2")
    )
    calibrate(small, 0.05)
    assert compared(small, small).floor_note == ""
    without_function = msgspec.structs.replace(small, model={"source": "/a/small.py"})
    assert compared(without_function, without_function).floor_note == ""
    assert compared(large, large).floor_note.startswith("large train in fp32 was never calibrated")
    assert compared(hugging_face, hugging_face).floor_note.endswith("5 % with small train")
