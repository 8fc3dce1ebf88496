"""Models of one's own that are no plain module: what they are stays so, and ends with them."""

from __future__ import annotations

import gc
import sys
import time
from pathlib import Path

import msgspec
import psutil
import pytest
import torch
import torch._dynamo
from hang_limit import HANG_S
from torch.backends import cudnn

import kernels
from sessions.model import Configuration
from workbench import protocol
from workbench.runner.building.variant_cache import VariantCache
from workbench.runner.config.resolve import resolve
from workbench.runner.failures import Mistake
from workbench.runner.instruments.phases import PhaseTracker
from workbench.runner.numerics import comparison
from workbench.runner.user_models import neighbour_modules
from workbench.runner.user_models.user_model import FAMILY

CPU = torch.device("cpu")
FILE = """
import os
import torch
import torch._dynamo
from torch import nn
{first}

class Odd(nn.Module):
    def __init__(self):
        super().__init__()
        {members}
        self.layer = nn.Linear(16, 16)
        self.register_buffer("mean", torch.zeros(1, 16))
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        {body}

def build():
    {build}
    return Odd(), lambda batch: torch.randn(batch, 16), lambda y, x: y.square().mean()
"""


@pytest.fixture
def write(tmp_path):
    def written(body="return self.layer(x)", *, members="", first="", build="") -> Configuration:
        path = tmp_path / "odd.py"
        path.write_text(
            FILE.format(body=body, members=members or "pass", first=first, build=build or "pass")
        )
        return Configuration(
            family="own", preset="file", workload="train", model={"source": str(path)}
        )

    return written


def built(requested: Configuration):
    situation = resolve(requested, CPU)
    return VariantCache().get(situation, PhaseTracker(lambda phase: None)), situation


def checked(requested: Configuration, steps: int = 3):
    arm, situation = built(requested)
    with arm.entered():
        for _ in range(steps):
            arm.ready()
            arm.step()
    return arm, comparison.check(arm, situation)


# State


@pytest.mark.parametrize(
    "mean",
    ["0.9 * self.mean + 0.1 * y.detach().mean(0)", "torch.cat([self.mean, y.detach()])[-9:]"],
    ids=["another tensor", "another size"],
)
def test_a_buffer_that_a_call_puts_another_in_place_of_is_carried_and_put_back(write, mean):
    body = f"y = self.layer(x); self.mean = {mean}; return y - self.mean.mean(0)"
    arm, result = checked(write(body))
    mean_before = arm.model.module.mean.clone()
    situation = arm.situation
    again = comparison.check(arm, situation)
    assert torch.equal(arm.model.module.mean, mean_before), "the arm is as it was"
    for outcome in (result, again):
        assert outcome.ok, outcome.text
        assert abs(outcome.loss_difference) < 1e-6 and outcome.tolerance < 1e-5
        assert "rounding decides" not in outcome.text


def test_state_that_is_no_buffer_is_carried_to_the_reference(write):
    _, result = checked(write("return self.layer(x) * (1 + 0.1 * self.calls)"))
    assert result.ok, result.text


HELPED = "import helper, torch.nn\nfrom parts.scale import scale"


@pytest.fixture
def helped(write, tmp_path):
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "__init__.py").write_text("")
    (tmp_path / "parts" / "scale.py").write_text("from . import more\nscale = more.scale\n")
    (tmp_path / "parts" / "more.py").write_text("scale = 2.0\n")
    (tmp_path / "helper.py").write_text("calls = []\n")
    (tmp_path / "other.py").write_text("")
    (tmp_path / "torch.py").write_text("raise RuntimeError('torch is found before')\n")
    body = "helper.calls.append(self); return self.layer(x) * scale"
    return write(body, first=HELPED)


def digest(requested: Configuration) -> str:
    return resolve(requested, CPU).config.sha256


def test_a_file_that_is_imported_from_beside_is_a_part_of_it(helped, tmp_path):
    first = digest(helped)
    arm, _ = built(helped)
    for name, changes in (("other.py", False), ("helper.py", True), ("parts/more.py", True)):
        path = tmp_path / name
        path.write_text(path.read_text() + "scale = 3.0  # other numbers\n")
        assert (digest(helped) != first) is changes
        first = digest(helped)
    again, _ = built(helped)
    x = arm.batches.inputs[0]
    with torch.no_grad():
        assert torch.allclose(again.model(x) * 2, arm.model(x) * 3)


def test_the_bundled_packages_are_no_part_of_a_file_beside_them(tmp_path):
    root = Path(kernels.__file__).parents[1]
    path = tmp_path / "mine.py"
    path.write_text("import kernels, models, workbench.runner, torch")
    (tmp_path / "kernels").symlink_to(root / "kernels")
    (tmp_path / "models").symlink_to(root / "models")
    assert neighbour_modules.files_beside(path, Path.read_bytes) == []


