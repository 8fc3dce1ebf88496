"""Sees one call of a function, so that it can be replayed (``_replay``)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

EMPTY = frozenset(("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"))
ZEROS = frozenset(("zeros", "zeros_like", "new_zeros"))
COPIES = frozenset(("_to_copy", "clone"))  # of arguments, as are products: no launch writes there
LIKE = frozenset(("dtype", "memory_format"))  # options of a copy that is replayed
VIEWS = frozenset(("as_strided", "expand", "permute", "select", "slice", "squeeze", "t"))
VIEWS |= frozenset(("transpose", "unsqueeze", "view", "_unsafe_view"))

SHARED_BYTES = 1 << 20  # of temporaries that are allocated as one; large ones are worth their time
ALIGNMENT = 512  # of each of these, as torch's allocator has it

Make = Callable[[list[Any]], Tensor]


class Recording(NamedTuple):
    """What one call did. Places are those of its tensors, of what it made, and of views of these.

    Place 0 is None, whose address is 0. ``launches``: what launches a kernel on a stream, and what
    picks its addresses. ``watchers`` are empty unless someone is to be told of launches.
    """

    makes: tuple[Make, ...]
    views: tuple[tuple[int, int], ...]  # of what, and how many bytes behind its beginning
    launches: tuple[tuple[Callable[..., None], Callable[[list[int]], Sequence[int]]], ...]
    effects: tuple[Callable[[], None], ...]
    result: Callable[[list[Any]], Any]
    watchers: tuple[Any, ...]


class Recorder(TorchDispatchMode):
    """Keeps what happens inside it on the thread that entered it.

    ``missed`` is the first thing that cannot be done again, ``effects`` are done again as they are,
    and ``operators`` says how many may still be called, which choices lead elsewhere at any time.
    """

    def __init__(self, device: int, operators: int) -> None:
        super().__init__()
        self.device = device
        self.missed = ""
        self.effects: list[Callable[[], None]] = []
        self.operators = operators
        self._given: list[Any] = [None]
        self._made: list[tuple[Make, Tensor, bool]] = []  # and whether it is merely allocated
        self._at = {id(None): (0, 0)}  # by identity: the place, and bytes behind its beginning
        self._alive: list[Tensor] = []  # so that identities stay theirs
        self._views: list[Tensor] = []
        self._launches: list[tuple[Callable[..., None], list[tuple[int, int]]]] = []
        self._watchers: list[Any] = []

    def given(self, x: Tensor) -> Tensor:
        """An argument; what is given twice becomes two tensors, as it may be the next time."""
        x = x.detach() if id(x) in self._at else x
        self._at[id(x)] = (len(self._given), 0)
        self._given.append(x)
        return x

    def misses(self, what: str) -> None:
        """Keep nothing of this call."""
        self.missed = self.missed or what

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Every operation of torch."""
        options = kwargs or {}
        result = operation(*args, **options)
        name = operation.overloadpacket.__name__
        if name in EMPTY or name in ZEROS:
            make = _empty(result, self._given)
            self._makes(_zeros(make) if name in ZEROS else make, result, name in EMPTY)
        elif name in COPIES and any(args[0] is x for x in self._given) and options.keys() <= LIKE:
            place, _ = self._at[id(args[0])]
            self._makes(_copy(place, options), result, False)
        elif name == "mm" and all(self._is_argument(x) for x in args):
            factors = [_view(*self._at[id(x)], x, self._given) for x in args]
            self._makes(_product(*factors), result, False)
        elif name in VIEWS and id(args[0]) in self._at:
            place, offset = self._at[id(args[0])]
            self._at[id(result)] = (place, offset + result.data_ptr() - args[0].data_ptr())
            self._views.append(result)
        elif name == "detach" and id(args[0]) in self._at:  # how torch returns what it made
            self._at[id(result)] = self._at[id(args[0])]
            of_view = any(args[0] is x for x in self._views)
            (self._views if of_view else self._alive).append(result)
        else:
            self.misses(str(operation))
        return result

    def launched(
        self,
        bind: Callable[..., Callable[..., None]],
        found: Any,
        grid: tuple[int, int, int],
        pointers: tuple[Tensor | None, ...],
        values: tuple[Any, ...],
        device: int,
        watchers: tuple[Any, ...],
    ) -> None:
        """A launch: ``bind(found, *grid, *values)(stream, *addresses)`` does it again."""
        if device != self.device:
            self.misses("a launch on another GPU")
        if not all(id(x) in self._at for x in pointers):
            return self.misses("memory from elsewhere")
        at = [self._at[id(x)] for x in pointers]
        self._launches.append((bind(found, *grid, *values), at))
        self._watchers += [each for each in watchers if not any(each is w for w in self._watchers)]

    def recording(self, result: Any) -> Recording | None:
        """The call, which returned ``result``; None if something of it cannot be done again."""
        parts = result if type(result) is tuple else (result,)
        viewed = [id(x) for x in self._views]
        if not all(id(x) in self._at and id(x) not in viewed for x in parts):
            self.misses("a result that is no allocation")
        if self.missed:
            return None
        returned = [self._at[id(x)][0] for x in parts]
        makes, moved = self._arranged(returned)
        views: dict[tuple[int, int], int] = {}
        behind = len(self._given) + len(makes)
        launches = []
        for again, at in self._launches:
            places = []
            for place, offset in at:
                there, further = moved.get(place, (place, 0))
                where = (there, offset + further)
                places.append(views.setdefault(where, behind + len(views)) if where[1] else there)
            launches.append((again, _picker(places)))
        places = [moved.get(place, (place, 0))[0] for place in returned]
        return Recording(
            tuple(makes),
            tuple(views),
            tuple(launches),
            tuple(self.effects),
            itemgetter(places[0]) if type(result) is not tuple else _picker(places),
            tuple(self._watchers),
        )

    def _is_argument(self, x: Tensor) -> bool:
        """Whether it is an argument, or a view of one of its dtype."""
        place, _ = self._at.get(id(x), (0, 0))
        return 0 < place < len(self._given) and self._given[place].dtype == x.dtype

    def _makes(self, make: Make, made: Tensor, temporary: bool) -> None:
        self._at[id(made)] = (len(self._given) + len(self._made), 0)
        self._made.append((make, made, temporary))

    def _arranged(self, returned: list[int]) -> tuple[list[Make], dict[int, tuple[int, int]]]:
        """What is to be made, and where each of what was made is then found.

        Small memory that is not returned is one allocation: each takes longer than a launch.
        """
        makes: list[Make] = []
        moved: dict[int, tuple[int, int]] = {}
        used = {place for _, at in self._launches for place, _ in at} | set(returned)
        shared: dict[int, int] = {}
        end, device = 0, self._made[0][1].device if self._made else None
        for place, (_, made, temporary) in enumerate(self._made, len(self._given)):
            if place in used and temporary and place not in returned and made.device == device:
                shared[place] = end
                end += -(-made.nbytes // ALIGNMENT) * ALIGNMENT
        if len(shared) < 2 or end > SHARED_BYTES:
            shared = {}
        for place, (make, _, _) in enumerate(self._made, len(self._given)):
            if place not in shared and (place in used or not temporary):
                moved[place] = (len(self._given) + len(makes), 0)
                makes.append(make)
        if shared:
            moved |= {place: (len(self._given) + len(makes), at) for place, at in shared.items()}
            # Of numbers that a test can poison.
            makes.append(lambda _: torch.empty(end // 4, dtype=torch.float32, device=device))
        return makes, moved


def _picker(places: list[int]) -> Callable[[list[Any]], Sequence[Any]]:
    if len(places) > 1:
        return itemgetter(*places)
    return lambda of: tuple([of[place] for place in places])


def _zeros(empty: Make) -> Make:
    return lambda tensors: empty(tensors).zero_()


def _copy(place: int, options: dict[str, Any]) -> Make:
    if "dtype" in options:
        return lambda tensors: tensors[place].to(copy=True, **options)  # type: ignore[no-any-return]
    return lambda tensors: tensors[place].clone(**options)  # type: ignore[no-any-return]


def _product(a: Make, b: Make) -> Make:
    return lambda tensors: torch.mm(a(tensors), b(tensors))


def _view(place: int, offset: int, view: Tensor, given: list[Any]) -> Make:
    """What gives that view of an argument, ``offset`` bytes behind its beginning."""
    if given[place] is view:
        return itemgetter(place)
    shape, stride, behind = view.shape, view.stride(), offset // view.element_size()

    def make(tensors: list[Any]) -> Tensor:
        base: Tensor = tensors[place]
        return base.as_strided(shape, stride, base.storage_offset() + behind)

    return make


def _empty(like: Tensor, given: list[Any]) -> Make:
    """What allocates such a tensor again: in the way that takes least, from one of its dtype."""
    shape, stride, dtype, device = like.shape, like.stride(), like.dtype, like.device
    alike = [n for n, x in enumerate(given) if n and (x.dtype, x.device) == (dtype, device)]
    for place in alike:
        x = given[place]
        if x.shape == shape and torch.empty_like(x).stride() == stride:
            return lambda tensors: torch.empty_like(tensors[place])
    if alike and shape and like.is_contiguous():
        place = alike[0]
        return lambda tensors: tensors[place].new_empty(*shape)  # type: ignore[no-any-return]
    return lambda _: torch.empty_strided(shape, stride, dtype=dtype, device=device)
