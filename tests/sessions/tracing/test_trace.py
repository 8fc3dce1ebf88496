"""A trace is read so that each kernel's time belongs to the module that asked for it."""

from __future__ import annotations

from pathlib import Path

import pytest
from traces import AUTOGRAD, Written

from sessions.studies import breakdown
from sessions.tracing import kinds, sums, trace


def trained() -> Written:
    """One training step: two modules with a loss, backward in autograd's thread, an optimizer."""
    made = Written()
    made.mark("workbench step", 0, 1000)
    made.mark("module (loss)", 10, 300)
    made.mark("module (model)", 20, 200)
    made.mark("module a", 30, 80)
    made.op("aten::linear", 35, 75, sequence=5)
    made.op("aten::t", 36, 40, sequence=5)
    made.op("aten::mm", 45, 70, sequence=6)
    made.kernel("nvjet_a", 50, 40.0)
    made.mark("module b", 90, 150)
    made.op("_Norm", 95, 140, sequence=7)
    made.kernel("_rms_norm_forward", 100, 10.0, call="cuLaunchKernelEx")
    made.op("aten::nll_loss", 210, 290, sequence=8)
    made.kernel("nll_loss_forward", 220, 4.0)
    made.node("NllLossBackward0", 310, 350, sequence=8)
    made.kernel("nll_loss_backward", 320, 6.0, thread=AUTOGRAD)
    made.node("_NormBackward", 360, 400, sequence=7)
    made.kernel("_rms_norm_backward", 370, 20.0, thread=AUTOGRAD)
    made.node("MmBackward0", 410, 460, sequence=6)
    made.op("aten::mm", 412, 430, thread=AUTOGRAD)
    made.kernel("nvjet_b", 415, 80.0, thread=AUTOGRAD)
    made.node("torch::autograd::AccumulateGrad", 470, 490)
    made.kernel("add", 475, 2.0, thread=AUTOGRAD)
    made.mark("Optimizer.step#AdamW.step", 700, 900)
    made.op("aten::_fused_adamw_", 710, 890)
    made.kernel("multi_tensor_apply_kernel", 720, 30.0)
    made.kernel("loose", 950, 1.0)
    return made


def by_module(rows) -> dict[tuple[str, str], float]:
    sums_by_module: dict[tuple[str, str], float] = {}
    for row in rows:
        key = (row.module, row.phase)
        sums_by_module[key] = sums_by_module.get(key, 0.0) + row.us
    return sums_by_module


def read_by_module(made: Written, folder: Path) -> dict[tuple[str, str], float]:
    """Read the written trace and return the device's time by module and phase."""
    read = trace.read(made.save(folder / "t.json"), "cuda")
    return by_module(sums.device_rows(read))


def test_kernels_belong_to_modules_forward_and_backward(tmp_path):
    read = trace.read(trained().save(tmp_path / "t.json"), "cuda")
    rows = sums.device_rows(read)
    assert by_module(rows) == {
        ("a", "forward"): 40.0,
        ("b", "forward"): 10.0,
        ("(loss)", "forward"): 4.0,
        ("(loss)", "backward"): 6.0,
        ("b", "backward"): 20.0,
        ("a", "backward"): 80.0,
        (breakdown.GRADIENTS, "backward"): 2.0,
        (breakdown.OPTIMIZER, "optimizer"): 30.0,
        (breakdown.OUTSIDE, "step"): 1.0,
    }
    assert sum(row.us for row in rows) == sums.busy_us(read) == 193.0
    classes = {row.name: row.kind for row in rows}
    assert classes["nvjet_a"] == "matrix product"
    assert classes["_rms_norm_backward"] == "normalisation"
    assert classes["multi_tensor_apply_kernel"] == "optimizer"


def test_of_operators_with_one_sequence_number_the_last_made_the_node(tmp_path):
    made = Written()
    made.mark("workbench step", 0, 500)
    made.mark("module a", 10, 50)
    made.op("aten::detach", 20, 30, sequence=3)  # makes no node: the number goes on to b
    made.mark("module b", 60, 100)
    made.op("aten::mul", 70, 90, sequence=3)
    made.node("MulBackward0", 200, 250, sequence=3)
    made.kernel("mul", 210, 5.0, thread=AUTOGRAD)
    assert read_by_module(made, tmp_path) == {("b", "backward"): 5.0}


