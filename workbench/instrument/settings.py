"""Settings of a training script that can be changed from outside, without an edit.

A setting is applied when the script imports torch. What the script then sets itself wins, and the
evidence says so. ``default`` leaves everything to the script.
"""

from __future__ import annotations

import functools
import inspect
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

VARIABLE = "WORKBENCH_SETTINGS"
DEFAULT = "default"
SWITCH = {DEFAULT: "As the script sets it", "off": "Off", "on": "On"}
_DEVICES = ("cuda", "cpu")
NO_GPU = "no CUDA GPU is used, and it acts there alone"


class Setting(NamedTuple):
    """One setting: its options, the variables that set it, or what it does to torch.

    ``apply`` gets torch and the option, and returns a function that gives the evidence.
    """

    name: str
    title: str
    help: str
    options: Mapping[str, str]
    apply: Callable[[Any, str], Callable[[], tuple[str, str]]]
    variables: Callable[[str], dict[str, str]] = lambda _: {}


def read(text: str) -> dict[str, str]:
    """Return the options by setting of ``NAME=OPTION,...``; raise ``ValueError`` for others."""
    chosen = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, option = part.partition("=")
        if name not in SETTINGS:
            raise ValueError(f"unknown setting {name!r}; expected one of {', '.join(SETTINGS)}")
        options = SETTINGS[name].options
        option = option or ("on" if "on" in options else "")
        if option not in options:
            raise ValueError(f"setting {name}: expected one of {', '.join(options)}; got {part!r}")
        chosen[name] = option
    return chosen


def written(chosen: Mapping[str, str]) -> str:
    """Return the text that ``read`` reads."""
    return ",".join(f"{name}={option}" for name, option in sorted(chosen.items()))


