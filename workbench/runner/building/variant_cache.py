"""Builds variants and stores them.

Returning to a configuration neither builds nor compiles it again.
"""

from __future__ import annotations

import contextlib
import gc
import time
import weakref
from collections.abc import Callable

import msgspec
import torch

import kernels
from models import Model
from sessions.model import Numerics
from workbench.runner.building import evidence
from workbench.runner.building.graph_pools import resident_bytes
from workbench.runner.data import batches_of
from workbench.runner.distributed import world
from workbench.runner.distributed.local_weights import LocalWeights
from workbench.runner.distributed.mesh import ONE_RANK
from workbench.runner.distributed.parallel import Parallel
from workbench.runner.failures import Mistake
from workbench.runner.instruments.memory import free_bytes, free_memory
from workbench.runner.instruments.phases import PhaseTracker
from workbench.runner.interfaces import Situation, Trait
from workbench.runner.numerics.isolation import probed
from workbench.runner.numerics.repeatability import skipped_module
from workbench.runner.profiling.probe import probe
from workbench.runner.revision import source_facts
from workbench.runner.toggles import all_toggles
from workbench.runner.training.trainer import Weights
from workbench.runner.user_models import global_flags, user_model
from workbench.runner.variants import measured_choices
from workbench.runner.variants.assembly import apply_toggles, assemble, autocast
from workbench.runner.variants.build import Build
from workbench.runner.variants.flops import model_flops
from workbench.runner.variants.footprints import others_bytes
from workbench.runner.variants.variant import Variant
from workbench.runner.variants.weights import Quantized, WeightSets, WeightsUse, structure_key

KEPT_VARIANTS = 24
FREE_SHARE = 0.3  # share of a GPU's memory that stays free for the next variant


def _tokens(situation: Situation) -> int:
    """Return the tokens of a step, or its samples if the model's inputs are not tokens."""
    tokens = int(situation.workload.tokens(situation.configuration.settings))
    if situation.is_own_model:
        tokens *= user_model.tokens_of_sample(situation.config)
    return tokens


def is_short(device: torch.device) -> bool:
    """Return True if so little GPU memory is free that variants that are not in use should go."""
    if device.type != "cuda":
        return False
    return free_bytes(device) < FREE_SHARE * torch.cuda.mem_get_info(device)[1]


