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
