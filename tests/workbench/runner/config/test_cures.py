"""Failures are recognised from the real error, explained, and cured by one choice."""

from __future__ import annotations

import math

import msgspec
import pytest
import torch
from test_faults import faulty
from test_own_model import owned

import kernels
from models.execution.cuda_graph import CaptureError
from sessions.model import Judgement
from workbench import protocol
from workbench.runner import suggested_fixes
from workbench.runner.failures import RankError, explain, is_fatal
from workbench.runner.numerics.nan_watch import FiniteWatch
from workbench.runner.suggested_fixes import with_fix

CPU = torch.device("cpu")

NO_FAKE = """
import torch
@torch.library.custom_op("workbench_tests::untraceable", mutates_args=())
def untraceable(x: torch.Tensor) -> torch.Tensor:
    return x.clone()
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)
    def forward(self, x):
        return untraceable(self.linear(x))
def build():
    return Model(), lambda batch: torch.randn(batch, 3)
"""

STAYS_IN_FP32 = """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.table = torch.nn.Linear(3, 3), torch.ones(3, 3)
    def forward(self, x):
        return self.linear(x) @ self.table
def build():
    return Model(), lambda batch: torch.randn(batch, 3)
"""

DIVERGES = """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.calls = torch.nn.Linear(3, 3), 0
    def forward(self, x):
        self.calls += 1
        return self.linear(x) * (float("nan") if self.calls > 5 else 1.0)
def build():
    return Model(), lambda batch: torch.randn(batch, 3), lambda y, x: (y - x).square().mean()
"""


@pytest.fixture
def write(tmp_path):
    def written(text: str):
        path = tmp_path / "mine.py"
        path.write_text(text)
        return path

    return written


def failures_since(driver, since):
    return [m for m in driver.messages[since:] if isinstance(m, protocol.Failure)]


# In the real runner


def failure_of(runner, configuration) -> protocol.Failure:
    """Run a configuration that fails; return its failure."""
    since = len(runner.messages)
    runner.start(configuration, steps=5)
    assert runner.finish().reason == "failed"
    (failure,) = failures_since(runner, since)
    return failure


def test_a_model_that_cannot_be_compiled_is_offered_eager_mode_which_then_runs(runner, write):
    configuration = owned(write(NO_FAKE), "forward", toggles={"compile": "default"})
    failure = failure_of(runner, configuration)
    assert failure.kind == "compile" and failure.sentence.startswith("torch.compile failed: ")
    assert failure.set == {"compile": "off"}
    assert failure.fix == (
        "Set torch.compile to Off: the model runs in eager mode, which is slower."
    )
    cured = msgspec.structs.replace(configuration, toggles=failure.set)
    runner.start(cured, steps=5)
    assert runner.finish().reason == "done"


def test_a_model_with_tensors_that_stay_in_fp32_is_offered_autocast_which_then_runs(runner, write):
    configuration = owned(write(STAYS_IN_FP32), "forward", toggles={"precision": "bf16"})
    failure = failure_of(runner, configuration)
    assert "same dtype" in failure.sentence and failure.set == {"precision": "amp_bf16"}
    runner.start(msgspec.structs.replace(configuration, toggles=failure.set), steps=5)
    assert runner.finish().reason == "done"


def test_a_toggle_that_fails_is_cured_from_the_configuration_that_was_asked_for(runner, write):
    runner.start(owned(write(NO_FAKE), "forward"))
    runner.until_steps(1)
    runner.send(protocol.Apply(toggles={"compile": "default"}))
    failure = runner.until(protocol.Failure)
    assert failure.set == {"compile": "off"}
    runner.finish(protocol.Stop())


@pytest.mark.sample(2)
@pytest.mark.parametrize(("workload", "what"), [("train", "loss"), ("forward", "output")])
@pytest.mark.parametrize("seconds", [None, 1.5], ids=["at its end", "while it runs"])
def test_numbers_that_are_not_finite_are_told_once_while_the_run_goes_on(
    runner, write, workload, what, seconds
):
    if seconds is None and workload == "forward":
        return  # what a forward pass gives last is not read, unless it is looked at in time
    since = len(runner.messages)
    limits = {"seconds": seconds} if seconds else {"steps": 9}
    runner.start(owned(write(DIVERGES), workload, toggles={"precision": "amp_bf16"}), **limits)
    finished = runner.finish()
    assert finished.reason == "done"
    (failure,) = failures_since(runner, since)
    assert failure.kind == "nan" and not failure.fatal
    assert failure.sentence.startswith(f"The {what} is not finite (NaN or infinite)")
    assert failure.set == {"precision": "fp32"}


