"""Hugging Face models by configuration: random weights, and no downloads.

``hf:CONFIG[:OPTIONS]`` names a bundled configuration (a file in ``hf/``), a ``config.json`` or its
folder. OPTIONS are separated by commas: ``tiny`` scales the model down for tests, ``sequence=N`` is
the number of tokens of an input, and ``FIELD=VALUE`` replaces a field of the configuration. An
encoder and a decoder get so many tokens each. Without ``sequence=N`` an input has 1,024 tokens, or
fewer if the model has positions for fewer. No code of a configuration's folder runs.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import importlib.util
import inspect
import json
import os
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from models import ConfigurationError
from sessions.model import HF
from sessions.numbers import counted
from sessions.sizes import size_text
from workbench.runner.environment import host
from workbench.runner.failures import lacks_memory
from workbench.runner.instruments.memory import free_bytes

_FOLDER = Path(__file__).with_name("hf")
_OPTIONS = re.compile(r"(tiny|\w+=[^,/\\:]*)(,(tiny|\w+=[^,/\\:]*))*")
_MOST_BYTES = 1_000_000
_MOST_LETTERS = 300  # some error messages of transformers list all of its models
_SEQUENCE, _TINY_SEQUENCE = 1024, 32
_FEW_TOKENS = 8  # tokens of a first call, which shows if a model computes from tokens alone
_DECODED = "decoder_input_ids"  # the argument of a decoder's tokens, where an encoder has others
Inputs: TypeAlias = Tensor | dict[str, Tensor]
_OUT_OF_BOUNDS = re.compile(r"out of bounds for dimension \d+ with size (\d+)")
# Fields that say where a checkpoint came from, and in what precision it was saved.
_OF_CHECKPOINT = ("architectures", "auto_map", "dtype", "torch_dtype", "transformers_version")
# Sizes of a tiny model, by the names that configurations give them. A field that is missing, None
# or smaller stays as it is.
_TINY = {
    "chunk_size": 8,
    "head_dim": 16,
    "hidden_size": 64,
    "intermediate_size": 96,
    "moe_intermediate_size": 48,
    "n_embd": 64,
    "n_groups": 2,
    "n_head": 4,
    "n_layer": 2,
    "n_positions": 256,
    "num_attention_heads": 4,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "num_heads": 8,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "num_local_experts": 4,
    "query_pre_attn_scalar": 16,
    "sliding_window": 8,
    "state_size": 16,
    "vocab_size": 256,
}


@dataclass(frozen=True)
class Parts:
    """A model, its inputs for a batch and the loss, as a user's ``build()`` returns them."""

    module: nn.Module
    make_inputs: Callable[[int], Inputs]
    loss: Callable[[Any, Inputs], Tensor]
    sequence: int


def is_hf(source: str) -> bool:
    """Return True if a source is a Hugging Face configuration and no Python file."""
    return source.startswith(HF)


def bundled() -> list[str]:
    """Return the names of the bundled configurations."""
    return sorted(path.stem for path in _FOLDER.glob("*.json"))


def canonical(source: str) -> str:
    """Return the source with an absolute path; raises ``ConfigurationError``."""
    name, options = _split(source)
    if name in bundled():
        return source
    _file(name)  # raises if the file does not exist
    return f"{HF}{Path(name).expanduser().absolute()}{':' if options else ''}{options}"


def digest(source: str) -> str:
    """Return the SHA-256 of the configuration file; raises ``ConfigurationError``."""
    if importlib.util.find_spec("transformers") is None:
        raise ConfigurationError(
            f"own: {source} needs the package transformers, which is not installed on {host()}; "
            "install the extra hf: `uv run --extra hf workbench`"
        )
    return hashlib.sha256(_read(_file(_split(source)[0]))).hexdigest()


