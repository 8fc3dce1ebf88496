"""MAHIA-X as one graph: the same results, errors that name the fallback, no wait for the host."""

import pytest
import torch
from mahia_samples import MAHIA, SMALL, drawn, varied

from models import ConfigurationError
from models.mahia import CompilationFailed


def gradients(model, loss, batch):
    model.zero_grad()
    value = loss(*batch)
    value.backward()
    return [value.detach(), *(parameter.grad.clone() for parameter in model.parameters())]


@pytest.mark.parametrize(("use_moe", "compiled_mode"), [(False, None), (True, "selective")])
def test_checkpointed_and_compiled_whole_it_is_the_same(use_moe, compiled_mode):
    config = varied(use_moe=use_moe, max_layers=1)
    model = MAHIA.materialise(config, seed=2)
    batch = [tensor for group in drawn(config) for tensor in group]
    expected = gradients(model, model.loss, batch)
    measured = {name: values.clone() for name, values in model.metrics().items()}
    for mode, blocks in (("none", 0), ("selective", 1), ("full", 2)):
        model.set_checkpointing(mode)
        for compiled in (False, True) if mode == compiled_mode else (False,):
            for values in model.metrics().values():
                values.zero_()
            loss = model.loss
            if compiled:
                torch.compiler.reset()
                loss = torch.compile(model.loss, backend="aot_eager", fullgraph=True)
            actual = gradients(model, loss, batch)
            assert model.checkpointed_blocks == blocks
            for first, other in zip(actual, expected, strict=True):
                torch.testing.assert_close(first, other)
            for name, values in model.metrics().items():
                torch.testing.assert_close(values, measured[name], msg=name)
    torch.compiler.reset()
    with torch.no_grad():
        model.loss(*batch)
    assert model.checkpointed_blocks == 0


@pytest.mark.sample(1)
@pytest.mark.parametrize("frozen", [0, 1])
def test_compiling_returns_a_function_that_gives_the_same(frozen):
    config = varied(n_layers=1, max_layers=1)
    model = MAHIA.materialise(config, seed=2)
    for parameter in list(model.parameters())[:frozen]:
        parameter.requires_grad_(False)
    inputs, _ = drawn(config, 2)  # the size that it was compiled for
    compiled = model.enable_torch_compile("default", backend="aot_eager")
    torch.testing.assert_close(compiled(*inputs), model(*inputs))
    assert all(parameter.grad is None for parameter in model.parameters())
    torch.compiler.reset()


@pytest.mark.parametrize("suppressed", [False, True])
def test_a_failed_compile_is_an_error_that_names_the_fallback(capsys, suppressed):
    def no_compiler(graph, example_inputs, **options):
        raise OSError("Compiler: cl is not found.\nmore")

    model = MAHIA.materialise(varied(n_layers=1, max_layers=1), seed=2)
    inputs, _ = drawn(SMALL)
    expected = model(*inputs)
    with (
        torch._dynamo.config.patch(suppress_errors=suppressed),
        pytest.raises(CompilationFailed) as caught,
    ):
        model.enable_torch_compile(backend=no_compiler)
    sentence = str(caught.value)
    assert "mode 'max-autotune' failed with " in sentence and "cl is not found" in sentence
    assert sentence.endswith("the model is unchanged: call it to run without compilation")
    assert "\n" not in sentence and capsys.readouterr().out == ""
    assert torch.equal(model(*inputs), expected)
    torch.compiler.reset()


def test_compilation_that_is_switched_off_is_no_success():
    model = MAHIA.materialise(SMALL, seed=2)
    with (
        torch.compiler.set_stance("force_eager"),
        pytest.raises(CompilationFailed, match="compiled nothing, because compilation is switched"),
    ):
        model.enable_torch_compile("default", backend="aot_eager")
    with pytest.raises(ConfigurationError, match=r"unknown mode 'fast'; expected one of defau"):
        model.enable_torch_compile("fast")


def test_no_operator_of_a_step_waits_for_the_host_or_has_a_shape_of_its_data():
    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        waits = ("_local_scalar_dense", "nonzero", "masked_select", "_unique2", "is_nonzero")

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            name = function.overloadpacket.__name__
            assert name not in self.waits, name
            if name.startswith("index"):  # by a mask it would be a search for what is true
                indices = args[1] if isinstance(args[1], (list, tuple)) else []
                assert all(i is None or i.dtype != torch.bool for i in indices), name
            return function(*args, **(kwargs or {}))

    model = MAHIA.materialise(SMALL, seed=2)
    inputs, targets = drawn(SMALL)
    with Watch():
        model.loss(*inputs, *targets).backward()
        with torch.no_grad():
            model(*inputs)
            model.memory.update(model.query(*inputs))
        with pytest.raises(AssertionError, match="_local_scalar_dense"):
            inputs[1].sum().item()
