"""The estimated footprint of every family against the memory that a step really needs.

``peak_bytes`` counts that on a CPU, as it would be on a GPU.
"""

import dataclasses

import pytest
import torch
from peak_bytes import (
    as_on_an_h200,
    drawn,
    estimate_and_peak,
    saved_for_backward,
    saved_more_on_a_cpu,
)

from models import FAMILIES, ConfigurationError
from models.costs.footprint import Footprint

NAMES = list(FAMILIES)
DECODERS = [name for name in NAMES if "decode" in FAMILIES[name].workloads]
BATCH = 8
# Large enough for a GPU; smaller ones have a peak of their own.
DEFAULTS = {name: FAMILIES[name].first_choice for name in NAMES}
WITHOUT_VOCABULARY = {"mahia": {"vocab_size": 256}}  # by family; of the others, the field's name


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("name", "precision", "checkpointing", "fused"),
    [
        ("hydra", "amp", "selective", True),
        ("mahia", "half", "full", True),
        ("moe", "fp32", "full", True),
        ("moe", "half", "full", False),
        ("mamba2", "half", "none", True),
        ("mamba2", "half", "selective", True),  # of which the blocks that attend are never a part
        ("mamba2", "half", "full", False),
    ],
)
def test_the_peak_of_a_tiny_training_step_is_estimated_within_a_tenth(
    name, precision, checkpointing, fused
):
    family = FAMILIES[name]
    config = dataclasses.replace(family.presets["tiny"], n_layers=2)
    step = {"batch": 64, "sequence": min(256, family.longest(config)), "fused": fused}
    step |= {"precision": precision, "checkpointing": checkpointing}
    estimate, peak = estimate_and_peak(family, config, **step)
    assert estimate == pytest.approx(peak, rel=0.1)


def published(name):
    """Return the default preset, and HYDRA's of its document, with a batch for a GPU."""
    presets = [DEFAULTS[name], "published"] if name == "hydra" else [DEFAULTS[name]]
    return [(name, preset) for preset in presets]


PUBLISHED = [preset for name in NAMES for preset in published(name)]


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "amp", "half"])
@pytest.mark.parametrize("checkpointing", ["none", "selective", "full"])
@pytest.mark.parametrize(("name", "preset"), PUBLISHED)
def test_the_peak_of_a_default_training_step_is_estimated_within_a_tenth(
    name, preset, checkpointing, precision
):
    family = FAMILIES[name]
    step = family.suggested(preset, "cuda")
    step |= {"precision": precision, "checkpointing": checkpointing}
    estimate, peak = estimate_and_peak(family, family.presets[preset], **step)
    assert estimate == pytest.approx(peak, rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("precision", ["fp32", "amp", "half"])
@pytest.mark.parametrize("checkpointing", ["none", "full"])
@pytest.mark.parametrize(("name", "preset"), PUBLISHED)
def test_what_blocks_hold_is_estimated_within_a_tenth_where_no_logits_hide_it(
    name, preset, checkpointing, precision, fused
):
    family = FAMILIES[name]
    small = {"n_layers": 4, **WITHOUT_VOCABULARY.get(name, {"vocabulary": 256})}
    config = dataclasses.replace(family.presets[preset], **small)
    step = {"batch": 8, "sequence": 256, "precision": precision, "checkpointing": checkpointing}
    estimate, peak = estimate_and_peak(family, config, **step, fused=fused)
    assert estimate == pytest.approx(peak, rel=0.1)


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("name", "workload", "precision", "fused"),
    [
        ("hydra", "prefill", "half", False),
        ("adaattn", "forward", "half", True),
        ("adaattn", "prefill", "fp32", False),
        ("mahia", "forward", "fp32", True),
        ("mamba2", "forward", "half", False),
        ("moe", "forward", "amp", True),
        ("moe", "prefill", "half", False),
    ],
)
def test_the_peak_of_a_tiny_inference_is_estimated_within_a_tenth(name, workload, precision, fused):
    config = FAMILIES[name].presets["tiny"]
    step = {"batch": 16, "sequence": min(256, FAMILIES[name].longest(config))}
    estimate, peak = estimate_and_peak(
        FAMILIES[name], config, workload, **step, precision=precision, fused=fused
    )
    assert estimate == pytest.approx(peak, rel=0.1)


