"""Weights, and the optimizers that train them; both are shared by all variants of one precision."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from models import ConfigurationError
from models.initialisation import keep_marks
from workbench.runner.training.optimizers import eight_bit_adamw, parts

Parameters = Mapping[str, nn.Parameter]
LEARNING_RATE = 3e-4
BETAS = (0.9, 0.95)
WEIGHT_DECAY = 0.1


class Trainer:
    """One optimizer with its loss scaler; ``update`` is the part of a step after the loss."""

    def __init__(
        self, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler | None
    ) -> None:
        self.optimizer = optimizer
        self.scaler = scaler
        self.gradient_count = 0  # number of parameters with a gradient in the first update
        self.backward: Callable[[torch.Tensor], None] = torch.Tensor.backward
        # On several ranks: completes the gradients, and makes all ranks skip the same updates.
        self.after_backward: Callable[[], None] | None = None
        self.sync_found_inf: (
            Callable[[torch.amp.GradScaler, torch.optim.Optimizer], None] | None
        ) = None

    def update(self, loss: torch.Tensor) -> None:
        """Run the backward pass and the optimizer; frees gradients and the graph of the loss."""
        try:
            self._compute_gradients(loss)
            self._update_weights()
        except RuntimeError:  # a collective or the optimizer failed
            self._require_dense_gradients()
            raise
        self.optimizer.zero_grad(set_to_none=True)
        forget_graph(loss)

    def _compute_gradients(self, loss: torch.Tensor) -> None:
        self.backward(loss if self.scaler is None else self.scaler.scale(loss))
        if self.after_backward is not None:
            self.after_backward()
        if not self.gradient_count:
            parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
            self.gradient_count = sum(parameter.grad is not None for parameter in parameters)

    def _update_weights(self) -> None:
        if self.scaler is None:
            self.optimizer.step()
            return
        if self.sync_found_inf is not None:
            self.sync_found_inf(self.scaler, self.optimizer)
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def _require_dense_gradients(self) -> None:
        """Raise ``ConfigurationError`` if a parameter has a sparse gradient."""
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None and parameter.grad.is_sparse:
                    raise ConfigurationError(
                        f"the gradient of a parameter of shape {tuple(parameter.shape)} is sparse, "
                        "but AdamW needs dense gradients; build its layer (nn.Embedding, "
                        "nn.EmbeddingBag) with sparse=False, or measure workload forward"
                    )

    def tensors(self) -> Iterator[Tensor]:
        """Yield the moments and step counts of each parameter."""
        yield from _state(self.optimizer)

    def on_host(self) -> set[int]:
        """Return addresses of the step counts that AdamW keeps on the host for any device."""
        counts = [
            self.optimizer.state.get(parameter, {}).get("step")
            for group in self.optimizer.param_groups
            if not (group.get("capturable") or group.get("fused"))
            for parameter in group["params"]
        ]
        return {count.data_ptr() for count in counts if isinstance(count, torch.Tensor)}


def forget_graph(loss: torch.Tensor) -> None:
    """Free the autograd graph of a loss, although the tensor may stay referenced.

    Inductor returns the same tensor from every replay of a graph that it recorded. This tensor
    would keep the nodes that accumulate gradients, and the stream that they were made on. The step
    of another variant could then not be captured on its own stream.
    """
    if not loss._is_view():  # a view cannot be detached in place, and no replay returns one
        loss.detach_()


class Weights:
    """The parameters of one model in one precision, and their optimizer state.

    All implementations of AdamW (loop, foreach, fused) share the tensors of their moments: training
    continues when a toggle changes, and memory is needed once. 8-bit moments are separate and begin
    at zero.
    """

    def __init__(self, parameters: dict[str, nn.Parameter], source: Weights | None = None) -> None:
        """``source``: other weights in the same memory, whose moments are used."""
        self.parameters, self._source = parameters, source
        self.entries = 0  # how often variants of one rank, which may train them, were entered
        self._initial_versions = {
            name: parameter._version for name, parameter in parameters.items()
        }
        self._optimizers: dict[tuple[tuple[str, Any], ...], torch.optim.AdamW] = {}
        self._eight_bit: dict[str, torch.optim.Optimizer] = {}
        self._stepping: torch.optim.Optimizer | None = None  # the AdamW that stepped last
        self._scaler: torch.amp.GradScaler | None = None

    @property
    def bytes(self) -> int:
        """Bytes of the parameters; of FSDP's shards those of this rank."""
        distinct = _distinct(self.parameters.values())
        return sum(part.nbytes for parameter in distinct for part in parts(parameter))

    def alias(self) -> Weights:
        """Return weights of other parameters in the same memory, moments included.

        Hooks on such parameters, and the nodes that accumulate their gradients, are not those of
        the variants that compute with these ones.
        """
        aliases: dict[int, nn.Parameter] = {}
        for parameter in _distinct(self.parameters.values()):
            twin = nn.Parameter(parameter.detach(), requires_grad=parameter.requires_grad)
            aliases[id(parameter)] = keep_marks(parameter, twin)
        named = {name: aliases[id(parameter)] for name, parameter in self.parameters.items()}
        return Weights(named, source=self)

    def tensors(self) -> Iterator[Tensor]:
        """Yield the parameters, and their gradients if there are any."""
        for parameter in _distinct(self.parameters.values()):
            yield from parts(parameter)
            if parameter.grad is not None:
                yield from parts(parameter.grad)

    def states(self) -> Iterator[Tensor]:
        """Yield the state of the optimizers; some tensors more than once."""
        for optimizer in (*self._optimizers.values(), *self._eight_bit.values()):
            yield from _state(optimizer)

    @property
    def changed(self) -> bool:
        """True if the parameters may differ from the initial ones."""
        versions = {name: parameter._version for name, parameter in self.parameters.items()}
        return bool(self._optimizers or self._eight_bit) or versions != self._initial_versions

    def drop_gradients(self) -> None:
        """Forget all gradients: a step that failed half-way must not leak into the next."""
        for parameter in self.parameters.values():
            parameter.grad = None
        if self._scaler is not None:  # otherwise it regards the next gradients as unscaled
            self._scaler._per_optimizer_states.clear()

    @property
    def are_finite(self) -> bool:
        """False if a trained parameter has a NaN or an infinity; waits for the device."""
        largest = [
            torch.linalg.vector_norm(part.detach(), math.inf)
            for parameter in _distinct(self.parameters.values())
            if parameter.requires_grad
            for part in parts(parameter)
            if part.numel() and (part.is_floating_point() or part.is_complex())
        ]
        return not largest or math.isfinite(float(torch.stack(largest).float().sum()))

    def forget_steps(self) -> None:
        """Set the optimizers' moments and step counts to those before the first step, in place."""
        self.drop_gradients()
        for optimizer in self._optimizers.values():
            for tensor in _state(optimizer):
                tensor.zero_()
        for eight_bit in self._eight_bit.values():
            eight_bit.state.clear()  # its next step makes new ones

    def record_training(self) -> Callable[[], None]:
        """Return a function that restores parameters, moments, step counts and loss scale in place.

        The record is in host memory. Optimizers that are made later get its moments and counts too.
        8-bit moments stay as they are then.
        """
        first = next(iter(self._optimizers.values()), None)
        states = {} if first is None else first.state
        counts = {parameter: float(state["step"]) for parameter, state in states.items()}
        moments = [x for state in states.values() for k, x in state.items() if k != "step"]
        tensors = [*_distinct(self.parameters.values()), *moments]
        copies = [tensor.detach().to("cpu", copy=True) for tensor in tensors]
        scale = None if self._scaler is None else self._scaler.state_dict()
        optimizers, scaler = self._optimizers, self._scaler  # ``restore`` must not keep ``self``

        def restore() -> None:
            with torch.no_grad():
                for tensor, copy in zip(tensors, copies, strict=True):
                    tensor.copy_(copy)
            for optimizer in optimizers.values():
                for parameter, state in optimizer.state.items():
                    state["step"].fill_(counts.get(parameter, 0.0))
            if scaler is not None and scale:
                restore_scale(scaler, scale)

        return restore

    def trainer(self, options: dict[str, Any], *, scales_loss: bool) -> Trainer:
        """Return the trainer for these AdamW options, its moments shared with every other.

        ``{"eight_bit": library}`` takes that library's 8-bit AdamW.
        """
        if scales_loss and self._scaler is None:
            device = next(iter(self.parameters.values())).device
            self._scaler = torch.amp.GradScaler(device.type)
        return Trainer(self._optimizer(options), self._scaler if scales_loss else None)

    def sync_step_counts(self, optimizer: torch.optim.Optimizer) -> None:
        """Copy the step counts from the AdamW that stepped last, whose moments are shared.

        Counts lie on the device for some ways to step, and on the host for others.
        """
        options = next((key for key, o in self._optimizers.items() if o is optimizer), None)
        if options is None:
            return  # 8-bit moments are its own
        if self._source is not None:  # its optimizer with these options has the same counts
            self._source.sync_step_counts(self._source._optimizer(dict(options)))
            return
        before, self._stepping = self._stepping, optimizer
        if before is None or before is optimizer:
            return
        for parameter, state in optimizer.state.items():
            count = before.state.get(parameter, {}).get("step")
            if isinstance(count, Tensor) and count is not state.get("step"):
                state["step"].copy_(count)

    def _optimizer(self, options: dict[str, Any]) -> torch.optim.Optimizer:
        if library := options.get("eight_bit"):
            if library not in self._eight_bit:
                groups = _groups(self.parameters.values())
                self._eight_bit[library] = eight_bit_adamw(
                    library, groups, lr=LEARNING_RATE, betas=BETAS, weight_decay=WEIGHT_DECAY
                )
            return self._eight_bit[library]
        key = tuple(sorted(options.items()))
        if key not in self._optimizers:
            self._optimizers[key] = self._make_optimizer(options)
        return self._optimizers[key]

    def _make_optimizer(self, options: dict[str, Any]) -> torch.optim.AdamW:
        if options.get("fused"):
            for name, parameter in self.parameters.items():
                if parameter.is_complex():
                    raise ConfigurationError(
                        f"adamw: the fused kernel needs real parameters, but {name} is complex; "
                        "choose adamw=foreach or adamw=loop"
                    )
        optimizer = plain_optimizer(self.parameters.values(), **options)
        before = next(iter(self._optimizers.values()), None)
        if self._source is not None:
            before = self._source._optimizer(options)  # type: ignore[assignment]
        if before is not None:
            state = before.state_dict()
            for group in state["param_groups"]:
                group.update(options)
            # It does not copy tensors, but may move step counts to the device.
            optimizer.load_state_dict(state)
            if not (options.get("fused") or options.get("capturable")):
                for parameter_state in optimizer.state.values():
                    # On the device, every step would wait for every count.
                    parameter_state["step"] = parameter_state["step"].cpu()
        else:
            _create_state(optimizer)
        return optimizer