def test_configurations_share_no_state_of_what_is_imported_from_beside(helped):
    first, second = built(helped)[0], built(helped)[0]
    helpers = [arm.model.module.forward.__globals__["helper"] for arm in (first, second)]
    for helper, arm in zip(helpers, (first, second), strict=True):
        helper.calls.clear()
        with arm.entered():
            arm.step()
        assert set(helper.calls) == {arm.model.module}


# Numbers


COMPLEX = "self.c = nn.Parameter(torch.randn(16, dtype=torch.complex64))"


def test_complex_parameters_stay_complex_and_are_checked_and_trained(write):
    body = "return torch.fft.ifft(torch.fft.fft(self.layer(x)) * self.c).imag"
    requested = write(body, members=COMPLEX)
    arm, result = checked(requested)
    assert arm.model.module.c.dtype == torch.complex64
    assert arm.model.module.c.imag.abs().max() > 0.1
    assert result.ok and result.reference == "float64" and result.relative_error < 1e-6, result.text
    config = resolve(requested, CPU).config
    for dtype, complex_dtype in (
        (torch.float64, torch.complex128),
        (torch.bfloat16, torch.complex64),
    ):
        made = FAMILY.materialise(config, CPU, dtype)
        shared = FAMILY.share(config, made.weights())
        for model in (made, shared):
            assert (
                model.module.c.dtype == complex_dtype and model.module.layer.weight.dtype == dtype
            )


def test_a_parameter_of_whole_numbers_may_come_first(write):
    order = "self.order = nn.Parameter(torch.arange(16).flip(0), requires_grad=False)"
    arm, result = checked(write("return self.layer(x[:, self.order])", members=order))
    assert arm.model.module.order.dtype == torch.int64
    assert result.ok, result.text


def test_what_is_frozen_has_no_moments(write):
    requested = write("return self.layer(x + self.big)", members="self.big = nn.Parameter("
                  "torch.ones(16), requires_grad=False)")  # fmt: skip
    arm, result = checked(requested)
    assert arm.trainer is not None
    assert arm.model.module.big not in arm.trainer.optimizer.state
    assert arm.model.module.layer.weight in arm.trainer.optimizer.state
    assert result.ok, result.text


def test_a_model_may_take_one_batch_size_alone(write):
    arm, result = checked(write("assert len(x) == 4; return self.layer(x)"))
    assert result.ok and arm.probe.ran, result.text


@pytest.mark.parametrize(
    "more",
    [
        "self.layer.register_forward_hook(lambda module, x, y: 2 * y)",
        "self.layer.register_forward_pre_hook(lambda module, x: (x[0] + 1,))",
        "self.layer.forward = lambda x: nn.functional.linear(x, self.layer.weight) * 3",
    ],
)
def test_a_layer_that_does_more_than_multiply_is_not_replaced_by_codes(write, more):
    requested = write(build=f"made = Odd(); self = made; {more}; return made, *parts()")
    text = Path(requested.model["source"]).read_text()
    parts = text.rpartition("return Odd(), ")[2].strip()
    Path(requested.model["source"]).write_text(f"{text}\ndef parts():\n    return {parts}\n")
    toggles = {"quantization": "int8_weight_only"}
    requested = msgspec.structs.replace(requested, workload="forward", toggles=toggles)
    arm, result = checked(requested)
    assert result.ok, result.text
    (evidence,) = [item for item in arm.find_evidence() if item.toggle == "quantization"]
    assert evidence.status == "no effect", evidence.text


def test_lazy_layers_are_a_mistake_in_one_sentence(write):
    with pytest.raises(Mistake, match=r"lazy layers.*call the module once in build\(\)"):
        built(write(members="self.lazy = nn.LazyLinear(4)"))


# What it does to its process


SWITCHES = (
    "torch.set_default_dtype(torch.float64); torch.set_grad_enabled(False); "
    "torch.set_num_threads(3); torch.use_deterministic_algorithms(True); "
    "torch.set_float32_matmul_precision('medium'); torch.backends.cudnn.benchmark = True; "
    "torch.backends.cuda.enable_flash_sdp(False); torch.autograd.set_detect_anomaly(True); "
    "import gc, sys; gc.disable(); sys.setrecursionlimit(5000); torch.set_default_device('cpu')"
)


def switches() -> tuple[object, ...]:
    return (
        torch.get_default_dtype(),
        torch.is_grad_enabled(),
        torch.get_num_threads(),
        torch.are_deterministic_algorithms_enabled(),
        torch.get_float32_matmul_precision(),
        cudnn.benchmark,
        torch.backends.cuda.flash_sdp_enabled(),
        torch.is_anomaly_enabled(),
        gc.isenabled(),
        sys.getrecursionlimit(),
        torch.utils._device.CURRENT_DEVICE,
    )


@pytest.mark.parametrize("where", ["first", "build", "body"])
def test_what_it_switches_for_the_whole_process_ends_with_it(write, where):
    before = switches()
    changed = {where: SWITCHES if where != "body" else f"{SWITCHES}; return self.layer(x)"}
    arm, _ = built(write(**changed))
    assert switches() == before
    if where != "body":
        with arm.entered():
            arm.step()
            assert torch.is_grad_enabled()
        return
    with pytest.raises(RuntimeError, match="does not require grad"), arm.entered():
        arm.step()
    assert switches() == before


