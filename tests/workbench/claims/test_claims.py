"""The documents' claims: that they can be run at all, and that none holds without a measurement."""

from __future__ import annotations

import math
import re

import attribution_samples
import msgspec
import numpy as np
import pytest
import torch

import kernels
from sessions.model import OWN, Configuration, Session
from workbench import protocol
from workbench.claims import documents
from workbench.claims._claim import (
    FAILS,
    HOLDS,
    NOT_HERE,
    NOT_MEASURED,
    UNDECIDED,
    Claim,
    Experiment,
    Reading,
    Results,
    Unmeasured,
    judge,
)
from workbench.claims._read import (
    slow_down,
    speed_up,
    step_speed_up,
)
from workbench.runner.catalogue import catalogue
from workbench.runner.config.availability import require_unblocked
from workbench.runner.config.resolve import resolve
from workbench.runner.config.values import families
from workbench.runner.toggles import all_toggles
from workbench.runner.user_models import user_model
from workbench.runner.workloads import all_workloads

CPU = torch.device("cpu")

EXPERIMENTS = [(d, e) for d in documents().values() for e in d.experiments]

NAMES = [f"{document.name}: {experiment.name}" for document, experiment in EXPERIMENTS]


@pytest.fixture(scope="module")
def here() -> protocol.Catalogue:
    return catalogue(CPU, 0.0)


def configurations(command: protocol.Command) -> list[Configuration]:
    match command:
        case protocol.Attribute():
            toggles = {**command.base.toggles, **command.toggles}
            return [command.base, msgspec.structs.replace(command.base, toggles=toggles)]
        case protocol.Start():
            return [command.configuration]
        case protocol.Profile():
            return command.configurations
    return []


def test_the_folder_holds_the_five_documents():
    assert list(documents()) == ["adaattn", "hydra", "mahia", "mamba2", "moe"]
    for name, document in documents().items():
        assert document.name == name and document.experiments
        titles = [experiment.name for experiment in document.experiments]
        assert len(set(titles)) == len(titles)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize(("document", "experiment"), EXPERIMENTS, ids=NAMES)
def test_what_an_experiment_asks_for_exists(here, document, experiment, device):
    commands = experiment.commands(msgspec.structs.replace(here, device=device), 10.0)
    assert commands
    for command in commands:
        assert protocol.decode_command(protocol.encode(command)) == command
        if isinstance(command, protocol.Bench):
            assert set(command.operators) <= set(kernels.OPS)
        for configuration in configurations(command):
            family = families()[configuration.family]
            assert family.name in (document.name, OWN)
            config = family.configure(configuration.preset, configuration.model)
            assert family.name != OWN or user_model.load(config, 0)
            fields = {field.name for field in all_workloads()[configuration.workload].fields}
            assert set(configuration.settings) <= fields
            assert set(configuration.toggles) == set(all_toggles()), "no default takes part"
            for name, option in configuration.toggles.items():
                assert option in all_toggles()[name].options
            if device == "cpu" and not experiment.needs_gpu:
                situation = resolve(configuration, CPU)
                if configuration.toggles["cuda_graphs"] == "off":
                    require_unblocked(situation)


def test_the_kernels_that_are_claimed_are_timed_at_the_sizes_that_are_claimed():
    from workbench.claims import hydra

    for operator, case, *_ in hydra.KERNELS:
        assert case in {
            case_of_operator.name
            for case_of_operator in kernels.OPS[operator].cases
            if case_of_operator.bench
        }
        assert {"torch", "triton"} <= set(kernels.OPS[operator].implementations)


@pytest.mark.parametrize(("document", "experiment"), EXPERIMENTS, ids=NAMES)
def test_a_claim_has_a_bound_and_nothing_holds_that_was_not_measured(document, experiment):
    empty = Results(Session(), [], [], [["Out of memory: 3 GiB more was needed."]])
    for claim in experiment.claims:
        assert claim.least <= claim.most and (claim.least, claim.most) != (-math.inf, math.inf)
        assert claim.says and claim.unit and claim.row[0] in "MAHSE"
        for device in ("cpu", "cuda"):
            for results in (None, empty):
                outcome = judge(experiment, claim, device, results)
                assert outcome.verdict in (NOT_MEASURED, NOT_HERE)
                assert outcome.reading is None and outcome.reason