def test_a_sum_of_gradients_after_a_fused_operator_is_no_part_of_it(tmp_path):
    made = Written()
    made.mark("workbench step", 0, 1000)
    for operator, name, at, sequence in (
        ("rms_norm", "_Norm", 10, 1),
        ("rope", "aten::mul", 50, 2),
    ):
        made.mark(f"operator {operator}", at, at + 30)
        made.op(name, at + 2, at + 20, sequence=sequence)
        made.kernel(f"{operator}_forward", at + 5, 3.0)
    for name, at, sequence in (("MulBackward0", 200, 2), ("_NormBackward", 300, 1)):
        made.node(name, at, at + 60, sequence=sequence)
        made.op(name, at + 1, at + 20, sequence=sequence, thread=AUTOGRAD)
        made.kernel(f"{name}_kernel", at + 5, 10.0, thread=AUTOGRAD)
        made.op("aten::add_", at + 30, at + 50, thread=AUTOGRAD)
        made.kernel(f"sum after {name}", at + 35, 7.0, thread=AUTOGRAD)
    read = trace.read(made.save(tmp_path / "t.json"), "cuda")
    operators = {row.name: row.operator for row in sums.device_rows(read)}
    assert operators == {
        "rms_norm_forward": "rms_norm",
        "rope_forward": "rope",
        "MulBackward0_kernel": "rope",
        "sum after MulBackward0": "rope",  # sums between torch's nodes are part of it
        "_NormBackward_kernel": "rms_norm",
        "sum after _NormBackward": "",
    }


def test_what_checkpointing_computes_again_belongs_to_its_module_as_recomputed(tmp_path):
    made = Written()
    made.mark("workbench step", 0, 500)
    made.mark("module a", 10, 50)
    made.op("aten::mm", 20, 40, sequence=3)
    made.mark("module b", 60, 80)
    made.op("aten::mul", 65, 75, sequence=4)
    made.node("MmBackward0", 200, 300, sequence=3)
    made.mark("module a.inner", 210, 250, thread=AUTOGRAD)
    made.op("aten::mm", 212, 240, sequence=4, thread=AUTOGRAD)  # another thread's own count
    made.kernel("gemm", 215, 9.0, thread=AUTOGRAD)
    made.kernel("gemm_backward", 260, 5.0, thread=AUTOGRAD)
    made.node("MulBackward0", 310, 340, sequence=4)
    made.kernel("mul_backward", 320, 3.0, thread=AUTOGRAD)
    assert read_by_module(made, tmp_path) == {
        ("a.inner", "recompute"): 9.0,
        ("a", "backward"): 5.0,
        ("b", "backward"): 3.0,
    }


def test_what_is_computed_again_within_an_operators_node_is_no_part_of_that_operator(tmp_path):
    made = Written()
    made.mark("workbench step", 0, 500)
    made.mark("module a", 10, 90)
    made.mark("operator rms_norm", 20, 40)
    made.op("_Norm", 22, 38, sequence=3)
    made.mark("operator swiglu", 60, 80)
    made.op("_Gated", 62, 78, sequence=5)
    made.node("_GatedBackward", 200, 400, sequence=5)
    made.op("_GatedBackward", 201, 399, sequence=5, thread=AUTOGRAD)
    made.mark("operator rms_norm", 210, 240, thread=AUTOGRAD)
    made.op("_Norm", 212, 238, sequence=0, thread=AUTOGRAD)
    made.kernel("norm", 215, 2.0, thread=AUTOGRAD)
    made.op("aten::mm", 250, 290, sequence=1, thread=AUTOGRAD)
    made.kernel("gemm", 260, 9.0, thread=AUTOGRAD)
    made.kernel("gated_backward", 350, 5.0, thread=AUTOGRAD)
    rows = sums.device_rows(trace.read(made.save(tmp_path / "t.json"), "cuda"))
    assert {row.name: (row.module, row.phase, row.operator) for row in rows} == {
        "norm": ("a", "recompute", "rms_norm"),
        "gemm": ("a", "backward", ""),
        "gated_backward": ("a", "backward", "swiglu"),
    }


def test_work_of_steps_that_are_not_marked_is_left_out(tmp_path):
    made = trained()
    made.kernel("before", -50, 500.0, start=-40)
    made.mark("module a", 2000, 2100)
    made.kernel("after", 2010, 500.0)
    read = trace.read(made.save(tmp_path / "t.json"), "cuda")
    assert {"before", "after"}.isdisjoint(row.name for row in sums.device_rows(read))


