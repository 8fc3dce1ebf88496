"""Decoding and generation in rounds: what is written, what is timed, and what is read back."""

from __future__ import annotations

import threading
import time

import pytest
import torch

from models import FAMILIES, sample
from sessions.model import Configuration
from workbench import protocol
from workbench.client.recorder import Recorder
from workbench.runner.building.variant_cache import VariantCache
from workbench.runner.config.resolve import resolve
from workbench.runner.context import RunnerContext
from workbench.runner.data import make_batches
from workbench.runner.decoding.generated_text import Spelling
from workbench.runner.decoding.rounds import Rounds
from workbench.runner.experiments import run
from workbench.runner.experiments.run import Run, RunEnded
from workbench.runner.instruments import timing
from workbench.runner.instruments.phases import PhaseTracker
from workbench.runner.numerics import comparison
from workbench.runner.workloads import Bench, all_workloads

CPU = torch.device("cpu")
DECODERS = [name for name, family in FAMILIES.items() if "generate" in family.workloads]
PROMPT, NEW = 8, 5


def requested(family, workload, settings=None, **changes):
    sizes = {"batch": 2, "sequence": PROMPT, "new_tokens": NEW}
    return Configuration(
        family=family,
        preset="tiny",
        workload=workload,
        settings=sizes | (settings or {}),
        **changes,
    )


def built(configuration):
    """Return an arm that is ready for its first step, and its situation."""
    situation = resolve(configuration, CPU)
    arm = VariantCache().get(situation, PhaseTracker(lambda phase: None))
    arm.restart()
    return arm, situation


def stepped(arm, steps):
    """Return the tokens that so many steps give, (steps, B)."""
    tokens = []
    for _ in range(steps):
        arm.ready()
        tokens.append(arm.step()[:, 0].clone())
    return torch.stack(tokens)


def test_every_family_that_decodes_generates():
    assert set(DECODERS) == {n for n, family in FAMILIES.items() if "decode" in family.workloads}
    assert len(DECODERS) == 4


@pytest.mark.parametrize("family", DECODERS)
def test_decoding_that_begins_anew_gives_the_same_tokens_again(family):
    arm, situation = built(requested(family, "decode"))
    tokens = stepped(arm, 3 * NEW)
    assert torch.equal(tokens[:NEW], tokens[NEW : 2 * NEW])
    assert torch.equal(tokens[:NEW], tokens[2 * NEW :])
    assert len(tokens[:NEW].unique()) > 1
    stepped(arm, 2)  # in the middle of a round the numbers are checked after the prompt
    result = comparison.check(arm, situation)
    assert result.ok and result.relative_error < 1e-5, result.text
    assert torch.equal(stepped(arm, NEW), tokens[2 : NEW + 2]), "the round goes on"
    arm.restart()
    assert torch.equal(stepped(arm, NEW), tokens[:NEW])


@pytest.mark.parametrize("workload", ["prefill", "decode", "generate"])
@pytest.mark.parametrize("family", DECODERS)
def test_a_prompt_taken_in_by_pieces_gives_the_same_tokens(family, workload):
    outputs, lengths = [], []
    for chunk in (0, 3):
        configuration = requested(family, workload, {"chunk": chunk})
        if workload == "prefill":
            del configuration.settings["new_tokens"]
        arm = VariantCache().get(resolve(configuration, CPU), PhaseTracker(lambda phase: None))
        block = arm.model.blocks[0]
        block.register_forward_pre_hook(lambda module, inputs: lengths.append(inputs[0].shape[1]))
        arm.restart()
        outputs.append(stepped(arm, 2))
    assert torch.equal(*outputs)
    if workload == "prefill":
        assert lengths == [8, 8] + [3, 3, 2] * 2