def _state(optimizer: torch.optim.Optimizer) -> Iterator[Tensor]:
    for state in optimizer.state.values():
        for value in state.values():
            yield from parts(value)


def overlapping(weights: Parameters) -> str:
    """Return the names of two parameters in the same memory; empty if there are none.

    Copies of them are apart: a step would move each once, not both twice.
    """
    end, last = 0, ""
    names = {id(parameter): name for name, parameter in weights.items()}
    for parameter in sorted(_distinct(weights.values()), key=Tensor.data_ptr):
        if parameter.numel() and parameter.data_ptr() < end and parameter.requires_grad:
            return f"{last} and {names[id(parameter)]}"
        end = max(end, parameter.data_ptr() + parameter.nbytes)
        last = names[id(parameter)]
    return ""


def is_plain(full_trainer: Trainer | None) -> bool:
    """Return True if a plain AdamW can continue from the optimizer's moments."""
    return full_trainer is not None and type(full_trainer.optimizer) is torch.optim.AdamW


def restore_scale(scaler: torch.amp.GradScaler, before: dict[str, float]) -> None:
    """Set the scale of the loss and its count of steps to those of a ``state_dict``."""
    # In place: a captured graph reads these tensors where they are.
    for name, value in (("_scale", "scale"), ("_growth_tracker", "_growth_tracker")):
        tensor = getattr(scaler, name, None)
        if tensor is not None:
            tensor.fill_(before[value])


