"""Commands that ``workbench info FILE --command`` prints repeat the session's requests."""

from __future__ import annotations

import shlex
from pathlib import Path

import claims_samples
import msgspec
import pytest
import wire_samples

from sessions.model import Configuration, Session
from sessions.storage import hdf5
from workbench import calibration, protocol
from workbench.claims import documents
from workbench.claims._course import Course
from workbench.cli import main
from workbench.client import headless
from workbench.client.recorder import Recorder


class Asked(Exception):  # noqa: N818 - carries the order
    """Ends a command when it is about to start a runner."""


@pytest.fixture
def ask(ran, monkeypatch):
    """Return the order or the plan of a command line."""

    def stop(choose, **_):
        raise Asked(choose(ran.catalogue))

    def stop_plan(plan, **_):
        raise Asked(plan)

    def parse(words: list[str]):
        with pytest.raises(Asked) as caught:
            main(words)
        return caught.value.args[0]

    monkeypatch.setattr(headless, "run", stop)
    monkeypatch.setattr(headless, "run_plan", stop_plan)
    monkeypatch.setattr(calibration, "respected", lambda _, command: command)
    return parse


@pytest.fixture
def printed(capsys, tmp_path):
    """Return the printed commands of a session file, as words without the program's name."""

    def lines(path: Path) -> list[list[str]]:
        assert main(["info", str(path), "--command"]) == 0
        script = capsys.readouterr().out.splitlines()
        calls = [shlex.split(line) for line in script if line.startswith("workbench ")]
        return [call[1:] for call in calls]

    return lines


def interrupted_of(ran, path: Path, order: protocol.Command, segments: int) -> Path:
    """Save a session whose order was interrupted after so many segments had begun."""
    recorder = Recorder()
    recorder.record(ran.catalogue)
    recorder.record(protocol.Ordered(command=order))
    for index in range(segments):
        for message in wire_samples.begin(1.0 + index, index):
            recorder.record(message)
    hdf5.save(recorder.session, path)
    return path


def session_of(ran, path: Path, *orders: protocol.Command) -> Path:
    """Save a session in which a runner took up these orders, each with a result.

    What a runner says of its order is what the engine says; ``test_the_runner_...`` sees to that.
    """
    recorder = Recorder()
    recorder.record(ran.catalogue)
    for index, order in enumerate(orders):
        messages: list[protocol.AnyMessage] = [protocol.Ordered(command=order)]
        messages += wire_samples.begin(1.0 + index, index)
        if isinstance(order, protocol.Compare):
            arms = ["a", "b"]
            messages.append(
                protocol.ComparisonStarted(index=index, arms=arms, segments=[index] * 2, request={})
            )
        elif not isinstance(order, (protocol.Bench, protocol.Start)):
            messages.append(protocol.StudyStarted(index=index, kind="study", title="s", request={}))
        for message in messages:
            recorder.record(protocol.decode_message(protocol.encode(message)))
    hdf5.save(recorder.session, path)
    return path


def full_configuration(ran) -> Configuration:
    """Return a configuration as the window sends it: every toggle, and settings of all kinds."""
    toggles = {toggle.name: toggle.options[0].name for toggle in ran.catalogue.toggles}
    return Configuration(
        family="moe",
        preset="tiny",
        model={"n_layers": 3, "load_balance_weight": 0.012345678},
        workload="train",
        settings={"batch": 4, "sequence": 64},
        toggles=toggles,
        seed=5,
        data="/home/me/some text.txt",
    )


SPELT = [
    "attribute hydra --workload train --toggles triton=on,precision=bf16 --mode shapley --orders 5",
    "optimize moe --objective energy --budget 90s --include triton,compile --max-error 0.5",
    "optimize hydra --memory-limit 12.5 --region 2.5 --seed 3",
    "attribute moe --toggles precision=bf16,triton=on --budget 12.5 --region 2.5 --seed 3",
    "sweep mamba2 --over settings.sequence=128,256 --over model.n_layers=2,4 --arm '' "
    "--arm triton=on,precision=bf16 --seconds-per-point 0.25 --toggle precision=fp32",
    "sweep hydra --over preset=tiny,base",
    "profile hydra --preset tiny --steps 5 --toggle precision=bf16",
    "profile moe --a triton=off --b triton=on,precision=bf16 --workload train",
    "validate moe --workload train --batch 1 --batch 3 --steps 7 --expect-speedup 1.25 --budget 9",
    "calibrate mamba2 --toggle triton=off --budget 7.5 --seed 2",
    "bench rms_norm swiglu --dtype float32 --every-case --tune --budget 3.5",
    "bench",
    "ab hydra --b triton=on --budget 4 --region 2 --order abba --seed 9",
    "ab hydra --toggle triton=on --a precision=fp32 --b precision=bf16 --data a.txt",
]


