"""An optimization by the real runner and in this process: what is proposed, sent, refused."""

from __future__ import annotations

import dataclasses
import math
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
import torch
from recording_wire import RecordingWire

from models import ConfigurationError
from sessions.model import Numerics
from sessions.storage import hdf5
from sessions.storage.study_schema import columns_of
from sessions.studies.attribution.words import rows
from sessions.studies.optimization.space import (
    Candidate,
    Dimension,
    Failure,
)
from sessions.studies.optimization.words import (
    BLOCKS,
    CANDIDATES,
    EFFECTS,
    OPTIONS,
    batch_of,
    best_row,
    headline,
    newest,
    remarks,
    toggles_of,
)
from sessions.studies.sweep import REFUSED
from workbench import protocol
from workbench.client.recorder import Recorder
from workbench.runner.config.resolve import resolve
from workbench.runner.context import RunnerContext
from workbench.runner.experiments import optimize_bench
from workbench.runner.experiments.optimize import OptimizeRun
from workbench.runner.experiments.optimize_bench import RunnerBench
from workbench.runner.experiments.paired import blocks, interleaving
from workbench.runner.experiments.paired.blocks import Contender
from workbench.runner.experiments.run import RunEnded
from workbench.runner.failures import Cancelled, Explained, Mistake, OwnModelError, explain
from workbench.runner.instruments import energy
from workbench.runner.instruments.cpu_energy import CpuEnergy
from workbench.runner.numerics import comparison, training_curve
from workbench.runner.toggles import all_toggles

SEARCHED = ["attention", "rope_cache"]
STEPS_PER_S = 100  # of the clock by which a search here counts its budget, however busy the host


@pytest.fixture
def context(monkeypatch, tmp_path) -> RunnerContext:
    monkeypatch.setattr(interleaving, "WARM_UP_S", 0.1)
    monkeypatch.setattr(optimize_bench, "WARM_UP_S", 0.1)
    monkeypatch.setattr(blocks, "MIN_BLOCK_MS", 1.0)
    monkeypatch.setattr(energy, "CpuEnergy", lambda: CpuEnergy(tmp_path))  # no RAPL
    monkeypatch.setattr(blocks, "MIN_BLOCK_STEPS", 5)
    monkeypatch.setattr(RunnerBench, "now", lambda bench: bench.alternation.steps / STEPS_PER_S)
    return RunnerContext(RecordingWire(), torch.device("cpu"))


def optimize(context: RunnerContext, base, **options):
    """Run in this process; return the study that the messages make."""
    options = {"budget_s": 20.0, "half_width": 0.05, "include": SEARCHED, **options}
    OptimizeRun(context, protocol.Optimize(base=base, **options)).execute()
    return newest(recorded(context))


def recorded(context: RunnerContext):
    """Return the session that the messages make."""
    recorder = Recorder()
    for message in context.wire.sent:
        recorder.record(protocol.decode_message(protocol.encode(message)))
    return recorder.session


def test_a_real_search_proposes_a_right_configuration_and_keeps_all_of_it(context, small, tmp_path):
    base = msgspec.structs.replace(small, toggles={"attention": "manual"})
    optimize(context, base, seed=1, budget_s=12.0)
    session = recorded(context)
    hdf5.save(session, tmp_path / "o.h5")
    study = newest(hdf5.load(tmp_path / "o.h5"))
    for name, columns in study.tables.items():
        assert set(columns) == set(columns_of("optimization", name)), name
    start, *candidates = rows(study, CANDIDATES)
    assert start["title"] == "start" and start["wrong"] == 0
    assert any(row["rounds"] >= 5 for row in candidates), "something raced"
    best = best_row(study)
    assert best["wrong"] == 0 and best["front"] == 1
    front = [row for row in candidates if row["front"] == 1]
    rivals = [row for row in front if row["against"] == best["candidate"]]
    assert not any(row["high"] < 1 for row in rivals), "none was shown to be faster"
    assert toggles_of(study, best).keys() > set(SEARCHED)
    states = {(row["toggle"], row["option"]): row for row in rows(study, OPTIONS)}
    assert "needs a CUDA GPU" in states["attention", "triton"]["reason"]
    phases = study.tables["blocks"]["phase"]
    assert set(phases) <= {"search", "verdicts"}
    final = phases == "verdicts"
    assert final.sum() >= 16 or study.facts["rounds"] < 8
    assert study.facts["final"] and study.facts["build_s"] > 0
    assert headline(study) and len(remarks(study)) >= 4
    labels = [segment.label for segment in session.segments]
    assert any(label.startswith("configuration 0: start") for label in labels)


