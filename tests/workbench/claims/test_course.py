"""The course of a run through experiments: in order, bounded in time, kept at every moment."""

from __future__ import annotations

import math

import attribution_samples
import msgspec
import pytest
import wire_samples

from sessions.model import Phase
from sessions.studies import claims
from workbench import protocol
from workbench.claims import documents
from workbench.claims._course import LEAST_S, SLACK_S, Course
from workbench.client.recorder import Recorder

GPU = msgspec.structs.replace(wire_samples.catalogue(), device="cuda")


class Drive:
    """A course whose runner says what a test tells it, and whose clock a test moves."""

    def __init__(self, *names: str, document="moe", limit_s=None, device="cuda") -> None:
        self.now = 0.0
        made = documents()[document]
        chosen = [
            (made, experiment)
            for experiment in made.experiments
            if not names or experiment.name in names
        ]
        self.course = Course(chosen, 3.0, limit_s, self.respect, lambda: self.now)
        self.catalogue = msgspec.structs.replace(GPU, device=device)
        self.recorder = Recorder()
        self.recorder.record(self.catalogue)
        self.study = 0
        self.own(self.course.begin(self.catalogue, self.recorder.session))

    def respect(self, catalogue, command) -> None:
        assert catalogue is self.catalogue
        command.floor = 0.02

    def own(self, messages) -> None:
        for message in messages:
            self.recorder.record(protocol.decode_message(protocol.encode(message)))

    def next(self):
        command = self.course.next(self.catalogue)
        self.own(self.course.pending_messages())
        return command

    def hear(self, *messages, after_s=1.0) -> None:
        self.now += after_s
        for message in messages:
            self.recorder.record(message)
            self.own(self.course.on_message(message))

    def measure(self, command, **options) -> None:
        """Let the runner answer an attribution, to its end."""
        toggles = command.toggles
        self.hear(*attribution_samples.messages(1.0, toggles, index=self.study, **options))
        self.study += 1

    def rows_by_claim(self) -> dict[str, claims.Row]:
        """Return what the session has by now, by claim and unit; of several, the first."""
        (study,) = claims.studies(self.recorder.session)
        return {f"{row.claim}, {row.unit}": row for row in reversed(claims.rows(study))}

    def results(self) -> set[str]:
        return {row.result for row in self.rows_by_claim().values()}


DONE = protocol.Finished(t_s=9.0, reason="done", steps=1)
SPEED = "x as fast as the baseline"


def test_experiments_are_asked_for_in_order_each_with_its_time():
    drive = Drive("training ladder", "each alone")
    assert drive.results() == {claims.WAITING}
    first = drive.next()
    assert list(first.toggles) == ["compile", "precision", "checkpointing", "cuda_graphs"]
    assert (first.build_s, first.budget_s, first.floor) == (480.0, 3.0, 0.02)
    assert drive.course.allowed_s == 480.0 + 3.0 + SLACK_S
    assert drive.rows_by_claim()[f"+ AMP, {SPEED}"].result == claims.MEASURING
    drive.measure(first)
    drive.hear(DONE)
    second = drive.next()
    assert list(second.toggles) == ["precision"] and second.build_s == 60.0
    assert drive.rows_by_claim()[f"+ torch.compile, {SPEED}"].result == claims.HOLDS
    assert list(drive.next().toggles) == ["checkpointing"]
    assert drive.next() is None and drive.course.over


def test_what_is_shown_while_it_is_measured_is_no_result():
    drive = Drive("training ladder")
    command = drive.next()
    messages = list(attribution_samples.messages(1.0, command.toggles, looks=4))
    drive.hear(*messages[:-1])
    row = drive.rows_by_claim()[f"+ torch.compile, {SPEED}"]
    assert row.measured == pytest.approx(1 / 0.66, rel=0.03) and not row.final
    assert drive.results() == {claims.MEASURING}


def test_a_command_that_takes_too_long_is_cut_off_and_says_how_long_it_compiled():
    drive = Drive("training ladder", "inference ladder")
    first = drive.next()
    drive.hear(*wire_samples.begin(0.5, 0))
    drive.hear(protocol.PhaseChanged(t_s=2.0, segment=0, phase=Phase.COMPILE))
    drive.now += 512
    assert not drive.course.on_timeout(protocol.Stop()), "it is another's time that is over"
    assert drive.course.on_timeout(first)
    drive.hear(protocol.Failure(kind="died", sentence="It was killed.", fatal=True), after_s=0)
    assert drive.course.on_runner_lost()
    second = drive.next()
    row = drive.rows_by_claim()[f"+ AMP, {SPEED}"]
    assert row.result == claims.NOT_MEASURED
    assert "cut off after 514 s of 513 s; compiling took 512 s" in row.reason
    assert "killed" not in row.reason, "we did that"
    drive.recorder.record(drive.catalogue)  # of another runner, whose studies count from 0 too
    drive.measure(second)
    drive.hear(DONE)
    assert drive.next() is None
    assert drive.rows_by_claim()[f"+ torch.compile, inference, {SPEED}"].result == claims.HOLDS
    assert drive.rows_by_claim()[f"+ AMP, {SPEED}"].result == claims.NOT_MEASURED


