"""An attribution by the real runner and in this process: what is measured, told, kept, refused."""

from __future__ import annotations

import gc
import time
import weakref
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
import torch
from recording_wire import RecordingWire

from sessions.model import Phase
from sessions.storage import hdf5
from sessions.storage.study_schema import columns_of
from sessions.studies.attribution import estimation
from sessions.studies.attribution.words import effects_table, headline, rows
from sessions.verdicts import work
from workbench import protocol
from workbench.client.recorder import Recorder
from workbench.runner.config.resolve import resolve
from workbench.runner.context import RunnerContext
from workbench.runner.experiments.attribute import AttributeRun
from workbench.runner.experiments.paired import blocks, interleaving
from workbench.runner.experiments.run import RunEnded
from workbench.runner.failures import Cancelled, Mistake, RankError, explain
from workbench.runner.instruments.memory import Memory
from workbench.runner.variants.backward_pass import backward_pass

TOGGLES = {"adamw": "foreach", "cuda_graphs": "on", "checkpointing": "full"}


@pytest.fixture
def train(small):
    return msgspec.structs.replace(small, workload="train")


@pytest.fixture
def context(monkeypatch) -> RunnerContext:
    monkeypatch.setattr(interleaving, "WARM_UP_S", 0.1)
    return RunnerContext(RecordingWire(), torch.device("cpu"))


def attribute(context: RunnerContext, base, toggles, **options):
    """Run in this process; the study that what was sent makes, and the session."""
    command = protocol.Attribute(base=base, toggles=toggles, **{"budget_s": 0.8, **options})
    AttributeRun(context, command).execute()
    return recorded(context)


def recorded(context: RunnerContext):
    recorder = Recorder()
    for message in context.wire.sent:
        recorder.record(protocol.decode_message(protocol.encode(message)))
    (study,) = recorder.session.studies
    return study, recorder.session


def test_a_ladder_is_measured_round_by_round_and_kept_and_blocked_rungs_say_why(
    runner, train, tmp_path
):
    runner.send(protocol.Attribute(base=train, toggles=TOGGLES, budget_s=2.0, seed=3))
    assert runner.finish().reason == "done", runner.describe()
    hdf5.save(runner.session, tmp_path / "a.h5")
    study = hdf5.load(tmp_path / "a.h5").studies[-1]
    for name, columns in study.tables.items():
        assert set(columns) == set(columns_of("attribution", name)), name
    (blocked,) = rows(study, "blocked")
    assert blocked["toggle"] == "cuda_graphs=on" and "needs a CUDA GPU" in blocked["reason"]
    arms = rows(study, "arms")
    titles = ["base", "+ adamw=foreach", "+ checkpointing=full"]
    assert [row["title"] for row in arms] == titles
    assert {row["state"] for row in arms} == {"measured"}
    assert all(row["wrong"] == 0 and row["mse"] < 1e-12 for row in arms)
    assert "adamw=foreach: effective" in arms[1]["evidence"]
    assert "checkpointing=full: effective" in arms[2]["evidence"]
    assert np.isnan([row["peak_bytes"] for row in arms]).all()
    assert "not measured" in study.facts["memory"] and study.facts["final"]
    blocks = study.tables["blocks"]
    first = [blocks["arm"][blocks["round"] == n].tolist() for n in range(study.facts["rounds"])]
    assert all(sorted(set(order)) == [0, 1, 2] for order in first[:-1])
    if len(first) > 8:
        assert len({tuple(order) for order in first}) > 1, "the order is random"
    medians = estimation.rounds(
        blocks["round"], blocks["arm"], blocks["median_ms"], [str(v) for v in blocks["void"]], 3
    )
    steps = [row for row in rows(study, "effects") if row["kind"] == "step"]
    for rung, row in enumerate(steps, start=1):
        logs = np.log(medians[:, rung] / medians[:, rung - 1])
        assert row["ratio"] == pytest.approx(np.exp(np.nanmean(logs)))
    segments = runner.session.segments[-3:]
    named = [f"arm {number}: {row['title']}" for number, row in enumerate(rows(study, "arms"))]
    assert [segment.label for segment in segments] == named
    for arm, segment in enumerate(segments):
        numbers = segment.steps["block"]
        own = 1 + np.flatnonzero(blocks["arm"] == arm)
        assert sorted(set(numbers[numbers > 0])) == own.tolist()


