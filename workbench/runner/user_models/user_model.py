"""Your own model: any ``torch.nn.Module`` from a Python file.

The file has a function without arguments, ``build`` unless ``FILE.py:name`` names another. It
returns ``(module, make_inputs)`` or ``(module, make_inputs, loss)``:

* ``make_inputs(batch)`` returns random inputs of the module on the CPU: a tensor (dense or sparse),
  or a tuple of arguments. Each argument may be a dict, a list, a named tuple, a dataclass or
  another object that holds tensors. A dict whose keys are parameters of ``forward``, which may
  take ``**kwargs``, is passed as keyword arguments. The function is called, with a fixed seed, for
  several batches, which may differ in shape.
* Instead of ``make_inputs``, an example of what it returns is enough. The first dimension of its
  tensors is the batch. Floating-point numbers are drawn from a normal distribution, integers from
  the range of the example. A module with ``example_input_array`` may be returned alone.
* ``loss(output, *inputs)`` returns the mean loss, one number. Only the training step needs it.

The module may return one tensor, or several in a tuple, a list, a dict or a dataclass. Its numbers
are checked if equal inputs give equal outputs. A module that draws random numbers only in training
(dropout) is checked in evaluation mode, and the result says so. State may be in buffers,
attributes, global variables of the file and closures: every configuration has its own copy. If
Python cannot copy the state (an iterator), the numbers are not checked.

The module computes in the chosen precision. Complex parameters stay complex, with at least FP32.
Global settings of torch or Python that the file changes (default dtype, gradients, threads, TF32,
garbage collection, working folder) are restored afterwards, because they are toggles or apply to
all configurations.

The runner runs the file once for the weights and once for every configuration that uses them. Files
beside it that it imports are run too, and count as parts of the model.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import itertools
import os
import sys
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import kernels
from models import ConfigurationError, Costs, Family, Footprint, Model
from models.configs.setting import setting
from models.family import Batch
from models.initialisation import Take
from models.layers.quantized_linear import QuantizedLinear
from sessions.model import OWN, split_source
from sessions.numbers import counted
from workbench.runner.failures import OWN_MODULE, Mistake
from workbench.runner.structures import SUPPORTED, is_named_tuple, kind, tensors
from workbench.runner.user_models import global_flags, hf_model, neighbour_modules
from workbench.runner.user_models.arguments import Arguments
from workbench.runner.user_models.example_inputs import inputs_like, is_example, with_example
from workbench.runner.user_models.modes import set_mode
from workbench.runner.user_models.parameter_aliases import adopt_parameters, aliased
from workbench.runner.user_models.random_state import seeded
from workbench.runner.user_models.user_code import call_user_code, read_source
from workbench.runner.user_models.working_folder import current_folder, working_folder

_PACKAGES = Path(kernels.__file__).absolute().parents[1]
_WITH_LOSS = "(module, make_inputs, loss)"
_SHAPE = f"(module, make_inputs), (module, example) or {_WITH_LOSS}"
_numbers = itertools.count()
_drawers: dict[OwnConfig, Parts] = {}  # the parts of the file that was built last


@dataclass(frozen=True, kw_only=True)
class OwnConfig:
    """File of the model; ``sha256`` is filled in when it is read, to keep sessions reproducible."""

    source: str = setting(
        "",
        "File",
        "A Python file whose build() returns a module: FILE.py or FILE.py:function. Or "
        "hf:CONFIG, a Hugging Face model with random weights. CONFIG is a config.json, its folder, "
        f"or one of {', '.join(hf_model.bundled())}. hf:CONFIG:tiny is a small model.",
    )
    sha256: str = setting(
        "", "SHA-256", "Checksum of the file; leave it empty to use the current file."
    )


@dataclass(frozen=True)
class Source:
    """A file of the model, and the global variables that it has in this build."""

    file: str
    names: dict[str, Any]

    def __deepcopy__(self, memo: object) -> Source:
        """Return the same: a module cannot be copied."""
        return self


@dataclass(frozen=True)
class Parts:
    """The parts that ``build()`` returned, and the working folder that it left."""

    module: nn.Module
    make_inputs: Callable[[int], Any]
    loss: Callable[..., Any] | None
    sources: tuple[Source, ...] = ()
    folder: str = ""


class OwnModel(Model):
    """The user's module behind the interface that the runner expects of a model."""

    repeats = False  # it may draw random numbers, or overwrite its inputs

    def __init__(
        self,
        module: nn.Module,
        loss: Callable[..., Any] | None,
        sources: tuple[Source, ...] = (),
    ) -> None:
        super().__init__()
        self.module = module
        self.sources = sources
        self.own_loss = loss
        self.patches: dict[str, Any] = {}  # ``foreign.patches.Patch`` by toggle
        self._arguments = Arguments.of(module)

    def train(self, mode: bool = True) -> OwnModel:
        """Set the mode of every module, and change no weights."""
        set_mode(self, mode)
        return self

    def forward(self, *inputs: Any) -> Any:
        """Return the module's output; a dict of its parameters is passed as keywords."""
        return self._arguments.call(self.module, inputs)

    def require_loss(self) -> Callable[..., Any]:
        """Return the user's loss; raise ``Mistake`` if ``build()`` returned none."""
        if self.own_loss is None:
            raise Mistake(f"own: the training step needs a loss; build() must return {_WITH_LOSS}")
        return self.own_loss

    def loss(self, *batch: Any) -> Tensor:
        """Return the user's loss of the module's output."""
        value = self.require_loss()(self(*batch), *batch)
        if not isinstance(value, Tensor) or value.numel() != 1:
            shown = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise Mistake(f"loss() returned {shown}; expected a tensor with one number")
        if torch.is_grad_enabled() and not value.requires_grad:
            raise Mistake(
                "own: the training step needs gradients, but the loss depends on no parameter "
                "with requires_grad; measure the model with workload forward"
            )
        return value.float().reshape(())

    def carried(self) -> dict[str, Tensor]:
        """Return the module's buffers, which calls may change: running means, counts. No codes."""
        return {
            f"{name}.{buffer}".lstrip("."): tensor
            for name, module in self.module.named_modules()
            if not isinstance(module, QuantizedLinear)
            for buffer, tensor in module.named_buffers(recurse=False)
        }

    def aliased(self) -> str:
        """Return the name of a parameter that an attribute or a function holds too, if any."""
        return aliased(self)

    def weights(self) -> dict[str, nn.Parameter]:
        """Return only the parameters: every structure has its own buffers.

        A state dict may lack some: hooks of a module can remove frozen ones.
        """
        return dict(self.named_parameters(remove_duplicate=False))


