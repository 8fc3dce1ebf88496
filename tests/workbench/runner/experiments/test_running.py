"""The real runner on its wire: what comes when, and what each command does."""

from __future__ import annotations

import time

import msgspec
import numpy as np
import pytest
from reference_machine import slowness

from sessions.model import Phase
from workbench import protocol


def sent(runner, kind, since=0):
    return [message for message in runner.messages[since:] if isinstance(message, kind)]


def with_(configuration, **changes):
    return msgspec.structs.replace(configuration, **changes)


def test_the_catalogue_comes_first_and_names_everything(runner):
    catalogue = runner.messages[0]
    assert isinstance(catalogue, protocol.Catalogue)
    assert catalogue.version == protocol.VERSION
    assert abs(time.time() - catalogue.created) < 3600
    assert {"torch", "python", "cpu", "cpu_cores", "os"} <= catalogue.environment.keys()
    (hydra,) = (family for family in catalogue.families if family.name == "hydra")
    assert hydra.default_preset in hydra.presets
    assert hydra.presets.keys() == hydra.parameters.keys() == hydra.suggested.keys()
    fields = {field.name for field in hydra.fields}
    assert all(values.keys() == fields for values in hydra.presets.values())
    workloads = {workload.name: workload for workload in catalogue.workloads}
    assert set(hydra.workloads) <= set(workloads)
    for toggle in catalogue.toggles:
        assert toggle.default in {option.name for option in toggle.options}
        assert toggle.help and toggle.title and toggle.group
    assert len(sent(runner, protocol.Catalogue)) == 1


def test_telemetry_streams_while_nothing_runs(runner):
    sample = runner.until(  # ranks that an earlier test started have devices of their own
        lambda message: isinstance(message, protocol.TelemetrySamples) and message.device == "cpu"
    )
    assert sample.columns["t_s"] == sorted(sample.columns["t_s"])
    assert 0 <= sample.columns["busy"][-1] <= 100
    assert sample.columns["memory_used"][-1] > 2**26


def test_a_run_goes_through_its_phases_and_ends_at_its_number_of_steps(runner, small):
    since = len(runner.messages)
    segment_index = len(runner.session.segments)
    train = with_(small, workload="train", seed=49)  # which no other test has built
    runner.start(train, steps=150)
    finished = runner.finish()
    assert (finished.reason, finished.steps) == ("done", 150)
    states = [state.state for state in sent(runner, protocol.State, since)]
    assert states == ["building", "running", "idle"]

    (started,) = sent(runner, protocol.SegmentStarted, since)
    toggles = {toggle.name: toggle.default for toggle in runner.messages[0].toggles}
    assert started.configuration == with_(train, toggles=toggles)
    assert not started.reused

    segment = runner.session.segments[segment_index]
    steps = segment.steps
    assert [span.phase for span in segment.phases] == [Phase.BUILD, Phase.WARM_UP, Phase.STEADY]
    assert all(span.stop_s > span.start_s for span in segment.phases)
    assert len(steps["t_s"]) == 150
    assert (np.diff(steps["t_s"]) > 0).all()
    assert (steps["wall_ms"] > 0).all() and np.isnan(steps["gpu_ms"]).all()
    assert (steps["peak"] >= steps["allocated"]).all() and (steps["allocated"] > 0).all()
    assert sorted(steps["phase"]) == list(steps["phase"]), "a warm-up step after a steady one"
    assert set(steps["phase"]) == {Phase.WARM_UP, Phase.STEADY}
    steady = segment.phases[-1]
    assert (steps["t_s"][steps["phase"] == Phase.STEADY] >= steady.start_s - 0.05).all()

    assert segment.ledger["tokens_per_step"] == 16
    assert segment.ledger["parameters"] > 10_000
    assert segment.ledger["build_s"] > 0 and segment.ledger["first_step_s"] > 0
    assert 0 < segment.ledger["loss"] < 10
    assert len(sent(runner, protocol.EvidenceFound, since)) == 1