def test_a_replayed_graph_and_an_unknown_launch_are_given_to_no_module(tmp_path):
    made = Written()
    made.mark("workbench step", 0, 100)
    made.mark("module a", 5, 50)
    made.kernel("one", 10, 5.0, call="cudaGraphLaunch")
    made.replayed("two", 20, 5.0)
    lost = {"ph": "X", "cat": "kernel", "name": "three", "tid": 7, "ts": 40, "dur": 2,
            "args": {"correlation": 99}}  # fmt: skip
    made.events.append(lost)
    assert read_by_module(made, tmp_path) == {
        (breakdown.REPLAYED, "replay"): 10.0,
        (breakdown.UNKNOWN, "forward"): 2.0,
    }


def test_replayed_kernels_are_named_by_the_same_step_without_the_graph(tmp_path):
    uncaptured = trace.read(trained().save(tmp_path / "eager.json"), "cuda")
    made = Written()
    for step in (0, 1000):
        made.mark("workbench step", step, step + 900)
        names = [work.name for work in uncaptured.work if work.name != "loose"]
        made.kernel("copy of inputs", step + 10, 1.0)  # that the uncaptured step does not have
        made.kernel(names[0], step + 20, 10.0, call="cudaGraphLaunch")
        for name in [*names[1:4], "only in the graph", *names[4:]]:
            made.replayed(name, made._device_free, 10.0)
    read = trace.read(made.save(tmp_path / "t.json"), "cuda")
    sums.name_replayed(read, uncaptured)
    rows = {row.name: row for row in sums.device_rows(read)}
    assert (rows["nvjet_a"].module, rows["nvjet_a"].phase) == ("a", "forward")
    assert (rows["nvjet_b"].module, rows["nvjet_b"].phase) == ("a", "backward")
    assert rows["multi_tensor_apply_kernel"].phase == "optimizer"
    assert rows["only in the graph"].module == breakdown.REPLAYED
    assert rows["copy of inputs"].module == breakdown.OUTSIDE
    assert all(row.calls == 2 for row in rows.values())


def test_a_launch_on_a_thread_of_its_own_belongs_to_the_operator_that_is_named_for_it(tmp_path):
    made = Written()
    made.mark("workbench step", 0, 100)
    made.mark("module a", 5, 50)
    made.op("aten::mm", 10, 40, **{"External id": 17})
    made.kernel("gemm", 20, 5.0, thread=999)
    made.events[-2]["args"]["External id"] = 17
    assert read_by_module(made, tmp_path) == {("a", "forward"): 5.0}


def test_compiled_code_is_told_apart_from_what_surrounds_it(tmp_path):
    made = Written()
    made.mark("workbench step", 0, 400)
    made.op("Torch-Compiled Region: 0/0", 10, 100)
    made.op("CompiledFunction", 20, 90, sequence=4)
    made.kernel("triton_red_fused_add_mean_0", 30, 8.0)
    made.node("CompiledFunctionBackward", 200, 300, sequence=4)
    made.kernel("triton_poi_fused_mul_1", 210, 9.0, thread=AUTOGRAD)
    read = trace.read(made.save(tmp_path / "t.json"), "cuda")
    rows = sums.device_rows(read)
    assert by_module(rows) == {
        (breakdown.COMPILED, "forward"): 8.0,
        (breakdown.COMPILED, "backward"): 9.0,
    }
    assert {row.kind for row in rows} == {"fused by Inductor"}


def test_kernels_side_by_side_are_busy_once_and_gaps_belong_to_what_came_after(tmp_path):
    made = Written()
    made.mark("workbench step", 0, 500)
    made.mark("module a", 0, 200)
    made.kernel("one", 10, 100.0, start=20)
    made.kernel("beside", 12, 50.0, start=60)
    made.mark("module b", 210, 300)
    made.kernel("two", 220, 10.0, start=230)
    made.kernel("three", 222, 10.0, start=240.2)  # closer than the clock can tell
    read = trace.read(made.save(tmp_path / "t.json"), "cuda")
    assert sums.busy_us(read) == pytest.approx(120.0)
    (gap,) = sums.gaps(read)
    assert (gap.module, gap.count, gap.us) == ("b", 1, pytest.approx(110.0))


def test_on_the_cpu_own_times_add_up_to_the_steps(tmp_path):
    made = trained()
    for event in made.events:  # there, backward runs on the main thread
        event["tid"] = 100
    made.events = [event for event in made.events if event["cat"] in ("cpu_op", "user_annotation")]
    read = trace.read(made.save(tmp_path / "t.json"), "cpu")
    rows = sums.host_rows(read)
    assert sum(row.us for row in rows) == pytest.approx(1000.0)
    modules = by_module(rows)
    assert modules["a", "forward"] == 50.0 and modules["a", "backward"] == 50.0
    assert modules["b", "forward"] == 60.0 and modules["b", "backward"] == 40.0