@pytest.mark.parametrize("line", SPELT, ids=lambda line: line[:24])
def test_a_command_line_is_printed_again_as_one_that_leads_to_the_same_order(
    ran, ask, printed, tmp_path, line
):
    order = ask(shlex.split(line))
    (again,) = printed(session_of(ran, tmp_path / "a.h5", order))
    assert again[0] == line.split()[0]
    assert ask(again) == order


def test_data_is_found_again_from_another_folder(ran, ask, printed, tmp_path, monkeypatch):
    lines = ["run hydra --data a.txt", "sweep hydra --over data=synthetic,a.txt"]
    monkeypatch.chdir(tmp_path)
    run, sweep = orders = [ask(shlex.split(line)) for line in lines]
    assert run.configuration.data == str(tmp_path / "a.txt")
    assert sweep.axes == {"data": ["synthetic", str(tmp_path / "a.txt")]}
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    calls = printed(session_of(ran, tmp_path / "a.h5", orders[1]))
    assert [ask(call) for call in calls] == [sweep]


@pytest.mark.parametrize("line", SPELT, ids=lambda line: line[:24])
@pytest.mark.parametrize("segments", [1, 2])
def test_what_was_interrupted_before_it_had_an_answer_is_asked_for_again(
    ran, ask, printed, tmp_path, line, segments
):
    order = ask(shlex.split(line))
    (again,) = printed(interrupted_of(ran, tmp_path / "a.h5", order, segments))
    assert ask(again) == order


@pytest.mark.parametrize("line", [*SPELT, "run hydra --steps 7 --check", "run moe --seconds 2.5"])
def test_what_was_interrupted_before_anything_was_measured_is_told_with_its_command(
    ran, ask, tmp_path, capsys, line
):
    order = ask(shlex.split(line))
    path = interrupted_of(ran, tmp_path / "a.h5", order, segments=0)
    assert main(["info", str(path), "--command"]) == 0
    (comment,) = [
        line for line in capsys.readouterr().out.splitlines() if "its command was" in line
    ]
    why, _, again = comment.partition("its command was workbench ")
    assert "is not repeated: it was refused or interrupted before anything was measured" in why
    assert comment.startswith("# ") and ask(shlex.split(again)) == order


def window_orders(ran) -> dict[str, protocol.Command]:
    base = full_configuration(ran)
    other = msgspec.structs.replace(base, toggles={**base.toggles, "triton": "on"})
    return {
        "attribute": protocol.Attribute(
            base=base, toggles={"triton": "on", "precision": "bf16"}, mode="leave-one-out", seed=5
        ),
        "optimize": protocol.Optimize(
            base=base, objective="memory", memory_limit=2.0**31, exclude=["compile"], seed=5
        ),
        "sweep": protocol.Sweep(
            base=base,
            axes={"settings.batch": [1, 2], "model.load_balance_weight": [0.5, 1.0]},
            arms=[{}, {"triton": "on"}],
            seed=5,
        ),
        "scale": protocol.Scale(base=base, ranks=[1, 2], kinds=["data"], mode="weak", seed=5),
        "profile": protocol.Profile(configurations=[base], steps=3),
        "validate": protocol.Validate(configuration=base, budget_s=10.0),
        "calibrate": protocol.Compare(base=base, other=base, budget_s=30.0, seed=5, energy=False),
        "ab": protocol.Compare(base=base, other=other, budget_s=10.0, seed=5, predict=True),
    }


def test_what_a_window_asked_for_is_printed_as_commands_that_lead_to_the_same_orders(
    ran, ask, printed, tmp_path
):
    orders = window_orders(ran)
    calls = printed(session_of(ran, tmp_path / "w.h5", *orders.values()))
    assert [call[0] for call in calls] == list(orders)
    assert [ask(call) for call in calls] == list(orders.values())
    outputs = [call[-1] for call in calls if call[0] != "calibrate"]
    assert len(set(outputs)) == len(outputs) and all(output.startswith("w-") for output in outputs)


def test_a_profile_whose_trace_was_kept_keeps_one_again(ran, ask, printed, tmp_path):
    order = ask(["profile", "hydra", "--trace", str(tmp_path / "t.json")])
    (again,) = printed(session_of(ran, tmp_path / "p.h5", order))
    trace = ask(again)
    assert [Path(file).name for file in trace.traces] == ["p-0000.json.gz"]
    assert msgspec.structs.replace(trace, traces=[]) == msgspec.structs.replace(order, traces=[])


def test_a_run_that_went_on_from_a_state_and_was_checked_does_so_again(ran, ask, printed, tmp_path):
    line = ["run", "hydra", "--workload", "generate", "--check"]
    states = ["--load-state", str(tmp_path / "a.state"), "--save-state", str(tmp_path / "b.state")]
    order = ask(line + states)
    (again,) = printed(session_of(ran, tmp_path / "g.h5", order))
    repeated = ask(again)
    assert (repeated.check, repeated.load_state) == ("last", order.load_state)
    assert Path(repeated.save_state).name == "g-0000.state"
    plain = ask(line[:-1])
    (again,) = printed(session_of(ran, tmp_path / "g.h5", plain))
    assert not {"--check", "--load-state", "--save-state"} & set(again)