def test_a_run_ends_at_its_number_of_seconds(runner, small):
    runner.start(small, seconds=0.5)
    began = runner.until_state("running")
    finished = runner.finish()
    assert finished.reason == "done"
    assert finished.t_s - began.t_s > 0.3  # and it ended, without a number of steps


@pytest.mark.parametrize("workload", ["forward", "train", "prefill", "decode", "generate"])
def test_every_workload_runs(runner, small, workload):
    settings = {"batch": 2, "sequence": 8}
    if workload in ("decode", "generate"):
        settings["new_tokens"] = 6
    runner.start(with_(small, workload=workload, settings=settings), steps=20)
    finished = runner.finish()
    assert (finished.reason, finished.steps) == ("done", 20)
    wanted = {"decode": 2, "generate": 2}.get(workload, 16)
    assert runner.session.segments[-1].ledger["tokens_per_step"] == wanted


def test_the_same_configuration_and_seed_train_to_the_same_loss(runner, small):
    losses = []
    for seed in (1, 2, 1):
        runner.start(with_(small, workload="train", seed=seed), steps=10)
        runner.finish()
        losses.append(runner.session.segments[-1].ledger["loss"])
    assert losses[0] == losses[2] != losses[1]


def test_training_goes_on_from_where_another_option_left_it(runner, small, tmp_path):
    text = tmp_path / "all the same.txt"
    text.write_bytes(b"a" * 1000)  # whose loss falls in every batch
    runner.start(with_(small, workload="train", seed=7, data=str(text)))
    runner.until_steps(20)
    first = len(runner.session.segments) - 1
    runner.send(protocol.Apply(toggles={"adamw": "foreach"}))
    runner.until(protocol.SegmentStarted)
    runner.until_steps(1)  # too few for new weights
    runner.finish(protocol.Stop())
    before, after = (segment.ledger["loss"] for segment in runner.session.segments[first:])
    assert after < before, "the weights began anew"


def test_the_bytes_of_a_file_are_data(runner, small, tmp_path):
    text = tmp_path / "all the same.txt"
    text.write_bytes(b"a" * 1000)
    runner.start(with_(small, workload="train", data=str(text)), steps=300)
    assert runner.finish().reason == "done"
    assert runner.session.segments[-1].ledger["loss"] < 2.0  # ln 256 = 5.5 for random bytes


def test_a_change_is_a_segment_and_going_back_costs_no_build(runner, small):
    runner.start(with_(small, seed=50))  # of which no other test has built the change
    runner.until_steps(2)
    since = len(runner.messages)
    runner.send(protocol.Apply(toggles={"attention": "manual"}))
    changed = runner.until(protocol.SegmentStarted)
    runner.until_steps(2)
    assert changed.configuration.toggles["attention"] == "manual" and not changed.reused
    assert "Manual" in changed.label
    (note,) = sent(runner, protocol.Note, since)
    assert note.kind == "toggle" and "Attention backend: Manual" in note.text

    before = slowness()
    began = time.monotonic()
    runner.send(protocol.Apply(toggles={"attention": "auto"}))
    back = runner.until(protocol.SegmentStarted)
    runner.until(protocol.Steps)
    first_sample_s = runner.seen[-1][0] - began
    assert back.reused and back.index == changed.index + 1
    print(
        f"\nfirst sample after going back to a built configuration: {first_sample_s * 1e3:.0f} ms"
    )
    # 200 ms on an idle machine, whose slowness is 1.
    assert first_sample_s / max(before, slowness()) < 1.0
    assert "building" not in [state.state for state in sent(runner, protocol.State, since)[2:]]


def test_applying_what_runs_already_changes_nothing(runner, small):
    runner.start(small)
    runner.until_steps(1)
    since = len(runner.messages)
    runner.send(protocol.Apply(toggles={"attention": "auto"}))
    runner.until_steps(5)
    assert not sent(runner, (protocol.SegmentStarted, protocol.Note), since)