def test_compiling_is_counted_where_an_arm_was_not_built_for_it():
    drive = Drive("training ladder")
    command = drive.next()
    drive.hear(*wire_samples.begin(0.5, 0))
    for t_s, phase in ((1.0, Phase.COMPILE), (71.0, Phase.WARM_UP), (80.0, Phase.COMPILE),
                       (95.0, Phase.WARM_UP)):  # fmt: skip
        drive.hear(protocol.PhaseChanged(t_s=t_s, segment=0, phase=phase))
    drive.measure(command, short=[3, 4])
    drive.hear(DONE)
    drive.next()
    rows_by_claim = drive.rows_by_claim()
    assert "compiling took 85 s" in rows_by_claim[f"+ CUDA graphs, {SPEED}"].reason
    assert rows_by_claim[f"+ torch.compile, {SPEED}"].result == claims.HOLDS


def test_the_limit_for_all_leaves_the_rest_not_measured():
    drive = Drive(limit_s=50.0)
    command = drive.next()
    assert drive.course.allowed_s == LEAST_S and command.build_s == pytest.approx(9.0)
    drive.measure(command)
    drive.hear(DONE, after_s=60)
    assert drive.next() is None and drive.course.over
    rows_by_claim = drive.rows_by_claim()
    assert rows_by_claim[f"+ torch.compile, {SPEED}"].result == claims.HOLDS
    rest = rows_by_claim["torch.compile max-autotune, x as fast as eager"]
    assert rest.result == claims.NOT_MEASURED
    assert rest.reason == "the total limit of 50 s was reached first"
    assert not drive.course.on_runner_lost()


def test_a_run_that_is_interrupted_keeps_what_was_measured():
    drive = Drive("training ladder", "inference ladder", "each alone")
    drive.measure(drive.next())
    drive.hear(DONE)
    command = drive.next()
    messages = list(attribution_samples.messages(1.0, command.toggles, index=1, looks=4))
    drive.hear(*messages[:8])
    drive.own(drive.course.finish("interrupted"))
    rows_by_claim = drive.rows_by_claim()
    assert rows_by_claim[f"+ torch.compile, {SPEED}"].result == claims.HOLDS
    assert rows_by_claim["AMP, x as fast as FP32"].result == claims.NOT_MEASURED
    assert rows_by_claim["AMP, x as fast as FP32"].reason == "interrupted"
    assert all(row.final for row in rows_by_claim.values())
    (study,) = claims.studies(drive.recorder.session)
    assert study.facts["final"] and study.facts["ended"] == "interrupted"


def test_a_failure_costs_the_claims_that_needed_it_and_is_their_reason():
    drive = Drive("each alone")
    drive.next()
    drive.hear(protocol.Failure(kind="out-of-memory", sentence="9 GiB more was needed."))
    drive.hear(protocol.Finished(reason="failed", steps=0))
    drive.measure(drive.next(), memory=True)
    drive.hear(DONE)
    assert drive.next() is None
    rows_by_claim = drive.rows_by_claim()
    assert "9 GiB more was needed." in rows_by_claim["AMP, x as fast as FP32"].reason
    assert math.isfinite(rows_by_claim["checkpointing, memory of the baseline"].measured)


def test_on_the_cpu_what_is_about_a_gpu_is_known_before_anything_runs():
    drive = Drive("kernels", document="hydra", device="cpu")
    assert drive.results() == {claims.NOT_HERE}
    assert drive.next() is None
    drive.own(drive.course.finish())
    assert drive.results() == {claims.NOT_HERE}


def test_without_any_runner_nothing_is_measured_and_nothing_written():
    course = Course([(documents()["moe"], documents()["moe"].experiments[0])], 3.0)
    assert not list(course.pending_messages()) and not list(course.finish())
    assert {row.result for row in course.rows} == {claims.NOT_MEASURED}


def test_studies_of_one_experiment_share_what_the_limit_leaves_and_what_one_saves_is_shared_anew():
    drive = Drive("each alone", limit_s=40.0)
    first = drive.next()
    assert drive.course.allowed_s == 20.0 and first.build_s == pytest.approx(12.0)
    drive.measure(first)
    drive.hear(DONE, after_s=3.5)
    left_s = 40.0 - drive.now
    second = drive.next()
    assert drive.course.allowed_s == left_s > 30.0 and second.build_s == pytest.approx(0.6 * left_s)


