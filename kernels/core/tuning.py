"""Choice of a kernel's tile: the heuristic's, or the fastest of a few that were timed.

A kernel that can be tuned declares a ``Tunable``: its candidates as a function of a key, the
heuristic's tile first. A key holds what the best tile depends on (widths, dtypes). Of the number of
tokens it holds a size class at most, so that another batch size is not tuned again.

Mode ``off`` uses the heuristic. ``cached``, the default, uses a tile on disk, else the heuristic.
``on`` also times what is not on disk, at its first call. Nothing is timed while a CUDA graph is
captured or torch.compile traces (a compiled graph keeps the tile that was known then), on tensors
without memory, or in the interpreter.
"""

from __future__ import annotations

import math
import statistics
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from kernels import hardware
from kernels.core import replay, tuned_files
from kernels.core.check import poisoned
from kernels.core.operator import Mistake, traced_as_constant
from kernels.core.triton_helpers import DISABLED, INSTALLED, INTERPRETED
from kernels.core.tuned_files import Timed
from kernels.measure.timing import forget_evictor, gpu_times_us

MODES = ("off", "cached", "on")
ROUNDS, CALLS = 3, 10  # candidates take turns, so that clocks drift for all of them
GAIN = 0.98  # times the heuristic's time: a closer result may be noise
FEW = 2048  # tokens below which a kernel may leave multiprocessors idle

# Largest allowed difference of two orders of the same sums: relative to the largest value of an
# output, and in the root mean square (relative to that of the output).
_LARGEST = {torch.float32: 2.0**-14, torch.float16: 2.0**-8, torch.bfloat16: 2.0**-5}
_MEAN = {torch.float32: 2.0**-16, torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7}

Tile = tuple[int, ...]
Key = tuple[Any, ...]  # the device's index first, then the parts that are stored on disk


@dataclass(frozen=True)
class Choice:
    """Tile that a kernel used under one key, where it came from, and how fast it was.

    ``source``: "heuristic", "disk" or "tuned" (by this process). ``dropped``: the candidates that
    could not be used, and why.
    """

    kernel: str
    key: str
    tile: Tile
    heuristic: Tile
    source: str
    us: float = math.nan
    heuristic_us: float = math.nan
    dropped: dict[Tile, str] = field(default_factory=dict)
    note: str = ""  # why it was not tuned although tuning was on
    unstored: str = ""  # why it could not be stored

    def __str__(self) -> str:
        text = f"{self.kernel} [{self.key}]: {self.tile} ({self.source})"
        if self.source != "heuristic":
            times = f"{self.us:.1f} us, heuristic {self.heuristic_us:.1f} us"
            text += f", {times}" if self.tile != self.heuristic else f", same as heuristic: {times}"
        text += f"; not stored: {self.unstored}" if self.unstored else ""
        return f"{text}; {self.note}" if self.note else text


def size_class(tokens: int) -> str:
    """Return "few" or "many": as much as a key may contain of the number of tokens."""
    return "few" if tokens < FEW else "many"