@pytest.mark.parametrize(
    ("toggles", "reason"),
    [
        ({"cuda_graphs": "on"}, "toggle cuda_graphs=on cannot be used: needs a CUDA GPU"),
        ({"triton": "on"}, "toggle triton=on cannot be used: needs a CUDA GPU"),
        ({"adamw": "fused"}, "Choose the training step."),
        ({"attention": "fastest"}, "toggle attention: unknown 'fastest'; expected one of auto,"),
        ({"warp": "on"}, "toggle: unknown 'warp'; expected one of "),
    ],
)
def test_a_toggle_that_is_blocked_says_why_and_the_run_goes_on(runner, small, toggles, reason):
    runner.start(small)
    runner.until_steps(1)
    segments = len(runner.session.segments)
    runner.send(protocol.Apply(toggles=toggles))
    failure = runner.until(protocol.Failure)
    assert failure.kind == "mistake" and reason in failure.sentence
    assert not failure.detail and not failure.fatal
    runner.until_steps(3)
    assert len(runner.session.segments) == segments


def test_a_check_is_answered_while_the_runner_steps_and_while_it_builds(runner, small):
    runner.start(with_(small, preset="small", model={}, settings={"batch": 1, "sequence": 64}))
    runner.until_state("building")
    runner.send(protocol.Check(configuration=small))
    answer = runner.until(protocol.Availability)
    assert answer.configuration == small and answer.problems == []
    assert answer.blocked["cuda_graphs"]["on"].reason.startswith("needs a CUDA GPU")
    assert answer.blocked["adamw"]["fused"].set == {"workload": "train"}
    assert "auto" not in answer.blocked["attention"]
    assert not sent(runner, protocol.SegmentStarted)[-1].reused
    runner.until_steps(1)
    train = with_(small, workload="train")
    runner.send(protocol.Check(configuration=train))
    answer = runner.until(protocol.Availability)
    assert answer.configuration == train and answer.problems == []
    blocked = answer.blocked.get("adamw", {})
    assert blocked.keys() <= {"8bit_torchao", "8bit_bitsandbytes"}  # where they are not installed
    runner.until_steps(1)


def test_a_paused_run_keeps_what_it_built_and_makes_no_steps(runner, small):
    runner.start(small)
    runner.until_steps(1)
    runner.send(protocol.Pause())
    paused = runner.until_state("paused")
    segment = runner.session.segments[-1]
    steps = len(segment.steps["t_s"])
    time.sleep(0.5)
    runner.send(protocol.Pause())  # once more changes nothing
    runner.send(protocol.Check(configuration=small))
    runner.until(protocol.Availability)
    assert len(segment.steps["t_s"]) == steps

    runner.send(protocol.Apply(toggles={"rope_cache": "shared"}))  # takes effect at once
    runner.until_state("paused")
    assert runner.session.segments[-1].configuration.toggles["rope_cache"] == "shared"
    runner.send(protocol.Apply(toggles={"rope_cache": "per_layer"}))
    assert runner.until(protocol.SegmentStarted).reused
    runner.until_state("paused")

    runner.send(protocol.Resume())
    resumed = runner.until_state("running")
    runner.until_steps(2)
    for segment in runner.session.segments[-3:]:
        begins = segment.steps["t_s"]
        ends = begins + 1e-3 * segment.steps["wall_ms"]
        for moment in (paused.t_s, resumed.t_s):
            assert ((ends <= moment) | (begins >= moment)).all(), "the pause was timed"
    assert len(runner.session.segments[-1].steps["t_s"])
    assert runner.finish(protocol.Stop()).reason == "stopped"


@pytest.mark.parametrize("paused", [False, True])
@pytest.mark.parametrize(
    ("command", "reason"), [(protocol.Stop(), "stopped"), (protocol.Cancel(), "cancelled")]
)
def test_a_run_ends_when_asked_and_the_next_reuses_what_it_built(
    runner, small, paused, command, reason
):
    runner.start(small)
    runner.until_steps(2)  # the first belongs to the build, which would be forgotten
    if paused:
        runner.send(protocol.Pause())
        runner.until_state("paused")
    assert runner.finish(command).reason == reason
    runner.start(small, steps=3)
    assert runner.until(protocol.SegmentStarted).reused
    assert runner.finish().steps == 3