def load(source: str, *, initialise: bool) -> Parts:
    """Build the model on the CPU in FP32 with torch's current random state.

    Without ``initialise`` parameters hold no numbers. Raises ``ConfigurationError``.
    """
    fields, sequence = fields_of(source)
    transformers = _import()
    if (model_type := fields["model_type"]) not in transformers.CONFIG_MAPPING:
        raise ConfigurationError(
            f"own: {source}: transformers {transformers.__version__} has no model_type "
            f"{model_type!r}, and no code of a configuration's folder runs; choose another "
            "configuration, or build the model in a file, FILE.py:build"
        )
    with _explained(f"cannot build {source}"):
        kind = _architecture(source, transformers, fields)
        for name in _OF_CHECKPOINT:
            fields.pop(name, None)
        config = transformers.AutoConfig.for_model(**fields)
        for part in (config, config.get_text_config()):  # the logits alone, and no second output
            part.use_cache = part.output_attentions = part.output_hidden_states = False
            part.return_dict = True
        from transformers.initialization import no_init_weights

        vocabulary = getattr(config.get_text_config(), "vocab_size", None)
        if kind is None or kind.main_input_name != "input_ids" or vocabulary is None:
            name = fields["model_type"] if kind is None else kind.__name__
            raise ConfigurationError(
                f"own: {source}: {name} is no model of text tokens; choose a language model"
            )
        if vocabulary < 1:
            raise ConfigurationError(
                f"own: {source}: vocab_size = {vocabulary}; a vocabulary needs at least 1 token"
            )
        trial = None
        if initialise:
            with no_init_weights(), torch.random.fork_rng(devices=[]):
                _check_memory(source, functools.partial(kind._from_config, config))
                trial = kind._from_config(config, dtype=torch.float32).eval()
    if trial is not None:
        with (
            _explained(f"cannot run {source} on text tokens alone"),
            torch.random.fork_rng(devices=[]),
            torch.no_grad(),
        ):
            _try_tokens(source, trial, int(vocabulary), sequence)
        del trial
    with (
        _explained(f"cannot build {source}"),
        contextlib.nullcontext() if initialise else no_init_weights(),
    ):
        module = kind._from_config(config, dtype=torch.float32)
    has_decoder = _has_decoder(module)
    is_causal = has_decoder or "ForCausalLM" in kind.__name__ or "LMHead" in kind.__name__
    return Parts(
        module,
        functools.partial(_draw, has_decoder, int(vocabulary), sequence),
        functools.partial(_token_loss, int(vocabulary), is_causal),
        sequence,
    )


def sequence(source: str) -> int:
    """Return the number of tokens of an input."""
    return fields_of(source)[1]


def _has_decoder(module: nn.Module) -> bool:
    """Return True if a model encodes tokens and decodes others."""
    return _DECODED in inspect.signature(module.forward).parameters


def _draw(has_decoder: bool, vocabulary: int, length: int, batch: int) -> Inputs:
    """Return random tokens (batch, length), or those of an encoder and a decoder, by argument."""
    if not has_decoder:
        return torch.randint(vocabulary, (batch, length))
    return {name: torch.randint(vocabulary, (batch, length)) for name in ("input_ids", _DECODED)}


def _call(module: nn.Module, vocabulary: int, length: int, **options: Tensor) -> None:
    """Call a model with two random inputs of ``length`` tokens."""
    inputs = _draw(_has_decoder(module), vocabulary, length, 2)
    if isinstance(inputs, Tensor):
        module(inputs, **options)
    else:
        module(**inputs, **options)


@contextlib.contextmanager
def _explained(what: str) -> Iterator[None]:
    """Raise ``ConfigurationError`` for an error of transformers, which ``what`` introduces."""
    try:
        yield
    except Exception as error:
        if isinstance(error, ConfigurationError) or lacks_memory(error):
            raise
        text = str(error).partition("Exception raised from")[0]  # torch adds its C++ frames
        text = textwrap.shorten(text, _MOST_LETTERS, placeholder=" ...").rstrip(".")
        raise ConfigurationError(
            f"own: transformers {what}: {type(error).__name__}: {text}; correct the "
            "configuration, or replace one of its fields with :FIELD=VALUE"
        ) from None


def _check_memory(source: str, build: Callable[[], nn.Module]) -> None:
    """Raise ``ConfigurationError`` if the host has no memory for the weights of a model."""
    try:
        with torch.device("meta"):
            size = sum(parameter.numel() for parameter in build().parameters())
    except Exception:  # noqa: BLE001 - the build in memory gives the reason, or succeeds
        return
    free = free_bytes(torch.device("cpu"))
    if 4 * size > free:
        raise ConfigurationError(
            f"own: {source} has {counted(size, 'parameter')}, which need {size_text(4 * size)} in "
            f"FP32, but {host()} has {size_text(free)} of free memory; make the model smaller with "
            ":tiny or :FIELD=VALUE"
        )