SHORT = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("counts", "error"),
    [(False, SHORT), (False, RankError("rank 1 ended", 1, explain(SHORT))), (True, SHORT)],
    ids=["beside others", "on another rank", "alone"],
)
def test_an_arm_out_of_memory_is_a_data_point_and_the_others_are_measured(
    context, small, monkeypatch, counts, error
):
    monkeypatch.setattr(AttributeRun, "_counts_memory", property(lambda run: counts))
    build = context.variants._build

    def tight(situation, phases, copy):
        option = situation.configuration.toggles
        if option["rope_cache"] == "shared" and option["attention"] == "auto":
            raise error
        return build(situation, phases, copy)

    monkeypatch.setattr(context.variants, "_build", tight)
    study, session = attribute(context, small, {"rope_cache": "shared", "attention": "manual"})
    states = [row["state"] for row in rows(study, "arms")]
    assert states == ["measured", "out of memory", "measured"]
    step, joint, total = (row for row in rows(study, "effects") if row["quantity"] == "time")
    assert step["name"] == "rope_cache=shared" and "2.00 GiB more was needed" in step["reason"]
    assert np.isnan(step["ratio"])
    assert joint["name"] == "rope_cache=shared + attention=manual"
    assert joint["ratio"] == total["ratio"] and joint["rounds"] > 0
    assert any("out of memory" in event.text for event in session.events)
    assert not study.facts["rebuilt_each_block"], "the others fit"
    apart = [event for event in session.events if "do not fit in memory together" in event.text]
    assert not (counts and apart), "alone it did not fit either, and that is what is said"


@pytest.mark.slow  # the machinery is that of a comparison, which has this test too
def test_arms_that_do_not_fit_together_are_rebuilt_for_each_block_and_it_says_so(
    context, small, monkeypatch
):
    built = []
    build = context.variants._build

    def one_at_a_time(situation, phases, copy):
        gc.collect()
        if any(reference() is not None for reference in built):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        arm = build(situation, phases, copy)
        built.append(weakref.ref(arm))
        return arm

    monkeypatch.setattr(context.variants, "_build", one_at_a_time)
    study, session = attribute(context, small, {"rope_cache": "shared"})
    assert study.facts["rebuilt_each_block"]
    assert {row["state"] for row in rows(study, "arms")} == {"measured"}
    blocks = study.tables["blocks"]
    alternations = 1 + (np.diff(blocks["arm"]) != 0).sum()
    assert len(built) >= alternations
    assert any("do not fit in memory together" in event.text for event in session.events)


def test_memory_is_counted_with_nothing_else_built(context, small, monkeypatch):
    alive = []
    built = []
    build = context.variants._build

    def remember(situation, phases, copy):
        arm = build(situation, phases, copy)
        built.append(weakref.ref(arm))
        return arm

    def sample() -> Memory:
        count = sum(reference() is not None for reference in built)
        alive.append(count)
        return Memory(
            0.0, float("nan"), 1000.0 * count + 100 * len(context.variants._weights) + len(built)
        )

    monkeypatch.setattr(AttributeRun, "_counts_memory", property(lambda run: True))
    monkeypatch.setattr(context.variants, "_build", remember)
    monkeypatch.setattr(context.memory, "sample", sample)
    study, _ = attribute(context, small, {"rope_cache": "shared", "precision": "bf16"})
    peaks = [row["peak_bytes"] for row in rows(study, "arms")]
    assert peaks == [1101, 1102, 1103], "each arm alone, in turn"
    assert max(alive) == 3, "and all together while they alternate"
    memory = [row for row in rows(study, "effects") if row["quantity"] == "memory"]
    assert [row["ratio"] for row in memory] == pytest.approx(
        [1102 / 1101, 1103 / 1102, 1103 / 1101]
    )
    assert np.isnan([row["low"] for row in memory]).all()
    assert "without an interval" in study.facts["memory"]


