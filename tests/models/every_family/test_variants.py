"""Checkpointing, fused additions, shared tables and compilation change no result."""

import copy
import dataclasses
from collections import Counter

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import kernels
from models import FAMILIES, ConfigurationError
from models.execution import checkpointing
from models.layers.attention import RotaryCache

HYDRA = FAMILIES["hydra"]


def gradients(model, tokens_BS, targets_BS):
    model.zero_grad()
    loss = model.loss(tokens_BS, targets_BS)
    loss.backward()
    return loss.detach(), [parameter.grad.clone() for parameter in model.parameters()]


def saved_bytes(model, tokens_BS, targets_BS):
    """Return the bytes that autograd saves for backward, without weights."""
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    saved = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            saved[storage.data_ptr()] = (storage.nbytes(), tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model.loss(tokens_BS, targets_BS)
    return sum(size for size, _ in saved.values())


class Counts(TorchDispatchMode):
    """Number of calls of each operator inside."""

    def __init__(self):
        super().__init__()
        self.ran = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.ran[str(func.overloadpacket).rpartition(".")[2]] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("mode", "blocks"),
    [("full", 3), ("selective", 2), ("third", 1), ("fourth", 1), ("operators", 3), ("none", 0)],
)
def test_checkpointing_gives_the_same_gradients(model, tokens_BS, targets_BS, mode, blocks):
    loss, expected = gradients(model, tokens_BS, targets_BS)
    assert model.checkpointed_blocks == 0
    model.set_checkpointing(mode)
    again, actual = gradients(model, tokens_BS, targets_BS)
    assert model.checkpointed_blocks == blocks
    assert torch.equal(loss, again)
    for first, other in zip(actual, expected, strict=True):
        assert torch.equal(first, other)


@pytest.mark.parametrize(
    ("mode", "every"), [("full", 1), ("selective", 2), ("third", 3), ("fourth", 4)]
)
def test_every_so_many_blocks_are_checkpointed(model, mode, every):
    model.set_checkpointing(mode)
    assert model.choose_checkpointed(12) == [index % every == 0 for index in range(12)]


# Additions and norms of four layers: each has one or two branches, and the last norm is the head's.
FUSED = {"hydra": (7, 2), "adaattn": (7, 2), "mamba2": (3, 2)}


@pytest.fixture(params=FUSED)
def fusing(request):
    family = FAMILIES[request.param]
    return family.materialise(family.presets["tiny"], dtype=torch.float64, seed=3)


def test_fused_additions_are_one_operator_and_give_the_same_gradients(
    fusing, tokens_BS, targets_BS, request
):
    additions, norms = FUSED[request.node.callspec.params["fusing"]]
    expected = gradients(fusing, tokens_BS, targets_BS)
    metrics = {name: values.clone() for name, values in fusing.metrics().items()}
    assert fusing.fused_additions == 0
    fusing = copy.deepcopy(fusing)
    kernels.reset_usage()
    fusing.set_fused_add_norm(True)
    torch.testing.assert_close(gradients(fusing, tokens_BS, targets_BS), expected)
    assert fusing.fused_additions == additions
    assert sum(kernels.usage()["add_rms_norm"].values()) == additions
    assert sum(kernels.usage()["rms_norm"].values()) == norms
    torch.testing.assert_close(dict(fusing.metrics()), metrics)
    fusing.set_checkpointing("full")
    torch.testing.assert_close(gradients(fusing, tokens_BS, targets_BS), expected)
    assert fusing.fused_additions == {7: 4, 3: 0}[additions]  # those inside the four blocks


