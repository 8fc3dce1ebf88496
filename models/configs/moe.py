"""Sizes of a mixture of experts, and which of them fit together."""

from __future__ import annotations

from dataclasses import InitVar, dataclass
from typing import Any

from models.configs import fields
from models.configs.setting import setting
from models.errors import ConfigurationError

GATINGS = ("topk", "noisy_topk", "dense")
SWITCHES = (
    "use_compile",
    "compile_mode",
    "use_amp",
    "use_gradient_checkpointing",
    "use_cuda_graph",
)


@dataclass(frozen=True, kw_only=True)
class MoEConfig(fields.RoundedVocabulary):
    """Sizes of one mixture-of-experts model."""

    vocabulary: int = fields.vocabulary()
    vocabulary_multiple: int = fields.vocabulary_multiple()
    input_dim: int = fields.width(512)
    hidden_dim: int = setting(
        2048, "Expert width", "Feed-forward width of one expert.", minimum=1, maximum=262_144
    )
    output_dim: int = setting(
        0,
        "Output width",
        "Output width of MixtureOfExpertsSystem; 0: the same as its input. The language model "
        "returns logits and allows only 0 or the width of the residual stream.",
        minimum=0,
        maximum=65536,
    )
    n_layers: int = setting(
        8, "Layers", "Number of blocks, each with attention and experts.", minimum=1, maximum=1024
    )
    num_experts: int = setting(32, "Experts", "Experts of one block.", minimum=1, maximum=512)
    top_k: int = setting(
        3, "Experts per token", "At most the number of experts.", minimum=1, maximum=512
    )
    gating: str = setting(
        "topk",
        "Gating",
        "The k best experts, the k best with learned router noise in training, or all experts.",
        choices=GATINGS,
    )
    renormalise: bool = setting(
        True, "Renormalise", "Scale the weights of a token's experts so that they sum to 1."
    )
    load_balance_weight: float = setting(
        0.01,
        "Balance loss",
        "Weight of the loss that is smallest when all experts are used equally.",
        minimum=0,
        maximum=10,
    )
    capacity_factor: float = setting(
        0.0,
        "Capacity factor",
        "In training an expert computes at most this multiple of its even share of a sequence's "
        "choices and drops the rest; 0 drops nothing.",
        minimum=0,
        maximum=512,
    )
    num_shared_experts: int = setting(
        0,
        "Shared experts",
        "Experts that compute every token, in addition to those that it chooses.",
        minimum=0,
        maximum=64,
    )
    n_heads: int = fields.heads(8)
    n_kv_heads: int = fields.kv_heads(8)
    window: int = fields.window()
    max_sequence: int = fields.max_sequence()
    rope_theta: float = fields.rope_theta()
    norm_eps: float = fields.norm_eps()
    tie_embeddings: bool = fields.tie_embeddings(True)
    in_place: bool = setting(
        False,
        "Add in place",
        "Inference only: residual additions write into the branch's result instead of new memory.",
        weights=False,
    )
    reuse_buffers: bool = setting(
        False,
        "Reuse buffers",
        "Inference only: the residual stream of all blocks is in one buffer, allocated once.",
        weights=False,
    )
    # Defaults of ``FullyOptimizedMoESystem``'s switches, with the names of the family's document.
    # They are not fields, because they do not change the model.
    use_compile: InitVar[bool] = False
    compile_mode: InitVar[str] = "default"
    use_amp: InitVar[bool] = False
    use_gradient_checkpointing: InitVar[bool] = False
    use_cuda_graph: InitVar[bool] = False

    def __post_init__(
        self,
        use_compile: bool,
        compile_mode: str,
        use_amp: bool,
        use_gradient_checkpointing: bool,
        use_cuda_graph: bool,
    ) -> None:
        values = (use_compile, compile_mode, use_amp, use_gradient_checkpointing, use_cuda_graph)
        for name, value in zip(SWITCHES, values, strict=True):
            object.__setattr__(self, name, value)

    @property
    def switches(self) -> dict[str, Any]:
        """Defaults of ``FullyOptimizedMoESystem`` by name; ``replace`` forgets them."""
        return {name: getattr(self, name) for name in SWITCHES}

    @property
    def active_experts(self) -> int:
        """Experts that each token is sent to, without the shared ones."""
        return self.num_experts if self.gating == "dense" else self.top_k

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.input_dim // self.n_heads


def check_blocks(config: MoEConfig) -> None:
    """Raise ``ConfigurationError`` for sizes from which no block can be built."""
    if config.gating != "dense" and config.top_k > config.num_experts:
        raise ConfigurationError(
            f"moe: top_k = {config.top_k} is more than num_experts = {config.num_experts}; "
            "a token cannot choose an expert twice"
        )
    if config.input_dim % config.n_heads:
        raise ConfigurationError(
            f"moe: input_dim = {config.input_dim} cannot be divided into n_heads = "
            f"{config.n_heads} heads"
        )
    if config.n_heads % config.n_kv_heads:
        raise ConfigurationError(
            f"moe: n_heads = {config.n_heads} is not a multiple of n_kv_heads = "
            f"{config.n_kv_heads}, so the query heads cannot share them evenly"
        )
    if config.head_dim % 2:
        raise ConfigurationError(
            f"moe: input_dim / n_heads = {config.head_dim} is odd, but rotary positions rotate "
            "pairs; choose an even head width"
        )
    if config.gating == "dense" and config.capacity_factor:
        raise ConfigurationError(
            f"moe: capacity_factor = {config.capacity_factor} has no effect with gating = 'dense', "
            "where every expert computes every token; set it to 0"
        )
    if config.in_place and config.reuse_buffers:
        raise ConfigurationError(
            "moe: in_place and reuse_buffers exclude each other, because both decide where "
            "residual additions write; choose one"
        )


def check(config: MoEConfig) -> None:
    """Raise ``ConfigurationError`` for sizes from which no language model can be built."""
    check_blocks(config)
    if config.output_dim not in (0, config.input_dim):
        raise ConfigurationError(
            f"moe: output_dim = {config.output_dim} differs from input_dim = {config.input_dim}, "
            "but a language model has one width; set it to 0, or use MixtureOfExpertsSystem"
        )