@pytest.mark.parametrize("owner", ["", ".cuda.matmul", ".cudnn", ".cudnn.conv", ".mkldnn.matmul"])
def test_tf32_by_its_newer_name_breaks_no_other_configuration(write, owner):
    """Check that no configuration asks by the older name if both disagree, which raises."""
    named = [getattr(torch.backends, name) for name in ("cuda", "cudnn", "mkldnn")]
    before = [
        torch.backends.fp32_precision,
        *(backend.matmul.fp32_precision for backend in named[::2]),
    ]
    built(write(first=f"torch.backends{owner}.fp32_precision = 'tf32'"))
    after = [
        torch.backends.fp32_precision,
        *(backend.matmul.fp32_precision for backend in named[::2]),
    ]
    assert after == before
    _, result = checked(write())
    assert result.ok, result.text


@pytest.mark.parametrize("ends", ["raise SystemExit(3)", "raise KeyboardInterrupt"])
def test_a_model_that_would_end_its_process_is_told_and_the_runner_stays(runner, write, ends):
    since = len(runner.messages)
    runner.start(write(f"if self.calls > 9: {ends}\n        return self.layer(x)"), steps=50)
    assert runner.finish().reason == "failed"
    sentences = [m.sentence for m in runner.messages[since:] if isinstance(m, protocol.Failure)]
    assert sentences == [f"{ends.split()[1].partition('(')[0]} in the model: "
                    f"{'3' if '3' in ends else 'no message'}"]  # fmt: skip
    runner.start(write(), steps=5)
    assert runner.finish().reason == "done"


def test_a_process_that_a_model_forks_sends_no_steps_and_ends(runner, write, tmp_path):
    pid_file = tmp_path / "pid"
    body = (
        "if self.calls == 9:\n"
        f"            child = os.fork()\n            if child: open({str(pid_file)!r}, 'w')"
        ".write(str(child))\n"
        "        return self.layer(x)"
    )
    since = len(runner.messages)
    runner.start(write(body), steps=60)
    assert runner.finish().reason == "done"
    child = int(Path(pid_file).read_text())
    until = time.monotonic() + HANG_S
    while time.monotonic() < until and _lives(child):
        time.sleep(0.05)
    assert not _lives(child)
    finished = [m for m in runner.messages[since:] if isinstance(m, protocol.Finished)]
    assert len(finished) == 1
    (steps,) = {message.steps for message in finished}
    assert len(runner.session.segments[-1].steps["t_s"]) == steps


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


# Code that compiles itself

COMPILES = """
if not hasattr(torch, "_compiled_here"):
    torch._compiled_here = []

def seen(graph, inputs):
    torch._compiled_here.append(inputs[0].dtype)
    return graph.forward
"""
INNER = "self.inner = torch.compile(nn.Sequential(nn.Linear(16, 16)), backend=seen)"


@pytest.fixture
def compiled(monkeypatch):
    dtypes: list[torch.dtype] = []
    monkeypatch.setattr(torch, "_compiled_here", dtypes, raising=False)
    torch._dynamo.reset()
    yield dtypes
    torch._dynamo.reset()


def test_a_check_compiles_nothing_of_a_model_that_compiles_itself(write, compiled):
    """Code of torch's own is shared by all copies, and so is how often it may be compiled anew."""
    arm, situation = built(write("return self.inner(x)", members=INNER, first=COMPILES))
    assert not compiled, "the probe looks at what is not compiled"
    with arm.entered():
        arm.step()
    assert len(compiled) == 1
    result = comparison.check(arm, situation)
    assert result.ok, result.text
    assert len(compiled) == 1 and arm.probe.ran


@torch._dynamo.config.patch(recompile_limit=1)  # monkeypatch would delete the option afterwards
def test_a_model_that_may_compile_itself_no_more_is_amber(write, compiled):
    requested = write("return self.inner(x)", members=INNER, first=COMPILES)
    compile_evidence = []
    for seed in range(2):
        arm, _ = built(msgspec.structs.replace(requested, seed=seed))
        with arm.entered():
            arm.step()
        compile_evidence.append([item for item in arm.find_evidence() if item.toggle == "compile"])
    first, (second,) = compile_evidence
    assert not first and second.status == "no effect"
    assert "gave up and continued in eager mode" in second.text


def test_hooks_of_a_first_call_are_the_reason_why_nothing_is_checked(write):
    """An attribute that says they are there is carried to the reference, which has none."""
    body = (
        "if not self.has_hook:\n"
        "            self.layer.register_forward_hook(lambda module, inputs, y: 2 * y)\n"
        "            self.has_hook = True\n"
        "        return self.layer(x)"
    )
    _, result = checked(write(body, members="self.has_hook = False"))
    assert result.ok is None and result.text.endswith("calls of the model register hooks")