@pytest.mark.sample(1)
@pytest.mark.parametrize("mode", ["full", "operators"])
def test_fused_inside_checkpointed_blocks_the_loss_compiles_whole(
    model, tokens_BS, targets_BS, mode
):
    torch.compiler.reset()
    expected = gradients(model, tokens_BS, targets_BS)
    model.set_checkpointing(mode)
    model.set_fused_add_norm(True)
    model.loss = torch.compile(model.loss, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(gradients(model, tokens_BS, targets_BS), expected)
    assert model.fused_additions == len(model.blocks)
    torch.compiler.reset()


def test_fused_under_autocast_it_stays_as_close_as_before(fusing, tokens_BS):
    fusing, expected = fusing.float(), fusing(tokens_BS).detach()
    errors = []
    for fused in (False, True):
        fusing.set_fused_add_norm(fused)
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            logits_BSV = fusing(tokens_BS)
        errors.append(((logits_BSV - expected).norm() / expected.norm()).item())
    assert errors[1] < 1.5 * errors[0] < 0.03


def test_blocks_that_route_tokens_add_for_themselves_and_the_others_are_fused(
    tokens_BS, targets_BS
):
    routed = dataclasses.replace(HYDRA.presets["tiny"], mixture_of_depths=True)
    model = HYDRA.materialise(routed, dtype=torch.float64, seed=3)
    expected = gradients(model, tokens_BS, targets_BS)
    model.set_fused_add_norm(True)
    torch.testing.assert_close(gradients(model, tokens_BS, targets_BS), expected)
    assert model.fused_additions == sum(hasattr(block, "branches") for block in model.blocks) == 2


def test_a_model_whose_blocks_cannot_fuse_additions_refuses_it():
    model = FAMILIES["moe"].build(FAMILIES["moe"].presets["tiny"])
    with pytest.raises(ConfigurationError, match="no addition can be fused in blocks of Block"):
        model.set_fused_add_norm(True)
    assert not model.fused_add_norm


def test_checkpointing_keeps_less_for_backward(model, tokens_BS, targets_BS):
    saved = {}
    for mode in ("none", "selective", "full"):
        model.set_checkpointing(mode)
        saved[mode] = saved_bytes(model, tokens_BS, targets_BS)
    assert saved["full"] < saved["selective"] < saved["none"]
    per_block = (saved["none"] - saved["full"]) / 3
    assert saved["none"] - saved["selective"] == pytest.approx(2 * per_block, rel=0.05)


def test_by_operator_products_are_kept_and_the_rest_is_computed_again(model, tokens_BS, targets_BS):
    ran = {}
    for mode in ("full", "operators"):
        model.set_checkpointing(mode)
        checkpointing.reset_kept_operators()
        loss = model.loss(tokens_BS, targets_BS)
        saved = checkpointing.kept_operators()
        with Counts() as counts:
            loss.backward()
        ran[mode] = counts.ran
    products = sum(saved.values()) - saved["scaled_dot_product_flash_attention_for_cpu"]
    assert products == saved["mm"] == 3 * 4  # blocks; q k v, output, gate and up, down
    # Neither computes again what a block ends with: nothing needs it.
    assert ran["full"]["mm"] - ran["operators"]["mm"] == products - 3
    attention = "_scaled_dot_product_flash_attention_for_cpu"
    assert ran["full"][attention] == 3 and ran["operators"][attention] == 0
    assert ran["full"]["rsqrt"] == ran["operators"]["rsqrt"] > 0  # norms, again


def test_checkpointing_does_nothing_where_nothing_is_kept(model, tokens_BS):
    model.set_checkpointing("full")
    with torch.no_grad():
        model(tokens_BS)
    assert model.checkpointed_blocks == 0


def test_an_unknown_checkpointing_mode_is_refused(model):
    with pytest.raises(ValueError, match=r"unknown mode 'half'; allowed: \('none', 'full'"):
        model.set_checkpointing("half")
    assert model.checkpointing == "none"


def test_rotary_tables_of_each_layer_cost_memory_and_change_nothing(model, config, tokens_BS):
    one_table = 4 * config.max_sequence * config.dim // config.n_heads
    shared_logits = model(tokens_BS)
    assert model.rope_cache_bytes() == one_table
    model.share_rope_cache(False)
    assert model.rope_cache_bytes() == config.n_layers * one_table
    storages = {buffer.untyped_storage().data_ptr() for buffer in model.buffers()}
    assert len(storages) == 2 * config.n_layers  # really apart in memory
    assert torch.equal(model(tokens_BS), shared_logits)
    model.share_rope_cache(True)
    assert model.rope_cache_bytes() == one_table
    assert torch.equal(model(tokens_BS), shared_logits)


def test_rotary_tables_are_not_part_of_the_weights_and_survive_a_cast(model):
    assert not any("cos" in name or "sin" in name for name in model.state_dict())
    before = [buffer.clone() for buffer in model.buffers()]
    model.to(torch.bfloat16)
    for buffer, saved in zip(model.buffers(), before, strict=True):
        assert buffer.dtype == torch.float32
        assert torch.equal(buffer, saved)


def test_unlike_rotary_tables_are_never_merged(model):
    model.blocks[0].attention.rotary = RotaryCache(16, 48, 500.0)
    model.share_rope_cache(True)
    assert model.blocks[0].attention.rotary.theta == 500.0
    assert model.blocks[1].attention.rotary.theta == 10_000.0
    assert model.blocks[1].attention.rotary is model.blocks[2].attention.rotary


def test_far_positions_are_as_precise_as_near_ones():
    table = RotaryCache(64, 100_000, 10_000.0)
    angle = torch.tensor(99_999.0, dtype=torch.float64)  # the first frequency is 1
    assert table.cos_SR[-1, 0].item() == pytest.approx(angle.cos().item(), abs=1e-7)


@pytest.fixture
def two_layers(config):
    torch.compiler.reset()
    yield HYDRA.materialise(dataclasses.replace(config, n_layers=2), seed=3)
    torch.compiler.reset()


def compiled(function):
    return torch.compile(function, backend="aot_eager", fullgraph=True)


def test_the_forward_pass_compiles_whole(two_layers, tokens_BS):
    explained = torch._dynamo.explain(two_layers)(tokens_BS)
    assert explained.graph_break_count == 0 and explained.graph_count == 1
    logits_BSV = compiled(two_layers)(tokens_BS)
    torch.testing.assert_close(logits_BSV, two_layers(tokens_BS))


@pytest.mark.sample(1)
@pytest.mark.parametrize(("mode", "blocks"), [("none", 0), ("selective", 1), ("operators", 2)])
def test_the_loss_and_its_gradients_compile_whole(two_layers, tokens_BS, targets_BS, mode, blocks):
    loss, expected = gradients(two_layers, tokens_BS, targets_BS)
    two_layers.set_checkpointing(mode)
    two_layers.zero_grad()
    again = compiled(two_layers.loss)(tokens_BS, targets_BS)
    again.backward()
    assert two_layers.checkpointed_blocks == blocks
    torch.testing.assert_close(again.detach(), loss)
    for parameter, grad in zip(two_layers.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, grad)


def test_prefill_and_decode_compile_whole_and_once_for_all_positions(two_layers, tokens_BS):
    eager_cache, cache = two_layers.new_cache(2, 20), two_layers.new_cache(2, 20)
    step = compiled(two_layers)
    counters = torch._dynamo.utils.counters
    with torch.no_grad():
        expected = two_layers(tokens_BS[:, :5], cache=eager_cache)
        torch.testing.assert_close(step(tokens_BS[:, :5], cache=cache), expected)
        for i in range(5, 12):
            if i == 6:
                graphs = counters["stats"]["unique_graphs"]
            position = torch.tensor(i)
            token_B1 = tokens_BS[:, i : i + 1]
            expected = two_layers(token_B1, cache=eager_cache, position=position)
            torch.testing.assert_close(step(token_B1, cache=cache, position=position), expected)
    assert counters["stats"]["unique_graphs"] == graphs