@pytest.mark.parametrize(
    "line",
    [
        "reproduce moe --only 'each alone' --limit 60",
        "reproduce mamba2 hydra --budget 2.5",
        "reproduce all --budget 3 --limit 480",
    ],
)
def test_claims_are_measured_again_by_one_command_and_not_by_their_orders(
    ran, ask, printed, tmp_path, line
):
    course = ask(shlex.split(line))
    recorder = Recorder()
    recorder.record(ran.catalogue)

    def own(messages):
        for message in messages:
            recorder.record(protocol.decode_message(protocol.encode(message)))

    own(course.begin(ran.catalogue, recorder.session))
    for segment in range(2):
        if (order := course.next(ran.catalogue)) is None:
            break
        own([protocol.Ordered(command=order)])
        own(wire_samples.begin(1.0, segment))
        own([protocol.StudyStarted(index=segment, kind="attribution", title="t", request={})])
    own(course.finish("interrupted"))
    alone = protocol.Profile(configurations=[full_configuration(ran)])
    own([protocol.Ordered(command=alone)])
    own([protocol.StudyStarted(index=2, kind="profile", title="t", request={})])
    path = tmp_path / "c.h5"
    hdf5.save(recorder.session, path)
    again, profile = printed(path)
    assert _chosen(ask(again)) == _chosen(course)
    assert ask(profile) == alone


def _chosen(course: Course) -> dict[str, object]:
    """Return the request that the study of a course records."""
    started = next(iter(course.begin(wire_samples.catalogue(), Session())))
    assert isinstance(started, protocol.StudyStarted)
    return started.request


def test_claims_of_a_file_of_before_orders_were_kept_are_measured_again(ask, printed, tmp_path):
    recorder = Recorder()
    for message in claims_samples.messages(1.0):
        recorder.record(message)
    path = tmp_path / "old.h5"
    hdf5.save(recorder.session, path)
    (again,) = [call for call in printed(path) if call[0] == "reproduce"]
    study = recorder.session.studies[0]
    assert _chosen(ask(again)) == study.request


def test_what_came_to_nothing_is_not_repeated_and_what_goes_on_is_repeated_once(
    ran, printed, tmp_path, capsys
):
    base = full_configuration(ran)
    compare = protocol.Compare(base=base, other=base, budget_s=1.0, predict=True)
    recorder = Recorder()
    recorder.record(ran.catalogue)
    wrong = protocol.Attribute(base=base, toggles={})
    blocks = [protocol.Block(arm=arm, pair=0, median_ms=1.0 + arm) for arm in (0, 1)]
    further = msgspec.structs.replace(compare, before=blocks, before_s=1.0, seed=7)
    messages = [
        protocol.Ordered(command=wrong),
        protocol.Failure(kind="mistake", sentence="No toggle is named."),
        protocol.Ordered(command=compare),
        *wire_samples.begin(1.0, 0),
        protocol.ComparisonStarted(index=0, arms=["a", "b"], segments=[0, 0], request={}),
        *[protocol.BlockDone(comparison=0, block=block) for block in blocks],
        protocol.Ordered(command=further),
        *wire_samples.begin(2.0, 1),
        protocol.ComparisonStarted(
            index=1, arms=["a", "b"], segments=[1, 1], request={}, before=blocks
        ),
    ]
    for message in messages:
        recorder.record(message)
    path = tmp_path / "n.h5"
    hdf5.save(recorder.session, path)
    assert [call[0] for call in printed(path)] == ["ab"]
    assert main(["info", str(path), "--command"]) == 0
    assert "# An attribution is not repeated: it was refused" in capsys.readouterr().out
    assert "before" not in hdf5.load(path).orders[-1].command


def test_the_runner_says_what_it_takes_up_and_the_file_keeps_it(ran):
    (order,) = hdf5.load(ran.path).orders
    (ordered,) = [message for message in ran.messages if isinstance(message, protocol.Ordered)]
    assert order.command == msgspec.to_builtins(ordered.command)
    assert msgspec.convert(order.command, protocol.Start).steps == ran.steps
    assert (order.segments, order.comparisons, order.studies, order.claims) == (0, 0, 0, None)


def test_every_kind_of_order_that_a_runner_takes_is_repeated_or_told(ran, ask, tmp_path, printed):
    """A new kind of order needs words, or this fails."""
    known = {type(order) for order in window_orders(ran).values()} | {protocol.Bench}
    left = set(protocol.RunCommand.__args__) - known
    assert left == {protocol.Start, protocol.MeasureCeilings}, "segments; kept for the machine"
    assert set(documents()) == set(_chosen(ask(["reproduce", "all"]))["documents"])