@pytest.mark.parametrize(
    ("command", "error"), [(protocol.Stop(), RunEnded), (protocol.Cancel(), Cancelled)]
)
def test_whoever_ends_it_keeps_what_was_measured(context, small, command, error):
    send = context.wire.send

    def order(message: protocol.Message) -> None:
        send(message)
        done = [m for m in context.wire.sent if isinstance(m, protocol.StudyRows)]
        if sum(m.table == "blocks" for m in done) == 5 and not context.wire.commands:
            context.wire.commands.append(command)

    context.wire.send = order
    with pytest.raises(error):
        attribute(context, small, {"rope_cache": "shared"}, budget_s=300)
    study, _ = recorded(context)
    assert len(study.tables["blocks"]["round"]) == 5
    assert study.facts["final"] and study.facts["rounds"] == 3
    (step, _) = rows(study, "effects")
    assert step["rounds"] == 2 and np.isfinite(step["ratio"])


def test_an_option_that_the_base_has_by_itself_is_no_other_model(context, small):
    for window, is_same in ((32, True), (16, False)):
        model = {**small.model, "window": window}
        base = msgspec.structs.replace(small, model=model, settings={"batch": 1, "sequence": 33})
        context.wire.sent.clear()
        study, _ = attribute(context, base, {"window": "32"}, budget_s=0.2)
        assert (study.request.get(work.SAME_MODEL) == ["window"]) is is_same
        cells = {cell for row in effects_table(study).rows for cell in row}
        assert (work.DIFFERENT_MODELS in cells) is not is_same


def test_every_combination_is_an_arm_of_a_factorial(context, small):
    toggles = {"rope_cache": "shared", "attention": "manual"}
    study, _ = attribute(context, small, toggles, mode="factorial", budget_s=0.3)
    titles = [row["title"] for row in rows(study, "arms")]
    assert titles == ["base", "rope_cache=shared", "attention=manual",
                      "rope_cache=shared, attention=manual"]  # fmt: skip
    kinds = [row["kind"] for row in rows(study, "effects")]
    assert kinds == ["share", "share", "interaction", "total"]


@pytest.mark.sample(1)
@pytest.mark.parametrize("mode", ["factorial", "shapley", "leave-one-out"])
def test_toggles_that_need_each_other_are_attributed_in_whichever_order_they_are_named(
    context, small, mode
):
    toggles = {"sdp_flash": "forbidden", "rope_cache": "shared", "attention": "sdpa"}
    study, _ = attribute(context, small, toggles, mode=mode, budget_s=0.3)
    assert not rows(study, "blocked"), "flash can be forbidden once SDPA is chosen"
    arms = rows(study, "arms")
    assert {arm["state"] for arm in arms} == {"measured"}
    assert all("2" in arm["on"].split() for arm in arms if "0" in arm["on"].split())
    effects = [row for row in rows(study, "effects") if row["quantity"] == "time"]
    assert all(np.isfinite(row["ratio"]) for row in effects if row["kind"] != "interaction")
    if mode == "leave-one-out":
        names = [row["name"] for row in effects]
        assert "attention=sdpa + sdp_flash=forbidden" in names and "sdp_flash=forbidden" in names
        return
    shares = [row["ratio"] for row in effects if row["kind"] == "share"]
    assert len(shares) == 3
    assert np.prod(shares) == pytest.approx(effects[-1]["ratio"]), "they make up the total"


def test_the_base_is_what_was_asked_for_with_the_toggles_as_they_are_there(context, small):
    base = msgspec.structs.replace(small, toggles={"attention": "manual"})
    _, session = attribute(context, base, {"rope_cache": "shared"}, budget_s=0.2)
    expected = resolve(base, context.device).configuration
    assert session.segments[0].configuration == expected
    assert session.segments[1].configuration.toggles == {**expected.toggles, "rope_cache": "shared"}