def test_communication_between_micro_batches_is_neither_forward_nor_backward(tmp_path):
    made = Written()
    made.mark("workbench step", 0, 1000)
    for start, sequence in ((0, 1), (500, 2)):  # two micro-batches
        made.mark("module a", start + 10, start + 110)
        made.op("aten::mm", start + 20, start + 100, sequence=sequence)
        made.op("c10d::send", start + 120, start + 150)
        made.op("c10d::recv_", start + 150, start + 200)
        made.node("MmBackward0", start + 210, start + 300, sequence=sequence)
    made.mark("Optimizer.step#AdamW.step", 900, 960)
    for event in made.events:
        event["tid"] = 100
    read = trace.read(made.save(tmp_path / "t.json"), "cpu")
    rows = sums.host_rows(read)
    assert by_module(rows) == {
        ("a", "forward"): 200.0,
        ("a", "backward"): 180.0,
        (breakdown.OPTIMIZER, "optimizer"): 60.0,
        (breakdown.OUTSIDE, "step"): 560.0,
    }
    assert sum(row.us for row in rows if row.kind == "communication") == 160.0
    assert sum(row.us for row in rows) == 1000.0


def test_a_trace_without_a_marked_step_is_refused(tmp_path):
    made = Written()
    made.op("aten::mm", 0, 10)
    with pytest.raises(ValueError, match="no marked step"):
        trace.read(made.save(tmp_path / "t.json"), "cpu")


@pytest.mark.parametrize(
    ("name", "callers", "kind"),
    [
        ("void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm>", [], "matrix product"),
        ("flash_fwd_kernel", ["aten::_flash_attention_forward"], "attention"),
        ("void at::native::vectorized_elementwise_kernel<4, FillFunctor<int>>", [], "copy"),
        ("void at::native::vectorized_elementwise_kernel<4, Mul>", [], "elementwise"),
        ("void at::native::reduce_kernel<512, 1>", ["aten::sum"], "reduction"),
        ("Memcpy DtoD (Device -> Device)", ["aten::copy_"], "copy"),
        ("ncclDevKernel_AllReduce_Sum_f32", [], "communication"),
        ("triton_per_fused_add_native_layer_norm_3", [], "fused by Inductor"),
        ("mystery", ["unnamed", "aten::mm", "aten::linear"], "matrix product"),
        ("mystery", [], "other"),
        ("aten::t", [], "view"),
        ("aten::add_", [], "elementwise"),
    ],
)
def test_operator_classes_are_told_by_name_then_by_caller(name, callers, kind):
    assert kinds.kind_of(name, callers) == kind
    assert kind in breakdown.KINDS


@pytest.mark.parametrize(
    ("operator", "kernel"),
    [
        ("mul", "unrolled_elementwise_kernel<at::native::BinaryFunctor<float, float, float>>"),
        ("roll", "(anonymous namespace)::roll_cuda_kernel<float>"),
        ("arange", "(anonymous namespace)::elementwise_kernel_with_index<int, arange_cuda_out>"),
        ("where", "elementwise_kernel<128, 2, gpu_kernel_impl_nocast<where_kernel_impl>>"),
        ("maximum", "vectorized_elementwise_kernel<4, at::native::maximum_kernel_cuda>"),
        ("rsub", "vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>"),
        ("ones_like", "vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>"),
        ("full", "vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>"),
        ("stack", "(anonymous namespace)::CatArrayBatchedCopy<OpaqueType<4u>, unsigned int, 2>"),
        ("linalg_vector_norm", "reduce_kernel<512, 1, ReduceOp<float, NormTwoOps<float>>>"),
        ("index_select", "(anonymous namespace)::indexSelectLargeIndex<float>"),
    ],
)
def test_the_time_of_a_kernel_and_the_work_of_its_operator_are_in_one_class(operator, kernel):
    """The work is counted by the operator's name, and the time is classed by the kernel's."""
    kind = kinds.kind_of(f"aten::{operator}")
    assert kinds.kind_of(f"void at::native::{kernel}", [f"aten::{operator}"]) == kind != "other"


def test_every_class_has_a_place_among_the_classes():
    made = {kind for kind, _ in kinds._PATTERNS} | {kinds.OPTIMIZER, kinds.HOST, kinds.OTHER}
    assert made | {breakdown.INPUT_WAIT} == set(breakdown.KINDS)
