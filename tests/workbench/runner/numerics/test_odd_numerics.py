"""Checks of models that people write: right is never red, and a check leaves no trace."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torch.nn.modules import module as torch_module

from sessions.model import Configuration
from workbench.runner.building.variant_cache import VariantCache
from workbench.runner.config.resolve import resolve
from workbench.runner.instruments.phases import PhaseTracker
from workbench.runner.model_state import carried_state
from workbench.runner.numerics import comparison
from workbench.runner.user_models import global_flags
from workbench.runner.variants.variant import Variant

CPU = torch.device("cpu")
ODD = Path(__file__).parents[3] / "examples" / "odd_models.py"
PRECISIONS = ("fp32", "amp_bf16", "bf16")


def build(source, workload="forward", batch=4, steps=3, **toggles) -> Variant:
    configuration = Configuration(
        family="own", preset="file", workload=workload, model={"source": str(source)},
        settings={"batch": batch}, toggles=toggles,
    )  # fmt: skip
    arm = VariantCache().get(resolve(configuration, CPU), PhaseTracker(lambda phase: None))
    with arm.entered():
        for _ in range(steps):
            arm.ready()
            arm.step()
    return arm


def copied(value: object) -> object:
    try:
        return carried_state.copied(value)
    except carried_state.NotCarried:
        return value


def trace(arm: Variant) -> dict[str, object]:
    """Everything that a check must leave as it is."""
    model = arm.model
    tensors = {**model.state_dict(), "inputs": arm.batches.inputs}
    for parameter, state in arm.trainer.optimizer.state.items() if arm.trainer else ():
        tensors |= {f"{id(parameter)} {name}": value for name, value in state.items()}
    hooks = [
        (name, attribute, dict(hooks_of_kind))
        for name, module in model.named_modules()
        for attribute, hooks_of_kind in vars(module).items()
        if attribute.endswith("hooks") and isinstance(hooks_of_kind, dict)
    ]
    return {
        "tensors": {name: carried_state.copied(value) for name, value in tensors.items()},
        "variables": {n: copied(v.value) for n, v in carried_state.variables(model).items()},
        "modes": [module.training for module in model.modules()],
        "hooks": hooks,
        "global hooks": {
            name: dict(global_hooks)
            for name, global_hooks in vars(torch_module).items()
            if name.startswith("_global_") and isinstance(global_hooks, dict)
        },
        "gradients": [parameter.grad for parameter in model.parameters()],
        "learned": [parameter.requires_grad for parameter in model.parameters()],
        "random": (torch.get_rng_state(), random.getstate(), np.random.get_state()),
        "random of the GPU": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "switches": [get() for get, _ in global_flags._ALL],
        "advances": arm.batches.advances,
    }


def check(arm: Variant) -> comparison.Numerics:
    """Return the check's finding; fail if it leaves a trace."""
    before = trace(arm)
    result = comparison.check(arm, arm.situation)
    after = trace(arm)
    for what, value in before.items():
        assert carried_state.same_values(value, after[what]), f"the check changed the {what}"
    return result


EXPECTED = {
    ("data_dependent_init", "fp32"): True,
    ("target_network", "fp32"): True,
    ("state_in_an_attribute", "fp32"): True,
    ("sparse_input", "fp32"): True,
    ("dynamic_padding", "fp32"): True,
    ("data_dependent_init", "amp_bf16"): True,
    ("state_in_an_attribute", "bf16"): None,  # 13 numbers move
    ("sparse_input", "bf16"): None,
    ("dynamic_padding", "bf16"): True,
}


@pytest.mark.sample(5)
@pytest.mark.parametrize(("name", "precision"), EXPECTED)
def test_training_of_a_model_that_remembers_or_has_odd_inputs(name, precision):
    result = check(build(f"{ODD}:{name}", "train", precision=precision))
    assert result.ok is EXPECTED[name, precision], result.text


