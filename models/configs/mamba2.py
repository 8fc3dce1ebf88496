"""Sizes of the Mamba-2 hybrid, and which of them fit together."""

from __future__ import annotations

from dataclasses import dataclass

from models.configs import fields
from models.configs.setting import setting
from models.errors import ConfigurationError
from models.layers.ssm import SSMSizes


@dataclass(frozen=True, kw_only=True)
class Mamba2Config(fields.RoundedVocabulary):
    """Sizes of one Mamba-2 hybrid."""

    vocabulary: int = fields.vocabulary(32768)
    vocabulary_multiple: int = fields.vocabulary_multiple()
    dim: int = fields.width(768)
    n_layers: int = fields.layers(12)
    expand: int = setting(
        2,
        "Expansion",
        "Inner width of the mixer divided by the model width.",
        minimum=1,
        maximum=16,
    )
    head_dim: int = setting(
        64,
        "Head width",
        "Width of the mixer's heads; must divide its inner width.",
        minimum=1,
        maximum=1024,
    )
    d_state: int = setting(
        128, "States", "Number of states per channel of the mixer.", minimum=1, maximum=1024
    )
    n_groups: int = setting(
        1,
        "Groups",
        "Groups of heads with the same input and output maps; must divide the mixer's heads.",
        minimum=1,
        maximum=1024,
    )
    d_conv: int = setting(
        4, "Convolution", "Number of tokens that the convolution spans.", choices=(2, 3, 4)
    )
    attention_every: int = setting(
        4,
        "Attention every",
        "Every n-th block also has attention; 0: no block has it.",
        minimum=0,
        maximum=1024,
    )
    n_heads: int = setting(
        32, "Query heads", "Heads of the attention; must divide the width.", minimum=1, maximum=1024
    )
    n_kv_heads: int = fields.kv_heads(8)
    window: int = fields.window()
    max_sequence: int = fields.max_sequence()
    rope_theta: float = fields.rope_theta()
    norm_eps: float = fields.norm_eps(1e-5)
    tie_embeddings: bool = fields.tie_embeddings(False)

    @property
    def mixer(self) -> SSMSizes:
        """Widths of a mixer."""
        return SSMSizes(
            dim=self.dim,
            inner=self.expand * self.dim,
            head_dim=self.head_dim,
            n_groups=self.n_groups,
            d_state=self.d_state,
            d_conv=self.d_conv,
        )

    @property
    def attending(self) -> int:
        """Number of blocks that attend."""
        return self.n_layers // self.attention_every if self.attention_every else 0

    def attends(self, index: int) -> bool:
        """Return True if block ``index`` (from 0) attends."""
        return bool(self.attention_every) and (index + 1) % self.attention_every == 0


def check(config: Mamba2Config) -> None:
    """Raise ``ConfigurationError`` for sizes that do not fit together."""
    size = config.mixer
    if size.inner % size.head_dim:
        raise ConfigurationError(
            f"mamba2: the mixer's inner width expand * dim = {size.inner} cannot be divided into "
            f"heads of head_dim = {size.head_dim}"
        )
    if size.n_heads % size.n_groups:
        raise ConfigurationError(
            f"mamba2: the mixer's number of heads, expand * dim / head_dim = {size.n_heads}, "
            f"cannot be divided by n_groups = {size.n_groups}"
        )
    if not config.attention_every:
        return
    if config.attention_every > config.n_layers:
        raise ConfigurationError(
            f"mamba2: attention_every = {config.attention_every} is more than n_layers = "
            f"{config.n_layers}, so no block would have attention; set it to 0 if you want that"
        )
    if config.dim % config.n_heads:
        raise ConfigurationError(
            f"mamba2: dim = {config.dim} cannot be divided into n_heads = {config.n_heads} heads"
        )
    if config.n_heads % config.n_kv_heads:
        raise ConfigurationError(
            f"mamba2: n_heads = {config.n_heads} is not a multiple of n_kv_heads = "
            f"{config.n_kv_heads}, so the query heads cannot share them evenly"
        )
    if config.dim // config.n_heads % 2:
        raise ConfigurationError(
            f"mamba2: dim / n_heads = {config.dim // config.n_heads} is odd, but rotary positions "
            "rotate pairs; choose an even head width"
        )
