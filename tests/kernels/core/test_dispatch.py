"""Choices of implementations: levels, nesting, errors, counting."""

import shutil
import subprocess
import sys

import pytest
import torch

import kernels
from kernels import OPS, Mistake, Unavailable
from kernels.core.triton_helpers import INTERPRETED

X = torch.randn(3, 8)
W = torch.ones(8)
ON_CPU = pytest.mark.skipif(INTERPRETED, reason="Triton runs on the CPU here")


@pytest.fixture(autouse=True)
def fresh():
    with kernels.using(all="auto"):
        kernels.reset_usage()
        yield
        kernels.reset_usage()


def test_every_operator_is_a_function_of_the_package():
    for name, op in OPS.items():
        assert getattr(kernels, name) is op.function


def test_every_file_of_the_folder_is_an_operator():
    import pkgutil

    files = {m.name for m in pkgutil.iter_modules(kernels.__path__)}
    assert {n for n in files if not n.startswith("_")} - {"core", "hardware", "measure"} == set(OPS)


NEWCOMER = '''
"""Twice the input."""

import torch
from kernels.core.dispatch import run
from kernels.core.operator import Case, Cost, Implementation, Operator, Work


def twice(x, *, impl=None):
    """Return twice ``x``."""
    return run(OP, impl, x)


OP = Operator(
    name="twice",
    function=twice,
    reference=lambda x: 2 * x,
    implementations={"torch": Implementation(lambda x: 2 * x)},
    inputs=lambda case, device, dtype, seed: {"x": torch.ones(3, device=device, dtype=dtype)},
    cost=lambda x: Cost(Work(2 * x.nbytes, x.numel())),
    cases=(Case("3", {}),),
    sizes=lambda random: {},
)
'''


def test_an_operator_needs_one_file_and_nothing_else(tmp_path):
    copy = tmp_path / "kernels"
    shutil.copytree(kernels.__path__[0], copy, ignore=shutil.ignore_patterns("__pycache__"))
    (copy / "twice.py").write_text(NEWCOMER)
    script = "import kernels, torch; print(kernels.twice(torch.ones(2)).tolist(), kernels.usage())"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.stdout == "[2.0, 2.0] {'twice': {'torch': 1}}\n", done.stderr


@ON_CPU
def test_auto_takes_torch_on_the_cpu_and_says_why():
    kernels.rms_norm(X, W)
    assert kernels.usage() == {"rms_norm": {"torch": 1}}
    name, reason = kernels.reasons()["rms_norm"]
    assert name == "torch" and reason.startswith("triton: Triton needs a CUDA GPU, not cpu; liger:")


@ON_CPU
def test_an_explicit_choice_that_cannot_run_raises_with_the_reason():
    sentence = r"^rms_norm: 'triton' cannot run: Triton needs a CUDA GPU, not cpu$"
    with pytest.raises(Unavailable, match=sentence):
        kernels.rms_norm(X, W, impl="triton")
    with kernels.using(rms_norm="triton"), pytest.raises(Unavailable, match=sentence):
        kernels.rms_norm(X, W)


def test_an_unknown_implementation_raises_with_those_that_exist():
    sentence = (
        r"^rms_norm: unknown implementation 'fast'; expected one of "
        r"\('auto', 'triton', 'torch', 'liger', 'fla', 'quack'\)$"
    )
    with pytest.raises(Mistake, match=sentence):
        kernels.rms_norm(X, W, impl="fast")
    with pytest.raises(Mistake, match=sentence):
        kernels.choose(rms_norm="fast")


def test_an_unknown_operator_raises_with_those_that_exist():
    with pytest.raises(Mistake, match=r"^unknown operator 'rmsnorm'; expected one of \('all', "):
        kernels.choose(rmsnorm="torch")
    with pytest.raises(Mistake, match=r"^all: unknown implementation 'flash2'; expected one of "):
        kernels.choose(all="flash2")


def test_the_call_outranks_the_operator_which_outranks_auto():
    with kernels.using(rms_norm="triton"):
        kernels.rms_norm(X, W, impl="torch")
    assert kernels.usage() == {"rms_norm": {"torch": 1}}
    assert kernels.reasons()["rms_norm"] == ("torch", "requested")