@torch.no_grad()
@pytest.mark.parametrize("family_name", DECODERS)
def test_generated_tokens_are_those_of_whole_passes_over_each_prompt(family_name):
    family, workload = FAMILIES[family_name], all_workloads()["generate"]
    config = family.presets["tiny"]
    model = family.materialise(config, seed=1).eval()
    sizes = {"batch": 2, "sequence": PROMPT, "seed": 3, "device": CPU, "dtype": torch.float32}
    batches = make_batches("synthetic", family=family, config=config, **sizes)
    way = {"temperature": 1.7, "top_p": 0.8}
    bench = Bench(
        model, batches, {"new_tokens": NEW, "chunk": 3, **way}, None, seed=5, vocabulary=200
    )
    compute = workload.compute(bench)
    step, rounds = workload.step(bench, compute), workload.rounds(bench, compute)
    written = workload.written_tokens(bench)
    rounds.restart()
    texts = []
    for number in range(3):
        for position in range(NEW - 1):
            assert rounds.ready() is (number > 0 and position == 0)
            step()
        prefix_BS = batches.inputs[0].clone()
        for uniform_B1 in bench.decoder.uniform_NB1:
            logits_BV = model(prefix_BS)[:, -1, :200]
            token_B = sample(logits_BV, **way, uniform_B1=uniform_B1)
            prefix_BS = torch.cat([prefix_BS, token_B[:, None]], 1)
        texts.append(written[number % 2].clone())
        assert torch.equal(texts[-1], prefix_BS[0, PROMPT:])
        assert torch.equal(bench.decoder.token_B1, prefix_BS[:, -1:])
        assert torch.equal(bench.decoder.done, torch.tensor(NEW - 1))
    assert torch.equal(written[1], texts[1]), "the text before the present one is kept"
    assert not torch.equal(texts[0], texts[1])
    uniform_NB1 = bench.decoder.uniform_NB1.clone()
    rounds.restart()
    assert torch.equal(bench.decoder.uniform_NB1, uniform_NB1)


def test_a_seed_decides_the_text_and_a_temperature_of_0_needs_none():
    def text(seed, temperature):
        arm, _ = built(requested("hydra", "generate", {"temperature": temperature}, seed=seed))
        stepped(arm, NEW - 1)
        return arm.written_tokens[0].tolist()

    assert text(1, 1.0) == text(1, 1.0) != text(2, 1.0)
    assert text(1, 0.0) == text(1, 0)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"temperature": -1}, "setting temperature = -1 is not a number from 0 to 100"),
        ({"temperature": float("nan")}, "setting temperature = nan is not a number from 0 to 100"),
        ({"temperature": "warm"}, "setting temperature = 'warm' is not a number from 0 to 100"),
        ({"top_p": 0}, "setting top_p = 0 is not a number from 0.001 to 1"),
        ({"top_p": True}, "setting top_p = True is not a number from 0.001 to 1"),
        ({"new_tokens": 1}, "setting new_tokens = 1 is outside of 2 to"),
        ({"new_tokens": 600}, "hydra: a sequence of 608 is longer than max_sequence"),
    ],
)
def test_settings_that_cannot_be_are_refused_by_a_sentence(settings, sentence):
    with pytest.raises(ValueError) as refusal:
        resolve(requested("hydra", "generate", settings), CPU)
    assert str(refusal.value).startswith(sentence)


# Rounds


def test_rounds_begin_by_themselves_and_tell_what_that_took():
    begun = []
    rounds = Rounds(3, lambda *arguments: (begun.append(arguments), time.sleep(0.01)), CPU)
    rounds.restart()
    assert [rounds.ready() for _ in range(7)] == [False] * 3 + [True, False, False, True]
    assert begun == [(0, False), (1, True), (2, True)]
    assert (rounds.number, rounds.done) == (2, 1)
    spent = rounds.spent_ms()
    assert len(spent) == 3 and min(spent) >= 10 and rounds.spent_ms() == []
    rounds.ready()
    rounds.restart()
    assert begun[-1] == (2, False) and rounds.done == 0
    assert len(rounds.spent_ms()) == 1, "what took its time before was forgotten"


# The runner, in this process


class FakeWire:
    def __init__(self):
        self.sent, self.waiting, self.cancelled = [], False, threading.Event()

    def send(self, message):
        self.sent.append(message)

    def seconds(self, now_ns=0):
        return 1.0 + (now_ns or time.perf_counter_ns()) * 1e-9

    def pending(self):
        return None


