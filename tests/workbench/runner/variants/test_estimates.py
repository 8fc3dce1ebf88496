"""The estimate of memory follows from how operators run: by Triton, by PyTorch, compiled."""

import msgspec
import pytest
import torch

from kernels import hardware
from models import FAMILIES
from sessions.model import Configuration
from workbench.runner.config import resolve
from workbench.runner.config.estimate import footprint
from workbench.runner.profiling import findings
from workbench.runner.training import optimizers

CPU = torch.device("cpu")


def activations(family, *, sequence=64, **toggles):
    """Bytes estimated of a training step."""
    toggles = {"triton": "off", "compile": "off"} | toggles
    requested = Configuration(
        family=family,
        preset=[*FAMILIES[family].presets][-1],
        workload="train",
        model={"vocabulary": 256},  # the loss is small, because these tests are not about it
        settings={"sequence": sequence},
        toggles=toggles,
    )
    return footprint(resolve.resolve(requested, CPU)).activations


@pytest.mark.parametrize(("family", "own"), [("moe", "moe_experts"), ("mamba2", "ssd_scan")])
def test_a_compiled_step_without_triton_is_not_estimated_as_one_with_it(family, own):
    by_triton = activations(family, triton="on")
    compiled = activations(family, compile="default")
    assert compiled > 1.3 * by_triton
    assert compiled != activations(family)
    assert activations(family, triton="on", compile="default") == by_triton
    # The operator's own switch wins, as it does where the step is built.
    name = f"triton_{own}"
    assert activations(family, compile="default", **{name: "triton"}) == by_triton
    assert activations(family, compile="default", triton="on", **{name: "torch"}) == compiled


def test_where_compiling_fuses_all_that_triton_does_the_estimate_is_the_same():
    by_triton = activations("hydra", triton="on")
    assert activations("hydra", compile="default") == by_triton < activations("hydra")


def test_the_attention_that_was_chosen_decides_on_the_estimate():
    def of(attention, family="hydra"):
        return activations(family, sequence=512, attention=attention)

    assert of("auto") == of("sdpa_flash") < of("chunked") < of("manual")
    # On a CPU its own operator holds the matrix, whatever backend is asked for.
    assert of("chunked", "adaattn") == of("auto", "adaattn")


@pytest.mark.parametrize(
    ("workload", "toggles", "handles"),
    [
        ("decode", {}, 1),
        ("decode", {"cuda_graphs": "on"}, 2),
        ("train", {}, 2),
        ("train", {"compile": "reduce-overhead"}, 4),
    ],
)
def test_each_thread_and_stream_of_a_gpu_has_a_workspace_of_its_own(workload, toggles, handles):
    requested = Configuration(family="hydra", preset="tiny", workload=workload, toggles=toggles)
    with hardware.imagined((9, 0)):
        situation = resolve.resolve(requested, torch.device("cuda", 0))
        on_gpu = footprint(situation)
        by_role = findings.estimate_by_role(on_gpu, trains=situation.workload.trains)
    assert on_gpu.workspaces == handles * (32 << 20)
    assert by_role["other"] == on_gpu.workspaces + on_gpu.cache
    assert footprint(resolve.resolve(requested, CPU)).workspaces == 0


def test_layers_that_share_a_rotary_table_are_estimated_with_one():
    requested = Configuration(family="hydra", preset="tiny", workload="forward")
    own, shared = (
        footprint(
            resolve.resolve(msgspec.structs.replace(requested, toggles={"rope_cache": option}), CPU)
        ).tables
        for option in ("per_layer", "shared")
    )
    assert own == 4 * shared > 0


@pytest.fixture
def eight_gpus(monkeypatch):
    """Imagine eight H200s, on which nothing runs."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    with hardware.imagined((9, 0), total_bytes=141 << 30):
        yield


def total(family="hydra", *, model=None, **toggles):
    """Bytes estimated of a training step on a GPU."""
    requested = Configuration(
        family=family,
        preset=FAMILIES[family].first_choice,
        workload="train",
        model=model or {},
        settings={"batch": 8, "sequence": 1024},
        toggles={"compile": "off", "triton": "on", "precision": "amp_bf16"} | toggles,
    )
    situation = resolve.resolve_runnable(requested, torch.device("cuda", 0))
    return footprint(situation).total


FEW_WORDS = {"vocabulary": 2048}  # the loss is small, so that blocks have the peak


@pytest.mark.usefixtures("eight_gpus")
def test_a_loss_without_all_logits_needs_less():
    """On an H200 the fused loss of Triton needed 0.57 of the memory (``fused_loss``)."""
    fused, all_logits = total(fused_loss="triton"), total()
    assert fused == pytest.approx(0.57 * all_logits, rel=0.05)
    assert total(fused_loss="triton_small") < fused < total(fused_loss="chunked")


@pytest.mark.usefixtures("eight_gpus")
def test_offloaded_activations_need_less():
    """On an H200 they needed 0.70 of the memory (``activation_offload``)."""
    assert total(activation_offload="on") == pytest.approx(0.70 * total(), rel=0.05)


@pytest.mark.usefixtures("eight_gpus")
def test_stages_whose_layers_are_sharded_need_less_than_with_either_alone():
    both = total(model=FEW_WORDS, pipeline_parallel="2", tensor_parallel="2")
    for option in ("pipeline_parallel", "tensor_parallel"):
        assert both < 0.8 * total(model=FEW_WORDS, **{option: "2"})


@pytest.mark.usefixtures("eight_gpus")
def test_stages_of_split_sequences_save_what_they_gather():
    def gathered(n_kv_heads):
        """Return how much more ranks need with as many tokens of split sequences."""
        options = {"pipeline_parallel": "2", "micro_batches": "2"}
        model = FEW_WORDS | {"n_kv_heads": n_kv_heads}
        split = total(model=model, context_parallel="4", **options)
        return split - total(model=model, data_parallel="4", **options)

    assert gathered(12) > 3 * gathered(4) > 0


@pytest.mark.usefixtures("eight_gpus")
def test_weights_of_shards_are_sharded_again():
    options = {"tensor_parallel": "2", "data_parallel": "2"}
    assert total(model=FEW_WORDS, sharding="full", **options) < total(model=FEW_WORDS, **options)


@pytest.mark.usefixtures("eight_gpus")
def test_the_errors_that_powersgd_keeps_are_as_large_as_the_gradients():
    plain, compressed = (
        total(data_parallel="2", gradient_compression=option) for option in ("off", "powersgd")
    )
    gradients = 4 * FAMILIES["hydra"].parameter_count(FAMILIES["hydra"].configure("base"))
    assert compressed - plain == gradients


@pytest.mark.usefixtures("eight_gpus")
def test_moments_in_eight_bits_are_estimated_as_counted(monkeypatch):
    """Counted for the 114M parameters: 0.23 GB instead of 0.91 (``adamw``)."""
    monkeypatch.setattr(optimizers, "installed", lambda library: True)
    less = total(adamw="fused") - total(adamw="8bit_bitsandbytes")
    assert less == pytest.approx(0.91e9 - 0.23e9, rel=0.02)