def _try_tokens(source: str, module: nn.Module, vocabulary: int, sequence: int) -> None:
    """Call a model with a few tokens, or with as many as an input has if it refuses few.

    The calls may change the model. Raises its error, or ``ConfigurationError`` if it has positions
    for fewer tokens than an input has.
    """
    tables = {
        name: table
        for name, table in module.named_modules()
        if isinstance(table, nn.Embedding) and ("position" in name or name.endswith("wpe"))
    }
    called: set[str] = set()  # a model of images too has tables that tokens do not use
    hooks = [
        table.register_forward_pre_hook(lambda *_, name=name: called.add(name))
        for name, table in tables.items()
    ]
    try:
        _call(module, vocabulary, min(sequence, _FEW_TOKENS))
    except Exception as error:
        if sequence <= _FEW_TOKENS or lacks_memory(error):
            raise
        _call(module, vocabulary, sequence)
    finally:
        for hook in hooks:
            hook.remove()
        for name in called:
            table = tables[name]
            first = 0 if table.padding_idx is None else table.padding_idx + 1
            rows = table.num_embeddings - max(first, getattr(table, "offset", 0))
            _check_positions(source, name, rows, sequence)
    _try_last_positions(source, module, vocabulary, sequence)


def _try_last_positions(source: str, module: nn.Module, vocabulary: int, sequence: int) -> None:
    """Call a model with the last positions of an input, which it may look up in a buffer."""
    count = min(sequence, _FEW_TOKENS)
    if "position_ids" not in inspect.signature(module.forward).parameters:
        return
    positions = torch.arange(sequence - count, sequence).expand(2, count)
    try:
        _call(module, vocabulary, count, position_ids=positions)
    except IndexError as error:
        if limit := _OUT_OF_BOUNDS.search(str(error)):
            _check_positions(source, type(module).__name__, int(limit[1]), sequence)
    except Exception:  # noqa: BLE001 - a model may demand positions that begin at 0
        return


def _check_positions(source: str, name: str, rows: int, sequence: int) -> None:
    """Raise ``ConfigurationError`` if there are positions for fewer tokens than a sequence."""
    if rows < sequence:
        raise ConfigurationError(
            f"own: {source}: {name} has positions for {counted(rows, 'token')}, but an input has "
            f"{sequence}; add the option sequence={rows}, or less"
        )


def _token_loss(vocabulary: int, is_causal: bool, output: Any, inputs: Inputs) -> Tensor:
    """Return the loss of the next tokens, or else of the same tokens."""
    logits = _logits(output, vocabulary)
    tokens = inputs if isinstance(inputs, Tensor) else inputs[_DECODED]
    if is_causal:
        logits, tokens = logits[:, :-1], tokens[:, 1:]
    return nn.functional.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten())


def _logits(output: Any, vocabulary: int) -> Any:
    """Return the logits of each token; raises ``ConfigurationError``."""
    logits = getattr(output, "logits", None)
    if logits is None or logits.ndim != 3 or logits.shape[-1] < vocabulary:
        raise ConfigurationError(
            f"own: {type(output).__name__} has no logits of each token, so that there is no loss; "
            "choose the workload forward, or a language model in the field architectures"
        )
    return logits


def _architecture(source: str, transformers: Any, fields: Mapping[str, Any]) -> Any:
    """Return the model's class: the first one that is named, else a language model, else None."""
    named = fields.get("architectures") or ()
    if not isinstance(named, list | tuple):
        raise ConfigurationError(
            f"own: {source}: architectures = {named!r:.80} is no list; name classes of "
            'transformers, for example ["LlamaForCausalLM"]'
        )
    for name in named:
        kind = getattr(transformers, str(name), None)
        if isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel):
            return kind
    kinds = transformers.AutoModelForCausalLM._model_mapping
    own = type(transformers.AutoConfig.for_model(fields["model_type"]))
    kind = kinds.get(own, None)
    if kind is None:  # an encoder and a decoder
        kind = transformers.AutoModelForSeq2SeqLM._model_mapping.get(own, None)
    return kind[0] if isinstance(kind, tuple) else kind


