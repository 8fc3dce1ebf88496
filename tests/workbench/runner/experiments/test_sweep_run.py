"""A sweep by the real runner: every combination is a point, whatever becomes of it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sessions.model import Configuration, Phase
from sessions.storage import hdf5
from sessions.studies import sweep
from workbench import protocol
from workbench.runner.experiments.sweep import SweepRun


def swept(runner, base, axes, reason="done", **options):
    """Sweep to the end; the study that the session keeps of it."""
    options = {"seconds": 0.1} | options
    runner.send(protocol.Sweep(base=base, axes=axes, **options))
    assert runner.finish().reason == reason, runner.describe()
    return runner.session.studies[-1]


def points(study, *names):
    table = study.tables[sweep.POINTS]
    return list(zip(*(table[name].tolist() for name in names), strict=True))


@pytest.fixture(scope="module")
def faulty() -> Configuration:
    return Configuration(family="faulty", preset="tiny", settings={"batch": 1, "sequence": 16})


def test_every_size_is_measured_under_every_arm(runner, small, tmp_path):
    count = len(runner.session.segments)
    arms = [{}, {"precision": "bf16"}]
    axes = {"settings.sequence": [16, 200, 64]}
    study = swept(runner, small, axes, arms=arms)
    assert set(points(study, "x", "arm")) == {(x, arm) for x in (16, 64, 200) for arm in (0, 1)}
    table = study.tables[sweep.POINTS]
    assert set(table["outcome"]) == {"measured"}
    assert (table["median_ms"] > 0).all() and (table["peak_bytes"] > 1e6).all()
    assert (table["low_ms"] < table["median_ms"]).all()
    assert (table["median_ms"] < table["high_ms"]).all()
    assert table["tokens_per_s"] == pytest.approx(1e3 * table["x"] / table["median_ms"])
    assert (table["blocks"] >= 3).all()
    # Each arm's numbers were checked once, where it is smallest.
    assert sorted(study.tables[sweep.NUMBERS]["arm"]) == [0, 1]
    assert set(study.tables[sweep.NUMBERS]["right"]) == {1.0}
    for text in study.tables[sweep.NUMBERS]["text"]:
        assert text.startswith("at sequence 16: relative error ")
    # The sizes come in random order, the arms of each one after the other.
    assert (table["x"].reshape(-1, 2)[:, 0] == table["x"].reshape(-1, 2)[:, 1]).all()
    # What a point says is what the steps of its segment say.
    segments = runner.session.segments[count:]
    assert len(segments) == 6
    for row, segment in enumerate(segments):
        assert segment.configuration.settings["sequence"] == table["x"][row]
        wanted = arms[int(table["arm"][row])].get("precision", "fp32")
        assert segment.configuration.toggles["precision"] == wanted
        steady = segment.steps["phase"] == Phase.STEADY
        counted = segment.steps["block"][steady]
        medians = [
            np.median(segment.steps["wall_ms"][steady][counted == block])
            for block in sorted(set(counted))
        ]
        assert len(medians) == table["blocks"][row]
        assert np.exp(np.mean(np.log(medians))) == pytest.approx(table["median_ms"][row])
    # The exponents belong to the points, and the file keeps it all.
    for curve in sweep.curves(study):
        fitted = sweep.fit_of(study, curve)
        assert fitted.n == 3 and fitted.low < fitted.exponent < fitted.high
        assert curve.x.tolist() == [16, 64, 200]
    hdf5.save(runner.session, tmp_path / "swept.h5")
    loaded = hdf5.load(tmp_path / "swept.h5").studies[-1]
    for table in (sweep.points_table, sweep.fits_table):
        assert table(loaded).to_csv() == table(study).to_csv()


def test_what_does_not_fit_or_fails_is_a_point_and_the_sweep_goes_on(with_families, faulty):
    faults = ["none", "gpu-memory", "raise", "host-memory"]
    study = swept(with_families, faulty, {"model.fault": faults, "settings.batch": [2, 100_000]})
    outcomes = {
        (x, y): (outcome, reason)
        for x, y, outcome, reason in points(study, "x", "y", "outcome", "reason")
    }
    assert outcomes["none", 2] == ("measured", "")
    assert outcomes["gpu-memory", 2][0] == outcomes["host-memory", 2][0] == "out of memory"
    assert "20.00 GiB more was needed" in outcomes["gpu-memory", 2][1]
    assert outcomes["raise", 2] == ("failed", "KeyError in the model: 'a key\\nand a second line'")
    for fault in faults:
        outcome, reason = outcomes[fault, 100_000]
        assert outcome == "refused" and "batch = 100000 is outside of 1 to 65536" in reason
    missed = study.tables[sweep.POINTS]["outcome"] != "measured"
    assert np.isnan(study.tables[sweep.POINTS]["median_ms"][missed]).all()
    assert sweep.FITS not in study.tables
    table = study.tables[sweep.NUMBERS]
    numbers = dict(zip(table["x"], zip(table["right"], table["text"], strict=True), strict=True))
    assert numbers["none"][0] == 1 and numbers["none"][1].startswith("at fault none, batch 2: ")
    for fault in faults[1:]:  # another computation, of which that check says nothing
        assert np.isnan(numbers[fault][0])
        assert numbers[fault][1] == f"at {fault}: not checked: its smallest size was not measured"
    rows = {tuple(row[:2]): row[-2] for row in sweep.points_table(study).rows}
    assert rows.pop(("none", "2")) == "right" and set(rows.values()) == {""}


@pytest.mark.slow
def test_a_lost_context_is_the_last_point_and_ends_the_sweep(faulty):
    from runner_driver import FAULTY, Driver

    driver = Driver(command=FAULTY)
    driver.until_state("idle")
    axes = {"model.fault": ["lost-context"]}
    driver.send(protocol.Sweep(base=faulty, axes=axes, seconds=0.1))
    failure = driver.until(protocol.Failure)
    assert failure.fatal
    driver.rest()
    driver.close()
    ((outcome, reason),) = points(driver.session.studies[-1], "outcome", "reason")
    assert outcome == "failed" and "cannot recover" in reason


@pytest.mark.parametrize("command", [protocol.Stop(), protocol.Cancel()], ids=["stop", "cancel"])
def test_whoever_ends_it_in_the_middle_keeps_the_points_so_far(runner, small, command):
    # More points than can be measured before the command arrives.
    axes = {
        "settings.sequence": [16, 32, 48, 64, 80, 96, 112, 128],
        "settings.batch": [1, 2, 3, 4, 5, 6, 7, 8],
    }
    runner.send(protocol.Sweep(base=small, axes=axes, seconds=0.1))
    for _ in range(2):
        runner.until(lambda message: getattr(message, "table", "") == sweep.POINTS)
    finished = runner.finish(command)
    assert finished.reason == ("stopped" if isinstance(command, protocol.Stop) else "cancelled")
    study = runner.session.studies[-1]
    assert 2 <= len(study.tables[sweep.POINTS]["x"]) < 64
    runner.start(small, steps=5)
    assert runner.finish().reason == "done"


@pytest.mark.parametrize(
    ("axes", "options", "sentence"),
    [
        ({}, {}, "0 fields were given, but a sweep has 1 or 2; give each field its values"),
        (
            {"settings.batch": []}, {},
            "settings.batch: no values were given to sweep over; give at least one",
        ),
        (
            {"settings.batch": [1, 1]}, {},
            "settings.batch: [1, 1] contains a value twice; give each value once",
        ),
        (
            {"settings.batch": [1, "two"]}, {},
            "settings.batch: [1, 'two'] mixes numbers and words; give values of one kind",
        ),
        (
            {"settings.batch": [1]},
            {"seconds": 0.0},
            "seconds = 0: expected more than 0 and at most 1e+09",
        ),
        (
            {"batch": [1]},
            {},
            "field 'batch' cannot be varied; expected model.NAME, settings.NAME, toggles.NAME, "
            "preset, workload or data",
        ),
        (
            {"settings.batch": list(range(1, 101)), "settings.sequence": list(range(1, 22))},
            {},
            "2100 points were requested, but at most 2000 are allowed; give fewer values or arms",
        ),
        (
            {"settings.nonsense": [1, 2]},
            {},
            "setting of forward: unknown 'nonsense'; expected one of batch, sequence",
        ),
        # A value that a field never has, beside others that it may have.
        (
            {"preset": ["tiny", "nosuch"]}, {},
            "preset: unknown 'nosuch'; expected one of tiny, small, base, medium, "
            "published, large",
        ),
        (
            {"settings.batch": [1], "workload": ["train", "fly"]}, {},
            "workload of hydra: unknown 'fly'; expected one of forward, train, prefill, decode, "
            "generate",
        ),
        (
            {"toggles.rope_cache": ["shared", "lost"]}, {},
            "toggle rope_cache: unknown 'lost'; expected one of per_layer, shared",
        ),
        ({"model.conv_width": [2, 5]}, {}, "hydra: conv_width = 5 is not one of (2, 3, 4)"),
        ({"model.ccgqa": ["on", "maybe"]}, {}, "hydra: ccgqa = 'maybe' is not true or false"),
    ],
)  # fmt: skip
def test_what_cannot_be_swept_is_refused_in_one_sentence(runner, small, axes, options, sentence):
    count = len(runner.session.studies)
    runner.send(protocol.Sweep(base=small, axes=axes, **options))
    failure = runner.until(protocol.Failure)
    assert (failure.kind, failure.sentence) == ("mistake", sentence)
    assert runner.finish().reason == "failed"
    assert len(runner.session.studies) == count


def test_an_option_that_is_blocked_here_is_a_refused_point(runner, small):
    study = swept(runner, small, {"toggles.checkpointing": ["none", "full"]})
    outcomes = {
        x: (outcome, reason) for x, outcome, reason in points(study, "x", "outcome", "reason")
    }
    assert outcomes["none"] == ("measured", "") and outcomes["full"][0] == "refused"
    assert "=full cannot be used: " in outcomes["full"][1]


def test_presets_and_switches_are_swept_in_words_without_an_exponent(runner, small):
    axes = {"toggles.rope_cache": ["per_layer", "shared"], "model.n_layers": [1, 2]}
    study = swept(runner, small, axes)
    assert sweep.axis(study, 0) == ["per_layer", "shared"] and sweep.axis(study, 1) == [1, 2]
    assert sweep.FITS not in study.tables
    names = [sweep.name_of(study, curve) for curve in sweep.curves(study)]
    assert [name.partition(",")[0] for name in names] == ["layers 1", "layers 2"]
    rows = sweep.points_table(study).rows
    wanted = [[cache, layers] for layers in ("1", "2") for cache in ("per_layer", "shared")]
    assert [row[:2] for row in rows] == wanted


def test_each_option_of_a_swept_toggle_has_its_own_check_at_its_smallest_size(runner, small):
    axes = {"settings.sequence": [32, 16], "toggles.precision": ["fp32", "bf16"]}
    table = swept(runner, small, axes).tables[sweep.NUMBERS]
    assert "x" not in table, "one check tells of all lengths"
    texts = dict(zip(table["y"], table["text"], strict=True))
    assert texts["fp32"].startswith("at sequence 16, precision fp32: relative error ")
    assert texts["bf16"].startswith("at sequence 16, precision bf16: relative error ")


def test_only_what_the_next_point_shares_stays_in_memory(small):
    from types import SimpleNamespace

    freed: list[str] = []
    arms = SimpleNamespace(
        forget_variants=lambda: freed.append("arms"), forget_all=lambda: freed.append("all")
    )
    run = SweepRun(SimpleNamespace(variants=arms), protocol.Sweep(base=small, axes={}))
    longer = small.replaced("settings.sequence", 32)
    for following in (small, longer, longer.replaced("model.n_layers", 3), None, longer, small):
        run._make_room(following)
    assert freed == ["all", "arms", "all", "all", "all", "arms"]


def test_a_point_of_few_blocks_has_no_interval_and_one_of_many_covers_the_truth():
    rng = np.random.default_rng(5)
    assert math.isnan(sweep.typical([3.0, 3.1]).low_ms)
    hits = 0
    for _ in range(1000):
        typical = sweep.typical(7 * np.exp(rng.normal(0, 0.02, 10)))
        hits += typical.low_ms <= 7 <= typical.high_ms
    assert 0.93 <= hits / 1000 <= 0.97
