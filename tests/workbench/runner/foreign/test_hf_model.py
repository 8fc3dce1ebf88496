"""Models of Hugging Face by configuration: what is accepted, and what is wrong in one sentence."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from runner_driver import Driver

from models import ConfigurationError
from sessions import numerics
from sessions.model import Configuration
from workbench import protocol
from workbench.runner.config import resolve
from workbench.runner.user_models import hf_model, user_model

CPU = torch.device("cpu")
needs_transformers = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None,
    reason="transformers is not installed (the extra 'hf')",
)


def named(source: str, **changes) -> Configuration:
    changes = {"workload": "train", "settings": {"batch": 2}, **changes}
    return Configuration(family="own", preset="file", model={"source": source}, **changes)


@pytest.fixture
def installed(monkeypatch):
    """Let the source be resolved without the package."""
    monkeypatch.setattr(hf_model.importlib.util, "find_spec", lambda name: name)


def test_without_transformers_one_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setattr(hf_model.importlib.util, "find_spec", lambda name: None)
    there = resolve.availability(named("hf:gpt2:tiny"), CPU)
    (problem,) = there.problems
    assert "needs the package transformers" in problem and "uv run --extra hf" in problem


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("hf:", "nor one of the bundled configurations: bert-base, gemma-3-1b, gpt2"),
        ("hf:gpt3", "hf:gpt3 is neither a configuration file or folder"),
        ("hf:gpt2:tiny,n_embed=3", "has no field 'n_embed'; it has model_type, n_embd"),
        ("hf:gpt2:sequence=1", "sequence=1 is not 2 to 1048576"),
    ],
)
def test_a_wrong_source_is_a_sentence(installed, source, words):
    with pytest.raises(ConfigurationError, match=r"^own: ") as error:
        user_model.tokens_of_sample(user_model.FAMILY.configure("file", {"source": source}))
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [("{", "is not JSON"), ("[]", "has no model_type"), ('{"model_type": 3}', "no model_type"),
     ("[" * 100_000, "is not JSON")],
)  # fmt: skip
def test_a_file_that_is_no_configuration_is_a_sentence(installed, tmp_path, text, words):
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=words):
        hf_model.sequence(f"hf:{path}")
    (problem,) = resolve.availability(named(f"hf:{path}"), CPU).problems
    assert words in problem and ("name the config" in problem or "for example" in problem)


@pytest.mark.parametrize("positions", ["many", [1], -1, 1, 2.5])
def test_positions_that_no_sequence_has_are_a_sentence(tmp_path, positions):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "gpt2", "n_positions": positions}))
    with pytest.raises(ConfigurationError, match="add the option sequence=N"):
        hf_model.sequence(f"hf:{path}")
    assert hf_model.sequence(f"hf:{path}:sequence=8") == 8
    assert hf_model.sequence(f"hf:{path}:n_positions=16") == 16


@pytest.mark.parametrize(
    ("default", "tokens"),
    [({"max_position_embeddings": 514}, 512), ({"max_seq_len": 64}, 64), ({}, 1024),
     ({"max_position_embeddings": -1}, 1024)],
)  # fmt: skip
def test_positions_that_a_file_leaves_to_its_class_are_those_of_the_class(
    installed, monkeypatch, tmp_path, default, tokens
):
    path = tmp_path / "config.json"
    path.write_text('{"model_type": "own", "architectures": ["Own"], "n_embd": 8}')

    def for_model(model_type: str, n_embd: int) -> SimpleNamespace:
        return SimpleNamespace(get_text_config=lambda: SimpleNamespace(**default))

    package = SimpleNamespace(AutoConfig=SimpleNamespace(for_model=for_model))
    monkeypatch.setattr(hf_model, "_import", lambda: package)
    assert hf_model.sequence(f"hf:{path}") == tokens


@needs_transformers
@pytest.mark.parametrize(("kind", "tokens"), [("bert", 512), ("ctrl", 256), ("bloom", 1024)])
def test_positions_of_a_class_of_transformers_limit_the_tokens(tmp_path, kind, tokens):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": kind}))
    assert hf_model.sequence(f"hf:{path}") == tokens


def test_a_folder_and_its_file_are_the_same_model_and_a_change_is_noticed(installed, tmp_path):
    path = tmp_path / "config.json"
    path.write_text('{"model_type": "gpt2", "n_embd": 8}')
    configure = user_model.FAMILY.configure
    by_folder, by_file = (
        configure("file", {"source": f"hf:{source}:sequence=8"}) for source in (tmp_path, path)
    )
    assert by_folder.sha256 == by_file.sha256
    assert (by_folder.source, by_file.source) == tuple(
        f"hf:{source}:sequence=8" for source in (tmp_path, path)
    )
    assert user_model.tokens_of_sample(by_file) == 8
    path.write_text('{"model_type": "gpt2", "n_embd": 16}')
    with pytest.raises(ConfigurationError, match="has changed: its SHA-256"):
        configure("file", {"source": by_file.source, "sha256": by_file.sha256})


def test_bundled_configurations_are_small_files_that_tiny_scales_down():
    for name in hf_model.bundled():
        full, _ = hf_model.fields_of(f"hf:{name}")
        tiny, sequence = hf_model.fields_of(f"hf:{name}:tiny")
        assert full["model_type"] == tiny["model_type"] and sequence == 32
        assert tiny["vocab_size"] == 256 < full["vocab_size"]
        assert len(json.dumps(full)) < 1000


@needs_transformers
def test_a_seed_gives_weights_and_a_structure_alone_draws_none():
    first, second, other = (
        dict(user_model.FAMILY.materialise(config, seed=seed).named_parameters())
        for config in [user_model.FAMILY.configure("file", {"source": "hf:qwen3-0.6b:tiny"})]
        for seed in (1, 1, 2)
    )
    assert all(torch.equal(value, second[name]) for name, value in first.items())
    assert any(not torch.equal(value, other[name]) for name, value in first.items())
    assert all(bool(value.isfinite().all()) for value in first.values())


@needs_transformers
def test_a_field_that_transformers_refuses_is_a_sentence():
    config = user_model.FAMILY.configure("file", {"source": "hf:gpt2:tiny,n_head=5"})
    with pytest.raises(ConfigurationError, match="transformers cannot build hf:gpt2:tiny,n_head=5"):
        user_model.load(config, 0)


SMALL = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
         "num_attention_heads": 2, "vocab_size": 16}  # fmt: skip


def write_config(folder: Path, **fields: object) -> str:
    (folder / "config.json").write_text(json.dumps({**SMALL, **fields}))
    return f"hf:{folder}:sequence=8"


@needs_transformers
@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"model_type": "vit"}, "vit is no model of text tokens"),
        (
            {"model_type": "vit", "architectures": ["ViTForImageClassification"]},
            "ViTForImageClassification is no model of text tokens",
        ),
        ({"model_type": "nonsense"}, "has no model_type 'nonsense', and no code of"),
        ({"model_type": "llama", "num_attention_heads": 3}, "replace one of its fields"),
        ({"model_type": "llama", "architectures": "Llama"}, "architectures = 'Llama' is no list"),
        ({"model_type": "llama", "vocab_size": 0}, "a vocabulary needs at least 1 token"),
        ({"model_type": "llama", "hidden_size": 1 << 20}, "of free memory; make the model smaller"),
        (
            {"model_type": "whisper", "architectures": ["WhisperForConditionalGeneration"]},
            "WhisperForConditionalGeneration is no model of text tokens",
        ),
        (
            {"model_type": "gpt2", "n_positions": 6, "n_layer": 1},
            "wpe has positions for 6 tokens, but an input has 8; add the option sequence=6",
        ),
    ],
)
def test_a_configuration_without_a_language_model_is_a_short_sentence(tmp_path, fields, words):
    config = user_model.FAMILY.configure("file", {"source": write_config(tmp_path, **fields)})
    with pytest.raises(ConfigurationError, match=words) as error:
        user_model.load(config, 0)
    assert len(str(error.value)) < 500


@needs_transformers
@pytest.mark.parametrize(
    "name", ["BertModel", "BertForSequenceClassification", "BertForTokenClassification"]
)
def test_a_model_without_logits_of_tokens_runs_forward_and_has_no_loss(tmp_path, name):
    source = write_config(tmp_path, model_type="bert", architectures=[name])
    parts = user_model.load(user_model.FAMILY.configure("file", {"source": source}), 0)
    tokens = parts.make_inputs(2)
    output = parts.module(tokens)
    with pytest.raises(ConfigurationError, match="has no logits of each token"):
        parts.loss(output, tokens)


@needs_transformers
def test_logits_are_the_only_output_whatever_a_configuration_requests(tmp_path):
    requested = {"output_hidden_states": True, "output_attentions": True, "return_dict": False}
    source = write_config(tmp_path, model_type="llama", **requested)
    parts = user_model.load(user_model.FAMILY.configure("file", {"source": source}), 0)
    assert [*parts.module(parts.make_inputs(1))] == ["logits"]


@needs_transformers
def test_only_positions_of_tokens_limit_a_sequence(tmp_path):
    """The positions of an image are not those of an input of text."""
    text = {**SMALL, "model_type": "llama", "vocab_size": 64}
    vision = {**SMALL, "model_type": "clip_vision_model", "image_size": 4, "patch_size": 2}
    fields = {"architectures": ["LlavaForConditionalGeneration"], "text_config": text}
    source = write_config(tmp_path, model_type="llava", vision_config=vision, **fields)
    parts = user_model.load(user_model.FAMILY.configure("file", {"source": source}), 0)
    tokens = parts.make_inputs(1)
    assert parts.loss(parts.module(tokens), tokens).isfinite()


@needs_transformers
@pytest.mark.parametrize(
    "fields",
    [
        {"model_type": "t5", "d_model": 16, "d_ff": 16, "d_kv": 8, "num_layers": 1, "num_heads": 2},
        {
            "architectures": ["BartForConditionalGeneration"],
            "model_type": "bart",
            "d_model": 16,
            "encoder_layers": 1,
            "decoder_layers": 1,
            "encoder_attention_heads": 2,
            "decoder_attention_heads": 2,
        },
    ],
)
def test_an_encoder_and_a_decoder_run_train_and_are_right(runner: Driver, tmp_path, fields):
    source = write_config(tmp_path, **fields)
    for workload in ("forward", "train"):
        runner.start(named(source, workload=workload), steps=3, check="last")
        assert runner.finish().reason == "done"
        ledger = runner.session.segments[-1].ledger
        assert ledger[numerics.RIGHT] is True, ledger


@needs_transformers
@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("gptj", {"n_positions": 16, "n_embd": 32, "n_head": 2, "rotary_dim": 8}),
        ("codegen", {"n_positions": 16, "n_embd": 64, "n_head": 4, "rotary_dim": 8}),
        ("ctrl", {"n_positions": 16, "n_embd": 32, "n_head": 2, "dff": 32}),
    ],
)
def test_positions_in_a_buffer_limit_a_sequence(tmp_path, kind, fields):
    fields |= {"n_layer": 1, "vocab_size": 64}
    source = write_config(tmp_path, model_type=kind, **fields).removesuffix("8")
    family = user_model.FAMILY
    user_model.load(family.configure("file", {"source": f"{source}16"}), 0)
    with pytest.raises(ConfigurationError, match="positions for 16 tokens, but an input has 17"):
        user_model.load(family.configure("file", {"source": f"{source}17"}), 0)


@needs_transformers
def test_the_trial_of_a_model_changes_neither_its_state_nor_its_random_numbers(
    tmp_path, monkeypatch
):
    """Rotations of long sequences are computed again when such a sequence is called."""
    scaling = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    fields = {**SMALL, "vocab_size": 64, "attention_dropout": 0.5, "max_position_embeddings": 4}
    source = write_config(tmp_path, model_type="llama", rope_parameters=scaling, **fields)
    config = user_model.FAMILY.configure("file", {"source": source.replace("=8", "=32")})
    states = []
    for trial in (hf_model._try_tokens, lambda *_: None):
        monkeypatch.setattr(hf_model, "_try_tokens", trial)
        module = user_model.load(config, 0).module
        rotation = module.model.rotary_emb
        states.append((rotation.inv_freq, rotation.max_seq_len_cached, *module.parameters()))
        assert all(part.training for part in module.modules())
    for tried, untried in zip(*states, strict=True):
        assert torch.equal(torch.as_tensor(tried), torch.as_tensor(untried))


@needs_transformers
def test_a_model_whose_first_positions_are_padding_gets_as_many_tokens_as_it_has_others(tmp_path):
    fields = {"architectures": ["RobertaForMaskedLM"], "max_position_embeddings": 26}
    source = write_config(tmp_path, model_type="roberta", **fields).removesuffix(":sequence=8")
    parts = user_model.load(user_model.FAMILY.configure("file", {"source": source}), 0)
    tokens = parts.make_inputs(1).clamp(min=2)  # 1 is padding
    assert tokens.shape == (1, 24)
    assert parts.loss(parts.module(tokens), tokens).isfinite()


@needs_transformers
def test_a_runner_trains_it_with_toggles_checks_it_and_describes_tokens(runner: Driver):
    toggles = {"patch_rms_norm": "on", "patch_swiglu": "on", "precision": "amp_bf16"}
    begin = len(runner.messages)
    runner.start(named("hf:llama-3.1-8b:tiny", toggles=toggles), steps=3, check="last")
    assert runner.finish().reason == "done"
    assert not [m for m in runner.messages[begin:] if isinstance(m, protocol.Failure)]
    segment = runner.session.segments[-1]
    assert segment.ledger["tokens_per_step"] == 64
    assert segment.ledger[numerics.RIGHT] is True, segment.ledger
    status = {evidence.toggle: evidence.status for evidence in segment.evidence}
    assert all(status[name] == "effective" for name in toggles)
    assert segment.configuration.model["source"] == "hf:llama-3.1-8b:tiny"


def test_a_sequence_as_a_setting_is_refused_with_the_option_that_sets_it():
    config = user_model.OwnConfig(source="hf:gpt2:tiny")
    with pytest.raises(ConfigurationError, match=r"option of hf:CONFIG \(:sequence=64\)"):
        user_model.FAMILY.check_memory(config, sequence=64)
