"""Code that Inductor generated is attributed to its modules, forward and backward."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest
from runner_driver import Driver
from traces import AUTOGRAD, Written

from sessions.studies import breakdown
from sessions.tracing import sums, trace
from workbench.protocol import Finished, Profile
from workbench.runner.profiling.compiled import name_compiled
from workbench.runner.profiling.provenance import NOWHERE

COMPILING_S = 500.0

MODULES = {
    "": "Net", "embedding": "Embedding", "blocks": "ModuleList", "norm": "Norm", "head": "Linear",
    "blocks.0": "Block", "blocks.0.norm": "Norm", "blocks.0.down": "Linear",
    "blocks.1": "Block", "blocks.1.norm": "Norm", "blocks.1.down": "Linear",
}  # fmt: skip


def at(path: str, root: str = "L['model']") -> tuple[str, str]:
    """Return what Dynamo reports of a module."""
    return f"{root}.{path}" if path else root, MODULES[path]


FORWARD = (
    ("triton_red_fused_norm_0", (at("blocks.0.norm"),)),
    ("extern_kernels.mm", (at("blocks.0.down"),)),
    ("triton_red_fused_add_norm_1", (at("blocks.0"), at("blocks.0.down"))),
    ("extern_kernels.mm", (at("blocks.1.down"),)),
    ("triton_red_fused_add_norm_1", (at("blocks.1"), at("norm"))),
    ("torch.ops.aten._flash_attention_forward.default", (at("blocks.1"),)),
    ("triton_per_fused_nll_2", (NOWHERE,)),
)

BACKWARD = (
    ("triton_poi_fused_nll_norm_0", (NOWHERE, at("norm"))),
    ("extern_kernels.mm", (at("blocks.1.down"),)),
    ("triton_poi_fused_add_1", (at("blocks.0"), at("blocks.1"))),
)

GRAPHS = {"fwd": FORWARD, "bwd": BACKWARD}


def launched(tmp_path, forward=FORWARD, root="workbench step") -> trace.Trace:
    """Return a step whose two compiled graphs launch their kernels one by one, 2**n us each."""
    made = Written()
    made.mark(root, 0, 1000)
    made.op("Torch-Compiled Region: 0/0", 5, 300)
    made.op("CompiledFunction", 10, 290, sequence=4)
    made.op("## Call CompiledFxGraph fwd ##", 20, 280)
    operators = {"extern_kernels.mm": "aten::mm", FORWARD[5][0]: "aten::_flash_attention_forward"}
    for n, (name, _) in enumerate(forward):
        made.op(operators.get(name, name), 30 + 20 * n, 45 + 20 * n)
        made.kernel(name if name.startswith("triton") else "nvjet", 32 + 20 * n, 2.0**n)
    made.node("CompiledFunctionBackward", 300, 600, sequence=4)
    made.op("## Call CompiledFxGraph bwd ##", 310, 590, thread=AUTOGRAD)
    for n, (name, _) in enumerate(BACKWARD):
        made.op(operators.get(name, name), 330 + 20 * n, 345 + 20 * n, thread=AUTOGRAD)
        kernel = name if name.startswith("triton") else "nvjet"
        made.kernel(kernel, 332 + 20 * n, 2.0 ** (n + 7), thread=AUTOGRAD)
    return trace.read(made.save(tmp_path / "t.json"), "cuda")


def by_module(launches: trace.Trace) -> dict[tuple[str, str], float]:
    rows = sums.device_rows(launches)
    assert sum(row.us for row in rows) == sum(work.stop - work.start for work in launches.work)
    sums_by_module: Counter[tuple[str, str]] = Counter()
    for row in rows:
        sums_by_module[row.module, row.phase] += row.us
    return dict(sums_by_module)


def test_each_launch_belongs_to_the_innermost_module_that_holds_what_it_computes(tmp_path):
    launches = launched(tmp_path)
    assert by_module(launches) == {
        (breakdown.COMPILED, "forward"): 127.0,
        (breakdown.COMPILED, "backward"): 896.0,
    }
    name_compiled(launches, GRAPHS, MODULES, has_loss=True)
    assert by_module(launches) == {
        ("blocks.0.norm", "forward"): 1.0,
        ("blocks.0.down", "forward"): 2.0,
        ("blocks.0", "forward"): 4.0,
        ("blocks.1.down", "forward"): 8.0,
        (trace.ROOT, "forward"): 16.0,  # of a block and of the norm after all blocks
        ("blocks.1", "forward"): 32.0,
        (breakdown.LOSS, "forward"): 64.0,
        (breakdown.COMPILED, "backward"): 128.0,  # of the loss and of the model
        ("blocks.1.down", "backward"): 256.0,
        ("blocks", "backward"): 512.0,
    }
    assert launches.unattributed.startswith("a kernel computes for the model and its loss")


def test_what_lies_in_no_module_is_the_loss_only_where_there_is_one(tmp_path):
    launches = launched(tmp_path)
    name_compiled(launches, GRAPHS, MODULES, has_loss=False)
    assert by_module(launches)[breakdown.OUTSIDE, "forward"] == 64.0


def test_calls_that_are_fewer_than_generated_are_given_to_nobody(tmp_path):
    launches = launched(tmp_path, forward=FORWARD[:3])  # one product and one kernel did not run
    name_compiled(launches, GRAPHS, MODULES, has_loss=True)
    sums_by_module = by_module(launches)
    assert sums_by_module["blocks.0.norm", "forward"] == 1.0
    assert sums_by_module[breakdown.COMPILED, "forward"] == 2.0 + 4.0
    assert "the calls that ran differ from those that Inductor generated" in launches.unattributed


def test_a_graph_that_nothing_is_known_of_stays_compiled_code_and_says_why(tmp_path):
    launches = launched(tmp_path)
    name_compiled(launches, {"bwd": BACKWARD}, MODULES, has_loss=True)
    assert by_module(launches)[breakdown.COMPILED, "forward"] == 127.0
    assert launches.unattributed.startswith("a graph came from Inductor's cache")


@pytest.mark.parametrize(
    "path",
    [
        at("norm", "L['self']"),  # of a block where the graph broke, or of the model: both have one
        ("L['model'].norm", "Linear"),
        ("L['model'].gone", "Linear"),
    ],
)
def test_a_path_that_need_not_lead_from_the_model_is_given_to_nobody(tmp_path, path):
    launches = launched(tmp_path)
    forward = ((FORWARD[0][0], (path,)), *FORWARD[1:])
    name_compiled(launches, {"fwd": forward}, MODULES, has_loss=True)
    assert by_module(launches)[breakdown.COMPILED, "forward"] == 1.0


def test_a_block_that_is_compiled_by_itself_names_what_lies_in_it(tmp_path):
    made = Written()
    made.mark("workbench step", 0, 1000)
    for block in (0, 1):
        start = 100 * block
        made.mark(f"module blocks.{block}", start + 5, start + 90)
        made.op("Torch-Compiled Region: 0/0", start + 10, start + 80)
        made.op("CompiledFunction", start + 11, start + 79, sequence=4 + block)
        made.op("## Call CompiledFxGraph block ##", start + 12, start + 78)
        made.op("aten::mm", start + 20, start + 30)
        made.kernel("nvjet", start + 22, 1.0)
        made.op("triton_poi_fused_add_0", start + 40, start + 50)
        made.kernel("triton_poi_fused_add_0", start + 42, 2.0)
    made.node("CompiledFunctionBackward", 300, 400, sequence=5)
    made.op("## Call CompiledFxGraph back ##", 310, 390, thread=AUTOGRAD)
    made.op("triton_red_fused_norm_0", 320, 330, thread=AUTOGRAD)
    made.kernel("triton_red_fused_norm_0", 322, 4.0, thread=AUTOGRAD)
    launches = trace.read(made.save(tmp_path / "t.json"), "cuda")
    own = ("L['self']", "Block")
    graphs = {
        "block": (
            ("extern_kernels.mm", (("L['self'].down", "Linear"),)),
            ("triton_poi_fused_add_0", (NOWHERE, own)),
        ),
        "back": (("triton_red_fused_norm_0", (("L['self'].norm", "Norm"),)),),
    }
    name_compiled(launches, graphs, MODULES, has_loss=True)
    assert by_module(launches) == {
        ("blocks.0.down", "forward"): 1.0,
        ("blocks.0", "forward"): 2.0,
        ("blocks.1.down", "forward"): 1.0,
        ("blocks.1", "forward"): 2.0,
        ("blocks.1.norm", "backward"): 4.0,
    }
    assert not launches.unattributed


def test_kernels_of_inductors_cuda_graphs_are_those_of_the_step_without_them(tmp_path):
    plain = launched(tmp_path)
    name_compiled(plain, GRAPHS, MODULES, has_loss=True)
    made = Written()
    made.mark("workbench step", 0, 1000)
    made.op("Torch-Compiled Region: 0/0", 5, 300)
    made.op("## Call CompiledFxGraph fwd ##", 20, 280)
    kernels = [work.name for work in plain.work]
    made.kernel(kernels[0], 30, 1.0, call="cudaGraphLaunch")
    for name in kernels[1:7]:
        made.replayed(name, made._device_free, 1.0)
    made.op("## Call CompiledFxGraph bwd ##", 310, 590, thread=AUTOGRAD)
    made.kernel("copy of an input", 315, 1.0, thread=AUTOGRAD, call="cudaGraphLaunch")
    for n, name in enumerate(kernels[7:]):  # each in a graph of its own
        made.kernel(name, 320 + 10 * n, 1.0, thread=AUTOGRAD, call="cudaGraphLaunch")
    launches = trace.read(made.save(tmp_path / "t.json"), "cuda")
    name_compiled(launches, GRAPHS, MODULES, has_loss=True)
    assert not launches.unattributed  # nothing was launched that could be miscounted
    sums.name_replayed(launches, plain)
    sums_by_module = by_module(launches)
    assert sums_by_module.pop((breakdown.REPLAYED, "replay")) == 1.0
    assert set(sums_by_module) == set(by_module(plain)) and sum(sums_by_module.values()) == len(
        kernels
    )
    # Both passes have such a product: that of the backward pass comes after all the others.
    assert (
        sums_by_module["blocks.1.down", "backward"]
        == sums_by_module["blocks.1.down", "forward"]
        == 1.0
    )


@pytest.fixture
def watching(monkeypatch):
    """Return a runner of its own, whose compiled C++ kernels are in its traces."""
    monkeypatch.setenv("TORCHINDUCTOR_CPP_ENABLE_KERNEL_PROFILE", "1")
    driver = Driver()
    driver.until_state("idle")
    yield driver
    driver.close()


def profile(runner, configuration, workload, **toggles):
    requested = msgspec.structs.replace(configuration, workload=workload, toggles=toggles)
    runner.send(Profile(configurations=[requested], steps=2))
    assert runner.until(Finished, COMPILING_S).reason == "done", runner.describe()
    runner.until_state("idle")
    return breakdown.profiles(runner.session)[-1]


def products(study) -> Counter[tuple[str, str]]:
    """Return calls of matrix products a step by module and phase."""
    table = study.tables["kernels"]
    calls_by_module: Counter[tuple[str, str]] = Counter()
    for name, module, phase, calls in zip(
        *(table[column] for column in ("name", "module", "phase", "calls")), strict=True
    ):
        if name in ("aten::mm", "aten::addmm"):
            calls_by_module[str(module), str(phase)] += float(calls)
    return calls_by_module


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("scope", ["model", "blocks"])
def test_compiled_products_belong_to_the_modules_that_they_belong_to_uncompiled(
    watching, small, scope
):
    eager = profile(watching, small, "train")
    study = profile(watching, small, "train", compile="default", compile_scope=scope)
    counted = products(study)
    # The head's weights are the embedding's: where the two gradients are added by one product, it
    # is of the loss and of a module, and Inductor says of neither.
    unattributed = counted.pop((breakdown.COMPILED, "backward"), 0.0)
    counted[breakdown.LOSS, "backward"] += unattributed
    assert counted == products(eager) and unattributed <= 1
    fused = study.tables["kernels"]["kind"] == "fused by Inductor"
    modules = {str(module) for module in study.tables["kernels"]["module"][fused]}
    assert {"blocks.0.mlp", "blocks.1.mlp"} <= modules
    assert breakdown.total_us(study) <= study.facts["profiled_us"]