def test_the_checks_of_a_search_train_the_reference_once(context, small, monkeypatch):
    train, dtypes, check, checks = training_curve._train_plain, [], comparison.check, []

    def counted(variant, dtype, between, **options):
        dtypes.append(dtype)
        return train(variant, dtype, between, **options)

    monkeypatch.setattr(training_curve, "_train_plain", counted)
    monkeypatch.setattr(comparison, "check", lambda *given: checks.append(given) or check(*given))
    base = msgspec.structs.replace(small, workload="train")
    study = optimize(context, base, include=["adamw", "attention"], budget_s=12.0)
    results = [row["wrong"] for row in rows(study, CANDIDATES) if math.isfinite(row["wrong"])]
    assert len(results) == len(checks) > 1 and not any(results)
    assert dtypes == [torch.float64, None], "once in FP64, and once in the precision of all"


def test_wrong_numbers_a_failed_build_and_no_memory_are_data_points(context, small, monkeypatch):
    check, build = interleaving.comparison.check, context.variants._build

    def checked(arm, situation, *rest):
        if situation.option("attention") == "sdpa_math":
            return Numerics(reference="float64", ok=False, text="relative error 1", max_error=9.0)
        return check(arm, situation, *rest)

    def built(situation, phases, copy):
        if situation.option("attention") == "manual":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        if situation.option("attention") == "chunked":
            raise RuntimeError("a planted mistake")
        return build(situation, phases, copy)

    def planted(bench, candidate):
        done = run_block(bench, candidate)
        faster = {"attention=sdpa_math": 0.5, "rope_cache=shared": 0.9}
        scale = math.prod(f for option, f in faster.items() if option in candidate.title)
        median_ms = scale * (1 + 0.01 * chance.standard_normal())
        return dataclasses.replace(done, median_ms=median_ms, mean_ms=median_ms)

    chance = np.random.default_rng(0)
    run_block = RunnerBench._block
    monkeypatch.setattr(interleaving.comparison, "check", checked)
    monkeypatch.setattr(context.variants, "_build", built)
    monkeypatch.setattr(RunnerBench, "_block", planted)
    study = optimize(context, small, half_width=0.02)
    by_title = {row["title"]: row for row in rows(study, CANDIDATES)}
    assert by_title["attention=manual"]["state"] == "out of memory"
    assert "2.00 GiB more was needed" in by_title["attention=manual"]["reason"]
    assert by_title["attention=chunked"]["state"] == "failed"
    assert by_title["attention=sdpa_math"]["wrong"] == 1
    assert by_title["attention=sdpa_math"]["reason"].startswith("wrong numbers")
    best = best_row(study)
    assert best["wrong"] == 0 and "sdpa_math" not in best["title"]
    assert "rope_cache=shared" in best["title"]
    (gain,) = (row for row in rows(study, EFFECTS) if row["kind"] == "total")
    assert gain["low"] < 0.9 < gain["high"]


def test_a_candidate_whose_options_cannot_be_combined_is_refused(context, small):
    def act():
        raise Mistake("These options cannot be combined.")

    base = resolve(small, context.device)
    bench = RunnerBench(context, base, [], "time", 60.0, 0)
    refused = bench._guard(Contender(0, 0, base, "A"), act)
    assert refused == Failure(REFUSED, "These options cannot be combined.")


def test_an_option_comes_with_what_it_needs(context, small):
    base = resolve(small, context.device)
    run = OptimizeRun(context, protocol.Optimize(base=small, include=["attention", "sdp_math"]))
    dimensions = run._dimensions(base)
    bench = RunnerBench(context, base, dimensions, "time", 60.0, 0)
    point = tuple("forbidden" if d.name == "sdp_math" else d.start for d in dimensions)
    usable, reason = bench.usable(point)
    if base.option("attention") != "sdpa":
        assert usable is not None and usable != point, reason
        assert "sdpa" in usable[[d.name for d in dimensions].index("attention")]


