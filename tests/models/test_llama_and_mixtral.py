"""With equal weights the blocks are those of ``transformers``: Llama with one expert, else Mixtral.

Optional: ``transformers`` is no dependency. It looks for a package called ``kernels`` of its own.
"""

import dataclasses

import pytest
import torch

from models import FAMILIES

transformers = pytest.importorskip("transformers")

MOE = FAMILIES["moe"]
CONFIG = dataclasses.replace(
    MOE.presets["tiny"], n_layers=2, tie_embeddings=False, rope_theta=500.0, load_balance_weight=0.0
)


def peer_of(model, config):
    """Its model of the same sizes, with our weights."""
    sizes = {
        "vocab_size": config.rows,
        "hidden_size": config.input_dim,
        "intermediate_size": config.hidden_dim,
        "num_hidden_layers": config.n_layers,
        "num_attention_heads": config.n_heads,
        "num_key_value_heads": config.n_kv_heads,
        "rms_norm_eps": config.norm_eps,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
        "max_position_embeddings": config.max_sequence,
        "attn_implementation": "eager",
    }
    if config.num_experts == 1:
        made = transformers.LlamaConfig(**sizes)
        peer = transformers.LlamaForCausalLM(made)
    else:
        more = {"num_local_experts": config.num_experts, "num_experts_per_tok": config.top_k}
        more["experts_implementation"] = "eager"  # the other ones know no FP64
        made = transformers.MixtralConfig(**sizes, **more)
        peer = transformers.MixtralForCausalLM(made)
    ours, theirs = model.weights(), {}
    theirs["model.embed_tokens.weight"] = ours["embedding.weight"]
    theirs["model.norm.weight"], theirs["lm_head.weight"] = ours["norm.weight"], ours["head.weight"]
    kv_dim = config.n_kv_heads * config.head_dim
    for i in range(config.n_layers):
        mine, block = f"blocks.{i}.", f"model.layers.{i}."
        q, k, v = ours[mine + "attention.qkv.weight"].split((config.input_dim, kv_dim, kv_dim))
        gate_up, down = ours[mine + "mixture.gate_up"], ours[mine + "mixture.down"]
        theirs |= {
            block + "input_layernorm.weight": ours[mine + "attention_norm.weight"],
            block + "post_attention_layernorm.weight": ours[mine + "mixture_norm.weight"],
            block + "self_attn.q_proj.weight": q,
            block + "self_attn.k_proj.weight": k,
            block + "self_attn.v_proj.weight": v,
            block + "self_attn.o_proj.weight": ours[mine + "attention.out.weight"],
        }
        if config.num_experts == 1:
            gate, up = gate_up[0].chunk(2)
            theirs |= {
                block + "mlp.gate_proj.weight": gate,
                block + "mlp.up_proj.weight": up,
                block + "mlp.down_proj.weight": down[0],
            }
        else:
            theirs |= {
                block + "mlp.gate.weight": ours[mine + "mixture.router.weight"],
                block + "mlp.experts.gate_up_proj": gate_up,
                block + "mlp.experts.down_proj": down,
            }
    peer.load_state_dict({name: weight.detach() for name, weight in theirs.items()})
    return peer.double().eval()


@pytest.mark.parametrize("num_experts", [1, 8])
def test_logits_are_those_of_transformers(num_experts):
    top_k = min(2, num_experts)
    config = dataclasses.replace(CONFIG, num_experts=num_experts, top_k=top_k)
    model = MOE.materialise(config, dtype=torch.float64, seed=3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.mul_(1 + torch.rand_like(parameter))
            if "router" in name:
                parameter.mul_(20)
        tokens_BS = torch.randint(0, 256, (2, 19), generator=torch.Generator().manual_seed(1))
        expected = peer_of(model, config)(tokens_BS).logits
        found = model(tokens_BS)
    # Both make their rotary tables in FP32, each in its own way.
    assert (found - expected).norm() < 1e-5 * expected.norm()
    assert found.abs().max() > 0.05
