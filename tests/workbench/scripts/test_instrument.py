"""The instrumentation in the script's process: recordings, settings, and what they do to torch."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
import types
from typing import ClassVar

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import workbench
from workbench.instrument import settings
from workbench.instrument.recording import Recording, Watched
from workbench.runner.script.reader import Reader
from workbench.scripts.configuration import title_of
from workbench.scripts.launch import script_environment

CHOICES = st.fixed_dictionaries(
    {}, optional={name: st.sampled_from(list(s.options)) for name, s in settings.SETTINGS.items()}
)


@given(CHOICES)
def test_settings_are_read_as_they_are_written(chosen):
    assert settings.read(settings.written(chosen)) == chosen


def test_variables_continue_what_the_environment_has():
    changed = settings.variables(
        {"allocator": "expandable"}, {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64"}
    )
    assert changed["PYTORCH_CUDA_ALLOC_CONF"] == "max_split_size_mb:64,expandable_segments:True"
    assert changed["PYTORCH_ALLOC_CONF"] == "expandable_segments:True"


@pytest.mark.parametrize(
    ("words", "title"),
    [
        (("python", "-u", "a/train.py", "--x"), "train.py"),
        (("torchrun", "--nproc", "2", "train.py"), "train.py"),
        (("python", "-m", "pkg.train"), "pkg.train"),
        (("/usr/bin/env", "x"), "env"),
    ],
)
def test_a_script_is_called_by_its_file_or_module(words, title):
    assert title_of(words) == title


@given(data=st.data(), cuts=st.lists(st.integers(0, 400), max_size=6))
def test_a_file_that_grows_is_read_once_and_in_order(tmp_path_factory, data, cuts):
    entries = [{"pid": 1, "rank": "0"}, *({"rows": [[i, i + 1, 0, None]]} for i in range(6))]
    content = "".join(f"{json.dumps(entry)}\n" for entry in entries).encode()
    folder = tmp_path_factory.mktemp("recording")
    reader, read = Reader(folder), []
    for stop in (*sorted(cuts), len(content)):
        (folder / "1.jsonl").write_bytes(content[:stop])
        read += reader.read()
    assert read == entries
    assert reader.left_out == 0


def test_ranks_above_zero_are_left_out(tmp_path):
    reader = Reader(tmp_path)
    for rank in (1, 0):
        lines = [{"pid": rank, "rank": str(rank)}, {"rows": [[1, 2, 0, None]]}]
        text = "".join(f"{json.dumps(line)}\n" for line in lines)
        (tmp_path / f"{9 - rank}.jsonl").write_text(text)
    assert [entry["pid"] for entry in reader.read() if "pid" in entry] == [0]
    assert reader.left_out == 1


def test_a_step_ends_where_the_next_begins_and_nested_input_counts_once(tmp_path):
    recording = Recording(str(tmp_path))

    def batches():
        for _ in range(3):
            yield recording.next_batch(time.sleep, 0.002)  # a loader within a watched loader

    for _ in Watched(batches(), recording):
        pass
    recording.finish()
    rows = [row for entry in Reader(tmp_path).read() for row in entry.get("rows", [])]
    assert len(rows) == 3
    assert all(before[1] == after[0] for before, after in itertools.pairwise(rows))
    assert all(2e6 <= input_ns <= stop - start for start, stop, input_ns, _ in rows)


class LightningTrainer:
    """The part of Lightning's trainer that the callback reads, with a loop over one epoch."""

    callback_metrics: ClassVar[dict[str, float]] = {}

    def __init__(self, accumulate_grad_batches: int, validated_after: int = 0) -> None:
        self.accumulate_grad_batches = accumulate_grad_batches
        self.validated_after = validated_after
        self.global_step = 0

    def fit(self, callback, recording, batches):
        callback.on_train_epoch_start(self, None)
        for number in range(1, batches + 1):
            recording.next_batch(time.sleep, 0.001)
            # The last batch of an epoch ends a step, too.
            if not number % self.accumulate_grad_batches or number == batches:
                self.global_step += 1
            callback.on_train_batch_end(self, None, None, None, number)
            if number == self.validated_after:
                time.sleep(0.5)
                callback.on_validation_end(self, None)
        callback.on_train_epoch_end(self, None)


