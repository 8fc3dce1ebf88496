"""A model from a person's own file runs in the real runner; what is wrong with the file is told."""

from __future__ import annotations

import random
import shutil
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from built import owned
from runner_driver import Driver
from torch import nn

from models import ConfigurationError
from sessions.model import Configuration
from sessions.reproduction import command_lines
from workbench import protocol
from workbench.runner.config import resolve
from workbench.runner.user_models import user_model

EXAMPLE = Path(__file__).parents[3] / "examples" / "own_model.py"
KERNELS = EXAMPLE.with_name("own_kernels.py")
PARAMETERS = 80 + 16 + 584 + 512 * 32 + 32 + 32 * 4 + 4
CPU = torch.device("cpu")

FALLING = """
import torch
class Falling(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.level = torch.nn.Parameter(torch.zeros(1))
    def forward(self, batch):
        return self.level * batch
def build():
    return Falling(), lambda batch: torch.ones(batch, 1), lambda output, batch: output.sum()
"""  # its loss falls in every step

LINEAR = """
import torch
def build():
    return torch.nn.Linear(3, 3), lambda batch: torch.randn(batch, 3)
"""


@pytest.fixture
def write(tmp_path):
    def written(text: str, name: str = "mine.py") -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return written


def outcome(driver: Driver, configuration: Configuration, steps: int = 20):
    """Return the run's end, what failed if anything did, and the newest segment."""
    since = len(driver.messages)
    driver.start(configuration, steps=steps)
    finished = driver.finish()
    failures = [m for m in driver.messages[since:] if isinstance(m, protocol.Failure)]
    return finished, failures, driver.session.segments[-1] if driver.session.segments else None


def test_the_example_learns_and_its_file_is_part_of_the_configuration(runner):
    losses = []
    for steps in (2, 150):
        finished, failures, segment = outcome(
            runner, owned(EXAMPLE, seed=steps, settings={"batch": 16}), steps
        )
        assert (finished.reason, failures) == ("done", [])
        losses.append(segment.ledger["loss"])
    assert losses[1] < 0.6 * losses[0]
    assert segment.ledger["parameters"] == PARAMETERS
    assert segment.ledger["tokens_per_step"] == 16
    assert segment.configuration.model["source"] == f"{EXAMPLE}:build"
    assert len(segment.configuration.model["sha256"]) == 64


def test_options_that_need_no_knowledge_of_it_take_effect(runner):
    runner.start(owned(EXAMPLE, settings={"batch": 16}))
    runner.until_steps(3)
    first = len(runner.session.segments) - 1
    for toggles in (
        {"precision": "amp_bf16"},
        {"precision": "bf16", "adamw": "foreach"},
        {"precision": "fp32", "compile": "default"},
        {"compile": "off", "adamw": "fused"},
    ):
        runner.apply(toggles)
        runner.until_steps(2)
    runner.finish(protocol.Stop())
    segments = runner.session.segments[first:]
    for segment in segments[1:]:
        effects = {
            evidence.toggle: (evidence.status, evidence.text) for evidence in segment.evidence
        }
        assert effects and all(status == "effective" for status, _ in effects.values()), effects
    assert "0 graph breaks" in str(segments[3].evidence)


def test_training_goes_on_where_another_option_left_it(runner, write):
    runner.start(owned(write(FALLING)))
    runner.until_steps(20)
    first = len(runner.session.segments) - 1
    for toggles in ({"adamw": "foreach"}, {"precision": "amp_bf16"}, {"adamw": "fused"}):
        runner.send(protocol.Apply(toggles=toggles))
        runner.until(protocol.SegmentStarted)
        runner.until_steps(1)  # too few for new weights
    runner.finish(protocol.Stop())
    losses = [segment.ledger["loss"] for segment in runner.session.segments[first:]]
    assert losses == sorted(losses, reverse=True) and len({*losses}) == 4, losses