class Tunable:
    """Tile choice of one launch.

    ``candidates(*key)`` are the tiles that make sense, the heuristic's first. ``kernels``: the
    kernels that the launch runs. ``dots``: it multiplies matrices, FP32 ones with torch's precision
    setting, which becomes a part of the key. ``in_place``: it writes into its arguments, which are
    then compared as well.
    """

    def __init__(
        self,
        name: str,
        kernels: tuple[Any, ...],
        candidates: Callable[..., Sequence[Tile]],
        *,
        dots: bool = False,
        in_place: bool = False,
    ) -> None:
        self.name = name
        self.kernels = kernels
        self.candidates = candidates
        self.dots = dots
        self.in_place = in_place
        self._kept: dict[str, dict[Key, Tile]] = {mode: {} for mode in MODES}
        self._tiles = self._kept[_mode]
        self._trials: dict[Key, Tile] = {}
        self._stored: dict[str, dict[str, Timed]] = {}  # by GPU, by the written key
        self._tuned: dict[tuple[str, str], Choice] = {}  # by this process
        TUNABLES[name] = self

    def tile(self, key: Key, launch: Callable[..., Any], *args: Any) -> Tile:
        """Return the tile to launch with; ``launch(*args)`` is the caller, which calls this again.

        To tune, it is called with each candidate. It must return all that it writes, except into
        ``args`` where the kernel works in place.
        """
        if torch.compiler.is_compiling():
            return _while_tracing(self.name, *[_constant(part) for part in key])
        if self.dots:
            key = (*key, hardware.product_precision())
        known = self._tiles.get(key)
        return self.settle(key, launch, args) if known is None else known

    def settle(self, key: Key, launch: Callable[..., Any] | None, args: tuple[Any, ...]) -> Tile:
        """Decide the tile for a key that is used for the first time; tune it if tuning is on."""
        with _lock:
            if key in self._trials:
                return self._trials[key]
            gpu = _gpu(key[0])
            choice = self._known(key, gpu)
            new = choice.source == "heuristic" and not choice.note
            if _mode == "on" and new and gpu is not None:
                if launch is None or not _can_be_timed(args):
                    _used_choices[self.name, choice.key] = choice
                    replay.not_replayed("a tile that is to be tuned")
                    return choice.tile  # and decided again at the next call
                choice = _tune(self, key, launch, args)
                if not choice.note:
                    timed = Timed(choice.tile, choice.us, choice.heuristic_us)
                    self._on_disk(gpu)[choice.key] = timed
                    why = tuned_files.add(self._file(gpu), choice.key, timed)
                    choice = replace(choice, unstored=why)
                self._tuned[gpu, choice.key] = choice
                self._kept["cached"].pop(key, None)
            _used_choices[self.name, choice.key] = choice
            if gpu is not None:
                self._tiles[key] = choice.tile
            return choice.tile

    def use_mode(self, mode: str) -> None:
        """Use that mode's tiles."""
        self._tiles = self._kept[mode]

    def forget(self) -> None:
        """Discard the tiles in memory, so that the next call reads the file again."""
        for tiles in self._kept.values():
            tiles.clear()
        replay.forget()

    @contextmanager
    def trying(self, key: Key, tile: Tile) -> Iterator[None]:
        """Launch with this tile inside the block."""
        self._trials[key] = tile
        try:
            yield
        finally:
            del self._trials[key]
            replay.forget()

    def _known(self, key: Key, gpu: str | None) -> Choice:
        choices = self.candidates(*key)
        written = _written(key)
        heuristic = Choice(self.name, written, choices[0], choices[0], "heuristic")
        if gpu is None or _mode == "off":
            return heuristic
        if (gpu, written) in self._tuned:
            return self._tuned[gpu, written]
        timed = self._on_disk(gpu).get(written)
        if timed is None or timed.tile not in choices:
            return heuristic
        return Choice(
            self.name, written, timed.tile, choices[0], "disk", timed.us, timed.heuristic_us
        )

    def _on_disk(self, gpu: str) -> dict[str, Timed]:
        if gpu not in self._stored:
            self._stored[gpu] = tuned_files.load(self._file(gpu))
        return self._stored[gpu]

    def _file(self, gpu: str) -> Any:
        return tuned_files.path(gpu, self.name, self.kernels)


TUNABLES: dict[str, Tunable] = {}
_mode = "cached"
_used_choices: dict[tuple[str, str], Choice] = {}
_lock = threading.RLock()  # backward passes launch in autograd's threads


@contextmanager
def tuning(mode: str) -> Iterator[None]:
    """Set how tiles are chosen inside the block, in the whole process: off, cached or on.

    Raises ``Mistake`` for another mode. Blocks nest.
    """
    if mode not in MODES:
        raise Mistake(f"tuning: unknown mode {mode!r}; expected one of {MODES}")
    before = _mode
    _set(mode)
    try:
        yield
    finally:
        _set(before)


def _set(mode: str) -> None:
    global _mode
    with _lock:
        _mode = mode
        for tunable in TUNABLES.values():
            tunable.use_mode(mode)
        replay.forget()


def tiles() -> list[Choice]:
    """Return the choice for every kernel and key that was used since the last reset."""
    return list(_used_choices.values())


def are_stored(choices: Sequence[Choice]) -> bool:
    """Return True if a tile of one of these choices is stored for this GPU."""
    gpus = {gpu for device in range(torch.cuda.device_count()) if (gpu := _gpu(device))}
    return any(
        choice.key in tuned_files.load(TUNABLES[choice.kernel]._file(gpu))
        for choice in choices
        for gpu in gpus
    )


def reset_tiles() -> None:
    """Clear the list of tiles; tuned tiles stay."""
    with _lock:
        _used_choices.clear()
        for tunable in TUNABLES.values():
            tunable.forget()


@traced_as_constant
def _while_tracing(name: str, *key: Any) -> Tile:
    tunable = TUNABLES[name]
    precision = (hardware.product_precision(),) if tunable.dots else ()
    return tunable.settle((*key, *precision), None, ())


def _constant(part: Any) -> Any:
    """Return a size that torch.compile holds as a symbol as the number that the kernel gets."""
    return len(range(part)) if type(part) is int and part > 0 else part


def _written(key: Key) -> str:
    return ",".join(str(part).removeprefix("torch.") for part in key[1:])


def _gpu(device: int) -> str | None:
    """Return the name of a GPU that can time kernels; None if interpreted or without memory."""
    if device < 0 or INTERPRETED or DISABLED or not INSTALLED or not torch.cuda.is_available():
        return None
    return hardware.of(device).name


def _can_be_timed(args: tuple[Any, ...]) -> bool:
    tensors = [x for x in args if isinstance(x, Tensor)]
    real = all(type(x) in (Tensor, torch.nn.Parameter) for x in tensors)
    return real and not torch.cuda.is_current_stream_capturing()