def plain_optimizer(parameters: Iterable[nn.Parameter], **options: Any) -> torch.optim.AdamW:
    """Build AdamW with the rates of every variant; the plain loop, without ``options``."""
    chosen = {"fused": False, "foreach": False, **options}
    return torch.optim.AdamW(
        _groups(parameters),
        lr=LEARNING_RATE,
        betas=BETAS,
        weight_decay=WEIGHT_DECAY,
        **chosen,
    )


def _create_state(optimizer: torch.optim.AdamW) -> None:
    # AdamW makes its moments at the first step; made now, every later optimizer can share them.
    # With zero gradients and rate 0 the step changes no weight. What is frozen has no moments.
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.requires_grad:
                parameter.grad = torch.zeros_like(parameter)
        group["lr"] = 0.0
    optimizer.step()
    for group in optimizer.param_groups:
        group["lr"] = LEARNING_RATE
    optimizer.zero_grad(set_to_none=True)


def _groups(parameters: Iterable[nn.Parameter]) -> list[dict[str, Any]]:
    """Return AdamW's groups: parameters with decay, and any marked ``no_weight_decay``."""
    distinct = list(_distinct(parameters))
    with_decay = [p for p in distinct if not getattr(p, "no_weight_decay", False)]
    without_decay = [p for p in distinct if getattr(p, "no_weight_decay", False)]
    groups: list[dict[str, Any]] = [
        {"params": with_decay},
        {"params": without_decay, "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def _distinct(parameters: Iterable[nn.Parameter]) -> Iterable[nn.Parameter]:
    return {id(parameter): parameter for parameter in parameters}.values()