def judged(reading, device="cuda", **changes):
    claim = Claim(row="M1", name="", says="", unit="", read=lambda results: reading, **changes)
    experiment = Experiment(name="", how="", commands=lambda *_: [], claims=(claim,))
    return judge(experiment, claim, device, Results(Session(), [], [], []))


@pytest.mark.parametrize(
    ("ends", "verdict"),
    [
        ((2.0, 2.2), HOLDS),
        ((1.9, 2.1), UNDECIDED),
        ((1.5, 1.9), FAILS),
        ((None, None), HOLDS),
    ],
)
def test_a_claim_holds_where_the_whole_interval_is_within_its_bound(ends, verdict):
    assert judged(Reading(2.0, *ends), least=2.0).verdict == verdict


def test_a_bound_from_above_works_the_other_way_round():
    assert judged(Reading(0.4), most=0.5).verdict == HOLDS
    assert judged(Reading(0.51), most=0.5).verdict == FAILS
    assert judged(Reading(0.5, 0.4, 0.6), most=0.5).verdict == UNDECIDED


def test_fast_but_wrong_does_not_hold():
    outcome = judged(Reading(9.0, 8.0, 10.0, wrong="+ compile"), least=2.0)
    assert outcome.verdict == FAILS and "+ compile computed wrong numbers" in outcome.reason


@pytest.mark.parametrize("read", [speed_up("compile"), step_speed_up("compile")])
def test_a_speed_whose_numbers_nobody_checked_holds_only_with_those_words(read):
    study = attribution_samples.study()
    arms = study.tables["arms"]
    unknown = np.array(["+ compile" in str(title) for title in arms["title"]])
    study.tables["arms"] = {**arms, "wrong": np.where(unknown, math.nan, arms["wrong"])}
    reading = read(Results(Session(), [], [study], []))
    assert not reading.wrong and "numbers not checked" in reading.note
    outcome = judged(reading, least=1.0)
    assert outcome.verdict == HOLDS and "numbers not checked" in outcome.reason
    known = read(Results(Session(), [], [attribution_samples.study()], []))
    assert "numbers not checked" not in known.note


def test_what_is_no_number_is_not_measured():
    assert judged(Reading(math.nan), least=2.0).verdict == NOT_MEASURED


def test_what_needs_a_gpu_is_not_judged_on_the_cpu_whatever_was_measured():
    outcome = judged(Reading(9.0), "cpu", least=2.0, needs_gpu="it is about a GPU")
    assert (outcome.verdict, outcome.reading) == (NOT_HERE, None)
    assert judged(Reading(9.0), "cuda", least=2.0, needs_gpu="it is").verdict == HOLDS


@pytest.mark.parametrize("bound", [{"least": 1.0}, {"least": 3.0}, {"most": 1.0}])
@pytest.mark.parametrize("rounds", [1, 2, 5, 7])
def test_fewer_rounds_than_a_verdict_needs_are_undecided_however_clear_they_look(rounds, bound):
    ends = (1.999, 2.001) if rounds > 2 else (math.nan, math.nan)
    outcome = judged(Reading(2.0, *ends, rounds=rounds, seconds=rounds * 0.5), **bound)
    assert outcome.verdict == UNDECIDED
    assert outcome.reason.startswith(f"measured {rounds} of at least 8 rounds; measuring ")
    assert outcome.reason.endswith("more should decide, 4 s in total")
    clear = judged(Reading(2.0, 1.999, 2.001, rounds=8, seconds=4.0), **bound)
    assert clear.verdict == (HOLDS if bound == {"least": 1.0} else FAILS)