EXPERTS_OF_MAHIA = {"use_moe": True}
EVERY_SECOND_TOKEN = {"mixture_of_depths": True, "depth_every": 1, "depth_capacity": 0.5}


@pytest.mark.parametrize(
    ("name", "fields", "workload", "fused"),
    [
        ("mahia", EXPERTS_OF_MAHIA, "train", False),
        ("mahia", EXPERTS_OF_MAHIA, "forward", True),
        ("moe", {"hidden_dim": 256}, "forward", True),
        ("hydra", EVERY_SECOND_TOKEN, "forward", True),
        ("hydra", {"mlp_ratio": 0.5}, "prefill", False),
    ],
)
def test_other_sizes_than_the_presets_are_estimated_within_a_tenth(name, fields, workload, fused):
    family = FAMILIES[name]
    config = family.configure("tiny", {"n_layers": 4} | fields)
    step = {"batch": 16, "sequence": min(256, family.longest(config))}
    step |= {"precision": "half", "fused": fused}
    estimate, peak = estimate_and_peak(family, config, workload, **step)
    assert estimate == pytest.approx(peak, rel=0.1)


@pytest.mark.parametrize(
    ("d_state", "batch", "sequence", "precision", "workload"),
    [
        (64, 16, 256, "half", "forward"),
        (128, 16, 256, "amp", "prefill"),
        (64, 1, 2048, "half", "forward"),  # the scan is cut into segments
        (16, 2, 600, "fp32", "prefill"),
    ],
)
def test_the_states_of_a_fused_scan_are_counted_in_inference(
    d_state, batch, sequence, precision, workload
):
    config = FAMILIES["mamba2"].configure("tiny", {"d_state": d_state, "max_sequence": 2048})
    step = {"batch": batch, "sequence": sequence, "precision": precision}
    estimate, peak = estimate_and_peak(FAMILIES["mamba2"], config, workload, **step)
    assert estimate == pytest.approx(peak, rel=0.03)


@pytest.mark.slow
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("precision", ["fp32", "amp", "half"])
@pytest.mark.parametrize(
    ("name", "preset", "workload"),
    [
        (*preset, workload)
        for preset in PUBLISHED
        for workload in ("forward", "prefill")
        if workload in FAMILIES[preset[0]].workloads
    ],
)
def test_the_peak_of_a_default_inference_is_estimated_within_a_twentieth(
    name, preset, workload, precision, fused
):
    family = FAMILIES[name]
    step = family.suggested(preset, "cuda") | {"precision": precision, "fused": fused}
    estimate, peak = estimate_and_peak(family, family.presets[preset], workload, **step)
    assert estimate == pytest.approx(peak, rel=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["amp", "half"])
@pytest.mark.parametrize(
    "fields", [{"gating": "noisy_topk", "num_shared_experts": 2}, {"gating": "dense"}], ids=str
)
def test_experts_by_pytorch_hold_what_is_estimated_however_they_are_chosen(fields, precision):
    config = dataclasses.replace(FAMILIES["moe"].presets["document"], vocabulary=256, **fields)
    step = {"batch": 8, "sequence": 256, "precision": precision, "fused": False}
    estimate, peak = estimate_and_peak(FAMILIES["moe"], config, **step)
    assert estimate == pytest.approx(peak, rel=0.1)


@pytest.mark.parametrize("precision", ["fp32", "amp", "half"])
@pytest.mark.parametrize("fields", [{"top_k": 3}, {"gating": "dense", "num_shared_experts": 1}])
def test_on_a_cpu_experts_by_pytorch_keep_what_is_estimated_of_the_tokens_sent_to_them(
    fields, precision
):
    family, tokens_BS = FAMILIES["moe"], torch.arange(256).view(2, 128)
    sizes = {"input_dim": 32, "n_heads": 2, "hidden_dim": 64, **fields}
    few, many = (dataclasses.replace(family.presets["tiny"], n_layers=n, **sizes) for n in (1, 3))
    step = {"workload": "train", "batch": 2, "sequence": 128, "precision": precision}
    step |= {"fused": False, "device_type": "cpu"}
    saved = [saved_for_backward(family, c, precision, "none", tokens_BS) for c in (few, many)]
    estimated = [family.footprint(c, **step).activations for c in (few, many)]
    more = 2 * tokens_BS.numel() * saved_more_on_a_cpu(few.input_dim, precision)
    assert estimated[1] - estimated[0] == pytest.approx(saved[1] - saved[0] - more, rel=0.01)