class VariantCache:
    """Builds variants and keeps them; the least recently used variant is freed first."""

    def __init__(self) -> None:
        self.on_restart: Callable[[], None] = lambda: None  # called if ``get`` restarts training
        self._variants: dict[bytes, Variant] = {}
        self._weights = WeightSets()
        self._numbers: dict[bytes, Numerics] = {}
        self._others: dict[int, int] = {}  # bytes by a variant's id, until a variant comes or goes

    @property
    def count(self) -> int:
        """The number of stored variants."""
        return len(self._variants)

    def has(self, situation: Situation, copy: int = 0) -> bool:
        """Return True if the situation's variant is built already."""
        return _variant_key(situation, copy) in self._variants

    def get(self, situation: Situation, phases: PhaseTracker, copy: int = 0) -> Variant:
        """Return a situation's variant; build it if missing. Each ``copy`` is separate."""
        key = _variant_key(situation, copy)
        variant = self._variants.pop(key, None)
        if variant is not None and variant.divided is not None and variant.divided.is_stale:
            variant = None
        if variant is None:
            self._make_room(situation)
            try:
                variant = self._build(situation, phases, copy)
            finally:
                self._others.clear()
        self._variants[key] = variant
        if self.restart_if_ruined(variant):
            self.on_restart()
        return variant

    def restart_if_ruined(self, variant: Variant) -> bool:
        """Start training again if earlier steps left NaN or infinities; return True if they did.

        Else every later variant of these weights would be called wrong. Weights, moments and the
        buffers of models go back to the start, at the same addresses.
        """
        situation, dtype = variant.situation, variant.weights_dtype
        if world.rank() or not self._weights.restart_if_ruined(situation, dtype):
            return False
        for other in self._variants.values():
            if other.divided is None:
                _restore_buffers(other)
        self._numbers = {key: numbers for key, numbers in self._numbers.items() if numbers.ok}
        return True

    def make_room(self, wanted_bytes: int, variant: Variant) -> None:
        """Free variants until ``wanted_bytes`` are free, the least recently used first.

        ``variant`` stays, as does the memory of variants that are in use elsewhere.
        """
        keys = [key for key, other in self._variants.items() if other is not variant]
        while keys and wanted_bytes and free_bytes(variant.situation.device) < wanted_bytes:
            self._free(keys.pop(0))
            free_memory()
        self._others.clear()

    def _make_room(self, situation: Situation) -> None:
        """Free the least recently used variants, and their weights, if there is too little room."""
        device = situation.device
        while self._variants and (len(self._variants) >= KEPT_VARIANTS or is_short(device)):
            self._free(next(iter(self._variants)))
        if is_short(device):
            situations = [variant.situation for variant in self._variants.values()]
            self._weights.keep_structures([*situations, situation])

    def _free(self, key: bytes) -> None:
        old = self._variants.pop(key)
        device = old.situation.device
        references = [weakref.ref(x) for x in (old, old.model, old.trainer) if x is not None]
        del old  # compiled code holds its model in a cycle; a collection takes 0.1 s
        if is_short(device) or any(x() is not None for x in references):
            gc.collect()

    def others_bytes(self, variant: Variant) -> int:
        """Return bytes on the device that belong to other variants alone.

        The count takes milliseconds, so it is stored until a variant is built or freed.
        """
        if id(variant) not in self._others:
            self._others[id(variant)] = others_bytes(
                variant, self._variants.values(), self._weights
            )
        return self._others[id(variant)]

    def forget(self, situation: Situation, copy: int = 0) -> None:
        """Free the variant of a situation, and gradients of an incomplete step."""
        self._variants.pop(_variant_key(situation, copy), None)
        self._others.clear()
        self._weights.drop_gradients()

    def forget_variants(self) -> int:
        """Free all variants, and gradients of an incomplete step; return their number.

        The weights of this rank stay in memory.
        """
        count = len(self._variants)
        self._variants.clear()
        self._others.clear()
        self._weights.drop_gradients()
        gc.collect()
        free_memory()
        world.forget_variants()
        return count

    def numbers_of(self, situation: Situation) -> Numerics | None:
        """Return the result of a check of the situation's numbers; None if none was made."""
        return self._numbers.get(_numbers_key(situation))

    def keep_numbers(self, situation: Situation, checked: Numerics) -> None:
        """Store the result of a check until the weights of this model are freed."""
        self._numbers[_numbers_key(situation)] = checked

    def forget_all(self) -> None:
        """Free all variants and weights, and forget the results of their checks."""
        self._variants.clear()
        self._others.clear()
        self._weights.forget()
        self._numbers.clear()
        gc.collect()  # compiled variants, and those of several ranks, are in cycles
        free_memory()
        world.forget_variants()

    def keep_only(self, *situations: Situation) -> None:
        """Free everything if any of it belongs to another model or seed than these."""
        if not self._weights.are_of(situations):
            self.forget_all()

    def _build(self, situation: Situation, phases: PhaseTracker, copy: int) -> Variant:
        began = time.perf_counter()
        configuration, workload = situation.configuration, situation.workload
        build = Build(situation, phases)
        if situation.is_own_model:  # ours switch nothing
            build.flags.insert(0, global_flags.put_back)
        apply_toggles(build, all_toggles().values())
        weights, model, local_weights = self._weights_of(build)
        model.share_rope_cache(False)
        unshared_bytes = model.rope_cache_bytes()
        for transform in build.transforms:
            transform(model)
        build.model = model
        model.train(workload.trains)
        all_batches = batches_of(situation, build.weights_dtype, build.loading)
        divided, batches = None, all_batches
        if local_weights is not None:
            divided = Parallel(build, local_weights, model)
            divided.others_bytes, divided.pool_bytes = self.others_bytes, resident_bytes
            batches = divided.local_batches(all_batches)
        cast = autocast(build.autocast, situation.device.type)
        full = None if divided is None else divided.full_parameters
        if (build.sharding and situation.is_own_model and full is not None) and (
            name := skipped_module(situation, full, batches, cast)
        ):
            raise Mistake(
                f"own: some steps skip {name}, and ranks that skip other modules would wait for "
                "each other's shards for ever; switch sharding off"
            )
        with contextlib.ExitStack() as stack:
            if divided is not None:
                stack.enter_context(divided.building(configuration, copy))
            for flag in build.flags:
                stack.enter_context(flag())
            stack.enter_context(kernels.using(**build.kernel_choices))
            with probed(model, situation.device):
                observed = probe(model, batches.few, cast, is_own_model=situation.is_own_model)
            assembled = assemble(build, model, weights, batches, divided)
        bench, compute = assembled.bench, assembled.compute
        if divided is not None:
            weights = divided.weights.own  # FSDP has replaced them by shards
        parameters = full or weights.parameters
        ledger = {
            "parameters": sum({id(p): p.numel() for p in parameters.values()}.values()),
            "weights_bytes": weights.bytes,
            "tokens_per_step": _tokens(situation),
            **model_flops(situation),
            "rope_cache_bytes": model.rope_cache_bytes(),
            "rope_cache_bytes_unshared": unshared_bytes,
            **({"decode_state_bytes": bench.decoder.cache.bytes()} if workload.decodes else {}),
            "build_s": round(time.perf_counter() - began, 4),
            **source_facts(configuration),
        }
        return Variant(
            situation=situation,
            model=model,
            batches=batches,
            all_batches=all_batches,
            divided=divided,
            trainer=assembled.trainer,
            step=assembled.step,
            compute=compute,
            autocast=cast,
            rounds=workload.rounds(bench, compute) if workload.rounds else None,
            written_tokens=workload.written_tokens(bench) if workload.written_tokens else None,
            decoder=bench.decoder if workload.decodes else None,
            kernel_choices=build.kernel_choices,
            weights_dtype=build.weights_dtype,
            quantization=build.quantization,
            weights=weights,
            weight_sets=self._weights,
            flags=build.flags,
            preparations=[*build.preparations, *measured_choices.preparations(build)],
            collect_evidence=evidence.collect,
            probe=observed,
            ledger=ledger,
        )

    def _weights_of(self, build: Build) -> tuple[Weights | Quantized, Model, LocalWeights | None]:
        """Return the weights of a build, a new model around them, and this rank's side of them.

        The last is None if there is one rank. Frees weights that no variant uses any more.
        """
        situation, dtype, layout = build.situation, build.weights_dtype, build.layout
        uses = [
            *self._uses(),
            WeightsUse(situation, dtype, build.quantization, layout, build.chunks),
        ]
        self._weights.tidy(uses)
        local_weights = self._weights.local_weights(
            situation, dtype, layout, build.chunks, shards=bool(build.sharding)
        )
        if local_weights is not None and situation.has(Trait.CAPTURED) and not build.sharding:
            local_weights = local_weights.alias()  # hooks of other variants are on other streams
        weights: Weights | Quantized
        if build.quantization:
            weights = self._weights.quantized(situation, dtype, build.quantization)
            model = weights.model(situation)
            build.flags.append(weights.current)
        elif local_weights is not None:
            weights = local_weights.own
            model = local_weights.model(situation, along_sequence=build.along_sequence)
        else:
            weights = self._weights.plain(situation, dtype)
            # Each variant has its own modules around the same parameters.
            model = situation.family.share(situation.config, weights.parameters)
        self._weights.tidy(uses)
        return weights, model, local_weights

    def _uses(self) -> list[WeightsUse]:
        return [
            WeightsUse(
                variant.situation,
                variant.weights_dtype,
                variant.quantization,
                ONE_RANK if variant.divided is None else variant.divided.layout,
                1 if variant.divided is None else variant.divided.chunks,
            )
            for variant in self._variants.values()
        ]


def _restore_buffers(variant: Variant) -> None:
    """Copy buffers that are not finite from a new model around the same weights."""
    ruined = {
        name: buffer
        for name, buffer in variant.model.named_buffers()
        if buffer.is_floating_point() and not torch.isfinite(buffer).all()
    }
    if ruined:
        situation = variant.situation
        fresh = situation.family.share(situation.config, variant.plain_weights())
        initial = dict(fresh.named_buffers())
        for name in ruined.keys() & initial.keys():
            ruined[name].copy_(initial[name])


def _variant_key(situation: Situation, copy: int) -> bytes:
    return msgspec.json.encode(situation.configuration) + b"%d" % copy


def _numbers_key(situation: Situation) -> bytes:
    # The structure too: the user's own file may have changed under its name.
    return structure_key(situation) + _variant_key(situation, 0)
