"""What a rank keeps of moments, gradients and weights while a divided arm steps: its share of them.

As in Rajbhandari et al., "ZeRO" (arXiv 1910.02054). Parameters are laid one behind another into
flat tensors, units, of as many numbers a rank; a rank sums, updates and keeps its part of each.
``optimizer``: moments are shared out, and updated weights gathered (stage 1). ``gradients``: those
of a unit too, as soon as the backward pass has made all of them (stage 2). ``full``: the matrices
of a block too, which is then a unit, gathered for its forward pass and for its backward pass and
given up after either (stage 3). What is in no block, and vectors, stay whole: every step needs them
from its beginning to its end.

torch's own (``fully_shard``, ``ZeroRedundancyOptimizer``) keep a model or an optimizer sharded for
good. Here other arms compute with the same parameters in turn: at the first step after an arm was
entered, parameters come to be views of flat tensors and the memory that they had is freed; when
somebody wants them whole again, that memory is there anew, with all that the shares have become.
Captured graphs know addresses: what they have seen stays where it is, and is held for others. A
rank that fails takes its share with it, so that rank 0 keeps what all was on the host.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.hooks import RemovableHandle

from workbench.runner.ranks.units import Unit, make_room, storage_bytes, units_of

STAGES = ("optimizer", "gradients", "full")


@dataclass
class Held:
    """Bytes that a rank held between two steps, and of gradients when it updated weights and at the
    most, with the whole's; and the collectives of a step.
    """

    moments: int
    weights: int
    gradients: int
    most_gradients: int
    whole_moments: int
    whole_weights: int
    scatters: int
    scattered_bytes: int
    gathers: int
    gathered_bytes: int


class Shards:
    """Of an optimizer's parameters; ``buckets.Buckets`` with shares instead of sums.

    ``optimizer`` is the one over this rank's share, once that is there; ``stays``: the whole must
    stay where it is. ``blocks`` are those of the model, for ``full``.
    """

    def __init__(
        self,
        whole: torch.optim.Optimizer,
        blocks: Iterable[nn.Module],
        stage: str,
        rank: int,
        ranks: int,
    ) -> None:
        self.stage, self.stays = stage, False
        self.optimizer: torch.optim.Optimizer | None = None
        self.held: Held | None = None  # when the whole was last asked for
        self.homes: list[Tensor] = []  # where weights lie when they are whole
        self.early = 0  # sums of the last step that began while the backward pass still ran
        self._whole, self._rank, self._ranks = whole, rank, ranks
        self._units = list(units_of(whole, blocks if stage == "full" else (), ranks))
        for block in dict.fromkeys(unit.block for unit in self._units):
            if block is not None:
                self._surround(block, [unit for unit in self._units if unit.block is block])
        self._unit_of = {id(each): unit for unit in self._units for each in unit.parameters}
        self._storages: dict[int, Unit] = {}  # of passing weights
        self._before: list[tuple[Tensor, Tensor]] = []  # whole weights and moments, as they were
        self._begun: dict[int, Tensor] = {}  # the step counts of the share when it was taken
        self._hooks: list[RemovableHandle] = []
        self._work: tuple[dist.Work, Unit] | None = None
        self._reduced = self._scattered = self._gathers = self._gathered = 0
        self._pending = self._most = 0  # bytes of whole gradients
        self._kept = 0  # of all gradients, when the first update begins
        self._active = False

    # What is told of them

    @property
    def spread(self) -> bool:
        """Whether this rank has its share, and not the whole."""
        return self.optimizer is not None

    @property
    def bytes(self) -> int:
        """Bytes that a step sums."""
        return sum(unit.length * self._ranks * unit.flat.itemsize for unit in self._units)

    @property
    def count(self) -> int:
        """Sums of a step."""
        return len(self._units)

    def tensors(self) -> Iterator[Tensor]:
        """What is held for steps; nothing while all is whole."""
        for unit in self._units:
            yield from unit.tensors()
        yield from self.moments()

    @property
    def standing_bytes(self) -> int:
        """Bytes that are held between steps."""
        return storage_bytes(self.tensors())

    def weights(self) -> Iterator[Tensor]:
        """The shares of weights, and those that are there whole."""
        for unit in self._units:
            yield from (unit.flat, unit.share)

    def moments(self) -> Iterator[Tensor]:
        """The shares of moments, and step counts."""
        if self.optimizer is not None:
            for state in self.optimizer.state.values():
                yield from state.values()

    def gradients(self) -> Iterator[Tensor]:
        """The shares of gradients, and gradients that are there whole."""
        for unit in self._units:
            yield unit.reduced
            if unit.gradients is not None:
                yield unit.gradients

    # From the whole to shares and back

    @torch.no_grad()
    def take(self) -> None:
        """Keep this rank's share of the weights and moments, which are the same on all ranks.

        Nothing is sent for it. Rank 0 copies the whole to the host.
        """
        if self.spread:
            return
        pieces: dict[int, nn.Parameter] = {}
        states: dict[nn.Parameter, dict[str, Tensor]] = {}
        for unit in self._units:
            self._take(unit, pieces, states)
        self.optimizer = self._optimizer_of(pieces, states)
        for piece, state in states.items():
            self.optimizer.state[piece] = state
        self._begun = {id(piece): state["step"].clone() for piece, state in states.items()}
        if self.homes and self.homes[0].is_cuda:  # what taking it took is no step's
            torch.cuda.reset_peak_memory_stats(self.homes[0].device)

    @torch.no_grad()
    def collect(self) -> None:
        """Have the whole weights and moments on every rank, as the steps have left them."""
        if self.optimizer is None:
            return
        self.held = self._measured()
        # Of any piece: all parameters have gradients, so that every step counts for each.
        piece, state = next(iter(self.optimizer.state.items()))
        steps = state["step"] - self._begun[id(piece)]
        homes = iter(self.homes)
        for unit in self._units:
            self._fetch(unit)
            for parameter, view in zip(unit.parameters, unit.views(unit.flat), strict=True):
                home = next(homes)
                make_room(home)
                parameter.data = home
                parameter.copy_(view)  # of the parameter, whose version others follow
            unit.flat, unit.share = unit.flat.new_empty(0), unit.flat.new_empty(0)
            for name, share in unit.moments.items():
                flat = share.new_empty(unit.length * self._ranks)
                dist.all_gather_into_tensor(flat, share)
                for parameter, view in zip(unit.parameters, unit.views(flat), strict=True):
                    moment = self._whole.state[parameter][name]
                    make_room(moment)
                    moment.copy_(view)
        for state in self._whole.state.values():
            state["step"] += steps.to(state["step"].device)
        self._forget()

    @torch.no_grad()
    def restore(self) -> None:
        """Have the whole as it was before ``take``, where other ranks can give nothing any more."""
        if not self.homes:
            return
        homes = iter(self.homes)
        for unit in self._units:
            for parameter in unit.parameters:
                if (home := next(homes, None)) is not None:
                    parameter.data, parameter.grad = home, None
        self._forget(keep_before=True)
        for tensor, before in self._before:
            make_room(tensor)
            tensor.copy_(before)
        self._before = []

    # A step

    def attach(self) -> None:
        """Follow the gradients of these parameters from now on."""
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(self._arrived)
            for unit in self._units
            for parameter in unit.parameters
        ]

    def detach(self) -> None:
        """Leave the parameters alone."""
        for hook in self._hooks:
            hook.remove()
        self._hooks, self._active = [], False

    @contextlib.contextmanager
    def computing(self) -> Iterator[None]:
        """Have weights that a backward pass reads there when it does; around a forward pass."""
        if not self._storages:
            yield
            return
        self._gathers = self._gathered = 0
        with saved_tensors_hooks(self._pack, self._unpack):
            yield

    def backward(self, loss: Tensor) -> None:
        """The backward pass; this rank's share of each gradient is the sum over all ranks then."""
        self._reduced = self._scattered = self._most = self._pending = 0
        if not self._storages:
            self._gathers = self._gathered = 0
        for unit in self._units:
            unit.missing, unit.done = set(map(id, unit.parameters)), False
        self._active = True
        loss.backward()
        self._active = False
        self.early = self._reduced
        for unit in self._units:
            if not unit.done:
                for parameter in unit.parameters:
                    if parameter.grad is None:  # on this rank, and perhaps not on others
                        parameter.grad = torch.zeros_like(parameter)
                self._reduce(unit)
        self._wait()
        if not self._kept:
            whole = (parameter.grad for unit in self._units for parameter in unit.parameters)
            there = [each for each in whole if each is not None]
            self._kept = storage_bytes([*there, *self.gradients()])

    @torch.no_grad()
    def agree(self) -> None:
        """Let what is not finite on one rank be so on all: they skip an update together or not."""
        assert self.optimizer is not None
        groups = self.optimizer.param_groups
        gradients = [each.grad for one in groups for each in one["params"] if each.grad is not None]
        nothing = 0 * torch.stack(torch._foreach_norm(gradients, float("inf"))).max()
        dist.all_reduce(nothing)
        gradients[0] += nothing

    @torch.no_grad()
    def gather(self) -> None:
        """Have the weights that are to be whole between steps, as all ranks have updated them."""
        works = [self._gather(unit) for unit in self._units if not unit.passing]
        for work in works:
            work.wait()

    # Parts of these

    def _take(
        self,
        unit: Unit,
        pieces: dict[int, nn.Parameter],
        states: dict[nn.Parameter, dict[str, Tensor]],
    ) -> None:
        """The unit's share, and of each parameter that has a part of it the piece and its state."""
        begin, end = self._rank * unit.length, (self._rank + 1) * unit.length
        unit.flat = unit.parameters[0].new_zeros(self._ranks * unit.length)
        unit.reduced = unit.flat.new_zeros(unit.length)
        if self.stage == "optimizer":
            unit.gradients = torch.zeros_like(unit.flat)
        views = unit.views(unit.flat)
        for parameter, view in zip(unit.parameters, views, strict=True):
            view.copy_(parameter)
            self.homes.append(parameter.data)
            self._put_away(parameter.data)
            parameter.data = view
        unit.share = unit.flat[begin:end]
        if unit.passing:
            unit.share = unit.share.clone()
            self._storages[unit.flat.untyped_storage()._cdata] = unit
            self._release(unit)
        unit.moments = {}
        for parameter, start in zip(unit.parameters, unit.starts, strict=True):
            state = self._whole.state[parameter]
            low, high = max(start, begin), min(start + parameter.numel(), end)
            own: dict[str, Tensor] = {"step": state["step"].clone()}
            for name in sorted(state.keys() - {"step"}):  # in the same order on every rank
                share = unit.moments.setdefault(name, unit.flat.new_zeros(unit.length))
                if low < high:
                    own[name] = share[low - begin : high - begin]
                    own[name].copy_(state[name].flatten()[low - start : high - start])
                self._put_away(state[name])
            if low < high:
                piece = nn.Parameter(unit.share[low - begin : high - begin])
                piece.grad = unit.reduced[low - begin : high - begin]
                pieces[id(parameter)] = piece
                states[piece] = own

    def _put_away(self, tensor: Tensor) -> None:
        if self._rank == 0:
            self._before.append((tensor, tensor.to("cpu", copy=True)))
        storage = tensor.untyped_storage()
        if not self.stays and storage.nbytes() == tensor.nbytes:
            storage.resize_(0)

    def _optimizer_of(
        self, pieces: dict[int, nn.Parameter], states: dict[nn.Parameter, dict[str, Tensor]]
    ) -> torch.optim.AdamW:
        """AdamW as the whole's, over this rank's pieces of its parameters."""
        groups: list[dict[str, Any]] = [
            {**one, "params": [pieces[id(each)] for each in one["params"] if id(each) in pieces]}
            for one in self._whole.param_groups
        ]
        groups = [one for one in groups if one["params"]]
        first = self._whole.param_groups[0]
        if not groups:  # nothing is left for this rank: a number that is nobody's
            owned = first["params"][0]
            nobody = nn.Parameter(owned.detach().new_zeros(1))
            nobody.grad = torch.zeros_like(nobody)
            groups = [{**first, "params": [nobody]}]
            states[nobody] = {
                name: value.clone() if name == "step" else value.new_zeros(1)
                for name, value in self._whole.state[owned].items()
            }
        kinds = {name: first[name] for name in ("fused", "foreach", "capturable")}
        return torch.optim.AdamW(groups, **kinds)

    def _measured(self) -> Held:
        assert self.optimizer is not None
        states = self.optimizer.state.values()
        moments = [v for state in states for name, v in state.items() if name != "step"]
        weights = [each for unit in self._units for each in (unit.flat, unit.share)]
        parameters = [each for unit in self._units for each in unit.parameters]
        whole = [self._whole.state[each] for each in parameters]
        return Held(
            moments=storage_bytes(moments),
            weights=storage_bytes(weights),
            gradients=self._kept,
            most_gradients=self._most + storage_bytes(unit.reduced for unit in self._units),
            whole_moments=sum(v.nbytes for s in whole for name, v in s.items() if name != "step"),
            whole_weights=sum(each.nbytes for each in parameters),
            scatters=self._reduced,
            scattered_bytes=self._scattered,
            gathers=self._gathers,
            gathered_bytes=self._gathered,
        )

    def _forget(self, *, keep_before: bool = False) -> None:
        self.optimizer, self.homes[:], self._work = None, [], None
        self._storages, self._begun, self._kept = {}, {}, 0
        if not keep_before:
            self._before = []
        for unit in self._units:
            unit.flat = unit.share = unit.reduced = unit.flat.new_empty(0)
            unit.moments, unit.gradients = {}, None

    def _arrived(self, parameter: Tensor) -> None:
        if not self._active:
            return
        assert parameter.grad is not None
        unit = self._unit_of[id(parameter)]
        unit.missing.discard(id(parameter))
        self._holds(parameter.grad.nbytes)
        if self._storages:  # every rank has gone through the same blocks
            if not unit.missing:
                self._reduce(unit)
            return
        # In their order, which has to be the same on every rank.
        while self._reduced < len(self._units):
            unit = self._units[self._reduced]
            if unit.missing:
                break
            self._reduce(unit)

    @torch.no_grad()
    def _reduce(self, unit: Unit) -> None:
        """Begin to sum a unit's gradients over the ranks, to each rank its share."""
        self._wait()
        gradients = [each.grad for each in unit.parameters if each.grad is not None]
        if unit.gradients is None:
            unit.gradients = unit.parameters[0].new_zeros(self._ranks * unit.length)
        self._holds(unit.gradients.nbytes)
        views = unit.views(unit.gradients)
        torch._foreach_copy_(views, gradients)
        self._holds(-sum(each.nbytes for each in gradients))
        for parameter, view in zip(unit.parameters, views, strict=True):
            parameter.grad = view if self.stage == "optimizer" else None
        del gradients
        self._release(unit)
        work = dist.reduce_scatter_tensor(unit.reduced, unit.gradients, async_op=True)
        assert work is not None
        self._work, unit.done = (work, unit), True
        self._reduced += 1
        self._scattered += unit.gradients.nbytes

    def _wait(self) -> None:
        """For the sum that was begun last, whose whole gradients go then."""
        if self._work is None:
            return
        work, unit = self._work
        work.wait()
        self._work = None
        if self.stage != "optimizer" and unit.gradients is not None:
            self._holds(-unit.gradients.nbytes)
            # Here, and not when a thread of the collective lets go of it, which nobody counts.
            unit.gradients.untyped_storage().resize_(0)
            unit.gradients = None

    def _holds(self, more: int) -> None:
        self._pending += more
        self._most = max(self._most, self._pending)

    def _gather(self, unit: Unit) -> dist.Work:
        self._gathers += 1
        self._gathered += unit.flat.nbytes
        work = dist.all_gather_into_tensor(unit.flat, unit.share, async_op=True)
        assert work is not None
        return work

    def _fetch(self, unit: Unit) -> None:
        """Have all weights of a unit."""
        if unit.passing and not unit.flat.untyped_storage().nbytes():
            make_room(unit.flat)
            with torch.no_grad():
                self._gather(unit).wait()

    def _release(self, unit: Unit) -> None:
        """Keep the share only of weights that come and go."""
        if unit.passing:
            unit.flat.untyped_storage().resize_(0)

    def _surround(self, block: nn.Module, units: list[Unit]) -> None:
        """Have a block's weights there whenever it computes."""

        def surrounded(method: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(method)
            def run(*given: Any, **named: Any) -> Any:
                if not self.spread:
                    return method(*given, **named)
                for unit in units:
                    self._fetch(unit)
                found = method(*given, **named)
                if not self._active:  # what is computed again is for a backward pass, which follows
                    for unit in units:
                        self._release(unit)
                return found

            return run

        for name in ("forward", "branch"):  # the branch alone is called where an addition is fused
            if (method := getattr(block, name, None)) is not None:
                setattr(block, name, surrounded(method))

    def _pack(self, tensor: Tensor) -> Tensor | tuple[Unit, Tensor]:
        unit = self._storages.get(tensor.untyped_storage()._cdata)
        return tensor if unit is None else (unit, tensor)

    def _unpack(self, saved: Tensor | tuple[Unit, Tensor]) -> Tensor:
        if isinstance(saved, Tensor):
            return saved
        unit, tensor = saved
        self._fetch(unit)
        return tensor