# Inductor saves in a step what this partition of its graph saves, which writes no code.
PARTITION = "aot_eager_decomp_partition"
SIXTEEN = {"dim": 64, "head_dim": 16, "d_state": 16}
EXPERTS = {"input_dim": 32, "n_heads": 2, "hidden_dim": 64}
COMPILED = [
    *(("moe", EXPERTS | {"top_k": 3}, precision) for precision in ("fp32", "amp", "half")),
    ("moe", EXPERTS | {"gating": "noisy_topk", "num_shared_experts": 2}, "half"),
    ("mamba2", SIXTEEN | {"attention_every": 0}, "fp32"),
    ("mamba2", SIXTEEN | {"attention_every": 1, "n_groups": 2}, "half"),
    ("hydra", {"dim": 64}, "amp"),
    # With logits enough that the peak is at the loss, where all is kept, and at nothing before.
    *(
        ("adaattn", {"dim": 64, "vocabulary": 1024}, precision)
        for precision in ("fp32", "amp", "half")
    ),
]


@pytest.mark.parametrize(("name", "fields", "precision"), COMPILED)
def test_compiled_blocks_without_fused_kernels_keep_what_is_estimated(name, fields, precision):
    family, tokens_BS = FAMILIES[name], torch.arange(256).view(1, 256)
    few, many = (dataclasses.replace(family.presets["tiny"], n_layers=n, **fields) for n in (1, 3))
    step = {"workload": "train", "batch": 1, "sequence": 256, "precision": precision}
    step["device_type"] = "cpu"
    saved, estimated = [], []
    for config in (few, many):
        torch.compiler.reset()
        saved.append(saved_for_backward(family, config, precision, "none", tokens_BS, PARTITION))
        estimate = family.footprint(config, fused=False, compiled=True, **step)
        estimated.append(estimate.activations)
    torch.compiler.reset()
    # AdaAttn's is none of torch's: it keeps the whole matrix of weights, which is estimated.
    by_torch = name != "adaattn" and (name != "mamba2" or many.attention_every)
    width = family.costs(many).dim if by_torch else 0
    layout = 2 * tokens_BS.numel() * width * (4 if precision == "fp32" else 2)  # a CPU's attention
    more = saved[1] - saved[0] - layout
    assert estimated[1] - estimated[0] == pytest.approx(more, rel=0.02)


def test_on_a_cpu_heads_that_adapt_keep_the_matrix_of_weights_until_it_is_too_large():
    family = FAMILIES["adaattn"]
    config = dataclasses.replace(family.presets["tiny"], max_sequence=8192)
    step = {"workload": "train", "batch": 1, "precision": "fp32", "fused": False}

    def more(sequence):
        on = {
            kind: family.footprint(config, **step, sequence=sequence, device_type=kind)
            for kind in ("cpu", "cuda")
        }
        return on["cpu"].activations - on["cuda"].activations

    assert more(1024) > config.n_layers * config.n_heads * 1024**2 * 8
    chunk = 24 * config.n_heads * 1024**2  # two pieces of the matrix, while the next is made
    assert more(4096) < more(2048) < chunk  # in chunks: what else they hold is less of the whole


@pytest.mark.parametrize("name", NAMES)
def test_weights_gradients_and_optimizer_are_counted_exactly(name):
    family = FAMILIES[name]
    config, sequence = family.presets["tiny"], 16
    model = family.materialise(config).train()
    optimizer = torch.optim.AdamW(model.parameters())
    model.loss(*drawn(family, config, BATCH, sequence, torch.float32)).backward()
    optimizer.step()
    estimate = family.footprint(config, workload="train", batch=BATCH, sequence=sequence)
    assert estimate.weights == sum(p.nbytes for p in model.parameters())
    assert estimate.gradients == sum(p.grad.nbytes for p in model.parameters())
    moments = [
        state[key].nbytes for state in optimizer.state.values() for key in ("exp_avg", "exp_avg_sq")
    ]
    assert estimate.optimizer == sum(moments)
    model.share_rope_cache(False)
    tables = model.rope_cache_bytes()
    if name == "adaattn":  # also what it adapts by, and what a call computes with of it
        chosen = model.adaptation.chosen().tensors()
        tables += sum(x.nbytes for x in (*model.adapted().values(), *chosen))
    assert estimate.tables == tables