def test_constants_that_the_precision_rounds_are_part_of_the_error():
    result = check(build(f"{ODD}:position_buffer", batch=2, precision="bf16"))
    assert result.ok is None and "the tolerance would accept wrong outputs" in result.text
    assert 0.4 < result.relative_error < 0.6


def test_a_tolerance_is_no_smaller_than_the_rounding_of_the_plain_model():
    arm = build(f"{ODD}:nothing_to_quantize", quantization="int8_dynamic")
    result = check(arm)
    assert result.ok and result.tolerance > 2 * result.relative_error / 2, result.text


REFUSES_FP64 = """
import torch
from torch import nn
class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(64))
    def forward(self, x):
        return self.weight * (x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt())
class Own(nn.Sequential):
    def forward(self, x):
        if x.dtype == torch.float64:
            raise TypeError("no float64")
        return super().forward(x)
def build():
    layers = [layer for _ in range(3) for layer in (nn.Linear(64, 64), Norm())]
    return Own(*layers, nn.Linear(64, 64)), torch.randn(1, 20, 64)
"""


@pytest.mark.parametrize("error", [0.0, 5e-6])
def test_a_reference_without_higher_precision_has_rounding_errors_too(tmp_path, error):
    """A replacement rounds otherwise, which is right; an error of many roundings is not."""
    path = tmp_path / "mine.py"
    path.write_text(REFUSES_FP64)
    arm = build(path, patch_rms_norm="on")
    arm.model.register_forward_hook(lambda module, inputs, output: output * (1 + error))
    result = comparison.check(arm, arm.situation)
    assert result.reference == "float32"
    assert result.ok is (error == 0), result.text