@dataclass(frozen=True, kw_only=True, eq=False)
class OwnFamily(Family):
    """Family of the models that users' files build."""

    def configure(self, preset: str, overrides: Mapping[str, Any] | None = None) -> OwnConfig:
        """Return the current file's configuration; raises ``ConfigurationError``, runs nothing."""
        config: OwnConfig = super().configure(preset, overrides)
        if hf_model.is_hf(config.source):
            named, source = config.source, hf_model.canonical(config.source)
            digest = hf_model.digest(source)
        else:
            path, name = split(config.source)
            named, source, digest = str(path), f"{path}:{name}", _digest(path)
        if config.sha256 not in ("", digest):
            raise ConfigurationError(
                f"own: {named} has changed: its SHA-256 was {config.sha256[:12]}... and is now "
                f"{digest[:12]}...; leave out sha256 to run the current file"
            )
        return replace(config, source=source, sha256=digest)

    def check_memory(self, config: OwnConfig, *, sequence: int, **step: Any) -> None:
        """Check the sequence, which such inputs do not have; the memory is not known."""
        if sequence != 1:
            why = "make_inputs(batch) sets all sizes but the batch"
            if hf_model.is_hf(config.source):
                why = f"the tokens of an input are an option of hf:CONFIG (:sequence={sequence})"
            raise ConfigurationError(f"own: sequence = {sequence}, but {why}; leave sequence at 1")

    def footprint(self, config: OwnConfig, **step: Any) -> Footprint:
        """Return zeros: not known before it is built."""
        return Footprint(**{role.name: 0 for role in fields(Footprint)})

    def build(
        self,
        config: OwnConfig,
        device: torch.device | str = "meta",
        dtype: torch.dtype = torch.float32,
    ) -> Model:
        """Return the structure that its file gives, whatever the values."""
        return self.materialise(config, device, dtype)

    def materialise(
        self,
        config: OwnConfig,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        seed: int = 0,
    ) -> Model:
        """Return the model with the weights that its file gives it under ``seed``."""
        parts = load(config, seed)
        return _cast(OwnModel(parts.module, parts.loss, parts.sources), device, dtype)

    def weights(
        self, config: OwnConfig, device: torch.device, dtype: torch.dtype, seed: int, take: Take
    ) -> dict[str, nn.Parameter]:
        """Return the weights of ``materialise``, all of which are in memory at first."""
        model = self.materialise(config, device, dtype, seed)
        for prefix, module in model.named_modules():
            for name, parameter in list(module.named_parameters(recurse=False)):
                taken = take(f"{prefix}.{name}".removeprefix("."), parameter)
                if taken is not parameter:
                    setattr(module, name, taken)
        return model.weights()

    def share(self, config: OwnConfig, weights: Mapping[str, nn.Parameter]) -> Model:
        """Build another structure around the same parameters; its buffers are its own."""
        model = fresh(config)
        adopt_parameters(model, weights)
        first = next(iter(weights.values()))
        return _cast(model, first.device, precision(weights.values()))


