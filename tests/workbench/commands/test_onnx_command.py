"""``workbench onnx``: what is exported computes what torch computes, or the answer says it."""

from __future__ import annotations

import importlib.util
import json
import subprocess

import pytest
import torch
from torch import nn

from models import FAMILIES
from workbench.cli import main
from workbench.commands import onnx as command
from workbench.runner.export import onnx
from workbench.runner.export._onnx_operators import TRANSLATIONS
from workbench.runner.export.onnx import Answer, Request, export
from workbench.runner.failures import Mistake

MISSING = [name for name in onnx.NEEDED if importlib.util.find_spec(name) is None]
exports = pytest.mark.skipif(
    bool(MISSING), reason=f"needs the extra onnx; not installed: {', '.join(MISSING)}"
)

ROUTED = {"mixture_of_depths": "true", "mixture_of_recursions": "true"}
FORMS = [(name, {}) for name in FAMILIES] + [
    ("hydra", {"ccgqa": "true"}),
    ("hydra", {**ROUTED, "n_layers": "2", "recursions": "2"}),
    ("moe", {"gating": "dense", "num_shared_experts": "1"}),
    ("mahia", {"causal": "true"}),
    ("mahia", {"use_moe": "true"}),  # in one process with the first, whose filter it has
]


@exports
@pytest.mark.parametrize(
    ("family", "fields"),
    FORMS,
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_every_family_computes_in_onnxruntime_what_it_computes_in_torch(family, fields, tmp_path):
    path = tmp_path / "model.onnx"
    result = export(Request(family=family, path=str(path), model=fields, sequence=12))
    print(family, fields, result)
    assert not result.problem
    assert 0 < result.difference <= result.tolerance < 1e-3 * result.largest
    assert path.stat().st_size == result.file_bytes > 4 * result.parameters
    assert next(iter(result.inputs.values())) == [2, 12]
    assert [file.name for file in tmp_path.iterdir()] == ["model.onnx"]


@exports
def test_a_file_of_other_weights_is_told_from_a_right_one(tmp_path, monkeypatch):
    write = onnx._write

    def wrong(model, inputs, path):
        weight = model.norm.weight
        weight.mul_(1 + 1e-4)
        opset = write(model, inputs, path)
        weight.div_(1 + 1e-4)
        return opset

    monkeypatch.setattr(onnx, "_write", wrong)
    result = export(Request(family="hydra", path=str(tmp_path / "a.onnx")))
    assert result.difference > 2 * result.tolerance > 0


class Calls(nn.Module):
    """A module that is one function."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def numbers():
    powers = torch.tensor([2.0**e for e in (-140, -127, -126, -125, -1, 0, 1, 22, 127)])
    near = torch.stack([powers, powers.nextafter(torch.tensor(0.0)), powers * 1.5]).flatten()
    return torch.cat([near[torch.isfinite(near)], torch.tensor([0.0, 1e-45, 3.4028235e38])])


CASES = {
    "sort": (lambda x: x.sort(dim=1, stable=True), [[3, 1, 3, 1, 2], [0, 0, 0, 5, 5]]),
    "sort down": (
        lambda x: x.sort(dim=-1, stable=True, descending=True),
        [[3, 1, 3, 1, 2], [0, 0, 0, 5, 5]],
    ),
    "cummin": (lambda x: tuple(x.cummin(1)), [[3, 1, 3, 1, 2], [5, 4, 4, 0, 9]]),
    "cummin of the first": (lambda x: tuple(x.cummin(0)), [[3, 1, 3, 1, 2], [5, 1, 2, 0, 9]]),
}


def computed(function, x, path):
    """Return the outputs of an exported function in onnxruntime."""
    import onnxruntime

    program = torch.onnx.export(
        Calls(function).eval(),
        (x,),
        dynamo=True,
        verbose=False,
        custom_translation_table=TRANSLATIONS,
    )
    program.save(path)
    session = onnxruntime.InferenceSession(str(path))
    outputs = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    return [torch.from_numpy(output) for output in outputs]


@exports
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", [torch.int64, torch.float32])
def test_operators_that_the_exporter_lacks_are_exact_also_among_equals(case, dtype, tmp_path):
    function, rows = CASES[case]
    x = torch.tensor(rows, dtype=dtype)
    outputs = computed(function, x, tmp_path / "a.onnx")
    for output, expected in zip(outputs, function(x), strict=True):
        assert torch.equal(output, expected)


@exports
def test_the_bits_of_numbers_are_those_of_torch_at_every_border(tmp_path):
    x = numbers()
    (bits,) = computed(lambda x: x.view(torch.int32) + 0, x, tmp_path / "a.onnx")
    assert torch.equal(bits, x.view(torch.int32))
    (again,) = computed(lambda x: x.view(torch.float32) * 1, bits, tmp_path / "b.onnx")
    assert torch.equal(again, x)


@exports
def test_bits_taken_for_a_type_that_is_not_known_are_refused_in_one_sentence(tmp_path):
    halves = Calls(lambda x: x.view(torch.int16) + 0).eval()
    with pytest.raises(Mistake) as refusal:
        onnx._write(halves, (torch.ones(4),), tmp_path / "a.onnx")
    assert str(refusal.value) == (
        "Calls cannot be exported: Tensor.view: cannot reinterpret the bits of a tensor as INT16; "
        "expected torch.int32 (of FP32) or torch.float32 (of int32): convert with Tensor.to"
    )


def test_without_the_extra_the_answer_says_how_to_install_it(monkeypatch, tmp_path):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(Mistake) as refusal:
        export(Request(family="hydra", path=str(tmp_path / "a.onnx")))
    assert str(refusal.value) == (
        "exporting needs onnx, onnxscript, onnxruntime, not installed here; "
        "install the extra: uv sync --extra onnx"
    )


@pytest.mark.parametrize(
    ("request_", "sentence"),
    [
        ({"family": "hydro"}, "family: unknown 'hydro'; expected one of "),
        ({"preset": "big"}, "hydra: unknown preset 'big'; expected one of tiny, "),
        ({"model": {"dim": "x"}}, "hydra: dim = 'x' is not a whole number"),
        ({"sequence": 0}, "hydra: batch 2 and sequence 0 must be at least 1"),
        ({"batch": 10**9}, "hydra: 758,912 parameters with batch 1000000000"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_built(
    request_, sentence, monkeypatch, tmp_path
):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    with pytest.raises(ValueError) as refusal:
        export(Request(**{"family": "hydra", "path": str(tmp_path / "a.onnx")} | request_))
    assert str(refusal.value).startswith(sentence)


RIGHT = Answer(
    preset="tiny",
    inputs={"tokens_bs": [2, 16]},
    file_bytes=3_300_000,
    parameters=758_912,
    opset=20,
    largest=2.5,
    difference=4.8e-7,
    tolerance=3.2e-6,
)


@pytest.fixture
def exporter(monkeypatch):
    """Let the command meet a process that answers this; gives what that process was asked."""

    def answering(result=None, code=0, stderr=""):
        requests = []

        def run_program(request):
            requests.append(request)
            output = "" if result is None else json.dumps(result)
            return subprocess.CompletedProcess([], code, output, stderr)

        monkeypatch.setattr(command, "_run_program", run_program)
        return requests

    return answering


def fields(answer, **changes):
    return {name: getattr(answer, name) for name in Answer.__struct_fields__} | changes


def test_a_right_file_is_0_and_says_what_it_is(exporter, tmp_path, capsys):
    path = tmp_path / "a.onnx"
    requests = exporter(fields(RIGHT))
    assert main(["onnx", "hydra", "--set", "dim=64", "--set", "batch=3", "-o", str(path)]) == 0
    out = capsys.readouterr().out
    assert f"wrote {path}: preset tiny, 758,912 parameters, 3.3 MB" in out
    assert "right: onnxruntime and torch differ by at most 4.8e-07 in outputs of up to 2.5" in out
    (request,) = requests
    assert (request["model"], request["batch"], request["path"]) == ({"dim": "64"}, 3, str(path))


@pytest.mark.parametrize(
    "changes", [{"difference": 1e-3}, {"difference": float("nan")}, {"problem": "It is empty."}]
)
def test_a_wrong_file_is_1_and_says_so(exporter, tmp_path, capsys, changes):
    exporter(fields(RIGHT, **changes))
    arguments = ["onnx", "hydra", "-o", str(tmp_path / "a.onnx")]
    assert main(arguments) == 1
    assert "WRONG: " in capsys.readouterr().out
    assert main([*arguments, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["ok"] is False


def test_what_cannot_be_exported_is_2_and_one_sentence(exporter, tmp_path, capsys):
    exporter(fields(Answer(problem="hydra cannot be exported: ONNX has no operator for aten.x")))
    assert main(["onnx", "hydra", "-o", str(tmp_path / "a.onnx")]) == 2
    err = capsys.readouterr().err
    assert err == "workbench onnx: hydra cannot be exported: ONNX has no operator for aten.x\n"


def test_a_process_that_dies_is_1_with_its_last_words(exporter, tmp_path, capsys):
    exporter(code=-9, stderr="Traceback\nMemoryError: no room\n")
    assert main(["onnx", "hydra", "-o", str(tmp_path / "a.onnx")]) == 1
    err = capsys.readouterr().err
    assert err == "workbench onnx: the export ended with exit code -9: MemoryError: no room\n"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["-o", "a.h5"], "a.h5: unknown suffix '.h5'; expected one of .onnx"),
        (["-o", "no/a.onnx"], "there is no folder no to save in"),
        (["-o", "a.onnx", "--set", "dim"], "--set dim: expected FIELD=VALUE"),
        (["-o", "a.onnx", "--set", "batch=x"], "--set batch=x: expected a whole number"),
    ],
)
def test_a_mistake_is_2_before_any_process_starts(
    exporter, tmp_path, monkeypatch, capsys, arguments, sentence
):
    monkeypatch.chdir(tmp_path)
    requests = exporter(fields(RIGHT))
    assert main(["onnx", "hydra", *arguments]) == 2
    assert sentence in capsys.readouterr().err and requests == []


def test_why_something_cannot_be_exported_is_one_sentence():
    error = RuntimeError("a page\nNo ONNX function found for <OpOverload(op='aten.x', overload")
    assert onnx._why(error) == "ONNX has no operator for aten.x"
    error = RuntimeError("a page of advice")
    error.__cause__ = ValueError("the loop is endless\nand more")
    assert onnx._why(error) == "the loop is endless"
