"""The generic checks see planted failures: public functions, lost results, absent names."""

import ast
import dataclasses
import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest
import test_operators_are_right as generic
import torch
from planting import lost_results, lost_stores
from subjects import operators

from kernels import OPS, Operator
from kernels.measure.host_cost import small_inputs

ROOT = Path(__file__).parents[2]


class Broken(Exception):  # noqa: N818
    """The planted failure."""


@pytest.mark.parametrize("op", operators())
def test_a_public_function_that_raises_is_noticed(op: Operator):
    def broken(*_, **__):
        raise Broken

    with pytest.raises(Broken):
        generic.test_the_public_function_computes_the_same_as_each_implementation(
            dataclasses.replace(op, function=broken)
        )


def test_each_result_of_a_kernel_can_be_lost():
    source = "a = 1\ntl.store(p + b, b * b, mask=m)\ntl.store(q, 1)\ntl.store(q, 1)\n"
    assert lost_stores(source) == [
        ("tl.store(p + b, b * b, mask=m)", "tl.store(p + b, 0 * (b * b), mask=m)")
    ]


def test_an_operator_that_is_not_listed_loses_each_of_its_results():
    names = {name for name, op in OPS.items() if "triton" in op.implementations}
    bugs = lost_results(names - {"token_scatter"})
    assert len(bugs) > 1
    assert all(bug.startswith("token_scatter: result ") for bug in bugs)
    assert {module for module, *_ in bugs.values()} == {"kernels.token_scatter"}


def uses(source: str) -> Iterator[tuple[int, str, str]]:
    """Yield line, module and name of everything of ``kernels`` that the source uses."""
    tree = ast.parse(source)
    imports_kernels = any(
        isinstance(node, ast.Import) and any(alias.name == "kernels" for alias in node.names)
        for node in ast.walk(tree)
    )
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=str(module)) if module.split(".")[0] == "kernels":
                yield from ((node.lineno, module, alias.name) for alias in node.names)
            case ast.Attribute(value=ast.Name(id="kernels"), attr=name) if imports_kernels:
                yield node.lineno, "kernels", name


def exists(module: str, name: str) -> bool:
    """Return True if a module has the name, or a submodule of that name."""
    owner = importlib.import_module(module)
    submodule = f"{module}.{name}"
    return hasattr(owner, name) or (
        hasattr(owner, "__path__") and importlib.util.find_spec(submodule) is not None
    )


@pytest.mark.parametrize("folder", ["kernels", "models", "workbench", "tests"])
def test_what_other_files_use_of_the_library_exists(folder):
    """Mypy does not see it: for type checkers ``kernels`` has a ``__getattr__``."""
    wrong = [
        f"{path.relative_to(ROOT)}, line {line}: {module} has no {name}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line, module, name in uses(path.read_text())
        if not exists(module, name)
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "source",
    [
        "from kernels import rms_norms",
        "from kernels.core.launch import nothing",
        "def late():\n    import kernels\n    return kernels.rms_norms",
        "import kernels\nkernels.core.x\nkernels.cores",
    ],
)
def test_a_name_that_does_not_exist_is_found(source):
    (wrong,) = [(module, name) for _, module, name in uses(source) if not exists(module, name)]
    assert wrong[0].startswith("kernels")


@pytest.mark.parametrize("name", OPS)
def test_the_cost_takes_what_a_call_gives_by_position(name):
    op = OPS[name]
    device = torch.device("cpu")
    makers = (small_inputs(op, impl, device, torch.float32) for impl in op.implementations)
    inputs = next(filter(None, makers))
    assert op.cost(**op.named(tuple(inputs.values()))) == op.cost(**inputs)