def fresh(config: OwnConfig) -> OwnModel:
    """Return the model as its file builds it, on the CPU and in the file's own precision.

    Weights of a Hugging Face model are not drawn: only its structure and buffers are of use.
    """
    parts = load(config, 0, initialise=False)
    return OwnModel(parts.module, parts.loss, parts.sources)


def precision(tensors: Iterable[Tensor]) -> torch.dtype:
    """Return the dtype of a model's parameters; of complex ones alone, that of their parts."""
    kinds = [tensor.dtype for tensor in tensors]
    real = [dtype for dtype in kinds if dtype.is_floating_point]
    parts = [dtype.to_real() for dtype in kinds if dtype.is_complex]
    return next(iter([*real, *parts]), torch.float32)


def _cast(model: OwnModel, device: torch.device | str, dtype: torch.dtype) -> OwnModel:
    """Cast as ``Module.to`` does, which would cut complex numbers down to their real parts.

    Tied parameters stay tied, also on the device "meta".
    """
    owners: dict[nn.Parameter, list[tuple[nn.Module, str]]] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                owners.setdefault(parameter, []).append((module, name))
    model._apply(lambda tensor: tensor.to(device, kind(tensor, dtype)))
    for (first, first_name), *tied in owners.values():
        for module, name in tied:
            module._parameters[name] = first._parameters[first_name]
    return model


def split(source: str) -> tuple[Path, str]:
    """Return ``FILE.py:function`` as an absolute path and a name.

    A relative path that does not exist is looked up beside the installed packages, so that a file
    of theirs has the same name on every host. Raises ``ConfigurationError``.
    """
    text, name = split_source(source)
    if not text.strip():
        raise ConfigurationError(
            "own: no file is given; choose one with Open model..., or with --model FILE.py:build"
        )
    path = Path(text).expanduser()
    bundled = _PACKAGES / path
    if not path.is_absolute() and not path.exists() and bundled.is_file():
        return bundled, name
    return path.absolute(), name


