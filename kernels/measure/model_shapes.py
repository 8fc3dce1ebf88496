"""Shapes of public models as data, and the cases of each operator that follow from them.

Sizes are those of the models' published configurations. DeepSeek's latent attention counts as plain
attention with its value dimension. Models that share a shape share its case. Tokens: 1, 16 and 256
sequences that decode one token each with a cache for 4,096 keys, 96 of them unused; 2K, 8K and 16K
of sequences of up to 4,096; one sequence of 64K. Encoders have batches of short sequences instead.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from kernels.core.operator import Case, Mistake

CACHED, UNUSED = 4096, 96  # keys that a decoding sequence's cache can hold, and unused ones
DECODING = {"1": (1, 1), "16": (16, 1), "256": (256, 1)}  # sequences and length by title
LONG = {"2K": (1, 2048), "8K": (2, 4096), "16K": (4, 4096), "64K": (1, 65536)}
_NAMED = 2  # models that the name of a case lists


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """Sizes of one model; 0 or None for parts that it does not have.

    ``mlp``: width of the gated MLP, or of an expert's; ``gelu``: it is gated by GELU. ``window``:
    keys that a layer with a window sees. ``ssm_heads`` of 64 with ``state`` numbers each, in
    ``groups``. ``encodes``: no mask, and batches of short sequences by title.
    """

    hidden: int
    mlp: int = 0
    gelu: bool = False
    gated: bool = True
    heads: int = 0
    kv_heads: int = 0
    head_dim: int = 128
    rotary: bool = True
    qk_norm: bool = False
    window: int | None = None
    vocabulary: int = 0
    experts: int = 0
    chosen: int = 0
    rms: bool = True
    ssm_heads: int = 0
    state: int = 128
    groups: int = 1
    encodes: tuple[tuple[str, tuple[int, int]], ...] = ()


_BERT = (("64x128", (64, 128)), ("256x128", (256, 128)))
_VIT = (("64x197", (64, 197)), ("256x197", (256, 197)))

MODELS: dict[str, ModelShape] = {
    "Llama 3.1 8B": ModelShape(hidden=4096, mlp=14336, heads=32, kv_heads=8, vocabulary=128256),
    "Llama 3.1 70B": ModelShape(hidden=8192, mlp=28672, heads=64, kv_heads=8, vocabulary=128256),
    "Qwen3 0.6B": ModelShape(
        hidden=1024, mlp=3072, heads=16, kv_heads=8, qk_norm=True, vocabulary=151936,
    ),
    "Qwen3 32B": ModelShape(
        hidden=5120, mlp=25600, heads=64, kv_heads=8, qk_norm=True, vocabulary=151936,
    ),
    "Gemma 3 4B": ModelShape(
        hidden=2560, mlp=10240, gelu=True, heads=8, kv_heads=4, head_dim=256, qk_norm=True,
        window=1024, vocabulary=262144,
    ),
    "Mistral 7B v0.1": ModelShape(
        hidden=4096, mlp=14336, heads=32, kv_heads=8, window=4096, vocabulary=32000,
    ),
    "Phi-4": ModelShape(hidden=5120, mlp=17920, heads=40, kv_heads=10, vocabulary=100352),
    "Mixtral 8x7B": ModelShape(
        hidden=4096, mlp=14336, heads=32, kv_heads=8, vocabulary=32000, experts=8, chosen=2,
    ),
    "Qwen3 30B-A3B": ModelShape(
        hidden=2048, mlp=768, heads=32, kv_heads=4, qk_norm=True, vocabulary=151936, experts=128,
        chosen=8,
    ),
    "OLMoE 1B-7B": ModelShape(
        hidden=2048, mlp=1024, heads=16, kv_heads=16, qk_norm=True, vocabulary=50304, experts=64,
        chosen=8,
    ),
    "DeepSeek-V2-Lite": ModelShape(
        hidden=2048, mlp=1408, heads=16, kv_heads=16, vocabulary=102400, experts=64, chosen=6,
    ),
    "router of 256 experts": ModelShape(hidden=4096, experts=256, chosen=8, rms=False),
    "Mamba-2 130M": ModelShape(hidden=768, vocabulary=50288, ssm_heads=24),
    "Mamba-2 2.7B": ModelShape(hidden=2560, vocabulary=50288, ssm_heads=80),
    "Codestral Mamba 7B": ModelShape(hidden=4096, vocabulary=32768, ssm_heads=128, groups=8),
    "Nemotron-H 8B": ModelShape(
        hidden=4096, mlp=21504, gated=False, heads=32, kv_heads=8, rotary=False, vocabulary=131072,
        ssm_heads=128, groups=8,
    ),
    "GPT-2": ModelShape(
        hidden=768, mlp=3072, gated=False, heads=12, kv_heads=12, head_dim=64, rotary=False,
        vocabulary=50257, rms=False,
    ),
    "BERT base": ModelShape(
        hidden=768, mlp=3072, gated=False, heads=12, kv_heads=12, head_dim=64, rotary=False,
        vocabulary=30522, rms=False, encodes=_BERT,
    ),
    "ViT-L": ModelShape(
        hidden=1024, mlp=4096, gated=False, heads=16, kv_heads=16, head_dim=64, rotary=False,
        rms=False, encodes=_VIT,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class ShapeCase:
    """One case of an operator, the models that have it, and its tokens."""

    op: str
    case: Case
    models: tuple[str, ...]
    tokens: str


def shape_cases(
    names: Collection[str] = (), operators: Collection[str] = (), tokens: Collection[str] = ()
) -> list[ShapeCase]:
    """Return the cases of these models, operators and numbers of tokens; empty means all.

    Raises ``Mistake`` for a model that is not in ``MODELS``.
    """
    chosen = list(MODELS) if not names else [_model_of(name) for name in names]
    shared: dict[tuple[Any, ...], list[str]] = {}
    for model in chosen:
        for op, title, decodes, sizes in _cases_of(MODELS[model]):
            if (not operators or op in operators) and (not tokens or title in tokens):
                key = (op, title, decodes, tuple(sizes.items()))
                shared.setdefault(key, []).append(model)
    return [
        ShapeCase(
            op,
            Case(_title(dict(sizes), models), dict(sizes), forward_only=decodes),
            tuple(models),
            title,
        )
        for (op, title, decodes, sizes), models in shared.items()
    ]


def _model_of(name: str) -> str:
    """Return the model of that name, in any case."""
    for model in MODELS:
        if model.lower() == name.lower():
            return model
    raise Mistake(f"model shapes: unknown model {name!r}; expected one of {', '.join(MODELS)}")


def _title(sizes: dict[str, Any], models: list[str]) -> str:
    short = {
        "batch": "B", "length": "S", "keys": "T", "capacity": "T", "heads": "H", "kv_heads": "G",
        "dim": "D", "words": "V", "experts": "E", "k": "k", "width": "F", "group": "group ",
        "groups": "groups ", "states": "N", "n": "-> ", "window": "window ",
    }  # fmt: skip
    parts = [f"{sizes['rows']}"] if "rows" in sizes else []
    parts += [f"{text}{sizes[name]}" for name, text in short.items() if sizes.get(name)]
    if sizes.get("causal") is False:
        parts.append("no mask")
    n_unnamed = len(models) - _NAMED
    owners = ", ".join(models[:_NAMED]) + (f" and {n_unnamed} more" if n_unnamed > 0 else "")
    return f"{' '.join(parts)} ({owners})"


_Sized = tuple[str, str, bool, dict[str, Any]]  # operator, tokens, decodes, sizes


def _cases_of(shape: ModelShape) -> Iterator[_Sized]:
    lengths = dict(shape.encodes) or {**DECODING, **LONG}
    for title, (batch, length) in lengths.items():
        decodes = title in DECODING
        for op, sizes in _sizes_of(shape, batch, length, decodes):
            yield op, title, decodes, sizes


def _sizes_of(
    shape: ModelShape, batch: int, length: int, decodes: bool
) -> Iterator[tuple[str, dict[str, Any]]]:
    rows = batch * length
    if shape.rms:
        yield "rms_norm", {"rows": rows, "dim": shape.hidden}
        yield "add_rms_norm", {"rows": rows, "dim": shape.hidden}
    if shape.mlp and shape.gated and not shape.experts:
        yield "geglu" if shape.gelu else "swiglu", {"rows": rows, "dim": shape.mlp}
        if not decodes and not shape.gelu:
            sizes = {"rows": rows, "k": shape.hidden, "n": shape.mlp, "gated": True}
            yield "fused_linear", sizes
    if decodes:
        yield from _products_of(shape, batch)
    if shape.heads:
        yield from _heads_of(shape, batch, length, decodes)
    if shape.experts:
        routing = {"experts": shape.experts, "k": shape.chosen}
        yield "moe_gating", {"rows": rows, "dim": shape.hidden} | routing
        if shape.mlp:
            sizes = {"rows": rows, "dim": shape.hidden, "width": shape.mlp, "packed": True}
            yield "moe_experts", sizes | routing
    if shape.ssm_heads:
        yield from _ssm_of(shape, batch, length, decodes)
    if shape.vocabulary and not decodes:
        sizes = {"rows": rows, "dim": shape.hidden, "words": shape.vocabulary}
        yield "linear_cross_entropy", sizes


def _products_of(shape: ModelShape, batch: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the products of a decoding step with packed weights: in and out of each branch."""
    pairs = []
    if shape.heads:
        queries = shape.heads * shape.head_dim
        packed = queries + 2 * shape.kv_heads * shape.head_dim
        pairs += [(shape.hidden, packed), (queries, shape.hidden)]
    if shape.mlp and not shape.experts:
        pairs += [(shape.hidden, (1 + shape.gated) * shape.mlp), (shape.mlp, shape.hidden)]
    for n_inputs, n_outputs in pairs:
        yield "linear", {"rows": batch, "k": n_inputs, "n": n_outputs}


