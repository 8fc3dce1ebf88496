"""Configuration fields that several families share."""

from __future__ import annotations

from typing import Any

from models.configs.setting import setting


class RoundedVocabulary:
    """Configuration with a ``vocabulary`` that the embedding rounds up."""

    vocabulary: int
    vocabulary_multiple: int

    @property
    def rows(self) -> int:
        """Rows of the embedding: the vocabulary, rounded up."""
        return -(-self.vocabulary // self.vocabulary_multiple) * self.vocabulary_multiple


def vocabulary(default: int = 50257) -> Any:
    """Return the field for the number of different tokens."""
    return setting(
        default,
        "Vocabulary",
        "Number of different tokens; at least 256, so that the bytes of a file are tokens.",
        minimum=256,
        maximum=1_048_576,
    )


def vocabulary_multiple() -> Any:
    """Return the field for the multiple of the embedding's rows."""
    return setting(
        64,
        "Round vocabulary up to",
        "The embedding gets unused rows up to this multiple: tensor cores are slow with 50257.",
        choices=(1, 8, 64, 128),
    )


def width(default: int) -> Any:
    """Return the field for the width of the residual stream."""
    return setting(default, "Width", "Width of the residual stream.", minimum=8, maximum=65536)


def layers(default: int) -> Any:
    """Return the field for the number of blocks."""
    return setting(default, "Layers", "Number of blocks.", minimum=1, maximum=1024)


def heads(default: int, title: str = "Query heads") -> Any:
    """Return the field for the number of attention heads."""
    return setting(
        default, title, "Number of heads; must divide the width.", minimum=1, maximum=1024
    )


def kv_heads(default: int) -> Any:
    """Return the field for the number of key/value heads that query heads share."""
    return setting(
        default,
        "Key/value heads",
        "Must divide the query heads; fewer heads make the decode cache smaller.",
        minimum=1,
        maximum=1024,
    )


def mlp_ratio() -> Any:
    """Return the field for the width of the feed-forward layers."""
    return setting(
        2.67,
        "MLP ratio",
        "Feed-forward width over model width, rounded to a multiple of 128 (of 8 below 1024).",
        minimum=0.25,
        maximum=16,
    )


def window() -> Any:
    """Return the field for the attention window."""
    return setting(
        0,
        "Attention window",
        "Number of keys that a query sees: its own and earlier ones; 0: all of these.",
        minimum=0,
        maximum=1_048_576,
        weights=False,
    )


def max_sequence(default: int = 2048) -> Any:
    """Return the field for the longest sequence that the rotary tables hold."""
    return setting(
        default,
        "Longest sequence",
        "Positions in the rotary tables; no sequence may be longer.",
        minimum=1,
        maximum=1_048_576,
    )


def rope_theta() -> Any:
    """Return the field for the base of the rotary frequencies."""
    return setting(10_000.0, "RoPE base", "Base of the rotary frequencies.", minimum=1, maximum=1e9)


def norm_eps(default: float = 1e-6) -> Any:
    """Return the field for the epsilon of RMSNorm."""
    return setting(
        default,
        "Norm epsilon",
        "Added to the mean square in RMSNorm.",
        minimum=1e-12,
        maximum=0.1,
    )


def tie_embeddings(default: bool) -> Any:
    """Return the field for sharing one matrix between head and embedding."""
    return setting(
        default, "Tie embeddings", "The head uses the embedding's weights instead of its own."
    )