@pytest.mark.parametrize(
    ("accumulated", "validated_after", "waits"),
    [(1, 0, [1] * 7), (3, 0, [3, 3, 1]), (3, 3, [3, 3, 1]), (3, 5, [3, 1]), (1, 4, [1] * 7)],
)
def test_accumulated_batches_are_one_step_of_lightning(
    tmp_path, monkeypatch, accumulated, validated_after, waits
):
    """A validation belongs to no step; a step that it interrupts is left out."""
    module = types.SimpleNamespace(Callback=object)
    monkeypatch.setitem(sys.modules, "lightning.pytorch", module)
    recording = Recording(str(tmp_path))
    monkeypatch.setattr(Recording, "current", recording)
    trainer = LightningTrainer(accumulated, validated_after)
    trainer.fit(workbench.lightning_callback(), recording, batches=7)
    recording.finish()
    rows = [row for entry in Reader(tmp_path).read() for row in entry.get("rows", [])]
    assert len(rows) == len(waits), "a step ends where the weights are updated"
    assert all(
        count * 1e6 <= input_ns <= stop - start < 500e6
        for count, (start, stop, input_ns, _) in zip(waits, rows, strict=True)
    )


def test_outside_of_a_recording_a_watched_loader_is_the_loader():
    loader = [1, 2]
    assert workbench.watch(loader) is loader


def test_the_import_of_the_package_alone_hides_nobodys_modules(tmp_path):
    (tmp_path / "models.py").write_text("NAME = 'own'")
    code = "import workbench, models; print(models.NAME); import workbench.protocol, sessions"
    words = [sys.executable, "-c", f"{code}; print(sessions.__file__)"]
    output = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert output.splitlines()[0] == "own"
    assert output.splitlines()[1].startswith(str(workbench.ROOT))


SCRIPT = """
import sys, torch
from torch import nn
torch.set_num_threads(1)
torch.manual_seed(0)  # some weights already give a loss that is as small as its roundings
assert "workbench" not in sys.modules
compiled = []  # the module that is compiled is tested, not the compiler
nn.Module.compile = lambda module, mode: compiled.append((module, mode))
model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
class Preconditioned(torch.optim.Adagrad):
    def step(self, closure=None):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype is torch.float32
        super().step()
helper = Preconditioned([nn.Parameter(torch.zeros(1))], lr=0.1)
data = torch.utils.data.TensorDataset(torch.ones(16, 8) * 4)
loader = torch.utils.data.DataLoader(data, 2, num_workers=0)
assert loader.num_workers == 1 and loader.prefetch_factor == 4
class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(range(2))
assert torch.utils.data.DataLoader(Stream()).num_workers == 0
losses = []
for x, in loader:
    out = model(x)
    assert out.dtype is torch.bfloat16, out.dtype
    loss = out.float().square().mean()
    loss.backward()
    optimizer.step()
    helper.step()
    assert torch.is_autocast_enabled("cpu")
    optimizer.zero_grad()
    losses.append(loss.item())
assert len(set(losses)) > 4, losses  # each forward pass sees the newest weights
assert torch.backends.cudnn.benchmark
torch.backends.cudnn.benchmark = False
assert compiled == [(model, None)]
assert nn.Module.__call__ is nn.Module._wrapped_call_impl  # calls are watched no longer
"""


def test_settings_act_on_torch_and_evidence_says_what_came_of_them(tmp_path):
    chosen = settings.read(
        "autocast=bf16,workers=1,prefetch=4,cudnn_benchmark=on,sdp_math=off,compile=on"
    )
    folder = tmp_path / "recording"
    folder.mkdir()
    environment = script_environment(folder, chosen, "mark")
    words = [sys.executable, "-c", SCRIPT]
    result = subprocess.run(words, env=environment, capture_output=True, text=True, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    entries = Reader(folder).read()
    assert not [entry["error"] for entry in entries if "error" in entry]
    rows = [row for entry in entries for row in entry.get("rows", [])]
    assert len(rows) == 8  # the helper's calls end no steps
    evidence = {
        name: (status, text)
        for entry in entries
        for name, _, status, text in entry.get("evidence", [])
    }
    assert evidence["autocast"][0] == "effective"
    assert evidence["compile"] == ("effective", "Sequential is compiled")
    assert evidence["workers"] == (
        "effective",
        "data loaders changed: 1 (of iterable datasets, left as they are: 1)",  # one clause: no -v
    )
    assert evidence["cudnn_benchmark"][0] == "no effect"


SLOW = pytest.mark.slow
NO_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
LOADER = """
import torch
optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)])
for _ in torch.utils.data.DataLoader(range(20), num_workers=WORKERS):
    optimizer.step()
"""


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("setting", "workers"),
    [
        ("prefetch=4", 0),  # without workers nothing is prefetched and no worker persists
        pytest.param("persistent_workers=on", 0, marks=SLOW),
        pytest.param("workers=0", 0, marks=SLOW),
        ("prefetch=2", 1),  # torch's default
        pytest.param("pin_memory=on", 0, marks=[NO_GPU, SLOW]),  # which would read pinned memory
    ],
)
def test_a_setting_that_changes_no_loader_has_no_effect(tmp_path, setting, workers):
    (folder := tmp_path / "recording").mkdir()
    environment = script_environment(folder, settings.read(setting), "mark")
    words = [sys.executable, "-c", LOADER.replace("WORKERS", str(workers))]
    subprocess.run(words, env=environment, check=True, cwd=tmp_path)
    entries = [entry for entry in Reader(folder).read() if "evidence" in entry]
    assert entries[-1]["evidence"][0][2:] == ["no effect", "data loaders changed: 0"]


