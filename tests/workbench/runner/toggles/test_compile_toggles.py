"""Scope and shapes of torch.compile: each option shows what it did, or that it did nothing.

Graphs are captured in earnest and run by torch's own quick backend, which generates no code.
"""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from built import blocked, collect_evidence, stepped
from functorch.compile import make_boxed_func
from msgspec.structs import replace
from torch._dynamo.backends.common import aot_autograd

from sessions.model import Configuration
from workbench.runner.distributed.mesh import ONE_RANK
from workbench.runner.failures import explain
from workbench.runner.interfaces import Trait
from workbench.runner.profiling.marks import blocks_marked
from workbench.runner.toggles import all_toggles
from workbench.runner.toggles.compile import repeated_blocks

BROKEN = Path(__file__).parents[1] / "broken_model.py"
PRINT_LINE = 1 + next(n for n, t in enumerate(BROKEN.read_text().split("\n")) if "print(" in t)

BROKEN_BLOCKS = """
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        x = self.linear(x)
        print(end="")
        return x.relu()


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def build():
    return Model(), torch.randn(4, 8)
"""


def slow(value: str) -> object:
    """Return the parameter of a slow test."""
    return pytest.param(value, marks=pytest.mark.slow)


@pytest.fixture(autouse=True)
def quick_backend(monkeypatch):
    """Dynamo as it is, without generating code: a test of seconds becomes one of tenths."""
    real = torch.compile

    def compile_quickly(function, mode=None, backend="eager", **options):
        return real(function, backend=backend, **options)

    monkeypatch.setattr(torch, "compile", compile_quickly)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def own():
    """The model that prints, for a forward pass."""
    return Configuration(
        family="own", preset="file", model={"source": str(BROKEN)}, settings={"batch": 4}
    )


def compiled(configuration, workload="forward", **toggles):
    """An arm after three steps of three batches."""
    return stepped(configuration, workload, steps=3, **{"compile": "default", **toggles})


def test_a_break_is_counted_with_its_line_and_its_reason(own):
    (status, text) = collect_evidence(compiled(own))["compile"]
    assert status == "effective"
    location = f"broken_model.py:{PRINT_LINE} in forward: print"
    assert text.startswith("2 graphs compiled, 1 graph break at ") and location in text
    assert "Failed to trace builtin" in text and text.endswith(", 0 recompiles")


def test_an_operator_that_inductor_cannot_compile_is_named():
    from torch._inductor.exc import InductorError

    error = InductorError.__new__(InductorError)
    reason = "LoweringException: AssertionError: All the buffers should be inputs"
    error.args = (f"{reason}\n  target: flex_attention\n  args[0]: TensorBox(",)
    failure = explain(error)
    assert failure.sentence == (
        "torch.compile failed: Inductor cannot compile flex_attention: AssertionError: All the "
        "buffers should be inputs"
    )


def test_a_second_derivative_that_compiled_code_refuses_is_an_error_of_compilation():
    square = torch.compile(lambda x: x.sin().sum(), backend="aot_eager")
    x = torch.ones(2, requires_grad=True)
    with pytest.raises(RuntimeError) as raised:
        (gradient,) = torch.autograd.grad(square(x), x, create_graph=True)
        gradient.sum().backward()
    failure = explain(raised.value)
    assert failure.kind == "compile"
    assert failure.fix.startswith("Switch torch.compile off")


def test_a_break_where_one_graph_is_demanded_is_an_error_with_its_line(own):
    with pytest.raises(Exception, match="print") as raised:
        compiled(own, compile_scope="fullgraph")
    failure = explain(raised.value)
    assert failure.kind == "compile"
    assert failure.sentence.endswith(f'(broken_model.py, line {PRINT_LINE}: print(end=""))')
    assert "Dynamo does not know how to trace builtin operator `print`" in failure.sentence
    assert "whole model" in failure.fix


@pytest.mark.parametrize("workload", ["decode", "prefill"])
def test_a_compiled_step_writes_only_to_tensors_that_it_says_stay_where_they_are(
    workload, small, monkeypatch
):
    """Inductor captures no other step into a CUDA graph: it would leave the cache out."""
    written: list[int] = []
    moving: list[int] = []

    def look(graph, inputs):
        metadata = torch._guards.TracingContext.get().fw_metadata
        inputs = enumerate(metadata.input_info)
        written.extend(index for index, argument in inputs if argument.mutates_data)
        moving.extend(set(written) - set(metadata.static_input_indices))
        return make_boxed_func(graph.forward)

    backend = aot_autograd(
        fw_compiler=look, inference_compiler=look, keep_inference_input_mutations=True
    )
    quick = torch.compile
    monkeypatch.setattr(
        torch, "compile", lambda function, **options: quick(function, backend=backend, **options)
    )
    settings = small.settings | ({"new_tokens": 4} if workload == "decode" else {})
    stepped(replace(small, settings=settings), workload, compile="default")
    assert len(written) == 2, "keys and values of two blocks, in one tensor each"
    assert not moving