def test_an_undecided_claim_says_how_much_more_measuring_should_decide_it():
    reading = Reading(2.1, 1.9, 2.32, rounds=10, seconds=5.0)
    outcome = judged(reading, least=2.0)
    match = re.fullmatch(
        r"measuring about (\d+) s more should decide, (\d+) s in total", outcome.reason
    )
    more_s, all_s = map(int, match.groups())
    assert outcome.verdict == UNDECIDED and all_s == more_s + 5
    assert 5 < more_s < 60, "an interval of 10 % that has to become one of 5 %"
    farther = judged(reading, least=2.25)
    nearer = judged(reading, least=2.09)
    seconds = [float(re.findall(r"([\d,]+) s in total", outcome.reason)[0].replace(",", ""))
               for outcome in (farther, nearer)]  # fmt: skip
    assert seconds[0] < all_s + 30 < seconds[1]
    close = judged(Reading(2.0, 1.992, 2.008, rounds=60, seconds=5.0), least=2.005)
    assert close.verdict == UNDECIDED
    assert close.reason == "2.005 is within ±0.5 % of the measured value, where measuring ends"
    fitted = judged(Reading(2.1, 1.9, 2.32), least=2.0)
    assert (fitted.verdict, fitted.reason) == (UNDECIDED, ""), "a fit has no rounds"


@pytest.mark.parametrize("rounds", [1, 5, 7])
def test_an_attribution_that_was_cut_short_decides_no_speed(rounds):
    study = attribution_samples.study(rounds=rounds, scatter=1e-4)
    results = Results(Session(), [], [study], [])
    for read in (speed_up(), slow_down(), speed_up("compile"), step_speed_up("precision")):
        reading = read(results)
        assert reading.rounds == rounds and reading.value > 0
        for bound in ({"least": 1e-3}, {"least": 1e3}, {"most": 1e3}):
            outcome = judged(reading, **bound)
            assert outcome.verdict == UNDECIDED and "of at least 8 rounds" in outcome.reason
    enough = Results(Session(), [], [attribution_samples.study(rounds=8, scatter=1e-4)], [])
    assert judged(speed_up()(enough), least=1.0).verdict == HOLDS
    arms = study.tables["arms"]
    study.tables["arms"] = {**arms, "ratio": np.full(len(arms["ratio"]), math.nan)}
    with pytest.raises(Unmeasured, match="no round was measured"):
        speed_up()(results)


def with_blocks(slow: int, factor: float):
    """Return an attribution whose arm ``slow`` takes so many times as long by its mean step."""
    study = attribution_samples.study(rounds=12, scatter=1e-3)
    arms = study.tables["arms"]
    step_ms = arms["step_ms"]
    rounds, places = np.indices((12, len(step_ms))).reshape(2, -1)
    wobble = np.exp(1e-3 * np.sin(np.arange(len(places))))
    study.tables["blocks"] = {
        "round": rounds.astype(float),
        "arm": places.astype(float),
        "median_ms": step_ms[places] * wobble,
        "mean_ms": step_ms[places] * wobble * np.where(places == slow, factor, 1.0),
        "void": np.full(len(places), "", object),
    }
    return Results(Session(), [], [study], [])


@pytest.mark.parametrize("read", [speed_up("compile"), step_speed_up("compile")])
def test_what_median_steps_show_and_all_steps_together_refute_is_undecided(read):
    """1.5 times faster by the median, of which the mean of a few slow steps leaves nothing."""
    assert judged(read(with_blocks(1, 1.0)), least=1.4).verdict == HOLDS
    assert judged(read(with_blocks(1, 1.03)), least=1.4).verdict == HOLDS
    outcome = judged(read(with_blocks(1, 1.6)), least=1.4)
    assert outcome.verdict == UNDECIDED
    assert "by the median step it holds, but the ratio of mean step times is 0.9" in outcome.reason
    assert judged(read(with_blocks(1, 1.6)), least=1.7).verdict == FAILS
    assert judged(read(with_blocks(0, 1.6)), least=1.7).verdict == UNDECIDED


def test_a_rung_is_refuted_by_the_one_before_and_a_slow_down_by_its_own_side():
    reading = step_speed_up("precision")(with_blocks(1, 2.0))
    assert reading.of_means == pytest.approx((3.8, 3.9), 0.02)
    slower = slow_down("checkpointing")(with_blocks(3, 2.0))
    low, high = slower.of_means
    assert low < 2 * slower.value < high and high / low < 1.01