def _tune(tunable: Tunable, key: Key, launch: Callable[..., Any], args: tuple[Any, ...]) -> Choice:
    """Time all candidates whose results equal the heuristic's; return the fastest of them.

    The heuristic's tile stays if no candidate is faster by ``GAIN``, or if memory runs out.
    """
    tiles = list(dict.fromkeys(tunable.candidates(*key)))
    heuristic = tiles[0]
    untuned = Choice(tunable.name, _written(key), heuristic, heuristic, "heuristic")
    if len(tiles) == 1:
        return replace(untuned, note="no other tile")
    arguments = [timeable(x) for x in args]

    def run(tile: Tile, args: Sequence[Any]) -> list[Tensor]:
        with tunable.trying(key, tile):
            result = launch(*args)
        written_to = args if tunable.in_place else ()
        return [x for x in (*flat(result), *written_to) if isinstance(x, Tensor)]

    def fresh() -> list[Any]:
        if not tunable.in_place:
            return arguments
        return [x.clone() if isinstance(x, Tensor) else x for x in arguments]

    try:
        with torch.no_grad():
            with poisoned():
                expected = run(heuristic, fresh())
                reasons = {
                    tile: _why_not(partial(run, tile, fresh()), expected, key) for tile in tiles[1:]
                }
            del expected
            dropped = {tile: reason for tile, reason in reasons.items() if reason}
            calls = {tile: partial(run, tile) for tile in tiles if tile not in dropped}
            medians = _medians_us(calls, fresh(), key[0])
    except torch.OutOfMemoryError:
        return replace(untuned, note="not tuned: not enough memory")
    finally:
        free_memory()
    best = min(medians, key=lambda tile: medians[tile])
    if medians[best] > GAIN * medians[heuristic]:
        best = heuristic
    return replace(
        untuned,
        tile=best,
        source="tuned",
        us=medians[best],
        heuristic_us=medians[heuristic],
        dropped=dropped,
    )


def _medians_us(
    calls: Mapping[Tile, Callable[[list[Any]], Any]], args: list[Any], device: int
) -> dict[Tile, float]:
    """Return the median time of each tile's call in microseconds; the tiles take turns."""
    times_us: dict[Tile, list[float]] = {tile: [] for tile in calls}
    for _ in range(ROUNDS):
        for tile, call in calls.items():
            times_us[tile] += _times_us(partial(call, args), device)
    return {tile: statistics.median(times) for tile, times in times_us.items()}


def _why_not(call: Callable[[], list[Tensor]], expected: list[Tensor], key: Key) -> str:
    """Return why a candidate is unusable: it fails, or gives other results; "" if it is fine."""
    try:
        results = call()
        tf32 = torch.float32 in key and key[-1] in ("high", "medium")
        reason = difference(results, expected, tf32)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # noqa: BLE001  shared memory, registers, the compiler itself
        synchronize()  # raises again what has broken the GPU for the whole process
        return f"failed: {type(error).__name__}: {str(error).strip().splitlines()[0][:200]}"
    return reason


def difference(results: list[Tensor], expected: list[Tensor], tf32: bool) -> str:
    """Describe how two results differ beyond rounding; empty if they do not."""
    if len(results) != len(expected):
        return f"wrong: the number of results is {len(results)} instead of {len(expected)}"
    for number, (a, b) in enumerate(zip(results, expected, strict=True)):
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"wrong: result {number} has shape {tuple(a.shape)} and {a.dtype}"
        if not b.is_floating_point():
            if not torch.equal(a, b):
                return f"wrong: result {number} has different integers"
            continue
        finite = b.isfinite()
        if not torch.equal(a.isfinite(), finite):
            return f"wrong: result {number} is finite at different positions"
        exact = torch.where(finite, b, 0).float()
        deviation = torch.where(finite, a, 0).float() - exact
        precision = torch.float16 if tf32 and b.dtype == torch.float32 else b.dtype
        for norm_name, of, allowed in (("largest", _largest, _LARGEST), ("rms", _rms, _MEAN)):
            error, scale = of(deviation), of(exact)
            if not error <= allowed.get(precision, allowed[torch.float32]) * scale:
                return (
                    f"wrong: result {number} has {norm_name} error {error:.2g} (values {scale:.2g})"
                )
    return ""


def _largest(x: Tensor) -> float:
    return float(x.abs().max()) if x.numel() else 0.0


def _rms(x: Tensor) -> float:
    return float(x.square().mean().sqrt()) if x.numel() else 0.0


def flat(result: Any) -> Iterator[Any]:
    """Yield the parts of nested tuples and lists."""
    if isinstance(result, (tuple, list)):
        for part in result:
            yield from flat(part)
    else:
        yield result


def timeable(x: Any) -> Any:
    """Replace a tensor of zeros by random numbers: GPUs are faster on zeros than otherwise."""
    if isinstance(x, Tensor) and x.is_floating_point() and not x.any():
        # Its own generator, so that later random numbers stay the same.
        generator = torch.Generator(x.device).manual_seed(0)
        return torch.empty_like(x).normal_(generator=generator)
    return x


def _times_us(call: Callable[[], Any], device: int) -> list[float]:
    """Measure single calls with cold caches."""
    with torch.cuda.device(device):
        return gpu_times_us(call, repeats=CALLS, device=f"cuda:{device}")


def synchronize() -> None:
    """Wait for the GPU, if there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def free_memory() -> None:
    """Free the memory that timing used, so that the model can have it."""
    forget_evictor()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