def test_blocks_that_are_compiled_one_by_one_share_a_graph(own, small):
    status, text = collect_evidence(compiled(own, compile_scope="blocks"))["compile_scope"]
    assert (status, text) == ("effective", "2 blocks of 1 kind share 1 compiled graph")
    arm = compiled(small, compile_scope="blocks")
    assert collect_evidence(arm)["compile_scope"] == (status, text)
    assert "1 graph compiled, 0 graph breaks" in collect_evidence(arm)["compile"][1]


def test_blocks_with_a_graph_break_share_the_graphs_on_both_sides_of_it(own, tmp_path):
    source = tmp_path / "broken_blocks.py"
    source.write_text(BROKEN_BLOCKS)
    broken = replace(own, model={"source": str(source)})
    status, text = collect_evidence(compiled(broken, compile_scope="blocks"))["compile_scope"]
    assert status == "effective", text
    assert text.startswith("2 blocks of 1 kind share 2 compiled graphs; 2 graphs compiled, 1 graph")


@pytest.mark.parametrize("family", ["hydra", "moe", *map(slow, ("mamba2", "adaattn", "mahia"))])
def test_the_blocks_of_every_family_compile_one_by_one_without_a_break(family, small):
    """Also with torch 2.11, which gave up in blocks that return more than a tensor."""
    arm = compiled(replace(small, family=family, model={}), "train", compile_scope="blocks")
    evidence = collect_evidence(arm)
    status, text = evidence["compile_scope"]
    assert status == "effective"
    assert ", and the loss has another" in text or family == "mahia"
    assert ", 0 graph breaks" in evidence["compile"][1]


def test_compiled_blocks_are_marked_from_outside_and_nothing_is_compiled_again(small):
    arm = compiled(small, "train", compile_scope="blocks")
    blocks = repeated_blocks(arm.model)
    methods = [dict(block.__dict__) for block in blocks]
    before = arm.compiles.read().text()
    marking = blocks_marked(arm.model, blocks, ["norm", "head"])
    with arm.entered(), torch.profiler.profile() as profiler, marking:
        arm.step()
    marks = {event.name for event in profiler.events() if event.name.startswith("module ")}
    assert marks == {
        "module embedding", "module blocks.0", "module blocks.1", "module (loss)"
    }  # fmt: skip
    regions = [e for e in profiler.events() if e.name.startswith("Torch-Compiled Region")]
    around = {next(name for name in _callers(region) if name in marks) for region in regions}
    assert around == {"module blocks.0", "module blocks.1", "module (loss)"}
    assert arm.compiles.read().text() == before
    assert [dict(block.__dict__) for block in blocks] == methods


def _callers(event):
    while (event := event.cpu_parent) is not None:
        yield event.name