def test_the_others_say_why_they_do_not_apply(runner):
    runner.send(protocol.Check(configuration=owned(EXAMPLE)))
    answer = runner.until(protocol.Availability)
    assert answer.problems == []
    for toggle, option, reason in (
        ("triton", "on", "affects only operators of kernels, which your file does not call"),
        ("triton_rope", "triton", "affects only kernels.rope, which your file does not call"),
        ("attention", "manual", "affects only kernels.attention, which your file does not call"),
        ("ssd_chunk", "64", "needs modules of the bundled families"),
        ("rope_cache", "shared", "needs rotary tables of the bundled families"),
        ("ccgqa", "on", "Own model has no ccgqa"),
    ):
        why = answer.blocked[toggle][option]
        assert reason in why.reason and why.fix
    assert answer.blocked["rope_cache"]["shared"].set == {"rope_cache": "per_layer"}
    assert not {"precision", "adamw"} & {
        name for name, options in answer.blocked.items() if "bf16" in options or "fused" in options
    }


def test_a_default_that_does_not_apply_is_off_and_one_that_is_asked_for_is_a_mistake(monkeypatch):
    monkeypatch.setattr(
        resolve.all_toggles()["triton"].__class__,
        "default_option",
        lambda toggle, device: "on" if toggle.name == "triton" else toggle.off,
    )
    situation = resolve.resolve(owned(EXAMPLE), CPU)
    assert situation.option("triton") == "off"
    availability = resolve.availability(owned(EXAMPLE, toggles={"triton": "on"}), CPU)
    assert "toggle triton=on cannot be used: affects only operators of" in availability.problems[0]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("import kernels; kernels.geglu", {"geglu"}),
        ("import kernels as k, torch; k.rope(k.attention)", {"rope", "attention"}),
        ("from kernels import rms_norm as norm, using", {"rms_norm"}),
        ("import torch as kernels; kernels.geglu", set()),
        ("import kernels; other.geglu; kernels.nothing", set()),
        ("# kernels.geglu", set()),
        ("this is no Python", set()),
    ],
)
def test_the_operators_that_a_file_calls_are_read_from_it(write, line, expected):
    config = user_model.FAMILY.configure("file", {"source": str(write(line))})
    assert user_model.called(config) == expected


@pytest.mark.parametrize("workload", ["forward", "train"])
def test_a_model_made_of_bundled_operators_has_their_toggles(runner, workload):
    toggles = {"triton_geglu": "torch", "triton_qk_norm": "torch", "attention": "manual"}
    finished, failures, segment = outcome(runner, owned(KERNELS, workload, toggles=toggles), 3)
    assert (finished.reason, failures) == ("done", [])
    statuses = {evidence.toggle: evidence.status for evidence in segment.evidence}
    # On a CPU every operator runs in PyTorch without these options, too.
    torch_already = {"triton_geglu": "as default", "triton_qk_norm": "as default"}
    assert statuses == torch_already | {"attention": "effective"}
    there = resolve.availability(owned(KERNELS), CPU).blocked
    assert there["triton_rope"]["torch"].reason.startswith("affects only kernels.rope, which")


def test_a_session_runs_it_again_and_a_changed_file_is_told(runner, tmp_path):
    path = Path(shutil.copy(EXAMPLE, tmp_path / "copy.py"))
    _, _, segment = outcome(runner, owned(path), 3)
    command = command_lines.arguments(segment.configuration, 3)
    assert f"source={path}:build" in command
    path.write_text(path.read_text() + "\n# edited\n")
    finished, (failure,), _ = outcome(runner, segment.configuration)
    assert (finished.reason, failure.kind) == ("failed", "mistake")
    assert f"{path} has changed: its SHA-256 was " in failure.sentence
    since = len(runner.messages)
    finished, failures, _ = outcome(runner, owned(path), 3)
    assert (finished.reason, failures) == ("done", [])
    (started,) = [m for m in runner.messages[since:] if isinstance(m, protocol.SegmentStarted)]
    assert not started.reused, "the edited file was not run"


def test_another_function_and_imports_from_beside_the_file(runner, write):
    write("WIDTH = 5\n", "beside_the_model.py")
    path = write(
        "import torch\n"
        "from beside_the_model import WIDTH\n"
        "def small():\n"
        "    return torch.nn.Linear(WIDTH, 2), lambda batch: [torch.randn(batch, WIDTH)]\n"
    )
    finished, failures, segment = outcome(runner, owned(f"{path}:small", "forward"))
    assert (finished.reason, failures) == ("done", [])
    assert segment.ledger["parameters"] == 12


