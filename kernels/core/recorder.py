"""Recorder of one call of a function, so that it can be replayed (``replay``)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

EMPTY = frozenset(("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"))
ZEROS = frozenset(("zeros", "zeros_like", "new_zeros"))
COPIES = frozenset(("_to_copy", "clone"))  # replayed before launches, as products are
LIKE = frozenset(("dtype", "memory_format"))  # options of a copy that is replayed
VIEWS = frozenset(("as_strided", "expand", "permute", "select", "slice", "squeeze", "t"))
VIEWS |= frozenset(("transpose", "unsqueeze", "view", "_unsafe_view"))

# temporaries up to this size share one allocation; large ones are worth their time
SHARED_BYTES = 1 << 20
ALIGNMENT = 512  # alignment of each temporary, as in torch's allocator

Make = Callable[[list[Any]], Tensor]


class Recording(NamedTuple):
    """Replayable steps of one call. A slot is an argument, an allocation or a view of these.

    Slot 0 is None, whose address is 0. ``launches``: a function that launches a kernel on a stream,
    and one that picks its addresses. ``watchers`` are empty unless something observes launches.
    """

    allocations: tuple[Make, ...]  # and copies and products; in the order of their slots
    views: tuple[tuple[int, int], ...]  # slot and offset in bytes
    launches: tuple[tuple[Callable[..., None], Callable[[list[int]], Sequence[int]]], ...]
    effects: tuple[Callable[[], None], ...]
    result: Callable[[list[Any]], Any]
    watchers: tuple[Any, ...]


class Recorder(TorchDispatchMode):
    """Mode that records torch operators and launches on the thread that entered it.

    ``rejected``: the first step that cannot be replayed. ``effects`` are replayed unchanged.
    ``operators``: how many operators may still be called; choices can redirect an operator at any
    time.
    """

    def __init__(self, device: int, operators: int) -> None:
        super().__init__()
        self.device = device
        self.rejected = ""
        self.effects: list[Callable[[], None]] = []
        self.operators = operators
        self._arguments: list[Any] = [None]
        self._allocations: list[tuple[Make, Tensor, bool]] = []  # True: uninitialised memory
        self._slots = {id(None): (0, 0)}  # by id: slot and offset in bytes
        self._alive: list[Tensor] = []  # keeps identities unique
        self._views: list[Tensor] = []
        self._launches: list[tuple[Callable[..., None], list[tuple[int, int]]]] = []
        self._watchers: list[Any] = []

    def add_argument(self, x: Tensor) -> Tensor:
        """Register and return an argument.

        One that is passed twice is returned as an alias: the next call may pass two tensors.
        """
        x = x.detach() if id(x) in self._slots else x
        self._slots[id(x)] = (len(self._arguments), 0)
        self._arguments.append(x)
        return x

    def reject(self, reason: str) -> None:
        """Discard the recording of this call; the first reason is stored."""
        self.rejected = self.rejected or reason

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Run and record one torch operator."""
        options = kwargs or {}
        result = operation(*args, **options)
        name = operation.overloadpacket.__name__
        if name in EMPTY or name in ZEROS:
            make = _empty(result, self._arguments)
            self._add_allocation(_zeros(make) if name in ZEROS else make, result, name in EMPTY)
        elif (
            name in COPIES
            and any(args[0] is x for x in self._arguments)
            and options.keys() <= LIKE
            and not self._is_launched(args[0])
        ):
            slot, _ = self._slots[id(args[0])]
            self._add_allocation(_copy(slot, options), result, False)
        elif name == "mm" and all(self._is_argument(x) for x in args):
            factors = [_view(*self._slots[id(x)], x, self._arguments) for x in args]
            self._add_allocation(_product(*factors), result, False)
        elif name in VIEWS and id(args[0]) in self._slots:
            slot, offset = self._slots[id(args[0])]
            self._slots[id(result)] = (slot, offset + result.data_ptr() - args[0].data_ptr())
            self._views.append(result)
        # torch returns its results through detach
        elif name == "detach" and id(args[0]) in self._slots:
            self._slots[id(result)] = self._slots[id(args[0])]
            of_view = any(args[0] is x for x in self._views)
            (self._views if of_view else self._alive).append(result)
        else:
            self.reject(str(operation))
        return result

    def launched(
        self,
        bind: Callable[..., Callable[..., None]],
        entry: Any,
        grid: tuple[int, int, int],
        pointers: tuple[Tensor | None, ...],
        values: tuple[Any, ...],
        device: int,
        watchers: tuple[Any, ...],
    ) -> None:
        """Record a launch, repeated by ``bind(entry, *grid, *values)(stream, *addresses)``."""
        if device != self.device:
            self.reject("a launch on another GPU")
        if not all(id(x) in self._slots for x in pointers):
            return self.reject("memory from elsewhere")
        at = [self._slots[id(x)] for x in pointers]
        self._launches.append((bind(entry, *grid, *values), at))
        self._watchers += [
            watcher for watcher in watchers if not any(watcher is w for w in self._watchers)
        ]

    def recording(self, result: Any) -> Recording | None:
        """Return the recorded call, which returned ``result``; None if it cannot be replayed."""
        parts = result if type(result) is tuple else (result,)
        viewed = [id(x) for x in self._views]
        if not all(id(x) in self._slots and id(x) not in viewed for x in parts):
            self.reject("a result that is no allocation")
        if self.rejected:
            return None
        returned = [self._slots[id(x)][0] for x in parts]
        allocations, moved = self._merged_allocations(returned)
        views: dict[tuple[int, int], int] = {}
        first_view = len(self._arguments) + len(allocations)
        launches = []
        for launch, at in self._launches:
            slots = []
            for slot, offset in at:
                new_slot, further = moved.get(slot, (slot, 0))
                location = (new_slot, offset + further)
                slots.append(
                    views.setdefault(location, first_view + len(views)) if location[1] else new_slot
                )
            launches.append((launch, _picker(slots)))
        slots = [moved.get(slot, (slot, 0))[0] for slot in returned]
        return Recording(
            tuple(allocations),
            tuple(views),
            tuple(launches),
            tuple(self.effects),
            itemgetter(slots[0]) if type(result) is not tuple else _picker(slots),
            tuple(self._watchers),
        )

    def _is_argument(self, x: Tensor) -> bool:
        """Return True if x is an argument or its view, in its dtype, that no launch has used."""
        slot, _ = self._slots.get(id(x), (0, 0))
        is_one = 0 < slot < len(self._arguments) and self._arguments[slot].dtype == x.dtype
        return is_one and not self._is_launched(x)

    def _is_launched(self, x: Tensor) -> bool:
        """Return True if a launch used the memory of x, which it may have written."""
        slot, _ = self._slots[id(x)]
        return any(slot == used for _, at in self._launches for used, _ in at)

    def _add_allocation(self, make: Make, tensor: Tensor, temporary: bool) -> None:
        self._slots[id(tensor)] = (len(self._arguments) + len(self._allocations), 0)
        self._allocations.append((make, tensor, temporary))

    def _merged_allocations(
        self, returned: list[int]
    ) -> tuple[list[Make], dict[int, tuple[int, int]]]:
        """Return the allocations of a replay, and the new slot and offset of each recorded one.

        Small temporaries share one allocation: each allocation takes longer than a launch.
        """
        allocations: list[Make] = []
        moved: dict[int, tuple[int, int]] = {}
        used = {slot for _, at in self._launches for slot, _ in at} | set(returned)
        shared: dict[int, int] = {}
        end, device = 0, self._allocations[0][1].device if self._allocations else None
        for slot, (_, tensor, temporary) in enumerate(self._allocations, len(self._arguments)):
            if slot in used and temporary and slot not in returned and tensor.device == device:
                shared[slot] = end
                end += -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT
        if len(shared) < 2 or end > SHARED_BYTES:
            shared = {}
        for slot, (make, _, _) in enumerate(self._allocations, len(self._arguments)):
            if slot not in shared and (slot in used or not temporary):
                moved[slot] = (len(self._arguments) + len(allocations), 0)
                allocations.append(make)
        if shared:
            moved |= {
                slot: (len(self._arguments) + len(allocations), at) for slot, at in shared.items()
            }
            # Floating-point memory, which a test can poison.
            allocations.append(lambda _: torch.empty(end // 4, dtype=torch.float32, device=device))
        return allocations, moved


def _picker(slots: list[int]) -> Callable[[list[Any]], Sequence[Any]]:
    if len(slots) > 1:
        return itemgetter(*slots)
    return lambda of: tuple([of[slot] for slot in slots])


def _zeros(empty: Make) -> Make:
    return lambda tensors: empty(tensors).zero_()


def _copy(slot: int, options: dict[str, Any]) -> Make:
    if "dtype" in options:
        return lambda tensors: tensors[slot].to(copy=True, **options)  # type: ignore[no-any-return]
    return lambda tensors: tensors[slot].clone(**options)  # type: ignore[no-any-return]


def _product(a: Make, b: Make) -> Make:
    return lambda tensors: torch.mm(a(tensors), b(tensors))


def _view(slot: int, offset: int, view: Tensor, arguments: list[Any]) -> Make:
    """Return a function that makes that view of an argument, ``offset`` bytes from its start."""
    if arguments[slot] is view:
        return itemgetter(slot)
    shape, stride, behind = view.shape, view.stride(), offset // view.element_size()

    def make(tensors: list[Any]) -> Tensor:
        base: Tensor = tensors[slot]
        return base.as_strided(shape, stride, base.storage_offset() + behind)

    return make


def _empty(like: Tensor, arguments: list[Any]) -> Make:
    """Return a function that allocates a tensor like ``like`` by the cheapest call."""
    shape, stride, dtype, device = like.shape, like.stride(), like.dtype, like.device
    alike = [n for n, x in enumerate(arguments) if n and (x.dtype, x.device) == (dtype, device)]
    for slot in alike:
        x = arguments[slot]
        if x.shape == shape and torch.empty_like(x).stride() == stride:
            return lambda tensors: torch.empty_like(tensors[slot])
    if alike and shape and like.is_contiguous():
        slot = alike[0]
        return lambda tensors: tensors[slot].new_empty(*shape)  # type: ignore[no-any-return]
    return lambda _: torch.empty_strided(shape, stride, dtype=dtype, device=device)
