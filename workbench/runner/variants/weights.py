"""Weights that variants are built around: one set for each structure and precision, shared.

A quantized variant has quantized weights ("codes") in its linear layers. They are a separate set
for all variants of one scheme, which shares every other parameter with the plain set. Plain weights
are freed once only their codes are needed, unless they were changed: the seed gives the same
weights again for a plain variant or a check.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec
import torch
from torch import Tensor, nn

import kernels
from models import Model
from models.layers.quantized_linear import Codes, quantizable, quantize_linears
from workbench.runner.distributed.local_weights import LocalWeights
from workbench.runner.distributed.mesh import Layout
from workbench.runner.distributed.world import rank
from workbench.runner.failures import Mistake
from workbench.runner.interfaces import Situation
from workbench.runner.training.trainer import Parameters, Weights


class WeightsUse(NamedTuple):
    """The weights that a variant computes with; ``scheme`` is that of their codes, if any."""

    situation: Situation
    dtype: torch.dtype
    scheme: str
    layout: Layout
    chunks: int  # chunks per pipeline stage


class Quantized:
    """Codes of a model's linear layers by one scheme, and the model's other parameters.

    ``codes`` are by the layer's name, and their addresses never change. ``parameters`` has every
    name of the ``structure``, which is a plain model; a quantized layer has a placeholder there.
    """

    def __init__(self, scheme: str, structure: Model) -> None:
        self.scheme = scheme
        self.codes: dict[str, Codes] = {}
        self.parameters: dict[str, nn.Parameter] = {}
        self.plain_bytes = 0  # bytes of the weights before quantization
        named = {module: name for name, module in quantizable(structure, scheme).items()}
        if compiled := [name for name in named.values() if "_orig_mod" in name.split(".")]:
            raise Mistake(
                f"own: the file compiles {compiled[0]}, which keeps its full weights; leave "
                "torch.compile to the toggle, or switch quantization off"
            )
        every = structure.named_modules(remove_duplicate=False)
        self._layers = {f"{alias}.weight": named[m] for alias, m in every if m in named}
        self._placeholders: dict[str, nn.Parameter] = {}
        self._source: weakref.ref[Weights] | None = None
        self._versions: dict[str, int] = {}

    def store(self, name: str, parameter: nn.Parameter) -> nn.Parameter:
        """Quantize a parameter that has codes; return the parameter that replaces it."""
        layer = self._layers.get(name)
        if layer is None:
            return parameter
        if layer not in self.codes:
            self.codes[layer] = kernels.quantize_weight(parameter.detach(), self.scheme)
            self.plain_bytes += parameter.nbytes
            # Never read: a quantized layer replaces the layer that has it.
            empty = parameter.detach().new_full((), torch.nan).expand(parameter.shape)
            self._placeholders[layer] = nn.Parameter(empty, requires_grad=False)
        return self._placeholders[layer]

    def model(self, situation: Situation) -> Model:
        """Return a model around the codes."""
        model: Model = situation.family.share(situation.config, self.parameters)
        quantize_linears(model, self.scheme, self.codes)
        return model

    def unquantized(self) -> dict[str, nn.Parameter]:
        """Return the parameters without codes."""
        return {
            name: parameter
            for name, parameter in self.parameters.items()
            if name not in self._layers
        }

    def is_of(self, parameters: Parameters) -> bool:
        """Return True if quantizing these weights gives exactly these codes."""
        return all(
            torch.equal(*(tensor.reshape(-1).view(torch.uint8) for tensor in (old, new)))
            for layer, pair in self.codes.items()
            for old, new in zip(pair, self._quantize(parameters, layer), strict=True)
        )

    def track(self, weights: Weights) -> None:
        """Let ``current`` update the codes when these weights change; they match now."""
        self._source = weakref.ref(weights)
        self._versions = {
            layer: _weight(weights.parameters, layer)._version for layer in self.codes
        }

    @contextlib.contextmanager
    def current(self) -> Iterator[None]:
        """Update the codes in place if their weights changed, in training for example."""
        weights = None if self._source is None else self._source()
        if weights is not None:
            for layer, pair in self.codes.items():
                version = _weight(weights.parameters, layer)._version
                if version != self._versions[layer]:
                    renewed = self._quantize(weights.parameters, layer)
                    for old, new in zip(pair, renewed, strict=True):
                        old.copy_(new)
                    self._versions[layer] = version
        yield

    def why_plain(self) -> str:
        """Return why the plain weights are in memory too, as a clause; empty if they are not."""
        weights = None if self._source is None else self._source()
        if weights is None:
            return ""
        return "they were trained" if weights.changed else "other configurations use them"

    def tensors(self) -> list[Tensor]:
        """Return the codes, their scales and the other parameters."""
        distinct = {id(parameter): parameter for parameter in self.unquantized().values()}
        return [*distinct.values(), *(part for pair in self.codes.values() for part in pair)]

    @property
    def bytes(self) -> int:
        """Bytes of the codes, their scales and the other parameters."""
        return sum(tensor.nbytes for tensor in self.tensors())

    def _quantize(self, parameters: Parameters, layer: str) -> Codes:
        return kernels.quantize_weight(_weight(parameters, layer).detach(), self.scheme)


class WeightSets:
    """All weights of this process: full ones, quantized ones, and those of a rank."""

    def __init__(self) -> None:
        self._plain: dict[bytes, Weights] = {}
        self._quantized: dict[bytes, dict[str, Quantized]] = {}
        self._local_weights: dict[tuple[bytes, Layout, int], LocalWeights] = {}
        self._infinite: set[bytes] = set()  # keys of weights that are so from the start

    def __len__(self) -> int:
        return len(self._plain) + sum(map(len, self._quantized.values()))

    def plain(self, situation: Situation, dtype: torch.dtype) -> Weights:
        """Return the full weights of a situation's structure; initialise missing ones."""
        key = _key(situation, dtype)
        if key not in self._plain:
            self._plain[key] = weights = Weights(self._initialise(situation, dtype))
            for codes in self._quantized.get(key, {}).values():
                codes.track(weights)
        return self._plain[key]

    def quantized(self, situation: Situation, dtype: torch.dtype, scheme: str) -> Quantized:
        """Return the weights quantized by ``scheme``; quantize them if they are missing."""
        key = _key(situation, dtype)
        coded = self._quantized.setdefault(key, {})
        if scheme not in coded:
            quantized = Quantized(scheme, situation.family.build(situation.config))
            if plain := self._plain.get(key):
                named = plain.parameters.items()
                quantized.parameters = {
                    name: quantized.store(name, parameter) for name, parameter in named
                }
                quantized.track(plain)
            else:
                quantized.parameters = self._initialise(situation, dtype, quantized)
            coded[scheme] = quantized
        return coded[scheme]

    def restart_if_ruined(self, situation: Situation, dtype: torch.dtype) -> bool:
        """Initialise weights that steps have made NaN or infinite again, in place.

        Return True if they are finite then. Weights that are not finite from the start are no
        fault of the steps, and are initialised again at most once.
        """
        key = _key(situation, dtype)
        weights = self._plain.get(key)
        if weights is None or key in self._infinite or not weights.changed or weights.are_finite:
            return False

        def restore(name: str, initial: nn.Parameter) -> nn.Parameter:
            parameter = weights.parameters[name]
            with torch.no_grad():
                parameter.copy_(initial)
            return parameter

        seed = situation.configuration.seed
        situation.family.weights(situation.config, situation.device, dtype, seed, restore)
        weights.forget_steps()
        if not weights.are_finite:
            self._infinite.add(key)
        return key not in self._infinite

    def local_weights(
        self,
        situation: Situation,
        dtype: torch.dtype,
        layout: Layout,
        chunks: int,
        *,
        shards: bool,
    ) -> LocalWeights | None:
        """Return this rank's part of a situation's weights; None if there is one rank.

        Variants of one layout share it, unless FSDP ``shards`` it: its shards belong to one model.
        """
        if layout.ranks == 1:
            return None
        has_replica = rank() == 0 or layout.ranks == layout.replicas
        replica = self.plain(situation, dtype) if has_replica else None
        if shards:
            return LocalWeights(situation, dtype, layout, replica)
        key = (_key(situation, dtype), layout, chunks)
        if key not in self._local_weights:
            self._local_weights[key] = LocalWeights(situation, dtype, layout, replica, chunks)
        return self._local_weights[key]

    def plain_parameters(self, situation: Situation, dtype: torch.dtype) -> Parameters:
        """Return the full weights for a comparison; initialised ones are not stored."""
        weights = self._plain.get(_key(situation, dtype))
        return self._initialise(situation, dtype) if weights is None else weights.parameters

    def tidy(self, used: Iterable[WeightsUse]) -> None:
        """Free unused codes, and plain weights that codes replace.

        Plain weights stay while they are in use or were changed.
        """
        used = list(used)
        keys = {(_key(use.situation, use.dtype), use.scheme) for use in used}
        laid_out = {(_key(use.situation, use.dtype), use.layout, use.chunks) for use in used}
        self._local_weights = {
            key: part for key, part in self._local_weights.items() if key in laid_out
        }
        for key in list(self._quantized):
            codes_in_use = self._quantized[key] = {
                scheme: codes
                for scheme, codes in self._quantized[key].items()
                if (key, scheme) in keys
            }
            plain = self._plain.get(key)
            if not codes_in_use:
                del self._quantized[key]
            elif plain is not None and (key, "") not in keys and not plain.changed:
                del self._plain[key]

    def tensors(self) -> Iterator[Tensor]:
        """Yield all tensors, also of unused weights; some more than once."""
        for plain in self._plain.values():
            yield from plain.tensors()
            yield from plain.states()
        for coded in self._quantized.values():
            for codes in coded.values():
                yield from codes.tensors()
        for part in self._local_weights.values():
            yield from part.own.tensors()
            yield from part.own.states()

    def forget(self) -> None:
        """Free all weights."""
        self._plain.clear()
        self._quantized.clear()
        self._local_weights.clear()

    def keep_structures(self, situations: Iterable[Situation]) -> None:
        """Free the weights of all other structures."""
        used = tuple(map(structure_key, situations))
        for sets in (self._plain, self._quantized):
            for key in [key for key in sets if not key.startswith(used)]:
                del sets[key]
        self._local_weights = {
            key: part for key, part in self._local_weights.items() if key[0].startswith(used)
        }

    def are_of(self, situations: Iterable[Situation]) -> bool:
        """Return True if all weights belong to the model and seed of one of these situations."""
        prefixes = tuple(map(_model_key, situations))
        return all(key.startswith(prefixes) for key in (*self._plain, *self._quantized))

    def drop_gradients(self) -> None:
        """Forget all gradients: a step that failed half-way must not leak into the next."""
        parts = (part.own for part in self._local_weights.values())
        for weights in (*self._plain.values(), *parts):
            weights.drop_gradients()

    def _initialise(
        self, situation: Situation, dtype: torch.dtype, into: Quantized | None = None
    ) -> dict[str, nn.Parameter]:
        """Return weights initialised from the seed, or their codes if ``into`` is given.

        Parameters that quantized weights share are not replaced.
        """
        quantized = self._quantized.get(_key(situation, dtype), {}).values()
        existing = {
            name: parameter
            for codes in quantized
            for name, parameter in codes.unquantized().items()
        }

        def store(name: str, parameter: nn.Parameter) -> nn.Parameter:
            stored = parameter if into is None else into.store(name, parameter)
            return existing.get(name, parameter) if stored is parameter else stored

        seed = situation.configuration.seed
        weights: dict[str, nn.Parameter] = situation.family.weights(
            situation.config, situation.device, dtype, seed, store
        )
        if situation.is_own_model and not into and not all(q.is_of(weights) for q in quantized):
            raise Mistake(
                f"own: build() returned other weights than before with the same seed {seed}, so "
                "the quantized weights do not match; draw all weights from torch's own generator"
            )
        return weights


def structure_key(situation: Situation) -> bytes:
    """Return the key of the weights of one structure: toggles may change the configuration."""
    config = situation.family.of_weights(situation.config)
    return _model_key(situation) + msgspec.json.encode(config)


def _key(situation: Situation, dtype: torch.dtype) -> bytes:
    return structure_key(situation) + str(dtype).encode()


def _model_key(situation: Situation) -> bytes:
    configuration = situation.configuration
    identity = (configuration.family, configuration.preset, configuration.model, configuration.seed)
    return msgspec.json.encode(identity)


def _weight(parameters: Parameters, layer: str) -> nn.Parameter:
    return parameters[f"{layer}.weight"]