def called(config: OwnConfig) -> frozenset[str]:
    """Return the operators of ``kernels`` that the file names; the file is read, not run.

    A name counts as an attribute of the package, however it is imported, or if imported from it.
    """
    if not config.source or hf_model.is_hf(config.source):
        return frozenset()
    return _called(split(config.source)[0], config.sha256)


def tokens_of_sample(config: OwnConfig) -> int:
    """Return how many tokens a sample of the batch has; 1 for a user's own file."""
    return hf_model.sequence(config.source) if hf_model.is_hf(config.source) else 1


@functools.lru_cache(maxsize=16)
def _called(path: Path, sha256: str) -> frozenset[str]:
    if neighbour_modules.is_shadowed("kernels", path.parent):
        return frozenset()
    nodes = neighbour_modules.syntax_nodes(read_source(path))
    names: set[str] = set()
    aliases: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            aliases |= {
                alias.asname or alias.name for alias in node.names if alias.name == "kernels"
            }
        elif isinstance(node, ast.ImportFrom) and node.module == "kernels":
            names |= {alias.name for alias in node.names}
    for node in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            names |= {node.attr} if node.value.id in aliases else set()
    return frozenset(names & kernels.OPS.keys())


def check_source(config: OwnConfig) -> None:
    """Raise ``ValueError`` for a file that is no Python, has no function, or is no configuration.

    The file is read, not run.
    """
    if hf_model.is_hf(config.source):
        hf_model.fields_of(config.source)
    else:
        _check_source(*split(config.source), config.sha256)


@functools.lru_cache(maxsize=16)
def _check_source(path: Path, name: str, sha256: str) -> None:
    content = read_source(path)
    call_user_code(path, "the file", lambda: compile(content, path, "exec"))
    nodes = neighbour_modules.syntax_nodes(content)
    words = {getattr(node, field, "") for node in nodes for field in ("name", "id", "asname")}
    words |= {node.value for node in nodes if isinstance(node, ast.Constant)}
    if words.isdisjoint((name, "*", "__getattr__")):
        raise _no_function(path, name)


def _no_function(path: Path, name: str) -> Mistake:
    return Mistake(f"own: {path} has no function {name}(); it must return {_SHAPE}")


def _digest(path: Path) -> str:
    """Return the digest of the file, and of those that it imports from beside it, if any."""
    digest = hashlib.sha256(read_source(path))
    for file in neighbour_modules.files_beside(path, read_source):
        name = os.path.relpath(file, path.parent)
        digest.update(name.encode() + b"\0" + read_source(file))
    return digest.hexdigest()