def test_a_reference_with_higher_precision_adds_no_rounding_errors(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(REFUSES_FP64)
    result = check(build(path, precision="amp_bf16"))
    assert result.ok and result.reference == "float32", result.text
    bfloat16_eps = torch.finfo(torch.bfloat16).eps
    # Without patches or compilation, the plain model makes the variant's own error.
    assert result.tolerance == pytest.approx(2 * result.relative_error + bfloat16_eps)


# Constants and state of every kind

MODEL = """
import collections, dataclasses, itertools, torch
from torch import nn

LENGTH = 8
@dataclasses.dataclass
class Pair:
    x: object
    y: object
Named = collections.namedtuple("Named", "x y")
class Meter:
    def __init__(self):
        self.mean = None
meters = {{}}
class Own(nn.Module):
    shared = None
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(16, 24), nn.Linear(24, 16)
        {members}
    def forward(self, {arguments}):
        {before}
        y = self.b(torch.tanh(self.a(x)))
        {after}
        return {output}
def build():
    return Own(), lambda batch: {inputs}, {loss}
"""
LOSS = "lambda o, *i: sum(t.float().square().mean() for t in [{pick}])"


def write(folder: Path, **parts: str) -> Path:
    texts = {
        "members": "pass", "arguments": "x", "before": "pass", "after": "pass", "output": "y",
        "inputs": "torch.randn(batch, 16)", "loss": LOSS.format(pick="o"),
    }  # fmt: skip
    path = folder / "mine.py"
    path.write_text(MODEL.format(**texts | parts))
    return path


POSITIONS = "torch.arange(1000, 1016).float()"
ROUNDED = {  # constants that BF16 rounds, wherever they are
    "buffer": (f"self.register_buffer('p', {POSITIONS})", "x = x + torch.sin(self.p)"),
    "frozen parameter": (
        f"self.p = nn.Parameter({POSITIONS}, requires_grad=False)", "x = x + torch.sin(self.p)",
    ),
    "buffer made in the first call": (
        f"self.register_buffer('q', {POSITIONS}); self.p = None",
        "self.p = torch.sin(self.q) if self.p is None else self.p; x = x + self.p",
    ),
    "buffer of which a part changes": (
        f"self.register_buffer('p', torch.cat([{POSITIONS}, torch.zeros(1)]))",
        "self.p[-1] += 1; x = x + torch.sin(self.p[:16])",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", ROUNDED)
def test_a_reference_takes_constants_from_a_fresh_build(tmp_path, kind):
    members, before = ROUNDED[kind]
    path = write(tmp_path, members=members, before=before)
    result = check(build(path, precision="bf16"))
    assert result.relative_error > 0.2 and result.ok is None, result.text


def test_what_rounding_and_steps_have_done_to_a_buffer_is_not_told_apart(tmp_path):
    members = f"self.register_buffer('p', {POSITIONS})"
    path = write(tmp_path, members=members, before="self.p.mul_(0.5); x = x + torch.sin(self.p)")
    result = check(build(path, precision="bf16"))
    assert result.ok is None and "cannot be separated" in result.text


STATE = {
    "attribute": (
        "self.m = None",
        "self.m = x.mean(0).detach() if self.m is None else self.m; x = x - self.m",
    ),
    "dict": (
        "self.m = {}",
        "self.m['m'] = x.mean().detach() + self.m.get('m', 0) / 2; x = x - self.m['m']",
    ),
    "list": ("self.m = []", "self.m.append(x.mean().detach()); x = x - sum(self.m) / len(self.m)"),
    "deque": (
        "self.m = collections.deque(maxlen=2)",
        "self.m.append(x.mean().detach()); x = x - sum(self.m)",
    ),
    "object": (
        "self.m = Meter()",
        "self.m.mean = x.mean().detach() + (self.m.mean or 0) / 2; x = x - self.m.mean",
    ),
    "global": ("pass", "meters[0] = x.mean().detach() + meters.get(0, 0) / 2; x = x - meters[0]"),
    "class": ("pass", "Own.shared = x.mean().detach() + (Own.shared or 0) / 2; x = x - Own.shared"),
    "count": ("self.n = 0", "self.n += 1; x = x * (1 + 1 / self.n)"),
    "parameter": (
        "self.s = nn.Parameter(torch.zeros(16)); self.ready = False",
        "self.ready or self.s.data.copy_(x.mean(0)); self.ready = True; x = x + self.s",
    ),
    "norm": ("self.n = nn.BatchNorm1d(16)", "x = self.n(x)"),
    "generator": (
        "self.g = torch.Generator().manual_seed(1)",
        "x = x + 0 * torch.rand((), generator=self.g)",
    ),
    "iterator": ("self.i = itertools.count(1)", "x = x * next(self.i)"),
    "hook": (
        "pass",
        "self.a.register_forward_hook(lambda m, i, o: o * 0.9); torch.set_num_threads(1)",
    ),
    "switches": ("pass", "torch.use_deterministic_algorithms(True); torch.set_grad_enabled(True)"),
}  # fmt: skip


@pytest.mark.sample(14)
@pytest.mark.parametrize("workload", ["forward", "train"])
@pytest.mark.parametrize("kind", STATE)
def test_state_of_any_kind_is_carried_or_not_checked_and_stays(tmp_path, kind, workload):
    members, before = STATE[kind]
    result = check(build(write(tmp_path, members=members, before=before), workload))
    if kind in ("iterator", "generator", "hook"):
        assert result.ok is not False, result.text
    else:
        assert result.ok is True, result.text
    assert kind != "iterator" or "is a count, which cannot be restored" in result.text


INPUTS = {
    "dict": ("{'v': torch.randn(batch, 16)}", "d", "x = d['v']"),
    "keywords": ("{'x': torch.randn(batch, 16), 'scale': torch.ones(())}", "x, scale", "pass"),
    "dataclass": ("Pair(torch.randn(batch, 16), None)", "d", "x = d.x"),
    "named tuple": ("Named(torch.randn(batch, 16), 3)", "d", "x = d.x * d.y"),
    "spread": ("Named(torch.randn(batch, 16), torch.ones(()))", "x, scale", "x = x * scale"),
    "none": ("(torch.randn(batch, 16), None, 2)", "x, mask, n", "x = x * n"),
    "nested": (
        "([torch.randn(batch, 16)], {'n': [torch.ones(())]})", "a, b", "x = a[0] * b['n'][0]",
    ),
    "time first": ("torch.randn(7, batch, 16)", "x", "pass"),
    "lengths": ("torch.randn(batch, int(torch.randint(2, 9, ())), 16)", "x", "pass"),
    "sparse": ("torch.eye(batch, 16).to_sparse()", "s", "x = s.to_dense()"),
    "text": ("(torch.randn(batch, 16), 'words')", "x, words", "assert words == 'words'"),
}  # fmt: skip


@pytest.mark.parametrize("kind", INPUTS)
def test_inputs_of_any_structure_run_and_are_checked(tmp_path, kind):
    inputs, arguments, before = INPUTS[kind]
    path = write(tmp_path, inputs=inputs, arguments=arguments, before=before)
    for workload in ("forward", "train"):
        result = check(build(path, workload))
        assert result.ok, result.text


def test_nan_where_the_reference_has_it_is_no_error_unless_the_loss_sees_it(tmp_path):
    after = "y = y.masked_fill(x > 1, float('nan'))"
    ignoring = "lambda o, x: torch.nan_to_num(o).square().mean()"
    for workload in ("forward", "train"):
        result = check(build(write(tmp_path, after=after, loss=ignoring), workload))
        assert result.ok and "numbers are NaN, in the reference too" in result.text, result.text
    arm = build(write(tmp_path, after=after, loss=ignoring))
    step = arm.step
    arm.step = lambda: step().roll(1, 0)
    assert check(arm).ok is False
    assert check(build(write(tmp_path, after=after), "train", steps=0)).ok is not True


def test_a_train_that_raises_is_no_obstacle(tmp_path):
    path = write(tmp_path)
    text = "    def train(self, mode=True):\n        raise RuntimeError('never')\n    def forward"
    path.write_text(path.read_text().replace("    def forward", text))
    arm = build(path, "train")
    assert all(module.training for module in arm.model.modules())
    assert check(arm).ok


# Faults


def scaled(module, inputs, output):
    return output * 1.02


PLACES = st.sampled_from(
    ["attribute", "dict", "list", "deque", "object", "global", "count", "norm"]
)


@settings(
    max_examples=8,
    phases=[Phase.explicit, Phase.generate],
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    st.lists(PLACES, max_size=3, unique=True),
    st.sampled_from(sorted(INPUTS)),
    st.sampled_from(PRECISIONS),
    st.sampled_from(["forward", "train"]),
    st.sampled_from(["a", "b"]),
)
def test_whatever_a_model_holds_it_is_never_wrong_and_a_fault_in_it_never_right(
    tmp_path, places, kind, precision, workload, layer
):
    inputs, arguments, before = INPUTS[kind]
    places = [
        kind_of_state
        for kind_of_state in places
        if kind_of_state != "norm" or kind not in ("time first", "lengths")
    ]
    lines = [
        before,
        *(
            STATE[kind_of_state][1].replace("self.m", f"self.m{n}")
            for n, kind_of_state in enumerate(places)
        ),
    ]
    members = [
        STATE[kind_of_state][0].replace("self.m", f"self.m{n}")
        for n, kind_of_state in enumerate(places)
    ]
    path = write(
        tmp_path, inputs=inputs, arguments=arguments,
        before="\n        ".join(lines), members="\n        ".join(members) or "pass",
    )  # fmt: skip
    arm = build(path, workload, precision=precision)
    assert check(arm).ok is not False
    getattr(arm.model.module, layer).register_forward_hook(scaled)
    assert check(arm).ok is not True


# Faults in bundled families: every precision and workload that can be right


def family_arm(workload: str, precision: str, steps: int = 0) -> Variant:
    more = {"new_tokens": 4} if workload == "decode" else {}
    configuration = Configuration(
        family="hydra", preset="tiny", workload=workload, toggles={"precision": precision},
        model={"dim": 32, "n_layers": 2, "n_heads": 2, "n_kv_heads": 1, "max_sequence": 256},
        settings={"batch": 2, "sequence": 16, **more},
    )  # fmt: skip
    arm = VariantCache().get(resolve(configuration, CPU), PhaseTracker(lambda phase: None))
    with arm.entered():
        for _ in range(steps):
            arm.ready()
            arm.step()
    return arm


def own_arm(workload: str, precision: str, steps: int = 0) -> Variant:
    return build(f"{ODD}:position_table", workload, 8, steps, precision=precision)


def two_percent(arm: Variant) -> None:
    layers = [m for m in arm.model.modules() if isinstance(m, torch.nn.Linear)]
    layers[0].register_forward_hook(scaled)


def transposed(arm: Variant) -> None:
    layers = [m for m in arm.model.modules() if isinstance(m, torch.nn.Linear)]
    layer = next(
        candidate for candidate in layers if candidate.weight.shape[0] == candidate.weight.shape[1]
    )
    layer.forward = lambda x: torch.nn.functional.linear(x, layer.weight.mT, layer.bias)


def zeros(arm: Variant) -> None:
    arm.model.register_forward_hook(lambda module, inputs, output: output * 0)


def flipped(arm: Variant) -> None:
    arm.model.register_forward_hook(lambda module, inputs, output: -output)


def off_by_one(arm: Variant) -> None:
    module, compute = arm.model, arm.compute
    if arm.situation.workload.decodes:
        arm.compute = lambda tokens, position: compute(tokens, position + 1)
    else:
        table = next(m for m in module.modules() if isinstance(m, torch.nn.Embedding))
        table.register_forward_pre_hook(lambda m, inputs: (inputs[0].roll(1, -1),))


def no_update(arm: Variant) -> None:
    arm.trainer.optimizer.step = lambda *_: None


def half_of_an_update(arm: Variant) -> None:
    step = arm.trainer.optimizer.step
    parameters = [p for group in arm.trainer.optimizer.param_groups for p in group["params"]]

    def half(*_):
        before = [p.detach().clone() for p in parameters]
        step()
        with torch.no_grad():
            for p, old in zip(parameters, before, strict=True):
                p.view(-1)[::2].copy_(old.view(-1)[::2])

    arm.trainer.optimizer.step = half


ALWAYS = (two_percent, transposed, zeros, flipped, off_by_one)
FAULTS = [
    *((make, w, f) for make in (family_arm, own_arm) for w in ("forward", "train") for f in ALWAYS),
    *((family_arm, workload, f) for workload in ("prefill", "decode") for f in ALWAYS),
    *((make, "train", f) for make in (family_arm, own_arm) for f in (no_update, half_of_an_update)),
]


SLOWLY = [pytest.param(p, marks=pytest.mark.slow) if p != "bf16" else p for p in PRECISIONS]


@pytest.mark.sample(11)
@pytest.mark.parametrize("precision", SLOWLY)
@pytest.mark.parametrize(("make", "workload", "plant"), FAULTS)
def test_a_planted_fault_is_never_right(make, workload, plant, precision):
    arm = make(workload, precision, 2 if workload == "train" else 0)
    plant(arm)
    result = comparison.check(arm, arm.situation)
    assert result.ok is False, result.text


@pytest.mark.parametrize("precision", SLOWLY)
@pytest.mark.parametrize(
    ("make", "workload"), list(dict.fromkeys((make, workload) for make, workload, _ in FAULTS))
)
def test_without_a_fault_all_is_right(make, workload, precision):
    arm = make(workload, precision, 2 if workload == "train" else 0)
    result = comparison.check(arm, arm.situation)
    assert result.ok, result.text