def variables(chosen: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables that the chosen options set; lists are continued."""
    changed: dict[str, str] = {VARIABLE: written(chosen)}
    for name, option in chosen.items():
        if option != DEFAULT:
            for variable, value in SETTINGS[name].variables(option).items():
                before = environment.get(variable, "")
                changed[variable] = f"{before},{value}" if before else value
    return changed


class Applied:
    """The settings that are in force in this process."""

    def __init__(self, chosen: Mapping[str, str]) -> None:
        self._chosen = {name: option for name, option in chosen.items() if option != DEFAULT}
        self._findings: dict[str, Callable[[], tuple[str, str]]] = {}

    def to(self, torch: Any) -> None:
        """Apply them to torch; what fails is evidence."""
        for name, option in self._chosen.items():
            try:
                self._findings[name] = SETTINGS[name].apply(torch, option)
            except Exception as error:  # noqa: BLE001 - the script goes on without it
                finding = ("failed", f"{type(error).__name__}: {error}")
                self._findings[name] = functools.partial(_same, finding)

    def evidence(self) -> list[list[str]]:
        """Return name, option, status and text of each."""
        rows = []
        for name, finding in self._findings.items():
            try:
                status, text = finding()
            except Exception as error:  # noqa: BLE001 - torch may refuse to answer
                status, text = "unknown", f"{type(error).__name__}: {error}"
            rows.append([name, self._chosen[name], status, text])
        return rows


def _same(finding: tuple[str, str]) -> tuple[str, str]:
    return finding


def _compared(wanted: object, actual: object, *, used: bool = True) -> tuple[str, str]:
    """Return the evidence of a flag that the script may have changed since."""
    if not used:
        return "no effect", NO_GPU
    if actual != wanted:
        return "no effect", f"the script itself has set it to {actual}"
    return "effective", f"it is {actual}"


def _flag(
    get: Callable[[Any], object], put: Callable[[Any, bool], object]
) -> Callable[[Any, str], Callable[[], tuple[str, str]]]:
    """Return the ``apply`` of a flag of CUDA that is on or off."""

    def apply(torch: Any, option: str) -> Callable[[], tuple[str, str]]:
        wanted = option == "on"
        put(torch, wanted)
        return lambda: _compared(wanted, get(torch), used=torch.cuda.is_initialized())

    return apply


def _put_tf32(torch: Any, on: bool) -> None:
    torch.set_float32_matmul_precision("high" if on else "highest")
    torch.backends.cudnn.allow_tf32 = on


def _put_benchmark(torch: Any, on: bool) -> None:
    torch.backends.cudnn.benchmark = on


def _sdp(backend: str, title: str) -> Setting:
    def get(torch: Any) -> object:
        return getattr(torch.backends.cuda, f"{backend}_sdp_enabled")()

    def put(torch: Any, on: bool) -> object:
        return getattr(torch.backends.cuda, f"enable_{backend}_sdp")(on)

    return Setting(
        f"sdp_{backend}",
        f"SDPA: {title}",
        "Allow scaled_dot_product_attention to choose this backend.",
        SWITCH,
        _flag(get, put),
    )


def _apply_allocator(torch: Any, option: str) -> Callable[[], tuple[str, str]]:
    def finding() -> tuple[str, str]:
        if not torch.cuda.is_initialized():
            return "no effect", NO_GPU
        if option == "async":
            backend = torch.cuda.get_allocator_backend()
            return _compared("cudaMallocAsync", backend)
        count = sum(bool(part.get("is_expandable")) for part in torch.cuda.memory_snapshot())
        status = "effective" if count else "no effect"
        return status, f"reserved expandable segments: {count}"

    return finding


def _allocator_variables(option: str) -> dict[str, str]:
    value = {"expandable": "expandable_segments:True", "async": "backend:cudaMallocAsync"}[option]
    # Torch reads the first name from 2.9 on, and the second before.
    return {"PYTORCH_ALLOC_CONF": value, "PYTORCH_CUDA_ALLOC_CONF": value}


def _apply_autocast(torch: Any, _option: str) -> Callable[[], tuple[str, str]]:
    """Enter autocast for the main thread, but for backward passes and optimizers.

    The cache of cast weights stays off: nothing leaves this autocast region, so that nothing would
    ever drop weights of before an update.
    """
    for device in _DEVICES:
        torch.set_autocast_dtype(device, torch.bfloat16)
    torch.set_autocast_cache_enabled(False)
    _switch_autocast(torch, [True, True])
    count = [0]
    for name in ("backward", "grad"):
        compute = getattr(torch.autograd, name)
        setattr(torch.autograd, name, _without_autocast(torch, compute, count))
    _leave_optimizers_out(torch)

    def finding() -> tuple[str, str]:
        noun = "backward pass" if count[0] == 1 else "backward passes"
        passes = f"{count[0]:,} {noun} followed a forward pass under autocast in bfloat16"
        return ("effective" if count[0] else "no effect"), passes

    return finding


def _without_autocast(torch: Any, compute: Callable[..., Any], count: list[int]) -> Any:
    """Return a backward pass without autocast; ``count``: calls that disabled it."""
    is_compiling = getattr(getattr(torch, "compiler", None), "is_compiling", lambda: False)

    @functools.wraps(compute)
    def without_autocast(*arguments: Any, **keywords: Any) -> Any:
        if is_compiling():  # Dynamo knows torch's own function alone
            return compute(*arguments, **keywords)
        before = _switch_autocast(torch, [False, False])
        count[0] += any(before)
        try:
            return compute(*arguments, **keywords)
        finally:
            _switch_autocast(torch, before)

    return without_autocast


def _leave_optimizers_out(torch: Any) -> None:
    """Disable autocast in optimizer steps without a closure; a closure runs the forward pass."""
    states: dict[int, list[list[bool]]] = {}  # by optimizer, whose step may call that of its base

    def before(optimizer: Any, arguments: Any, keywords: Any) -> None:
        left = [] if is_nested(sys._getframe(1), optimizer) else states.pop(id(optimizer), [])
        state = _switch_autocast(torch, left[0] if left else [])  # a step that failed left it so
        state = left[0] if left else state
        states.setdefault(id(optimizer), []).append(state)
        if all(value is None for value in (*arguments[1:], *keywords.values())):  # no closure
            _switch_autocast(torch, [False, False])

    def after(optimizer: Any, _arguments: Any, _keywords: Any) -> None:
        _switch_autocast(torch, states[id(optimizer)].pop())

    before._torchdynamo_disable = after._torchdynamo_disable = True  # type: ignore[attr-defined]
    module = sys.modules["torch.optim.optimizer"]  # torch.optim has deleted the attribute
    module.register_optimizer_step_pre_hook(before)
    module.register_optimizer_step_post_hook(after)


def is_nested(frame: Any, optimizer: Any = None) -> bool:
    """Return True if a step, whose hooks ``frame`` calls, is called by a step of an optimizer.

    A class whose ``step`` calls that of its base has hooks around both, and some optimizers call
    another one. ``optimizer``: only its own steps count.
    """
    caller = frame.f_back
    while caller is not None:
        if caller.f_code is frame.f_code and (
            optimizer is None or caller.f_locals.get("self") is optimizer
        ):
            return True
        caller = caller.f_back
    return False


def _switch_autocast(torch: Any, states: list[bool]) -> list[bool]:
    """Switch autocast of CUDA and of the CPU; return what they were."""
    before = [torch.is_autocast_enabled(device) for device in _DEVICES]
    for device, on in zip(_DEVICES, states):  # noqa: B905 - Python 3.8
        torch.set_autocast_enabled(device, on)
    return before


def _apply_compile(torch: Any, option: str) -> Callable[[], tuple[str, str]]:
    """Compile the first module that has most of an optimizer's parameters, in place.

    Calls of modules are watched until then, and no longer.
    """
    module_class, call = torch.nn.Module, torch.nn.Module.__call__
    text = ["no module with most of an optimizer's parameters was called"]
    optimizers: list[Any] = []
    patch = torch.optim.Optimizer._patch_step_function

    def constructed(optimizer: Any) -> None:
        patch(optimizer)
        optimizers.append(optimizer)

    def wrapped(module: Any, *arguments: Any, **keywords: Any) -> Any:
        if optimizers and module.training and _has_most_parameters(module, optimizers):
            module_class.__call__ = call
            torch.optim.Optimizer._patch_step_function = patch
            optimizers.clear()
            text[0] = _compile_in_place(torch, module, option)
        return call(module, *arguments, **keywords)

    module_class.__call__ = wrapped
    torch.optim.Optimizer._patch_step_function = constructed

    def finding() -> tuple[str, str]:
        is_compiled = text[0].endswith(" is compiled")
        return ("effective" if is_compiled else "no effect"), text[0]

    return finding


def _compile_in_place(torch: Any, module: Any, option: str) -> str:
    name = type(module).__name__
    if name == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None:
        return f"the script itself compiles {name}"
    module.compile(mode=None if option == "on" else option)
    return f"{name} is compiled"


def _has_most_parameters(module: Any, optimizers: list[Any]) -> bool:
    sizes = {
        id(parameter): parameter.numel()
        for optimizer in optimizers
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    own = sum(sizes.get(id(parameter), 0) for parameter in module.parameters())
    return own > sum(sizes.values()) / 2


class _Loaders:
    """Changed arguments of ``DataLoader``, of all settings that change some."""

    def __init__(self) -> None:
        self.changes: dict[str, Any] = {}
        self.changed: dict[str, int] = {}  # loaders by argument, where its value is another one
        self.left = 0

    def install(self, torch: Any) -> None:
        """Let every data loader be made with the changes."""
        loader = torch.utils.data.DataLoader
        initialize, iterable = loader.__init__, torch.utils.data.IterableDataset
        signature = inspect.signature(initialize)

        @functools.wraps(initialize)
        def changed(*arguments: Any, **keywords: Any) -> None:
            bound = signature.bind(*arguments, **keywords)
            if isinstance(bound.arguments["dataset"], iterable):
                self.left += 1  # more workers would repeat what it yields
            else:
                before = dict(bound.arguments)
                bound.arguments.update(self.changes)
                if not bound.arguments.get("num_workers"):
                    for name in ("prefetch_factor", "persistent_workers", "timeout",
                                 "multiprocessing_context"):  # fmt: skip
                        bound.arguments.pop(name, None)
                for name in self.changes.keys() & bound.arguments.keys():
                    value = before.get(name, signature.parameters[name].default)
                    if name == "prefetch_factor" and value is None:
                        value = 2  # torch's own choice
                    is_changed = bound.arguments[name] != value
                    if name == "pin_memory" and not torch.cuda.is_available():
                        is_changed = False  # torch pins nothing then
                    self.changed[name] = self.changed.get(name, 0) + is_changed
            initialize(*bound.args, **bound.kwargs)

        loader.__init__ = changed

    def finding(self, argument: str) -> tuple[str, str]:
        """Return how many loaders have another value of an argument than without the settings."""
        changed = self.changed.get(argument, 0)
        text = f"data loaders changed: {changed}"
        if self.left:
            text += f" (of iterable datasets, left as they are: {self.left})"
        return ("effective" if changed else "no effect"), text


_loaders = _Loaders()


def _loader(argument: str, value: Callable[[str], Any]) -> Any:
    """Return the ``apply`` of one argument of ``DataLoader``."""

    def apply(torch: Any, option: str) -> Callable[[], tuple[str, str]]:
        if not _loaders.changes:
            _loaders.install(torch)
        _loaders.changes[argument] = value(option)
        return functools.partial(_loaders.finding, argument)

    return apply


def _counts(*counts: int) -> dict[str, str]:
    return {DEFAULT: SWITCH[DEFAULT], **{str(count): str(count) for count in counts}}


_ALL = (
    Setting(
        "tf32",
        "TF32",
        "Compute FP32 matrix products and convolutions with 10-bit mantissas on the tensor cores.",
        SWITCH,
        _flag(lambda torch: torch.get_float32_matmul_precision() != "highest", _put_tf32),
    ),
    Setting(
        "autocast",
        "Autocast",
        "Run the forward pass under autocast; the script's own autocast regions still count.",
        {DEFAULT: SWITCH[DEFAULT], "bf16": "BF16"},
        _apply_autocast,
    ),
    Setting(
        "compile",
        "torch.compile",
        "Compile the model in place: the first module that has most of an optimizer's parameters.",
        {
            DEFAULT: SWITCH[DEFAULT],
            "on": "On",
            "reduce-overhead": "Reduce overhead",
            "max-autotune": "Max autotune",
        },
        _apply_compile,
    ),
    Setting(
        "allocator",
        "Allocator",
        "How torch's allocator takes memory from the GPU.",
        {DEFAULT: SWITCH[DEFAULT], "expandable": "Expandable segments", "async": "cudaMallocAsync"},
        _apply_allocator,
        _allocator_variables,
    ),
    Setting(
        "cudnn_benchmark",
        "cuDNN benchmark",
        "Time cuDNN's algorithms once for each shape, and use the fastest.",
        SWITCH,
        _flag(lambda torch: torch.backends.cudnn.benchmark, _put_benchmark),
    ),
    _sdp("flash", "flash"),
    _sdp("mem_efficient", "memory-efficient"),
    _sdp("cudnn", "cuDNN"),
    _sdp("math", "math"),
    Setting(
        "workers",
        "Loader workers",
        "Processes that prepare batches, for every data loader of an indexed dataset.",
        _counts(0, 1, 2, 4, 8, 16, 32),
        _loader("num_workers", int),
    ),
    Setting(
        "pin_memory",
        "Pinned memory",
        "Let data loaders copy batches into pinned memory, which a GPU reads faster.",
        SWITCH,
        _loader("pin_memory", lambda option: option == "on"),
    ),
    Setting(
        "prefetch",
        "Prefetched batches",
        "Batches that each loader worker prepares ahead; without workers there are none.",
        _counts(1, 2, 4, 8, 16),
        _loader("prefetch_factor", int),
    ),
    Setting(
        "persistent_workers",
        "Persistent workers",
        "Keep the loader's workers from one epoch to the next.",
        SWITCH,
        _loader("persistent_workers", lambda option: option == "on"),
    ),
)
SETTINGS = {setting.name: setting for setting in _ALL}
