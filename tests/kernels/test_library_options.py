"""Kernels of other libraries as options: each says why it cannot run, or what it refuses."""

import pytest
import torch
from subjects import pretend_to_compile

from kernels import OPS, Implementation, Unavailable
from kernels.core import dispatch, libraries
from kernels.measure import peers

PAIRS = [
    (op, name) for op, known in peers.PEERS.items() for name in known if name in peers.DISTRIBUTIONS
]
CPU = torch.device("cpu")


@pytest.mark.parametrize(("op", "name"), PAIRS, ids=lambda it: it)
def test_each_is_an_implementation_that_says_what_it_needs(op, name):
    implementation = OPS[op].implementations[name]
    assert isinstance(implementation, Implementation)
    assert implementation.missing("cpu")
    reason = implementation.missing("cuda")
    if (op, name) in peers.OVERWRITES:
        assert "overwrites its inputs" in reason
    elif reason is not None:
        assert reason == (
            f"{peers.TITLES[name]} is not installed (package {peers.DISTRIBUTIONS[name]})"
        )


@pytest.mark.parametrize(("op", "name"), PAIRS, ids=lambda it: it)
def test_each_refuses_double_precision_empty_tensors_and_compilation(op, name, monkeypatch):
    refuses = OPS[op].implementations[name].refuses
    case = next(case for case in OPS[op].cases if not case.bench)
    inputs = OPS[op].inputs(case, CPU, torch.float32, 0)
    wide = {n: x.double() if torch.is_tensor(x) and x.is_floating_point() else x
            for n, x in inputs.items()}  # fmt: skip
    assert "does not support FP64" in refuses(*wide.values())
    first = next(iter(inputs))
    assert "does not support empty tensors" in refuses(
        *(inputs | {first: inputs[first][:0]}).values()
    )
    pretend_to_compile(monkeypatch)
    assert "cannot be traced by torch.compile" in refuses(*inputs.values())


def test_one_that_is_named_and_missing_is_an_error_with_the_reason():
    x = torch.randn(4, 16)
    with pytest.raises(Unavailable, match="'liger' cannot run: Liger needs a CUDA GPU, not cpu"):
        dispatch.run(OPS["rms_norm"], "liger", x, torch.ones(16), 1e-6)


def test_a_broken_installation_is_a_reason_and_no_crash(monkeypatch):
    def broken(module):
        raise OSError("libcuda.so.1: cannot open shared object file")

    monkeypatch.setattr(libraries.importlib, "import_module", broken)
    libraries._import_problem_once.cache_clear()
    refuses = OPS["rms_norm"].implementations["liger"].refuses
    reason = refuses(torch.randn(4, 16), torch.ones(16), 1e-6)
    libraries._import_problem_once.cache_clear()
    assert reason == (
        "liger_kernel cannot be imported: OSError: libcuda.so.1: cannot open shared object file"
    )