def test_waits_are_those_of_the_best_candidate_and_are_measured_once(context, small, monkeypatch):
    dimensions = [Dimension("cuda_graphs", ("off", "on"), "off")]
    bench = RunnerBench(context, resolve(small, context.device), dimensions, "time", 60.0, 0)
    measured = []

    def share(contender):
        measured.append(contender.number)
        return 0.6

    monkeypatch.setattr(bench, "_waiting_share", share)
    captured = {option: SimpleNamespace(has=lambda _, on=option == "on": on)
                for option in ("off", "on")}  # fmt: skip
    monkeypatch.setattr(bench, "situation", lambda point: captured[point[0]])
    waiting, replayed = (Candidate(n, (option,), option) for n, option in enumerate(captured))
    for candidate in (waiting, replayed):
        situation = captured[candidate.title]
        bench._contenders[candidate.number] = Contender(candidate.number, 0, situation, "")
    for _ in range(2):
        assert bench.saved_waits(("on",), waiting) == pytest.approx(math.log(0.4))
    assert math.isnan(bench.saved_waits(("off",), waiting))
    assert math.isnan(bench.saved_waits(("on",), replayed))
    assert measured == [0]


@pytest.mark.parametrize(("steps", "is_counted"), [(50, True), (5, False)])
def test_joules_are_of_the_block_and_not_of_what_ran_before_a_lagging_counter(
    context, small, monkeypatch, steps, is_counted
):
    """Simulate a counter that is updated every 0.1 s, and 0.1 s late; a step takes 10 ms."""
    base = resolve(small, context.device)
    bench = RunnerBench(context, base, [], "energy", 60.0, 0)
    ends_s, joules = [0.0], [0.0]

    def run(_context, contender, number):
        watts, seconds = (200.0, 400.0)[contender.number], contender.steps / 100
        ends_s.append(ends_s[-1] + seconds)
        joules.append(joules[-1] + watts * seconds)
        return blocks.TimedBlock(10.0, None, "", contender.steps - blocks.SETTLING_STEPS, 10.0)

    class Lagging:
        lag_s = 2 * energy.LAG_S

        def joules(self):
            return float(np.interp(math.floor(10 * ends_s[-1]) / 10 - 0.1, ends_s, joules))

    monkeypatch.setattr(blocks, "run_block", run)
    bench.energy = Lagging()
    sides = [Contender(n, 0, base, "AB"[n], step_ms=10.0, steps=steps) for n in (0, 1)]
    for number in (0, 1, 1, 0, 0, 1):
        bench._metered(context, sides[number], 1)
        if is_counted:
            assert bench._step_joules == pytest.approx((2.0, 4.0)[number])
        else:
            assert math.isnan(bench._step_joules)


@pytest.mark.parametrize(
    ("step_ms", "steps", "block_s"),
    [(2400.0, 1, 4.8), (300.0, 2, 0.9), (100.0, 5, 0.7)],
)
def test_a_block_of_slow_steps_is_short_and_the_search_knows_how_long(
    context, small, step_ms, steps, block_s
):
    """Races with blocks of 7 steps took 175 s of 150, and no verdict was reached."""
    base = resolve(small, context.device)
    bench = RunnerBench(context, base, [], "time", 150.0, 0)
    contender = Contender(0, 0, base, "A", step_ms=step_ms, variant=SimpleNamespace())
    bench.alternation.contenders = [contender] * 5
    bench.alternation.set_steps(contender)
    contender.variant.find_evidence = list
    bench._contenders[0] = contender
    built = bench.build(Candidate(0, (), "start"))
    assert contender.steps == steps and built.block_s == pytest.approx(block_s)