COMPILED_OPTIMIZER = """
import torch
weight = torch.nn.Parameter(torch.ones(2))
weight.grad = torch.ones(2)
optimizer = torch.optim.SGD([weight], lr=0.1)
step = torch.compile(lambda: optimizer.step(), backend="eager")
for _ in range(6):
    step()
"""


@pytest.mark.slow
def test_a_compiled_optimizer_ends_steps_too(tmp_path):
    words = [sys.executable, "-c", COMPILED_OPTIMIZER]
    subprocess.run(words, env=script_environment(tmp_path, {}, "mark"), check=True)
    entries = Reader(tmp_path).read()
    rows = [row for entry in entries for row in entry.get("rows", [])]
    assert len([row for row in rows if row[0] != "compile"]) == 5
    assert [row for row in rows if row[0] == "compile"]


STEPS_OF_A_BASE = """
import torch
class Own(torch.optim.SGD):
    def step(self, closure=None):
        return super().step(closure)
weight, other = (torch.zeros(1, requires_grad=True) for _ in range(2))
base = torch.optim.SGD([other])  # from now on a step of this class has hooks of its own
optimizer = Own([weight])
for _ in range(10):
    optimizer.step()
"""


STEPS_OF_ANOTHER = """
import torch
class Twice(torch.optim.Optimizer):
    def __init__(self, base):
        super().__init__(base.param_groups, {})
        self.base = base
    def step(self, closure=None):
        self.base.step()
        self.base.step()
optimizer = Twice(torch.optim.SGD([torch.zeros(1, requires_grad=True)]))
for _ in range(10):
    optimizer.step()
"""


@pytest.mark.sample(1)
@pytest.mark.parametrize("script", [STEPS_OF_A_BASE, STEPS_OF_ANOTHER], ids=["base", "another"])
def test_a_step_that_calls_other_steps_is_one_step(tmp_path, script):
    words = [sys.executable, "-c", script]
    subprocess.run(words, env=script_environment(tmp_path, {}, "mark"), check=True)
    rows = [row for entry in Reader(tmp_path).read() for row in entry.get("rows", [])]
    assert len(rows) == 9


UNDER_AUTOCAST = """
import torch
class Square(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        context.save_for_backward(x)
        return x @ x
    @staticmethod
    def backward(context, gradient):
        x, = context.saved_tensors
        dtypes.append((gradient.float() @ x.t()).dtype)
        return gradient.to(x.dtype)
class Own(torch.optim.SGD):
    def step(self, closure=None):
        if failing:
            raise RuntimeError("no room")
        return super().step(closure)
dtypes, failing = [], True
x = torch.ones(4, 4, requires_grad=True)
base, optimizer = torch.optim.SGD([x], lr=0.0), Own([x], lr=0.0)
torch.autograd.grad(Square.apply(x.float()).float().sum(), x)
torch.func.grad(lambda x: (x @ x).float().sum())(x)
assert dtypes == [torch.float32], dtypes
assert (x @ x).dtype is torch.bfloat16
try:
    optimizer.step()
except RuntimeError:
    failing = False
for _ in range(3):
    optimizer.step()
assert torch.is_autocast_enabled("cpu") and (x @ x).dtype is torch.bfloat16
"""


def test_autocast_ends_for_every_backward_pass_and_for_no_forward_pass(tmp_path):
    environment = script_environment(tmp_path, {"autocast": "bf16"}, "mark")
    words = [sys.executable, "-c", UNDER_AUTOCAST]
    result = subprocess.run(words, env=environment, capture_output=True, text=True)
    assert not result.returncode, result.stderr
    evidence = [entry["evidence"] for entry in Reader(tmp_path).read() if "evidence" in entry]
    assert evidence[-1][0][2:] == [
        "effective",
        "2 backward passes followed a forward pass under autocast in bfloat16",
    ]


def test_a_single_backward_pass_under_autocast_is_no_plural(tmp_path):
    script = "import torch; x = torch.ones(2, requires_grad=True); (x * x).sum().backward()"
    step = "o = torch.optim.SGD([x]); [o.step() for _ in range(3)]"
    environment = script_environment(tmp_path, {"autocast": "bf16"}, "mark")
    words = [sys.executable, "-c", f"{script}; {step}"]
    result = subprocess.run(words, env=environment, capture_output=True, text=True)
    assert not result.returncode, result.stderr
    evidence = [entry["evidence"] for entry in Reader(tmp_path).read() if "evidence" in entry]
    assert evidence[-1][0][3].startswith("1 backward pass followed a forward pass under autocast")