def test_cancel_ends_a_build_that_has_begun(runner, small):
    since = len(runner.messages)
    sizes = {"dim": 512, "n_layers": 12, "n_heads": 8, "n_kv_heads": 8}  # most of a second to build
    runner.start(with_(small, seed=11, model=small.model | sizes))
    runner.until_state("building")
    runner.send(protocol.Cancel())
    assert runner.finish().reason == "cancelled"
    # Cancel may still wait to be read: only a run that was already stepping took it.
    runner.start(small, steps=3)
    assert runner.finish().reason == "done", "the next run was cancelled too"
    assert sent(runner, protocol.Finished, since)[0].steps <= 1


def test_cancel_that_is_read_before_the_run_begins_is_not_forgotten(runner, small):
    runner.start(with_(small, seed=12))
    runner.send(protocol.Cancel())
    assert runner.finish().reason == "cancelled"


def test_commands_that_come_after_the_end_of_their_run_are_no_mistakes(runner):
    late = len(runner.seen)
    toggled = protocol.Apply(toggles={"attention": "manual"})
    for command in (toggled, protocol.Pause(), protocol.Resume(), protocol.Stop()):
        runner.send(command)
    runner.send(protocol.Cancel())
    runner.until_state("idle")  # of Cancel
    assert not [
        message for _, message in runner.seen[late:] if isinstance(message, protocol.Failure)
    ]


def test_a_start_while_one_runs_takes_its_place(runner, small):
    runner.start(small)
    runner.until_steps(1)
    runner.start(with_(small, workload="prefill"), steps=5)
    assert runner.until(protocol.Finished).reason == "stopped"
    started = runner.until(protocol.SegmentStarted)
    assert started.configuration.workload == "prefill"
    assert runner.finish().steps == 5


BAD_LINES = [
    b"\n",
    b"start the run, please\n",
    b"\x00\xff\xfe\n",
    b"[1, 2\n",
    b'{"type":"start"}\n',
    b'{"type":"start","configuration":{"family":7,"preset":""}}\n',
    b'{"type":"self-destruct"}\n',
    b'{"type":"state","state":"idle"}\n',
    b'{"type":"apply","toggles":{"attention":null}}\n',
    b"{" * 100_000 + b"\n",
    b"x" * 5_000_000 + b"\n",
]


def test_bad_lines_are_ignored_one_by_one_and_the_run_goes_on(runner, small):
    runner.start(small)
    runner.until_steps(1)
    for line in BAD_LINES:
        runner.runner.process.stdin.write(line)
        runner.runner.process.stdin.flush()
        failure = runner.until(protocol.Failure)
        assert (failure.kind, failure.fatal) == (protocol.UNREAD, False)
        assert failure.sentence == "A line that is not a command was ignored."
        assert failure.detail.startswith("not a message: ") and len(failure.detail) < 600
    runner.until_steps(3)
    assert runner.finish(protocol.Stop()).reason == "stopped"


def test_a_run_that_is_asked_to_checks_each_configuration_once_after_its_last_step(runner, small):
    since, count = len(runner.messages), len(runner.session.segments)
    runner.start(small, steps=30, check="last")
    assert runner.finish().steps == 30
    (segment,) = runner.session.segments[count:]
    assert segment.ledger["numbers_right"] is True
    assert segment.ledger["numbers"].startswith("against float64: relative error ")
    facts = [message for message in runner.messages[since:] if isinstance(message, protocol.Facts)]
    steps = [message for message in runner.messages[since:] if isinstance(message, protocol.Steps)]
    assert "numbers" in facts[-1].ledger
    assert runner.messages.index(facts[-1]) > runner.messages.index(steps[-1])


def test_a_run_that_is_not_asked_to_checks_nothing(runner, small):
    runner.start(small, steps=5)
    runner.finish()
    assert "numbers" not in runner.session.segments[-1].ledger