def load(config: OwnConfig, seed: int, *, initialise: bool = True) -> Parts:
    """Run the file and its function. Raises ``Mistake`` or ``OwnModelError``.

    ``initialise``: whether weights of a Hugging Face model are drawn.
    """
    if hf_model.is_hf(config.source):
        with seeded(seed), global_flags.put_back():
            hf_parts = hf_model.load(config.source, initialise=initialise)
        return _remember(config, Parts(hf_parts.module, hf_parts.make_inputs, hf_parts.loss))
    path, name = split(config.source)
    module = types.ModuleType(f"{OWN_MODULE}{next(_numbers)}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # dataclasses and pickle look it up
    content = read_source(path)

    def run() -> None:
        exec(compile(content, path, "exec"), module.__dict__)

    with (
        seeded(seed),
        global_flags.put_back(),
        working_folder(),
        neighbour_modules.importing(path, module, read_source),
    ):
        call_user_code(path, "the file", run)
        build = getattr(module, name, None)
        if not callable(build):
            raise _no_function(path, name)
        returned = call_user_code(path, f"{name}()", build)
        folder = current_folder()
    files = set(map(str, neighbour_modules.files_beside(path, read_source)))
    loaded = [module, *(m for m in sys.modules.values() if getattr(m, "__file__", None) in files)]
    sources = tuple(Source(Path(str(m.__file__)).name, vars(m)) for m in loaded)
    parts = _parts(path, name, with_example(returned))
    return _remember(config, replace(parts, sources=sources, folder=folder))


def _remember(config: OwnConfig, parts: Parts) -> Parts:
    _drawers.clear()
    _drawers[config] = parts
    return parts


def _parts(path: Path, name: str, returned: Any) -> Parts:
    shown = f"own: {name}() of {path} returned"
    if not isinstance(returned, tuple) or len(returned) not in (2, 3):
        actual = (
            counted(len(returned), "value")
            if isinstance(returned, tuple)
            else type(returned).__name__
        )
        raise Mistake(f"{shown} {actual}; expected {_SHAPE}")
    module, make_inputs, loss = (*returned, None)[:3]
    if not isinstance(module, nn.Module):
        raise Mistake(f"{shown} {type(module).__name__} for the module; expected a torch.nn.Module")
    if is_example(make_inputs):
        make_inputs = inputs_like(make_inputs)
    for part, value, call in (
        ("make_inputs", make_inputs, "make_inputs(batch), which returns one batch"),
        ("loss", loss, "loss(output, *inputs)"),
    ):
        if not callable(value) and (part, value) != ("loss", None):
            actual = type(value).__name__
            raise Mistake(f"{shown} {actual} for {part}; expected a function {call}")
    for tensor in (*module.parameters(), *module.buffers()):
        if remedy := _unusable(tensor, name):
            raise Mistake(f"{shown} a module with {remedy}")
    if not any(True for _ in module.parameters()):
        raise Mistake(f"{shown} a module without parameters; there is nothing to run or train")
    return Parts(module, make_inputs, loss)


def _unusable(tensor: Tensor, build: str) -> str:
    """Return why no step can use a parameter or buffer, and what to do; empty if one can."""
    if isinstance(tensor, nn.parameter.UninitializedTensorMixin):
        return (
            "lazy layers, which have no weights yet; call the module once "
            f"in {build}(), with make_inputs(1)"
        )
    if tensor.is_meta:
        return "weights or buffers on the device meta, which have no values; build it on the CPU"
    if tensor.is_inference():
        return (
            "weights or buffers that were made in torch.inference_mode, which no step can change; "
            "build it outside of that mode"
        )
    return ""


def _draw(config: OwnConfig, batch: int, sequence: int, generator: torch.Generator) -> Batch:
    path = Path(config.source) if hf_model.is_hf(config.source) else split(config.source)[0]
    parts = _drawers[config] if config in _drawers else load(config, 0, initialise=False)
    seed = int(torch.randint(2**62, (), generator=generator))
    with seeded(seed), global_flags.put_back(), working_folder(parts.folder):
        drawn = call_user_code(path, f"make_inputs({batch})", lambda: parts.make_inputs(batch))
    if not tensors(drawn):
        raise Mistake(
            f"own: make_inputs({batch}) returned {type(drawn).__name__}; expected {SUPPORTED}"
        )
    several = isinstance(drawn, tuple | list)
    if is_named_tuple(drawn):  # one argument, unless the module takes its parts
        several = len(Arguments.of(parts.module).required) > 1
    return (tuple(drawn) if several else (drawn,)), ()


def _unknown(config: OwnConfig) -> Costs:
    """Raise: nothing is known before the model is built."""
    raise ConfigurationError("own: the cost of your own model is unknown before it is built")


FAMILY = OwnFamily(
    name=OWN,
    title="Own model",
    help=__doc__ or "",
    config=OwnConfig,
    presets={"file": OwnConfig()},
    suggestions={"file": {"cpu": (4, 1)}},
    construct=lambda config: OwnModel(nn.Identity(), None),
    check=lambda config: None,
    costs=_unknown,
    workloads=("forward", "train"),
    first_choice="file",
    draw=_draw,
)