def ran(configuration, steps):
    """Return the messages of a run of so many steps."""
    context = RunnerContext(FakeWire(), CPU)
    with pytest.raises(RunEnded, match="done"):
        Run(context, protocol.Start(configuration=configuration, steps=steps)).execute()
    return context.wire.sent


def recorded(messages):
    recorder = Recorder()
    for message in messages:
        recorder.record(message)
    return recorder.session.segments[-1]


@pytest.fixture
def text_file(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("wie schön — the quick brown fox jumps over the lazy dog\n" * 8)
    return path


@pytest.mark.parametrize("workload", ["generate", "decode"])
def test_taking_in_a_prompt_is_no_part_of_any_step(workload, monkeypatch):
    now_ns = 0  # a clock on which only the beginnings of rounds take long
    measure = Rounds._measure

    def tick() -> int:
        nonlocal now_ns
        now_ns += 1000
        return now_ns

    def slow(self, following):
        nonlocal now_ns
        now_ns += 10**12
        measure(self, following)

    monkeypatch.setattr(Rounds, "_measure", slow)
    monkeypatch.setattr(timing, "now_ns", tick)
    messages = ran(requested("hydra", workload), 14)
    walls = [w for m in messages if isinstance(m, protocol.Steps) for w in m.columns["wall_ms"]]
    assert len(walls) == 14 and now_ns > 4 * 10**12
    assert 0 < max(walls) < 1


def test_the_text_arrives_piece_by_piece_and_stays_in_the_ledger(text_file, monkeypatch):
    monkeypatch.setattr("workbench.runner.decoding.generated_text.PERIOD_NS", 0)
    monkeypatch.setattr(run, "FLUSH_NS", 0)
    configuration = requested("moe", "generate", {"new_tokens": 9}, data=str(text_file))
    messages = ran(configuration, 20)
    pieces = [message for message in messages if isinstance(message, protocol.Generated)]
    assert len(pieces) >= 6
    texts: dict[int, str] = {}
    for piece in pieces:
        assert (piece.start == 0) == (piece.sequence not in texts)
        assert (piece.prompt == "") == (piece.start > 0)
        texts[piece.sequence] = texts.get(piece.sequence, "") + piece.text
    # The first step is taken again in the first round; then 8, 8 and 3 more.
    assert list(texts) == [0, 1, 2]
    segment = recorded(messages)
    assert segment.ledger["text"] == texts[2]
    assert segment.ledger["prompt"] == next(p.prompt for p in pieces if p.sequence == 2)
    assert segment.ledger["prompt"] in text_file.read_text()
    assert segment.ledger["prefills"] == 3 and segment.ledger["prefill_ms"] > 0

    arm, _ = built(configuration)
    for number in range(3):
        count = 8 if number < 2 else 3
        stepped(arm, count)
        tokens = arm.written_tokens[number % 2, : count + 1].tolist()
        assert Spelling("a file").text(tokens) == texts[number]


def test_what_was_not_read_in_time_is_left_out_by_whole_texts(monkeypatch):
    monkeypatch.setattr(
        "workbench.runner.decoding.generated_text.PERIOD_NS", 10**15
    )  # after the first, never again
    messages = ran(requested("hydra", "generate"), 41)
    pieces = [message for message in messages if isinstance(message, protocol.Generated)]
    assert [(piece.sequence, piece.start) for piece in pieces] == [(0, 0), (9, 0)]
    assert len(pieces[-1].text.split()) == NEW


def test_a_workload_that_writes_nothing_sends_no_text():
    messages = ran(requested("hydra", "decode"), 3)
    assert not [message for message in messages if isinstance(message, protocol.Generated)]
    assert "prefills" not in recorded(messages).ledger


def test_bytes_are_spelt_as_text_also_where_a_character_comes_in_pieces():
    spelling, data = Spelling("a file"), "ä€".encode()
    parts = [spelling.text([byte]) for byte in data]
    assert parts == ["", "ä", "", "", "€"]
    assert spelling.text([0xE2, 300, 65]) == "�⟨300⟩A"
    assert spelling.text([0xE2]) == ""
    spelling.begin()
    assert spelling.text([66]) == "B"
    assert Spelling("synthetic").text([7, 300]) == "7 300 "