@pytest.mark.parametrize("workload", ["prefill", "decode", "generate"])
@pytest.mark.parametrize("name", DECODERS)
def test_the_decode_state_is_counted_exactly(name, workload):
    family = FAMILIES[name]
    config = family.presets["tiny"]
    for precision, dtype in (("fp32", torch.float32), ("half", torch.bfloat16)):
        model = family.materialise(config, dtype=dtype)
        step = {"workload": workload, "batch": 3, "sequence": 40, "precision": precision}
        assert family.footprint(config, **step).cache == model.new_cache(3, 40).bytes()


@pytest.mark.parametrize("name", DECODERS)
def test_a_prompt_taken_in_by_pieces_holds_the_activations_of_one_piece(name):
    family = FAMILIES[name]
    config = family.presets[family.first_choice]

    def estimate(workload="prefill", **step):
        return family.footprint(config, workload=workload, batch=4, **step)

    for workload in ("prefill", "generate"):
        full, pieces = (estimate(workload, sequence=1024, chunk=chunk) for chunk in (0, 64))
        assert pieces.activations == estimate(workload, sequence=64).activations < full.activations
        assert pieces.cache == full.cache
        assert estimate(workload, sequence=1024, chunk=4096) == full
    assert estimate("decode", sequence=1024, chunk=64) == estimate("decode", sequence=1024)
    step = {"workload": "prefill", "batch": 4, "sequence": 1024}
    limit = estimate(sequence=1024, chunk=64).total
    family.check_memory(config, memory_bytes=limit, chunk=64, **step)
    with pytest.raises(ConfigurationError, match="can be used; choose a smaller model or batch"):
        family.check_memory(config, memory_bytes=limit, **step)


def test_the_peak_is_lasting_memory_with_activations_and_gradients_together():
    lasting = {"weights": 10, "optimizer": 20, "cache": 3, "tables": 4, "workspaces": 5}
    assert Footprint(**lasting, gradients=10, activations=60, together=65).total == 107


def test_the_estimates_of_training_are_those_that_an_h200_needed():
    """Peaks that one was seen to need, in MiB: BF16, all Triton kernels, gradients freed."""
    seen = {
        ("hydra", "base", 8, 1024): 7594,
        ("hydra", "large", 2, 2048): 14_673,
        ("hydra", "published", 4, 1024): 10_317,
        ("mamba2", "96M", 8, 1024): 5699,
        ("mamba2", "2.8B", 1, 2048): 29_200,
        ("adaattn", "base", 8, 1024): 8312,
        ("mahia", "base", 64, 256): 2910,
        ("moe", "base", 8, 1024): 8639,
        ("moe", "large", 2, 1024): 52_961,
    }
    for (name, preset, batch, sequence), peak in seen.items():
        family = FAMILIES[name]
        step = {"workload": "train", "batch": batch, "sequence": sequence, "precision": "half"}
        with as_on_an_h200():
            estimate = family.footprint(family.presets[preset], **step).total / 2**20
        print(name, preset, f"{estimate / peak - 1:+.1%}")
        assert estimate == pytest.approx(peak, rel=0.1)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(
    ("name", "fields"),
    [(name, {}) for name in NAMES]
    + [
        ("hydra", {"mixture_of_recursions": True}),
        ("hydra", {"ccgqa": True, "mixture_of_depths": True}),
        ("mamba2", {"attention_every": 0}),
    ],
)
def test_a_rotary_table_is_counted_for_each_layer_that_holds_one(name, fields, shared):
    family = FAMILIES[name]
    config = dataclasses.replace(family.presets[DEFAULTS[name]], **fields)
    model = family.build(config)
    model.share_rope_cache(shared)
    step = {"workload": "forward", "batch": 1, "sequence": 8, "rope_shared": shared}
    tables = family.footprint(config, **step).tables - family.costs(config).state_bytes
    assert tables == model.rope_cache_bytes()