def test_blocks_that_nothing_calls_show_that_nothing_was_compiled(own, monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    status, text = collect_evidence(compiled(own, compile_scope="blocks"))["compile_scope"]
    assert (status, text) == ("no effect", "no graph was compiled")


def test_one_graph_without_a_break_says_so(small):
    status, text = collect_evidence(compiled(small, compile_scope="fullgraph"))["compile_scope"]
    assert (status, text) == ("effective", "1 graph without a graph break, as requested")


def test_dynamic_takes_other_sizes_without_a_recompile_and_static_would_not(small):
    wide = replace(small, settings={"batch": 3, "sequence": 16})
    status, text = collect_evidence(compiled(wide, compile_shapes="dynamic"))["compile_shapes"]
    assert status == "effective"
    assert text == (
        "without a recompile it also supports a batch of 2 instead of 3, "
        "a sequence of 8 instead of 16"
    )


def test_dynamic_that_was_not_heeded_is_told(small, monkeypatch):
    quick = torch.compile
    monkeypatch.setattr(torch, "compile", lambda f, **o: quick(f, **{**o, "dynamic": False}))
    wide = replace(small, settings={"batch": 3, "sequence": 16})
    status, text = collect_evidence(compiled(wide, compile_shapes="dynamic"))["compile_shapes"]
    assert status == "no effect"
    assert "a batch of 2 instead of 3: would recompile (tensor" in text and "size mismatch" in text


def test_automatic_shows_an_effect_once_sizes_change(own):
    arm = compiled(own, compile_shapes="automatic", compile_scope="blocks")
    status, text = collect_evidence(arm)["compile_shapes"]
    assert (status, text.partition(",")[0]) == ("as default", "every step had the same sizes")
    arm.evidence = None
    with arm.entered(), torch.no_grad():
        for rows in (5, 6, 7):
            arm.compute(torch.zeros(rows, 8))
    status, text = collect_evidence(arm)["compile_shapes"]
    assert status == "effective" and "size mismatch at index 0. expected 4, actual 5" in text
    assert "1 recompile because tensor" in collect_evidence(arm)["compile"][1]


def test_a_step_that_recompiles_past_the_limit_is_told_to_run_in_eager_mode(own):
    arm = compiled(own, compile_scope="blocks")
    with arm.entered(), torch.no_grad():
        for rows in range(5, 15):
            arm.compute(torch.zeros(rows, 8))
    status, text = collect_evidence(arm)["compile"]
    assert status == "no effect" and "gave up and continued in eager mode" in text
    assert "7 recompiles because" in text


def test_what_one_arm_compiles_is_not_counted_for_another(own, small):
    arm = compiled(own)
    compiled(small)
    assert "2 graphs compiled" in collect_evidence(arm)["compile"][1]


def test_without_compilation_the_options_are_blocked(small):
    blocked_toggles = blocked(small)
    assert set(blocked_toggles["compile_scope"]) == {"fullgraph", "blocks"}
    assert set(blocked_toggles["compile_shapes"]) == {"automatic", "dynamic"}
    for why in (
        *blocked_toggles["compile_scope"].values(),
        *blocked_toggles["compile_shapes"].values(),
    ):
        assert why.reason == "needs torch.compile, which is off"
        assert why.set == {"compile": "default"}


def test_a_policy_by_operator_and_blocks_compiled_alone_exclude_each_other(small):
    why = blocked(small, compile="default", compile_scope="blocks")["checkpointing"]
    assert set(why) == {"operators"} and why["operators"].set == {"compile_scope": "model"}


def test_decoding_has_one_shape(small):
    why = blocked(small, "decode", compile="default")["compile_shapes"]
    assert set(why) == {"automatic", "dynamic"} and "same shape" in why["dynamic"].reason


@pytest.mark.parametrize("name", ["data_parallel", "context_parallel", "expert_parallel"])
def test_graphs_of_steps_whose_gradients_ranks_average_are_not_split_by_buckets(name):
    """Dynamo's split does not support Triton's kernels."""
    situation = Mock(has=lambda trait: trait is Trait.COMPILED)
    build = Mock(
        layout=ONE_RANK, flags=[], sharding="", situation=situation, compile_options={}
    )  # fmt: skip
    all_toggles()[name].apply("2", build)
    assert torch._dynamo.config.optimize_ddp
    (flag,) = build.flags
    with flag():
        assert not torch._dynamo.config.optimize_ddp


@pytest.mark.parametrize(
    ("mode", "expected"), [("default", {}), ("max-autotune-no-cudagraphs", {"max_autotune": True})]
)
def test_ranks_that_split_sequences_compile_in_the_chosen_mode_and_in_order(
    mode, expected, monkeypatch
):
    situation = Mock(has=lambda trait: trait is Trait.COMPILED)
    build = Mock(
        layout=ONE_RANK, flags=[], compile_options={}, compute_wrappers=[], situation=situation,
        compiles_blocks=False,
    )  # fmt: skip
    all_toggles()["compile"].apply(mode, build)
    all_toggles()["context_parallel"].apply("2", build)
    requested = Mock()
    monkeypatch.setattr(torch, "compile", requested)
    build.compute_wrappers[0](lambda x: x)
    arguments = requested.call_args.kwargs
    assert "mode" not in arguments  # torch takes one or the other
    assert arguments["options"].items() >= expected.items()
    assert "post_grad_custom_pre_pass" in arguments["options"]


@pytest.mark.parametrize("toggle", ["in_place", slow("reuse_buffers"), slow("moe_buffers")])
def test_memory_that_only_calls_beside_compiled_steps_reuse_is_no_effect(toggle):
    """The probe of a variant, which is not compiled, reuses it."""
    settings = {"batch": 1, "sequence": 16}
    moe = Configuration(family="moe", preset="tiny", settings=settings)
    assert collect_evidence(stepped(moe, "forward", **{toggle: "on"}))[toggle][0] == "effective"
    status, text = collect_evidence(compiled(moe, **{toggle: "on"}))[toggle]
    assert status == "no effect" and text.endswith("torch.compile plans memory itself")


def test_two_blocks_of_two_kinds_have_a_graph_each(small):
    deep = replace(small, model={**small.model, "mixture_of_depths": True})
    arm = compiled(deep, compile_scope="blocks")
    status, text = collect_evidence(arm)["compile_scope"]
    assert (status, text) == ("effective", "2 blocks of 2 kinds share 2 compiled graphs")