def test_what_lies_beside_a_model_is_not_taken_for_what_lies_beside_another(runner, tmp_path):
    """In one runner: helpers of the same name in two folders, one after the other, and again."""
    digests, counts = [], []
    for folder, width in (("a", 4), ("b", 9), ("a", 4)):
        parent = tmp_path / folder
        parent.mkdir(exist_ok=True)
        (parent / "sizes_beside.py").write_text(f"WIDTH = {width}\n")
        text = LINEAR.replace("import torch", "import torch\nfrom sizes_beside import WIDTH")
        (parent / "mine.py").write_text(text.replace("Linear(3, 3)", "Linear(3, WIDTH)"))
        finished, failures, segment = outcome(runner, owned(parent / "mine.py", "forward"), 3)
        assert (finished.reason, failures) == ("done", [])
        counts.append(segment.ledger["parameters"])
        digests.append(segment.configuration.model["sha256"])
    assert counts == [16, 36, 16]
    assert digests[0] == digests[2] != digests[1]


MISTAKES = {
    "no file is given": ("", None),
    "cannot read": ("none.py", None),
    "it is not a regular file": (".", None),
    "has no function build(); it must return (module, make_inputs)": ("mine.py", "x = 1\n"),
    "has no function other()": ("mine.py:other", LINEAR),
    "line 1: '(' was never closed; correct the file": ("mine.py", "x = (\n"),
    "line 1: 'return' outside function; correct the file": ("mine.py", "return 3\n"),
    "returned NoneType; expected (module, make_inputs)": ("mine.py", "def build(): pass\n"),
    "returned 1 value; expected": ("mine.py", "def build(): return (1,)\n"),
    "returned int for the module; expected a torch.nn.Module": (
        "mine.py", "def build(): return 1, print\n",
    ),
    "returned int for make_inputs; expected a function": (
        "mine.py", LINEAR.replace("lambda batch: torch.randn(batch, 3)", "7"),
    ),
    "returned str for loss; expected a function": (
        "mine.py", LINEAR.replace("randn(batch, 3)", "randn(batch, 3), 'mse'"),
    ),
    "a module without parameters": ("mine.py", LINEAR.replace("Linear(3, 3)", "GELU()")),
    "make_inputs(4) returned str; expected a tensor (dense or sparse, of any shape), or a tuple": (
        "mine.py", LINEAR.replace("torch.randn(batch, 3)", "'nonsense'"),
    ),
    "the training step needs a loss; build() must return (module, make_inputs, loss)": (
        "mine.py", LINEAR,
    ),
    "loss() returned (4, 3); expected a tensor with one number": (
        "mine.py", LINEAR.replace("randn(batch, 3)", "randn(batch, 3), lambda y, x: y"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("sentence", MISTAKES)
def test_a_file_that_cannot_serve_is_one_sentence(runner, tmp_path, sentence):
    name, text = MISTAKES[sentence]
    if text is not None:
        (tmp_path / "mine.py").write_text(text)
    source = name and f"{tmp_path}/{name}"
    finished, (failure,), _ = outcome(runner, owned(source))
    assert (finished.reason, failure.kind, failure.detail) == ("failed", "mistake", "")
    assert sentence in failure.sentence and len(failure.sentence) < 500
    assert not failure.fatal


RAISING = {
    "line 2: the file raised ZeroDivisionError: division by zero": "\n1 / 0\n",
    "line 2: build() raised KeyError: 'x'": "def build():\n    return {}['x']\n",
    "line 3: build() raised ValueError: first": (
        "def build():\n    def inner():\n        raise ValueError('first\\nsecond')\n    inner()\n"
    ),
    "line 2: the file raised SystemExit: 3": "import sys\nsys.exit(3)\n",
    "line 4: make_inputs(4) raised IndexError": LINEAR.replace("torch.randn(batch, 3)", "[][0]"),
}


@pytest.mark.parametrize("sentence", RAISING)
def test_what_a_file_raises_is_one_sentence_with_its_own_traceback(runner, write, sentence):
    path = write(RAISING[sentence])
    finished, (failure,), _ = outcome(runner, owned(path, "forward"))
    assert (finished.reason, failure.kind, failure.fatal) == ("failed", "model", False)
    assert failure.sentence.startswith(f"{path}, {sentence}") and "\n" not in failure.sentence
    assert str(path) in failure.detail and "workbench/runner" not in failure.detail
    assert failure.fix


def test_what_its_forward_raises_is_told_as_of_any_model_and_the_runner_stays(runner, write):
    path = write(
        "import torch\n"
        "class Bad(torch.nn.Linear):\n"
        "    def forward(self, x):\n"
        "        raise RuntimeError('not today')\n"
        "def build():\n"
        "    return Bad(2, 2), lambda batch: torch.randn(batch, 2)\n"
    )
    _, (failure,), _ = outcome(runner, owned(path, "forward"))
    assert failure.sentence == "RuntimeError in the model: not today"
    assert f'File "{path}", line 4, in forward' in failure.detail
    assert outcome(runner, owned(EXAMPLE), 3)[0].reason == "done"


def test_nothing_of_a_file_runs_when_it_is_only_checked(tmp_path, write):
    path = write(f"open({str(tmp_path / 'ran')!r}, 'w')\ndef build(): pass\n")
    assert resolve.availability(owned(path), CPU).problems == []
    assert not (tmp_path / "ran").exists()
    problem = resolve.availability(owned(path, settings={"sequence": 7}), CPU).problems[0]
    assert "sequence = 7, but make_inputs(batch) sets all sizes" in problem


def test_arms_share_parameters_tied_ones_too_and_have_buffers_of_their_own(write):
    path = write(
        "import torch\n"
        "class Tied(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.a, self.b = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)\n"
        "        self.b.weight = self.a.weight\n"
        "        self.norm = torch.nn.BatchNorm1d(3)\n"
        "def build():\n"
        "    return Tied(), lambda batch: torch.randn(batch, 3)\n"
    )
    config = user_model.FAMILY.configure("file", {"source": str(path)})
    first = user_model.FAMILY.materialise(config, seed=1)
    other = user_model.FAMILY.share(config, first.weights())
    assert other.module.a.weight is first.module.a.weight is other.module.b.weight
    assert other.module.norm.running_mean is not first.module.norm.running_mean
    assert len(list(other.parameters())) == 5
    again = user_model.FAMILY.materialise(config, seed=1)
    assert torch.equal(again.module.a.weight, first.module.a.weight)
    different = user_model.FAMILY.materialise(config, seed=2)
    assert not torch.equal(different.module.a.weight, first.module.a.weight)


def test_arms_share_parameters_wherever_the_model_refers_to_them(write):
    path = write(
        "import torch\n"
        "class Listed(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.a, self.rnn = torch.nn.Linear(3, 3), torch.nn.GRU(3, 3)\n"
        "        self.every = [(self.a.weight,), {'b': self.a.bias}]\n"
        "        self.a.weight.register_hook(lambda gradient: gradient)\n"
        "def build():\n"
        "    model = Listed()\n"
        "    bias = model.a.bias\n"
        "    return model, lambda batch: torch.randn(batch, 3), lambda y, x: bias.sum()\n"
    )
    config = user_model.FAMILY.configure("file", {"source": str(path)})
    first = user_model.FAMILY.materialise(config)
    first.module.a.bias.requires_grad_(False)
    model = user_model.FAMILY.share(config, first.weights())
    bias = first.module.a.bias
    assert model.module.every[0][0] is first.module.a.weight
    assert model.module.every[1]["b"] is bias and not bias.requires_grad
    assert model.own_loss.__closure__[0].cell_contents is bias
    assert model.module.rnn._flat_weights[0] is first.module.rnn.weight_ih_l0
    copies = {name: nn.Parameter(weight.detach()) for name, weight in first.weights().items()}
    hooked = user_model.FAMILY.share(config, copies).module.a.weight
    assert len(hooked._backward_hooks) == 1, "a copy has the hooks of the file's own parameter"


DRAWS = """
import random
import numpy
import torch

def draw(*shape):
    return torch.rand(shape) + random.random() + torch.from_numpy(numpy.random.rand(*shape)).float()

def build():
    layer = torch.nn.Linear(2, 2)
    layer.weight.data = draw(2, 2)
    return layer, lambda batch: draw(batch, 2)
"""


def test_a_seed_gives_the_same_draws_of_torch_python_and_numpy_in_every_process(write):
    """Each rank of data parallelism runs the file itself."""
    config = user_model.FAMILY.configure("file", {"source": str(write(DRAWS))})
    weights, inputs = [], []
    for seed in (3, 3, 4):
        random.seed(), np.random.seed()  # as in another process
        weights.append(user_model.load(config, seed).module.weight)
        generator = torch.Generator().manual_seed(seed)
        (batch,), _ = user_model.FAMILY.draw(config, 5, 1, generator)
        inputs.append(batch)
    for drawn in (weights, inputs):
        assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])


def test_its_seed_leaves_the_process_as_it_was(write):
    def draw() -> tuple[float, float, float]:
        return float(torch.rand(1)), random.random(), float(np.random.rand())

    def seed() -> None:
        torch.manual_seed(5), random.seed(5), np.random.seed(5)

    seed()
    expected = draw()
    seed()
    before = set(sys.modules)
    user_model.load(user_model.FAMILY.configure("file", {"source": str(write(DRAWS))}), seed=3)
    assert draw() == expected
    assert {name.partition("_model_")[0] for name in set(sys.modules) - before} <= {"own"}


def test_the_costs_of_a_file_are_not_made_up():
    with pytest.raises(ConfigurationError, match="the cost of your own model is unknown"):
        user_model.FAMILY.parameter_count(user_model.OwnConfig(source="x.py"))


def test_the_catalogue_offers_it_without_a_count_of_parameters(runner):
    catalogue = msgspec.json.decode(protocol.encode(runner.messages[0]), type=protocol.Catalogue)
    (family,) = (family for family in catalogue.families if family.name == "own")
    assert family.workloads == ["forward", "train"] and family.parameters == {}
    assert [field.name for field in family.fields] == ["source", "sha256"]


@pytest.mark.parametrize(
    "returned",
    [
        "torch.nn.Linear(3, 3), torch.zeros(1, 3)",
        "torch.nn.Bilinear(3, 3, 2), (torch.zeros(1, 3), torch.zeros(1, 3))",
        "torch.nn.Embedding(9, 3), torch.tensor([[0, 8]])",
    ],
)
def test_a_module_with_an_example_is_enough(runner, write, returned):
    path = write(f"import torch\n\ndef build():\n    return {returned}\n")
    finished, failures, segment = outcome(runner, owned(path, "forward", settings={"batch": 5}))
    assert failures == [] and finished.reason == "done" and len(segment.steps["t_s"]) >= 20


def test_a_module_that_carries_its_example_may_be_returned_alone(runner, write):
    path = write(
        "import torch\n\ndef build():\n    module = torch.nn.Linear(3, 3)\n"
        "    module.example_input_array = torch.zeros(1, 3)\n    return module\n"
    )
    finished, failures, _ = outcome(runner, owned(path, "forward"))
    assert failures == [] and finished.reason == "done"


def test_a_traceback_begins_with_the_lines_of_the_persons_file(runner, write):
    path = write(
        "import torch\n\nclass Broken(torch.nn.Linear):\n    def forward(self, x):\n"
        "        return self.missing(x)\n\ndef build():\n"
        "    return Broken(3, 3), torch.zeros(1, 3)\n"
    )
    _, failures, _ = outcome(runner, owned(path, "forward"))
    lines = failures[0].detail.splitlines()
    assert str(path) in lines[1] and "line 5" in lines[1]


@pytest.mark.parametrize(
    ("command", "title"),
    [
        (protocol.Sweep(base=owned(""), axes={"settings.batch": [1, 2]}), " over settings.batch"),
        (protocol.Attribute(base=owned(""), toggles={"adamw": "fused"}), ": ladder"),
        (protocol.Optimize(base=owned("")), ": best configuration"),
        (protocol.Validate(configuration=owned("")), ": defaults"),
        (protocol.Scale(base=owned(""), ranks=[2], kinds=["data"]), ": strong scaling"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_study_of_it_is_called_by_its_file(runner, write, command, title):
    configuration = owned(write(FALLING))
    field = "configuration" if hasattr(command, "configuration") else "base"
    runner.send(msgspec.structs.replace(command, **{field: configuration}))
    started = runner.until(protocol.StudyStarted)
    runner.finish(protocol.Stop())
    assert started.title == f"mine train{title}"
