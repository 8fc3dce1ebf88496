"""Blocks of ``transformers`` with the weights of ours: Llama, Mixtral and Mamba-2.

``peer(model, config)`` is its model of the same sizes and weights, ``theirs(config, tensors)``
renames our tensors (weights, or gradients) to its names. Its ``layers`` are the blocks.

It looks for a package called ``kernels`` that is not ours, and queries its version: ours has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import transformers
from torch import Tensor, nn

from models.hydra import HydraConfig
from models.layers.basic import mlp_width
from models.mamba2 import Mamba2Config
from models.moe import MoEConfig

Named = dict[str, Tensor]


def theirs(config: Any, tensors: Mapping[str, Tensor]) -> Named:
    """Return our tensors under their names: views, no copies."""
    if isinstance(config, Mamba2Config):
        return _as_mamba2(tensors)
    renamed: Named = {
        "model.embed_tokens.weight": tensors["embedding.weight"],
        "model.norm.weight": tensors["norm.weight"],
        # A tied head has the embedding's weights.
        "lm_head.weight": tensors.get("head.weight", tensors["embedding.weight"]),
    }
    for i in range(config.n_layers):
        mine, block = f"blocks.{i}.", f"model.layers.{i}."
        renamed |= _attention(config, tensors, mine, block)
        renamed |= (_experts if isinstance(config, MoEConfig) else _mlp)(tensors, mine, block)
    return renamed


def peer(model: nn.Module, config: Any, **more: Any) -> nn.Module:
    """Make their model with copies of our weights, in their dtype; ``more`` is for its config."""
    weights = dict(model.named_parameters())
    with next(model.parameters()).device:
        made = _MAKERS[type(config)](config, more)
    copies = {name: weight.detach().clone() for name, weight in theirs(config, weights).items()}
    made.load_state_dict(copies, assign=True)  # a cast would round its rotary table too
    made.tie_weights()
    return made


def _decoder(config: HydraConfig | MoEConfig) -> dict[str, Any]:
    return {
        "vocab_size": config.rows,
        "num_hidden_layers": config.n_layers,
        "num_attention_heads": config.n_heads,
        "num_key_value_heads": config.n_kv_heads,
        "rms_norm_eps": config.norm_eps,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
        "max_position_embeddings": config.max_sequence,
        "tie_word_embeddings": config.tie_embeddings,
    }


def _llama(config: HydraConfig, more: dict[str, Any]) -> nn.Module:
    sizes = {
        "hidden_size": config.dim,
        "intermediate_size": mlp_width(config.dim, config.mlp_ratio),
    }
    made = transformers.LlamaConfig(**_decoder(config) | sizes | more)
    return transformers.LlamaForCausalLM(made)


def _mixtral(config: MoEConfig, more: dict[str, Any]) -> nn.Module:
    sizes = {
        "hidden_size": config.input_dim,
        "intermediate_size": config.hidden_dim,
        "num_local_experts": config.num_experts,
        "num_experts_per_tok": config.top_k,
    }
    made = transformers.MixtralConfig(**_decoder(config) | sizes | more)
    return transformers.MixtralForCausalLM(made)


def _mamba2(config: Mamba2Config, more: dict[str, Any]) -> nn.Module:
    size = config.mixer
    sizes = {
        "vocab_size": config.rows,
        "hidden_size": config.dim,
        "num_hidden_layers": config.n_layers,
        "num_heads": size.n_heads,
        "head_dim": size.head_dim,
        "state_size": size.d_state,
        "n_groups": size.n_groups,
        "expand": config.expand,
        "conv_kernel": size.d_conv,
        "layer_norm_epsilon": config.norm_eps,
        "residual_in_fp32": False,
        "tie_word_embeddings": config.tie_embeddings,
    }
    return transformers.Mamba2ForCausalLM(transformers.Mamba2Config(**sizes | more))


_MAKERS: dict[type, Any] = {HydraConfig: _llama, MoEConfig: _mixtral, Mamba2Config: _mamba2}


def _attention(
    config: HydraConfig | MoEConfig, tensors: Mapping[str, Tensor], mine: str, block: str
) -> Named:
    dim = len(tensors["norm.weight"])
    kv_dim = config.n_kv_heads * config.head_dim
    q, k, v = tensors[mine + "attention.qkv.weight"].split((dim, kv_dim, kv_dim))
    return {
        block + "input_layernorm.weight": tensors[mine + "attention_norm.weight"],
        block + "self_attn.q_proj.weight": q,
        block + "self_attn.k_proj.weight": k,
        block + "self_attn.v_proj.weight": v,
        block + "self_attn.o_proj.weight": tensors[mine + "attention.out.weight"],
    }


def _mlp(tensors: Mapping[str, Tensor], mine: str, block: str) -> Named:
    gate, up = tensors[mine + "mlp.gate_up.weight"].chunk(2)
    return {
        block + "post_attention_layernorm.weight": tensors[mine + "mlp_norm.weight"],
        block + "mlp.gate_proj.weight": gate,
        block + "mlp.up_proj.weight": up,
        block + "mlp.down_proj.weight": tensors[mine + "mlp.down.weight"],
    }


def _experts(tensors: Mapping[str, Tensor], mine: str, block: str) -> Named:
    return {
        block + "post_attention_layernorm.weight": tensors[mine + "mixture_norm.weight"],
        block + "mlp.gate.weight": tensors[mine + "mixture.router.weight"],
        block + "mlp.experts.gate_up_proj": tensors[mine + "mixture.gate_up"],
        block + "mlp.experts.down_proj": tensors[mine + "mixture.down"],
    }


def _as_mamba2(tensors: Mapping[str, Tensor]) -> Named:
    renamed: Named = {}
    for name, tensor in tensors.items():
        taps = name.endswith("conv_weight")  # theirs are [C, 1, W]
        name = name.replace("embedding.weight", "backbone.embeddings.weight")
        name = name.replace("blocks.", "backbone.layers.").replace("mixer.conv_", "mixer.conv1d.")
        name = name.replace("norm_weight", "norm.weight").replace("head.weight", "lm_head.weight")
        name = "backbone.norm_f.weight" if name == "norm.weight" else name
        renamed[name] = tensor[:, None] if taps else tensor
    return renamed