def test_blocks_nest_and_restore_also_after_an_exception():
    with kernels.using(rms_norm="torch"):
        with pytest.raises(ZeroDivisionError), kernels.using(rms_norm="triton", swiglu="torch"):
            assert kernels.chosen()["rms_norm"] == "triton"
            raise ZeroDivisionError
        assert kernels.chosen()["rms_norm"] == "torch"
        assert kernels.chosen()["swiglu"] == "auto"
    assert kernels.chosen()["rms_norm"] == "auto"


def test_a_mistake_in_using_leaves_every_choice_as_it_was():
    before = kernels.chosen()
    with pytest.raises(Mistake), kernels.using(swiglu="torch", rms_norm="fast"):
        pass
    assert kernels.chosen() == before


def test_all_reaches_the_operators_that_have_both_and_yields_to_a_key_of_its_own():
    with kernels.using(all="torch", rope="triton"):
        chosen = kernels.chosen()
    assert chosen["rms_norm"] == chosen["swiglu"] == "torch"
    assert chosen["rope"] == "triton"
    assert chosen["attention"] == "auto"


def test_the_status_lists_every_operator_with_what_is_missing_and_why():
    status = kernels.status("cpu")
    assert set(status) == set(OPS)
    for name, entry in status.items():
        assert set(entry.available) | set(entry.unavailable) == set(OPS[name].implementations)
        assert entry.active in entry.available
        assert all(why and not why.endswith(".") for why in entry.unavailable.values())
        assert name in str(entry)


def test_every_refused_backend_says_what_and_why():
    for name, why in kernels.status("cpu")["attention"].unavailable.items():
        q = torch.randn(1, 1, 2, 8)
        with pytest.raises(Unavailable) as caught:
            kernels.attention(q, q, q, backend=name)
        assert str(caught.value) == f"attention: {name!r} cannot run: {why}"


@pytest.mark.parametrize("variable", ["WORKBENCH_DISABLE_TRITON", "HYDRA_DISABLE_TRITON"])
def test_the_environment_variable_disables_triton(variable):
    code = (
        "import kernels; s = kernels.status('cuda')['rms_norm'];"
        "print(s.unavailable['triton'], '|', s.active)"
    )
    import os

    environment = os.environ | {variable: "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == f"Triton is disabled by {variable} | torch"


def test_importing_the_library_imports_no_optional_package():
    code = (
        "import sys, kernels; print([m for m in ('flash_attn', 'xformers', 'flash_attn_interface',"
        " 'liger_kernel', 'fla', 'quack', 'PySide6') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_package_that_cannot_be_imported_is_passed_over_with_the_reason(monkeypatch):
    from kernels.attention import _libraries
    from kernels.core import dispatch

    monkeypatch.setattr(_libraries._Library, "missing", lambda *_: None)
    library = _libraries._FLASH2
    q = torch.randn(1, 1, 2, 8, dtype=torch.float16)
    why = library.refuses(q, q, q, False, None, None, None)
    assert why is not None and "flash_attn" in why and "cannot be imported" in why
    assert dispatch.usage() == {}


@pytest.mark.parametrize(
    ("length", "heads", "causal", "taken"),
    [(40, 4, True, False), (32, 4, True, True), (128, 4, True, True), (40, 6, True, True),
     (40, 4, False, True)],
)  # fmt: skip
def test_flex_is_refused_on_a_gpu_where_torch_decodes_more_rows_than_it_can(
    length, heads, causal, taken
):
    flex = OPS["attention"].implementations["flex"]
    with torch._subclasses.FakeTensorMode():
        q = torch.empty(1, heads, length, 16, device="cuda")
        k = torch.empty(1, 1 if heads == 4 else 2, length, 16, device="cuda")
        why = flex.refuses(q, k, k, causal, None, None, None)
    assert (why is None) == taken
    if not taken:
        assert why.endswith("up to 128 rows per key head, not 160 (40 x 4, queries times heads)")