@pytest.mark.parametrize(
    ("toggles", "options", "sentence"),
    [
        ({"turbo": "on"}, {}, "toggle: unknown 'turbo'; expected one of"),
        ({"adamw": "slow"}, {}, "toggle adamw: unknown 'slow'; expected one of"),
        ({"adamw": "loop"}, {}, "toggle adamw: the base already has 'loop'; leave it out"),
        ({"adamw": "fused"}, {"mode": "stairs"}, "mode: unknown 'stairs'; expected one of"),
        ({"adamw": "fused"}, {"budget_s": 0.0}, "budget_s = 0: expected more than 0 and at most"),
        ({"adamw": "fused"}, {"orders": 0}, "orders = 0 is outside of 1 to 64"),
        ({"cuda_graphs": "on"}, {}, "at least one toggle .*cuda_graphs: .*needs a CUDA GPU"),
    ],
)
def test_what_cannot_be_attributed_is_refused_in_one_sentence(
    context, train, toggles, options, sentence
):
    with pytest.raises(ValueError, match=sentence):
        attribute(context, train, toggles, **options)
    assert not context.wire.sent


@pytest.mark.parametrize("alone", [False, True], ids=["beside others", "alone"])
def test_arms_that_are_not_built_in_time_are_left_out_with_the_reason_and_the_rest_is_measured(
    context, small, monkeypatch, alone
):
    monkeypatch.setattr(AttributeRun, "_counts_memory", property(lambda run: alone))
    compiled: set[str] = set()  # what a second build need not do again
    build = context.variants._build

    def slow(situation, phases, copy):
        compiled.add(str(situation.configuration.toggles))
        return build(situation, phases, copy)

    def later(_) -> float:
        return time.perf_counter() + 25.0 * len(compiled)

    monkeypatch.setattr(context.variants, "_build", slow)
    monkeypatch.setattr(interleaving.Alternation, "now", later)
    toggles = {"rope_cache": "shared", "attention": "manual", "triton_rope": "torch"}
    # Alone, each is looked at and then built once more, for which a third of the time is kept.
    study, _ = attribute(context, small, toggles, build_s=70.0 if alone else 45.0, budget_s=0.2)
    arms = rows(study, "arms")
    assert [row["state"] for row in arms] == ["measured", "measured", "not built", "not built"]
    assert arms[2]["reason"].startswith("building earlier arms took 5")
    assert study.facts["rounds"] >= 1, "what was built was measured"
    (step, *_) = (row for row in rows(study, "effects") if row["name"] == "rope_cache=shared")
    assert step["reason"] != arms[2]["reason"]


def test_a_time_for_building_that_is_none_is_refused(context, small):
    with pytest.raises(Mistake, match="build_s = 0: expected more than 0"):
        attribute(context, small, {"rope_cache": "shared"}, build_s=0.0)


def test_the_backward_pass_is_timed_by_itself_with_what_checkpointing_computes_again(
    context, train, monkeypatch
):
    ran: dict[str, set[int]] = {}  # how many blocks each call ran forward

    def counted(arm):
        passed: list[torch.nn.Module] = []
        for block in arm.model.blocks:
            block.register_forward_pre_hook(lambda block, _: passed.append(block))

        def calling(name, call):
            def called():
                passed.clear()
                result = call()
                ran.setdefault(name, set()).add(len(passed))
                return result

            return called

        ready, step = backward_pass(arm)
        return calling("ready", ready), calling("step", step)

    monkeypatch.setattr(blocks, "backward_pass", counted)
    study, session = attribute(context, train, {"checkpointing": "full"}, timed="backward")
    assert ran == {"ready": {2}, "step": {0, 2}}, "with checkpointing, both blocks run again"
    assert study.request["timed"] == "backward" and "backward pass" in study.title
    assert "backward pass" in headline(study)
    for segment in session.segments:
        assert Phase.STEADY not in segment.steps["phase"], "parts of steps are no steady steps"


def test_what_has_no_backward_pass_of_its_own_is_refused(context, small, train):
    with pytest.raises(Mistake, match="only a training step has a backward pass"):
        attribute(context, small, {"triton": "on"}, timed="backward")
    arm = SimpleNamespace(
        trainer=object(), divided=None, situation=SimpleNamespace(has=lambda trait: True)
    )
    with pytest.raises(Mistake, match="CUDA graph replays the complete step"):
        backward_pass(arm)