def test_a_finite_run_is_told_nothing(runner, small):
    since = len(runner.messages)
    runner.start(msgspec.structs.replace(small, workload="train"), seconds=1.2)
    assert runner.finish().reason == "done"
    assert failures_since(runner, since) == []


def test_out_of_memory_is_offered_less_memory_step_by_step(with_families):
    driver = with_families
    configuration = msgspec.structs.replace(
        faulty("gpu-memory", call=1), workload="train", settings={"batch": 3, "sequence": 8}
    )
    offered = []
    for _ in range(4):
        since = len(driver.messages)
        driver.start(configuration, steps=3)
        assert driver.finish().reason == "failed"
        (failure,) = failures_since(driver, since)
        assert failure.kind == "out-of-memory" and failure.fix
        offered.append(failure.set)
        toggles = {name: option for name, option in failure.set.items() if name != "batch"}
        settings = dict(configuration.settings)
        if "batch" in failure.set:
            settings["batch"] = int(failure.set["batch"])
        configuration = msgspec.structs.replace(
            configuration, toggles={**configuration.toggles, **toggles}, settings=settings
        )
    assert offered == [
        {"checkpointing": "full"},
        {"precision": "amp_bf16"},
        {"batch": "1"},
        {},  # nothing more to offer
    ]


# From messages that were recorded on GPUs


@pytest.mark.parametrize(
    "text",
    [
        "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
    ],
)
def test_a_lack_of_memory_is_none_of_the_errors_that_end_a_process(text):
    error = RuntimeError(text)
    assert explain(error).kind == "out-of-memory" and not is_fatal(error)
    assert is_fatal(RuntimeError("CUDA error: an illegal memory access was encountered"))


def raised(error, cause=None):
    try:
        raise error from cause
    except type(error) as caught:
        return caught


def test_a_lack_of_memory_inside_of_a_compiler_or_a_capture_is_one():
    wrapped = raised(
        CaptureError("CUDA error: operation failed due to a previous error during capture"),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    )
    assert explain(wrapped).kind == "out-of-memory"


@pytest.mark.parametrize(
    ("precision", "quantization", "batch", "offered"),
    [
        ("amp_bf16", "none", 1, {"precision": "bf16"}),
        ("bf16", "none", 1, {"quantization": "int8_weight_only"}),
        ("bf16", "none", 4096, {"batch": "2048"}),  # activations take more than the weights
        ("bf16", "int8_weight_only", 2, {"batch": "1"}),
    ],
)
def test_inference_that_lacks_memory_is_offered_smaller_weights_where_they_take_most_of_it(
    small, precision, quantization, batch, offered
):
    requested = msgspec.structs.replace(
        small,
        workload="forward",
        settings={"batch": batch, "sequence": 16},
        toggles={"precision": precision, "quantization": quantization},
    )
    lacking = protocol.Failure(kind="out-of-memory", sentence="Out of memory.")
    cured = with_fix(lacking, requested, CPU)
    assert cured.set == offered and cured.fix.startswith("Set ")


def test_a_failed_capture_names_its_line_and_is_offered_to_go_without(small):
    first = raised(RuntimeError("CUDA error: operation not permitted when stream is capturing"))
    failure = explain(raised(CaptureError(str(first)), first))
    assert failure.kind == "capture"
    assert "test_cures.py:" in failure.sentence and "in raised: raise error" in failure.sentence
    assert "operation not permitted when stream is capturing" in failure.sentence
    assert not is_fatal(CaptureError(str(first)))


def test_a_triton_kernel_that_does_not_fit_the_gpu_is_a_failure_to_compile():
    kind = type("OutOfResources", (Exception,), {"__module__": "triton.runtime.errors"})
    text = "out of resource: shared memory, Required: 262144, Hardware limit: 232448."
    failure = explain(kind(text))
    assert failure.kind == "compile" and text in failure.sentence


