"""A run in two parts, by way of a file of decode state, writes what one run writes."""

from __future__ import annotations

import msgspec
import pytest
import torch
from test_generating import CPU, DECODERS, NEW, FakeWire, requested

from models import read_state
from workbench import protocol
from workbench.runner.context import RunnerContext
from workbench.runner.experiments.run import Run, RunEnded
from workbench.runner.failures import Mistake


def ran(configuration, steps, context=None, **states):
    """Run so many steps.

    Return the ledger of the only segment, and the notes.
    """
    context = context or RunnerContext(FakeWire(), CPU)
    context.wire.sent.clear()
    names = {name: path if name == "check" else str(path) for name, path in states.items()}
    with pytest.raises(RunEnded, match="done"):
        Run(context, protocol.Start(configuration=configuration, steps=steps, **names)).execute()
    ledger = {}
    for message in context.wire.sent:
        if isinstance(message, protocol.Generated):
            ledger = {} if message.start == 0 else ledger
            ledger["prompt"] = ledger.get("prompt", "") + message.prompt
            ledger["text"] = ledger.get("text", "") + message.text
    return ledger, [m.text for m in context.wire.sent if isinstance(m, protocol.Note)]


def same(first, second):
    """Return True if two files hold the same state, to the last bit."""
    a, b = read_state(first), read_state(second)
    progress, expected = a.beside.pop("progress"), b.beside.pop("progress")
    return (
        (a.position, a.beside) == (b.position, b.beside)
        and all(map(torch.equal, a.tensors, b.tensors))
        and all(torch.equal(progress[name], expected[name]) for name in expected)
    )


# A round of generation has NEW - 1 steps; the first step of every run is taken again.
@pytest.mark.parametrize(
    ("family", "parts", "temperature"),
    [
        *((family, (6, 5), 0.9) for family in DECODERS),
        ("mamba2", (2, 2), 0.0),
        ("hydra", (4, 3), 0.0),
        ("moe", (4, 3), 0.9),
    ],
)
def test_generation_in_two_parts_writes_what_one_run_writes(family, parts, temperature, tmp_path):
    configuration = requested(family, "generate", {"temperature": temperature}, seed=5)
    first, second = parts
    undivided, _ = ran(configuration, 1 + first + second, save_state=tmp_path / "whole")
    _, notes = ran(configuration, 1 + first, save_state=tmp_path / "part")
    position = 8 + (first - 1) % (NEW - 1) + 1
    assert notes == [f"saved the decode state after {position} tokens to {tmp_path / 'part'}"]
    continued, notes = ran(
        configuration, 1 + second, load_state=tmp_path / "part", save_state=tmp_path / "found"
    )
    assert notes[0] == f"continued after {position} tokens from {tmp_path / 'part'}"
    assert continued == undivided and len(continued["text"].split()) > 1
    assert same(tmp_path / "found", tmp_path / "whole")


@pytest.mark.parametrize(("family", "first"), [("hydra", 3), ("mamba2", NEW), ("mamba2", NEW + 2)])
def test_decoding_in_two_parts_ends_where_one_run_ends(family, first, tmp_path):
    configuration = requested(family, "decode")
    ran(configuration, 1 + first + 4, save_state=tmp_path / "whole")
    # The check calls the model after the prompt, and leaves the state of the round.
    ran(configuration, 1 + first, save_state=tmp_path / "part", check="last")
    ran(configuration, 5, load_state=tmp_path / "part", save_state=tmp_path / "found")
    assert same(tmp_path / "found", tmp_path / "whole")


def test_a_model_that_is_built_already_goes_back_to_the_file(tmp_path):
    context, configuration = RunnerContext(FakeWire(), CPU), requested("hydra", "generate")
    ran(configuration, 3, context, save_state=tmp_path / "part")
    ran(configuration, 4, context, save_state=tmp_path / "moved")
    assert not same(tmp_path / "part", tmp_path / "moved")
    ran(configuration, 4, context, load_state=tmp_path / "part", save_state=tmp_path / "again")
    assert same(tmp_path / "again", tmp_path / "moved")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"family": "moe"}, "was made with family = hydra, but this run has moe; use the"),
        ({"preset": "small"}, "was made with preset = tiny, but this run has small; use the"),
        ({"model": {"dim": 64}}, "but this run has {'dim': 64}; use the"),
        ({"seed": 1}, "was made with seed = 0, but this run has 1; use the"),
        (
            {"settings": {"batch": 3, "sequence": 8, "new_tokens": 5}},
            "was made with batch = 2, but this run has 3; use the",
        ),
        ({"workload": "decode"}, "with workload = generate, but this run has decode; use the"),
        (
            {"workload": "forward", "settings": {}},
            "workload 'forward' has no decode state to save or load",
        ),
        ({"toggles": {"precision": "bf16"}}, "it is from another model or precision"),
    ],
)
def test_a_state_of_something_else_is_refused_by_a_sentence(changes, sentence, tmp_path):
    path = tmp_path / "part"
    ran(requested("hydra", "generate"), 2, save_state=path)
    configuration = msgspec.structs.replace(requested("hydra", "generate"), **changes)
    start = protocol.Start(configuration=configuration, steps=2, load_state=str(path))
    with pytest.raises(Mistake) as refusal:
        Run(RunnerContext(FakeWire(), CPU), start).execute()
    assert sentence in str(refusal.value)


def test_a_file_that_is_no_state_is_refused_before_anything_is_built(tmp_path):
    (tmp_path / "text").write_text("no state")
    context = RunnerContext(FakeWire(), CPU)
    for path, sentence in [
        (tmp_path / "text", "is not a saved decode state, or is damaged"),
        (tmp_path / "none", "No such file"),
    ]:
        start = protocol.Start(
            configuration=requested("hydra", "generate"), steps=2, load_state=str(path)
        )
        with pytest.raises(Mistake, match=sentence):
            Run(context, start).execute()
    assert context.segments == 0


def test_a_runner_of_its_own_saves_a_state_and_goes_on_from_it(runner, tmp_path):
    texts, path = [], str(tmp_path / "state")
    for seed, steps, states in [
        (3, 3, {"save_state": path}),
        (4, 2, {}),  # other weights, so that nothing of the first is left
        (3, 3, {"load_state": path}),
        (4, 2, {}),
        (3, 5, {}),
    ]:
        runner.start(requested("hydra", "generate", seed=seed), steps=steps, **states)
        assert runner.finish().reason == "done"
        texts.append(runner.session.segments[-1].ledger["text"])
    assert texts[2] == texts[4] and texts[4].startswith(texts[0]) and texts[4] != texts[0]


@pytest.mark.parametrize("workload", ["decode", "generate"])
@pytest.mark.parametrize("family", DECODERS)
def test_evidence_does_not_restart_the_round_that_is_saved(family, workload, tmp_path):
    configuration = requested(family, workload, toggles={"attention": "sdpa"})  # it is called again
    _, notes = ran(configuration, 1 + 3, save_state=tmp_path / "state")
    assert notes == [f"saved the decode state after {8 + 3} tokens to {tmp_path / 'state'}"]