def _heads_of(
    shape: ModelShape, batch: int, length: int, decodes: bool
) -> Iterator[tuple[str, dict[str, Any]]]:
    heads = {
        "batch": batch, "length": length, "heads": shape.heads, "kv_heads": shape.kv_heads,
        "dim": shape.head_dim,
    }  # fmt: skip
    position = {"offset": CACHED - 1, "on_device": True} if decodes else {}
    if shape.rotary:
        yield "qk_norm_rope" if shape.qk_norm else "rope", heads | position
    if shape.rotary and decodes:
        cache = {"capacity": CACHED, "position": CACHED - UNUSED, "norm": shape.qk_norm}
        yield "rope_to_cache", heads | cache
    elif shape.rotary:
        yield "qkv_rope", heads | {"width": shape.hidden, "norm": shape.qk_norm}
    for window in dict.fromkeys((None, shape.window)):
        keys = {"keys": CACHED, "kv_length": CACHED - UNUSED} if decodes else {"keys": length}
        if window is None or window < keys["keys"]:
            yield "attention", heads | keys | {"causal": not shape.encodes, "window": window}


def _ssm_of(
    shape: ModelShape, batch: int, length: int, decodes: bool
) -> Iterator[tuple[str, dict[str, Any]]]:
    inner = 64 * shape.ssm_heads
    scan = {
        "batch": batch, "heads": shape.ssm_heads, "dim": 64, "groups": shape.groups,
        "states": shape.state,
    }  # fmt: skip
    group = {"group": inner // shape.groups} if shape.groups > 1 else {}
    yield "gated_rms_norm", {"rows": batch * length, "dim": inner} | group
    if decodes:
        yield "ssd_step", scan | {"log": True, "update": True}
        return
    yield "ssd_scan", scan | {"length": length, "state": False}
    channels = inner + 2 * shape.groups * shape.state
    convolution = {"batch": batch, "length": length, "dim": channels, "width": 4, "state": False}
    yield "causal_conv1d", convolution
