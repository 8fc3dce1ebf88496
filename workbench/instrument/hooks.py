"""Hooks into torch, installed at the moment when the script imports it."""

from __future__ import annotations

import functools
import platform
import sys
import weakref
from typing import TYPE_CHECKING, Any

from . import settings
from .recording import GpuClock, Recording, now_ns, write_host_memory

if TYPE_CHECKING:
    from collections.abc import Callable

EVIDENCE_NS = 30_000_000_000  # between two looks at what is in force


class ImportHooks:
    """Finder that finds nothing itself: it calls an action after the import of a module."""

    def __init__(self, recording: Recording, actions: dict[str, Callable[[Any], None]]) -> None:
        self._recording = recording
        self._actions = actions

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Return the module's own spec, whose loader calls the action at its end."""
        if name not in self._actions:
            return None
        rest = [finder for finder in sys.meta_path if finder is not self]
        specs = (finder.find_spec(name, path, target) for finder in rest)
        spec = next((spec for spec in specs if spec is not None), None)
        loader: Any = getattr(spec, "loader", None)
        execute = getattr(loader, "exec_module", None)
        if execute is None:
            return None

        def exec_module(module: Any) -> None:
            loader.__dict__.pop("exec_module", None)
            execute(module)
            # Only now: a script may look for torch, or fail to import it, before it imports it.
            action = self._actions.pop(name, None)
            try:
                if action is not None:
                    action(module)
            except Exception as error:  # noqa: BLE001 - the script goes on
                self._recording.fail(error)

        loader.exec_module = exec_module
        return spec


def install(recording: Recording, chosen: dict[str, str]) -> None:
    """Wait for the script's imports."""
    torch_hooks = TorchHooks(recording, chosen)
    actions: dict[str, Callable[[Any], None]] = {
        "torch": torch_hooks.install,
        "torch._dynamo.callback": functools.partial(_watch_compiles, recording),
        "multiprocessing.util": functools.partial(_finish_forks, recording),
    }
    sys.meta_path.insert(0, ImportHooks(recording, actions))  # type: ignore[arg-type]