def test_a_kernel_that_refuses_its_inputs_says_what_to_choose():
    with pytest.raises(kernels.Unavailable) as caught:
        kernels.rms_norm(torch.ones(2, 8), torch.ones(8), 1e-5, impl="triton")
    failure = explain(caught.value)
    assert failure.sentence.startswith("rms_norm: 'triton' cannot run: ")
    assert failure.kind == "mistake" and "Choose PyTorch" in failure.fix


@pytest.mark.parametrize(
    ("reported", "detail"), [(None, ""), ("", ""), ("ValueError: x", "On rank 1:\nValueError: x")]
)
def test_the_log_of_a_failed_rank_is_its_own_report(reported, detail):
    report = None
    if reported is not None:
        report = protocol.Failure(kind="model", sentence="It burst.", detail=reported)
    failure = explain(RankError("rank 1 ended", 1, report))
    assert (failure.kind, failure.detail) == (protocol.RANKS, detail)


def test_a_choice_that_is_blocked_or_changes_nothing_is_not_offered(small):
    failure = protocol.Failure(kind="capture", sentence="It failed.", fix="Look.")
    assert with_fix(failure, small, CPU) == failure  # no graphs on the CPU
    assert with_fix(failure, None, CPU) == failure
    absurd = msgspec.structs.replace(small, toggles={"no such": "toggle"})
    assert with_fix(failure, absurd, CPU) == failure


@pytest.mark.parametrize(
    ("precision", "offered"),
    [
        ("bf16", {"precision": "amp_bf16"}),
        ("amp_bf16", {"precision": "fp32"}),
        ("fp32", {}),
    ],
)
def test_what_is_not_finite_is_offered_a_wider_format(small, precision, offered):
    configuration = msgspec.structs.replace(small, toggles={"precision": precision})
    assert with_fix(suggested_fixes.not_finite("loss"), configuration, CPU).set == offered


@pytest.mark.parametrize(
    ("verdict", "before", "after", "is_advised"),
    [
        ("SLOWER", "off", "default", True),
        ("FASTER", "off", "default", False),
        ("UNDECIDED", "off", "default", False),
        ("SLOWER", "default", "off", False),
        ("SLOWER", "default", "max-autotune", False),
    ],
)
def test_slower_when_switched_on_is_recognised_from_a_verdict(
    small, verdict, before, after, is_advised
):
    first, second = (
        msgspec.structs.replace(small, toggles={"compile": mode}) for mode in (before, after)
    )
    judgement = Judgement(verdict=verdict, pairs=9, ratio=1.13, low=1.1, high=1.2)
    advice = suggested_fixes.slower_when_switched_on(first, second, judgement)
    assert (advice is not None) is is_advised
    if advice is not None:
        assert advice.set == {"compile": "off"} and "1.13x slower (95 % interval" in advice.sentence


@pytest.mark.parametrize(
    "changed", [{"toggles": {"compile": "default", "attention": "manual"}}, {"workload": "train"}]
)
def test_a_toggle_is_not_the_cause_where_something_else_changed_too(small, changed):
    second = msgspec.structs.replace(small, **{"toggles": {"compile": "default"}, **changed})
    judgement = Judgement(verdict="SLOWER", pairs=9, ratio=1.13, low=1.1, high=1.2)
    advice = suggested_fixes.slower_when_switched_on(small, second, judgement)
    assert advice is not None and "made the step" not in advice.sentence
    assert "one of the changes, may be why" in advice.sentence


# Looking at outputs


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_one_number_that_is_not_finite_is_found_and_told_once(dtype, bad):
    watch = FiniteWatch(CPU)
    output = torch.full((1000,), 60_000.0).to(dtype)  # whose sum is more than FP16 holds
    assert not watch.poll(output)
    watch._due_ns = 0
    output[617] = bad
    assert watch.poll(output)
    watch._due_ns = 0
    assert not watch.poll(output)
    assert not FiniteWatch(CPU).poll(torch.ones(3, dtype=torch.int64))


@pytest.mark.gpu
def test_looking_at_outputs_makes_no_step_wait():
    watch = FiniteWatch(torch.device("cuda"))
    output = torch.tensor([1.0, math.nan], device="cuda")
    FiniteWatch(torch.device("cuda")).poll(output)  # the first one loads the kernels of a look
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        torch.cuda._sleep(2**28)
        assert not watch.poll(output)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    assert watch.poll(output)
