"""Readings of claims from kernels, ladders, arms and scaling laws that were measured."""

from __future__ import annotations

import itertools

import attribution_samples
import msgspec
import numpy as np
import pytest

from sessions.model import KERNELS, Configuration, Segment, Session, Study
from workbench.claims import documents
from workbench.claims._claim import (
    FAILS,
    HOLDS,
    NOT_HERE,
    NOT_MEASURED,
    UNDECIDED,
    Claim,
    Experiment,
    Results,
    Unmeasured,
    judge,
)
from workbench.claims._read import (
    arms_right,
    exponent,
    memory_share,
    speed_up,
)
from workbench.claims._read_kernels import kernel, kernel_difference


def judged(reading, device="cuda", **changes):
    claim = Claim(row="M1", name="", says="", unit="", read=lambda results: reading, **changes)
    experiment = Experiment(name="", how="", commands=lambda *_: [], claims=(claim,))
    return judge(experiment, claim, device, Results(Session(), [], [], []))


def test_kernels_that_were_timed_in_few_rounds_or_in_none_are_undecided():
    def outcome(rounds, numbered=True):
        timings = [timed("rope", "torch", [100.0] * rounds), timed("rope", "triton", [40] * rounds)]
        if not numbered:
            for timing in timings:
                timing.steps["block"][:] = 0
        reading = kernel("rope", "one")(Results(Session(), timings, [], []))
        assert reading.value == pytest.approx(2.5)
        return judged(reading, least=2.0)

    assert outcome(8).verdict == HOLDS
    assert outcome(5).verdict == UNDECIDED
    assert outcome(30, numbered=False).verdict == UNDECIDED


def timed(operator, implementation, us, **ledger) -> Segment:
    made = Segment(
        0,
        Configuration(
            family=KERNELS,
            preset=operator,
            workload="forward",
            settings={"case": "one", "dtype": "bfloat16"},
            toggles={"implementation": implementation},
        ),
        "",
        ledger=ledger,
    )
    times = np.asarray(us) / 1e3
    there = np.arange(len(times))
    batch = {"t_s": there, "phase": np.full(len(times), 5), "gpu_ms": times, "block": 1 + there}
    made.steps.append(batch)
    return made


def test_a_kernels_speed_up_is_the_ratio_of_medians_with_an_interval():
    rng = np.random.default_rng(0)
    results = Results(
        Session(),
        [
            timed("rope", "torch", 100 * np.exp(rng.normal(0, 0.01, 30))),
            timed("rope", "triton", 40 * np.exp(rng.normal(0, 0.01, 30)), max_difference=1e-6),
            timed("rope", "other", [], failure="wrong: output 0"),
        ],
        [],
        [],
    )
    reading = kernel("rope", "one")(results)
    assert reading.low < 2.5 < reading.high and reading.high - reading.low < 0.1
    assert (reading.rounds, reading.seconds) == (30, 29.0)
    assert kernel_difference("rope", "triton")(results).value == 1e-6
    with pytest.raises(Unmeasured, match="wrong: output 0"):
        kernel("rope", "one", "other")(results)
    with pytest.raises(Unmeasured, match="did not run as quack"):
        kernel("rope", "one", "quack")(results)


@pytest.mark.parametrize(("power", "verdict"), [(1.0, HOLDS), (1.3, FAILS)])
def test_the_exponent_of_a_planted_scaling_is_found(power, verdict):
    segments = []
    for index, size in enumerate((512, 1024, 2048, 4096, 8192)):
        segment = timed("x", "y", np.full(20, 5.0 * size**power * (1 + 0.002 * (-1) ** index)))
        settings = {"sequence": size}
        segment.configuration = msgspec.structs.replace(segment.configuration, settings=settings)
        segments.append(segment)
    results = Results(Session(), segments, [], [])
    reading = exponent("sequence")(results)
    assert reading.low < power < reading.high
    msgspec.json.encode([reading.value, *reading.ends])  # as the runner's messages are
    (claim, constant) = documents()["mamba2"].experiments[1].claims
    assert judge(documents()["mamba2"].experiments[1], claim, "cuda", results).verdict == verdict
    per_token = constant.read(results)
    assert per_token.low < 16 ** (power - 1) < per_token.high
    too_few = "at least 4 sizes need 5 steady steps or more; 3 of 3 sizes have them"
    with pytest.raises(Unmeasured, match=too_few):
        exponent("sequence")(Results(Session(), segments[:3], [], []))
    for index in (0, 4):
        short = timed("x", "y", np.full(4, 5.0))
        segments[index] = short
        short.configuration = msgspec.structs.replace(
            short.configuration, settings={"sequence": 512 << index}
        )
    with pytest.raises(
        Unmeasured, match="at least 4 sizes need 5 steady steps or more; 3 of 5 sizes"
    ):
        exponent("sequence")(results)


def test_a_ladder_with_a_blocked_rung_has_no_total_but_its_other_rungs():
    study = attribution_samples.study(blocked={"cuda_graphs": "needs a GPU"})
    results = Results(Session(), [], [study], [])
    assert speed_up("compile")(results).value == pytest.approx(1 / 0.66, rel=0.03)
    for toggle in ("", "cuda_graphs"):
        with pytest.raises(Unmeasured, match="needs a GPU"):
            speed_up(toggle)(results)


@pytest.mark.parametrize("peak", [2e9, np.nan])
def test_the_memory_of_an_arm_counts_once_it_is_known_though_its_time_was_not_measured(peak):
    study = attribution_samples.study()
    arms = {name: column.copy() for name, column in study.tables["arms"].items()}
    arms["state"][-1], arms["reason"][-1], arms["peak_bytes"][-1] = "not built", "too late", peak
    study.tables["arms"] = arms
    results = Results(Session(), [], [study], [])
    with pytest.raises(Unmeasured, match="not built: too late"):
        speed_up("cuda_graphs")(results)
    if np.isnan(peak):
        with pytest.raises(Unmeasured, match="not built: too late"):
            memory_share("cuda_graphs")(results)
    else:
        share = 2e9 / arms["peak_bytes"][0]
        assert memory_share("cuda_graphs")(results).value == pytest.approx(share)


def test_an_arm_that_was_not_looked_at_is_neither_right_nor_wrong():
    study = attribution_samples.study()
    assert arms_right()(Results(Session(), [], [study], [])).value == 1.0
    arms = dict(study.tables["arms"])
    late = {"wrong": np.nan, "numerics": ""}
    for name, value in late.items():
        arms[name] = arms[name].copy()
        arms[name][-1] = value
    study.tables["arms"] = arms
    with pytest.raises(Unmeasured, match="cuda_graphs=on: its numbers were not checked"):
        arms_right()(Results(Session(), [], [study], []))


def test_no_claim_is_judged_by_studies_that_were_stopped_before_their_first_result():
    kinds = ("attribution", "sweep", "profile", "optimization", "checklist", "scaling")
    for document in documents().values():
        for experiment in document.experiments:
            for kind, claim in itertools.product(kinds, experiment.claims):
                started = [Study(kind=kind, title="", start_s=0.0) for _ in range(12)]
                outcome = judge(experiment, claim, "cuda", Results(Session(), [], started))
                assert outcome.verdict in (NOT_MEASURED, NOT_HERE), (claim.row, kind)
    with pytest.raises(Unmeasured, match="no arm was examined"):
        arms_right()(Results(Session(), [], started[:1]))
