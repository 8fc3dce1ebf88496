"""Results of a check that do not depend on the variant's kernels, computed once per search.

A search checks many variants of one model. What the reference and the plain model compute depends
on the weights, the optimizer's moments, the batches and the precision, and not on the kernels of a
variant. So each check of a search begins from the same state of training, that of the first check,
and the results of training runs and of random projections are stored in host memory.

The key of a result is a digest of everything that it depends on: configuration, precision, batches
and buffers. A model stores nothing if it draws random numbers, or if its steps have changed state
that is not a buffer. The variant always runs. Outputs are always computed again, because storing
them takes more memory than computing them takes time.
"""

from __future__ import annotations

import contextlib
import hashlib
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor

from models.layers.fake_quantized import FakeQuantizedLinear
from workbench.runner.instruments.memory import free_bytes
from workbench.runner.numerics.outputs import dense
from workbench.runner.structures import map_tensors, tensors
from workbench.runner.training.trainer import Weights, is_plain
from workbench.runner.user_models import global_flags
from workbench.runner.variants.variant import Variant

HOST_ROOM = 4  # times the bytes of a copy must be free on the host for it
STEPS = 8  # steps of a training run: a digest reads as many batches

Result = TypeVar("Result")


class StoredResults:
    """Stored results for one variant and one state of training, by name; may store nothing.

    Tensors are in host memory; ``get`` copies them to ``device``.
    """

    def __init__(
        self,
        results: dict[Any, Any] | None = None,
        digest: bytes = b"",
        device: torch.device | None = None,
    ) -> None:
        self._results, self._digest, self._device = results, digest, device

    def drop(self) -> None:
        """Stop storing and reading results."""
        self._results = None

    def has(self, name: object) -> bool:
        """Return True if a result is stored."""
        return self._results is not None and (self._digest, name) in self._results

    def get(self, name: object, compute: Callable[[], Result]) -> Result:
        """Return the stored result; compute and store it if it is missing and the host has room."""
        if self._results is None:
            return compute()
        key = self._digest, name
        if key in self._results:
            stored: Result = map_tensors(self._results[key], lambda x: x.to(self._device))
            return stored
        result = compute()
        if has_host_room(tensors(result)):
            self._results[key] = map_tensors(result, torch.Tensor.cpu)
        return result


class SharedReference:
    """Stored results of a search, by set of weights; they are freed with the weights."""

    def __init__(self) -> None:
        self._starts: weakref.WeakKeyDictionary[
            Weights, tuple[Callable[[], None], dict[Any, Any]]
        ] = weakref.WeakKeyDictionary()

    @contextlib.contextmanager
    def begun(self, variant: Variant) -> Iterator[dict[Any, Any] | None]:
        """Restore weights and batch of the first check; yield the results stored for them.

        Later steps train on from these weights. Yields None, and changes nothing, for variants
        whose weights or moments are their own, or if the host lacks memory.
        """
        weights = variant.weights
        is_full = variant.divided is None and isinstance(weights, Weights)
        if not is_full or not is_plain(variant.full_trainer):
            yield None
            return
        assert isinstance(weights, Weights)
        if weights in self._starts:
            self._starts[weights][0]()
        elif not has_host_room([*weights.tensors(), *weights.states()]) or not weights.are_finite:
            yield None
            return
        else:
            self._starts[weights] = weights.record_training(), {}
        advances = variant.batches.advances
        variant.batches.go_to(1)
        try:
            yield self._starts[weights][1]
        finally:
            variant.batches.go_to(advances)


def results_for(variant: Variant, results: dict[Any, Any] | None) -> StoredResults:
    """Return the stored results for a variant; none if its steps have changed other state."""
    remembered = variant.remembered
    changes = remembered is not None and (remembered.carried.changed or remembered.exact)
    if results is None or changes:
        return StoredResults()
    return StoredResults(results, digest(variant), variant.situation.device)


def digest(variant: Variant) -> bytes:
    """Return a digest of the inputs of a variant's plain models, except the weights."""
    model, situation, batches = variant.model, variant.situation, variant.batches
    requested = situation.configuration
    flags: list[str] = []

    def read_flags() -> Tensor:
        flags.extend(global_flags.values())
        return torch.empty(0)

    with contextlib.ExitStack() as stack:
        for flag in variant.flags:
            stack.enter_context(flag())
        variant.autocast(read_flags)()
    facts = (
        repr((requested.family, requested.preset, requested.model, requested.workload)),
        repr((requested.settings, requested.seed, requested.data)),
        repr(situation.config),
        str(variant.weights_dtype),
        variant.quantization,
        str(flags),
        str(any(isinstance(module, FakeQuantizedLinear) for module in model.modules())),
        str([name for name, module in model.named_modules() if not module.training]),
        str([n for n, p in variant.plain_weights().items() if p.requires_grad]),
    )
    result = hashlib.sha256("\0".join(facts).encode())
    advances = batches.advances
    for number in range(1, STEPS + 1):
        batches.go_to(number)
        _add(result, tensors((batches.inputs, batches.targets)))
    batches.go_to(advances)
    _add(result, [*model.carried().values(), *model.adapted().values()])
    return result.digest()


def has_host_room(copied: Iterable[Tensor]) -> bool:
    """Return True if copies of tensors leave most of the host's memory free."""
    needed = HOST_ROOM * sum(tensor.nbytes for tensor in copied)
    return not needed or needed < free_bytes(torch.device("cpu"))


def _add(result: Any, values: Iterable[Tensor]) -> None:
    for value in values:
        numbers = dense(value.detach()).resolve_conj().resolve_neg()
        result.update(f"{numbers.dtype}{tuple(numbers.shape)}".encode())
        result.update(numbers.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