class TorchHooks:
    """Steps by calls of an optimizer, input wait by data loaders, and the chosen settings."""

    def __init__(self, recording: Recording, chosen: dict[str, str]) -> None:
        self._recording = recording
        self._applied = settings.Applied(chosen)
        self._anchor: Callable[[], Any] = lambda: None  # the optimizer whose calls end steps
        self._second: Callable[[], Any] = lambda: None  # another one that was called since
        self._has_stepped = False  # since the scaler was updated
        self._torch: Any = None
        self._records_seen: Any = None
        self._evidence_ns = 0
        self._has_facts = False

    def install(self, torch: Any) -> None:
        """Install the hooks in torch, which has just been imported."""
        self._torch = torch
        recording = self._recording
        recording.write(torch=str(torch.__version__))
        recording.before_flush, recording.at_end = self._before_flush, self._at_end
        self._applied.to(torch)
        # Look up the module by name: torch.optim has deleted the attribute.
        optimizers = sys.modules["torch.optim.optimizer"]
        optimizers.register_optimizer_step_post_hook(self._step_hook())
        self._hook_scaler(torch.amp.GradScaler)
        base = sys.modules["torch.utils.data.dataloader"]._BaseDataLoaderIter
        base.__next__ = _timed_next(recording, base.__next__)

    def _step_hook(self) -> Callable[[Any, Any, Any], None]:
        recording = self._recording

        def stepped(optimizer: Any, _arguments: Any, _keywords: Any) -> None:
            if recording.explicit or settings.is_nested(sys._getframe(1)):
                return
            self._has_stepped = True
            if self._anchor() is not optimizer:
                # Another optimizer: it takes over if it is called twice between two calls.
                if self._anchor() is not None and self._second() is not optimizer:
                    self._second = weakref.ref(optimizer)
                    return
                self._anchor = weakref.ref(optimizer)
            self._second = _nothing
            recording.mark_step()

        stepped._torchdynamo_disable = True  # type: ignore[attr-defined]
        return stepped

    def _hook_scaler(self, scaler: Any) -> None:
        """Let an update of the gradient scaler end a step that it skipped."""
        update = scaler.update

        @functools.wraps(update)
        def updated(*arguments: Any, **keywords: Any) -> Any:
            result = update(*arguments, **keywords)
            if not self._has_stepped and not self._recording.explicit:
                self._recording.mark_step()
            self._has_stepped = False
            return result

        scaler.update = updated

    def _before_flush(self, recording: Recording) -> None:
        torch = self._torch
        if not self._has_facts:
            self._has_facts = True
            recording.write(facts=_facts(torch))
        if recording.clock is None and torch.cuda.is_initialized():
            recording.clock = GpuClock(torch.cuda)
        if recording.clock is not None:
            stats = torch.cuda.memory_stats_as_nested_dict()
            allocated, reserved = stats["allocated_bytes"]["all"], stats["reserved_bytes"]["all"]
            recording.write(memory=[allocated["current"], reserved["current"], allocated["peak"]])
            if recording.clock.device is None:
                recording.clock.device = torch.cuda.current_device()
                recording.write(gpu=_gpu(torch, recording.clock.device))
        else:
            write_host_memory(recording)
        self._write_records()
        if now_ns() >= self._evidence_ns:
            self._write_evidence()

    def _at_end(self, recording: Recording) -> None:
        self._write_records()
        self._write_evidence()

    def _write_evidence(self) -> None:
        self._evidence_ns = now_ns() + EVIDENCE_NS
        self._recording.write(evidence=self._applied.evidence())

    def _write_records(self) -> None:
        """Write what Dynamo compiled since the last time, and why it did so again."""
        utils = sys.modules.get("torch._dynamo.utils")
        records = utils.get_compilation_metrics() if utils is not None else []
        if not records or records[-1] is self._records_seen:
            return
        seen = [index for index, record in enumerate(records) if record is self._records_seen]
        new = records[seen[-1] + 1 :] if seen else records
        self._records_seen = records[-1]
        self._recording.write(
            compiled=[
                [
                    str(record.co_name),
                    int(bool(getattr(record, "graph_op_count", 0))),
                    str(getattr(record, "recompile_reason", None) or "").partition("\n")[0],
                ]
                for record in new
                if record.co_name
            ]
        )


def _timed_next(recording: Recording, fetch: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @functools.wraps(fetch)
    def timed(iterator: Any) -> Any:
        return recording.next_batch(fetch, iterator)

    return timed


def _watch_compiles(recording: Recording, module: Any) -> None:
    """Record when Dynamo and its backends compile; backward graphs do so in other threads."""
    started_ns: list[int] = []

    def started(*_: object) -> None:
        started_ns.append(now_ns())

    def ended(*_: object) -> None:
        if started_ns:
            recording.add_compile(started_ns.pop())

    module.callback_handler.register_start_callback(started)
    module.callback_handler.register_end_callback(ended)


def _finish_forks(recording: Recording, util: Any) -> None:
    """Let a forked process of ``multiprocessing`` write its last rows: it runs no ``atexit``."""

    def forked(recording: Recording) -> None:
        util.Finalize(None, recording.finish, exitpriority=-100)

    util.register_after_fork(recording, forked)


def _facts(torch: Any) -> dict[str, str]:
    return {
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "torch_threads": str(torch.get_num_threads()),
        **{
            name: str(sys.modules[name].__version__)
            for name in ("triton", "transformers", "lightning", "accelerate")
            if hasattr(sys.modules.get(name), "__version__")
        },
    }


def _gpu(torch: Any, index: int) -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(index)
    return {
        "uuid": str(getattr(properties, "uuid", "")),
        "name": str(properties.name),
        "index": index,
        "capability": f"{properties.major}.{properties.minor}",
        "total_bytes": int(properties.total_memory),
        "cuda": str(torch.version.cuda),
        "cudnn": str(torch.backends.cudnn.version()),
    }


def _nothing() -> None:
    return None