@pytest.mark.parametrize(
    ("command", "error"), [(protocol.Stop(), RunEnded), (protocol.Cancel(), Cancelled)]
)
def test_whoever_ends_it_keeps_what_was_measured(context, small, command, error):
    send = context.wire.send

    def order(message: protocol.Message) -> None:
        send(message)
        if isinstance(message, protocol.StudyRows) and message.table == "blocks":
            context.wire.commands.append(command)

    context.wire.send = order
    with pytest.raises(error):
        optimize(context, small, budget_s=300.0)
    study = newest(recorded(context))
    assert len(study.tables["blocks"]["round"]) >= 1
    assert study.facts["final"] and not study.facts["complete"]
    assert best_row(study)["title"] == "start"


@pytest.mark.parametrize(
    ("error", "kind", "fix"),
    [
        (OwnModelError("net.py, line 1: invalid syntax", "    ^"), "model", "Correct the file"),
        (torch.OutOfMemoryError("Tried to allocate 2.00 GiB."), "out-of-memory", "Use a smaller"),
        (ConfigurationError("own: net.py has no function build()"), "mistake", ""),
    ],
)
def test_a_start_that_fails_is_reported_as_in_any_other_run(
    context, small, monkeypatch, error, kind, fix
):
    def built(*_):
        raise error

    monkeypatch.setattr(context.variants, "_build", built)
    with pytest.raises(Explained) as raised:
        optimize(context, small)
    failure, alone = explain(raised.value), explain(error)
    assert failure.kind == alone.kind == kind
    assert failure.fix == alone.fix and failure.fix.startswith(fix)
    assert failure.sentence == f"The start configuration cannot be measured: {alone.sentence}"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"include": ["turbo"]}, "toggle: unknown 'turbo'; expected one of"),
        ({"include": ["window"]}, "toggle window changes the model"),
        ({"budget_s": 0.0}, "budget_s = 0: expected more than 0 and at most"),
        ({"objective": "memory"}, "memory cannot be the objective or a limit here"),
        ({"memory_limit": 2e9}, "memory cannot be the objective or a limit here"),
        (
            {"objective": "energy"},
            "energy cannot be the objective here: this system has no",
        ),
        ({"max_error": -1.0}, "max_error = -1 is not a number above 0"),
        (
            {"include": ["cuda_graphs"]},
            "each toggle that may be searched has only one usable option",
        ),
    ],
)
def test_what_cannot_be_searched_is_refused_in_one_sentence(context, small, options, sentence):
    with pytest.raises(Mistake, match=sentence):
        optimize(context, small, **options)
    assert not context.wire.sent


def test_a_toggle_of_any_origin_that_makes_another_model_is_not_searched(
    context, small, monkeypatch
):
    toggle = dataclasses.replace(all_toggles()["rope_cache"], configure=lambda option, config: {})
    monkeypatch.setitem(all_toggles(), toggle.name, toggle)
    with pytest.raises(Mistake, match="toggle rope_cache changes the model"):
        optimize(context, small, include=[toggle.name])


def test_batch_sizes_are_searched_by_the_time_of_as_many_samples(context, small):
    study = optimize(context, small, include=["rope_cache"], batches=[4], budget_s=6.0, seed=2)
    start, *candidates = rows(study, CANDIDATES)
    (larger,) = [row for row in candidates if row["title"] == "settings.batch=4"]
    assert (batch_of(study, start), batch_of(study, larger)) == (1, 4)
    assert set(toggles_of(study, larger)) == set(toggles_of(study, start))
    blocks_of = rows(study, BLOCKS)
    raw_ms, samples_ms = (
        [row["median_ms"] for row in blocks_of if row["candidate"] == larger["candidate"]],
        larger["step_ms"],
    )
    # A block is of four samples; the candidate's time is of one, as the start's.
    assert samples_ms < 0.6 * float(np.median(raw_ms))


def test_a_toggle_that_was_named_and_has_no_option_here_is_listed_with_its_reason(context, small):
    command = protocol.Optimize(base=small, include=["rope_cache", "patch_rms_norm"])
    run = OptimizeRun(context, command)
    assert [d.name for d in run._dimensions(resolve(small, context.device))] == ["rope_cache"]
    assert "your own model" in run._blocked["patch_rms_norm", "on"]


def test_a_batch_of_nothing_is_refused(context, small):
    with pytest.raises(Mistake, match="a batch has at least one sample"):
        optimize(context, small, batches=[0])