def fields_of(source: str) -> tuple[dict[str, Any], int]:
    """Return the fields of the configuration and the sequence length after all options."""
    name, options = _split(source)
    path = _file(name)
    try:
        fields = json.loads(_read(path))
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(
            f"own: {path} is not JSON: {error}; name the config.json of a model, or its folder"
        ) from None
    if not isinstance(fields, dict) or not isinstance(fields.get("model_type"), str):
        raise ConfigurationError(
            f"own: {path} has no model_type, which transformers needs; it must be a JSON object "
            'with, for example, "model_type": "llama"'
        )
    chosen = [option for option in options.split(",") if option]
    if "tiny" in chosen:
        fields = _scaled_down(fields)
    length = _TINY_SEQUENCE if "tiny" in chosen else 0
    for option in chosen:
        key, equals, text = option.partition("=")
        if key == "sequence":
            if not text.isdecimal() or not 2 <= int(text) <= 1 << 20:
                raise ConfigurationError(f"own: {source}: sequence={text} is not 2 to 1048576")
            length = int(text)
        elif equals and key not in fields:
            raise ConfigurationError(
                f"own: {source}: {path.name} has no field {key!r}; it has {', '.join(fields)}"
            )
        elif equals:
            try:
                fields[key] = json.loads(text)
            except ValueError:
                fields[key] = text
    return fields, length or _longest(source, fields)


def _longest(source: str, fields: Mapping[str, Any]) -> int:
    """Return the longest usual sequence that a model has positions for."""
    positions = fields.get("max_position_embeddings") or fields.get("n_positions")
    positions = positions or _default_positions(fields) or _SEQUENCE
    if type(positions) is not int or positions < 2:
        raise ConfigurationError(
            f"own: {source}: a sequence must have at least 2 positions, but "
            f"positions = {positions!r}; add the option sequence=N"
        )
    # A multiple of 8, as tensor cores like it: RoBERTa has 514 positions for 512 tokens.
    return min(_SEQUENCE, positions // 8 * 8 or positions)


def _default_positions(fields: Mapping[str, Any]) -> int | None:
    """Return the positions that the class of a configuration sets; None if it sets none."""
    if importlib.util.find_spec("transformers") is None:
        return None
    named = {name: value for name, value in fields.items() if name not in _OF_CHECKPOINT}
    try:
        config = _import().AutoConfig.for_model(**named).get_text_config()
    except Exception:  # noqa: BLE001 - the build of the model fails, too, and names the reason
        return None
    sizes = (getattr(config, name, None) for name in ("max_position_embeddings", "max_seq_len"))
    return next((size for size in sizes if isinstance(size, int) and size > 1), None)


def _scaled_down(fields: Mapping[str, Any]) -> dict[str, Any]:
    scaled = dict(fields)
    for name, size in _TINY.items():
        value = scaled.get(name)
        if isinstance(value, int) and not isinstance(value, bool):
            scaled[name] = min(value, size)
    if scaled.get("sliding_window"):  # two layers: the last one sees all keys
        scaled["layer_types"] = ["sliding_attention", "full_attention"]
    return scaled


def _split(source: str) -> tuple[str, str]:
    """Return the configuration's name or path, and its options."""
    text = source.removeprefix(HF).strip()
    name, colon, options = text.rpartition(":")
    if colon and _OPTIONS.fullmatch(options):
        return name, options
    return text, ""


def _file(name: str) -> Path:
    path = _FOLDER / f"{name}.json"
    if name in bundled():
        return path
    path = Path(name).expanduser()
    path = path / "config.json" if path.is_dir() else path
    if not name or not path.is_file():
        raise ConfigurationError(
            f"own: hf:{name} is neither a configuration file or folder on {host()} nor one of the "
            f"bundled configurations: {', '.join(bundled())}"
        )
    return path.absolute()


def _read(path: Path) -> bytes:
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise ConfigurationError(f"own: {path} is larger than {_MOST_BYTES:,} bytes")
        return path.read_bytes()
    except OSError as error:
        raise ConfigurationError(
            f"own: cannot read {str(path)!r} on {host()}: {error.strerror}"
        ) from None


def _import() -> Any:
    """Import transformers offline, without its warnings on the runner's standard error."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    transformers: Any = importlib.import_module("transformers")
    transformers.logging.set_verbosity_error()
    return transformers