def test_a_study_that_uses_up_its_share_costs_no_other_and_each_says_what_was_left_out():
    drive = Drive("each alone", limit_s=40.0)
    first = drive.next()
    drive.hear(*wire_samples.begin(0.5, 0))
    drive.hear(protocol.PhaseChanged(t_s=2.0, segment=0, phase=Phase.COMPILE))
    drive.now += 18.0
    assert drive.course.on_timeout(first)
    drive.hear(protocol.Finished(reason="cancelled", steps=0), after_s=0.0)
    second = drive.next()
    assert list(second.toggles) == ["checkpointing"] and drive.course.allowed_s == 20.0
    drive.measure(second)
    drive.hear(DONE)
    assert drive.next() is None
    rows_by_claim = drive.rows_by_claim()
    for unit in ("x as fast as FP32", "memory of the baseline"):
        reason = rows_by_claim[f"AMP, {unit}"].reason
        assert "cut off after 20 s of 20 s, its share of the limit of 40 s" in reason
        assert "compiling took 18 s" in reason
    other = rows_by_claim["checkpointing, of the step time without"]
    assert other.result == claims.HOLDS and "limit" not in other.reason


def test_a_study_of_several_that_the_limit_leaves_no_time_says_so_alone():
    drive = Drive("each alone", limit_s=40.0)
    drive.measure(drive.next())
    drive.hear(DONE, after_s=45.0)  # it did not hear that it was to end
    assert drive.next() is None
    rows_by_claim = drive.rows_by_claim()
    assert rows_by_claim["AMP, x as fast as FP32"].result == claims.FAILS
    late = rows_by_claim["checkpointing, of the step time without"]
    assert late.result == claims.NOT_MEASURED
    assert "the total limit of 40 s was reached first" in late.reason
    assert "limit" not in rows_by_claim["AMP, x as fast as FP32"].reason


def test_an_undecided_study_says_that_its_share_of_the_limit_was_too_short():
    drive = Drive("each alone", limit_s=40.0)
    first = drive.next()
    messages = attribution_samples.messages(1.0, first.toggles, rounds=5)
    drive.hear(*messages, after_s=19.0)
    assert drive.course.on_timeout(first)
    drive.hear(protocol.Finished(reason="cancelled", steps=0))
    drive.measure(drive.next())
    drive.hear(DONE)
    assert drive.next() is None
    row = drive.rows_by_claim()["AMP, x as fast as FP32"]
    assert row.result == claims.UNDECIDED
    assert "cut off after 20 s of 20 s, its share of the limit of 40 s" in row.reason


def test_experiments_leave_time_for_those_after_them_and_an_endless_limit_shares_nothing():
    drive = Drive("training ladder", "each alone", limit_s=100.0)
    assert drive.next() and drive.course.allowed_s == 100.0 - 2 * LEAST_S
    endless = Drive("each alone")
    assert endless.next() and endless.course.allowed_s == 60.0 + 3.0 + SLACK_S
    on_cpu = Drive("training ladder", "torch.compile max-autotune", limit_s=100.0, device="cpu")
    on_cpu.next()
    assert on_cpu.course.allowed_s == 100.0, "what needs a GPU takes no time here"


def test_a_claim_of_all_commands_names_those_that_were_cut_off():
    drive = Drive("length, hybrid", document="mamba2", limit_s=30.0)
    for _ in range(5):
        assert drive.course.on_timeout(drive.next())
        drive.hear(protocol.Finished(reason="cancelled", steps=0), after_s=6.0)
    assert drive.next() is None
    row, _ = drive.rows_by_claim().values()
    assert "1 of 5: cut off after 6 s of 6 s" in row.reason and "5 of 5: cut off" in row.reason


def test_a_study_that_only_tells_of_a_gpu_takes_no_time_on_a_cpu():
    drive = Drive("each alone", device="cpu", limit_s=30.0)
    only = drive.next()
    assert list(only.toggles) == ["checkpointing"] and drive.course.allowed_s == 30.0
    drive.measure(only, memory=False)
    drive.hear(DONE)
    assert drive.next() is None
    rows_by_claim = drive.rows_by_claim()
    assert rows_by_claim["checkpointing, of the step time without"].result == claims.HOLDS
    assert rows_by_claim["AMP, x as fast as FP32"].result == claims.NOT_HERE


def test_what_matters_most_is_measured_first_and_the_rest_takes_nothing_from_it():
    made = documents()["moe"]
    by_name = {experiment.name: experiment for experiment in made.experiments}
    course = Course(
        [(made, by_name["custom kernels"]), (made, by_name["each alone"])],
        3.0,
        100.0,
        clock=lambda: 0.0,
    )
    list(course.begin(GPU, Recorder().session))
    first = course.next(GPU)
    assert list(first.toggles) == ["precision"], "what was chosen first has a lower priority"
    assert course.allowed_s == 50.0, "nothing is kept for what matters less"
    assert course.rows[0].experiment == "custom kernels"
