"""An arm: one configuration built and ready to step.

Built arms are kept, so that returning to a configuration neither builds nor compiles it again.
"""

from __future__ import annotations

import contextlib
import gc
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import msgspec
import torch

import kernels
from models import Model
from models.execution.checkpointing import kept_operators, reset_kept_operators
from sessions.model import Configuration, Evidence, Numerics, Scalar
from workbench.runner.config import global_flags, user_model
from workbench.runner.config.data import Batches, Tensors, batches_of
from workbench.runner.decoding.rounds import Rounds
from workbench.runner.failures import explain, is_fatal
from workbench.runner.instruments.memory import free_memory
from workbench.runner.instruments.phases import PhaseTracker
from workbench.runner.numerics.state.isolation import Remembered, probed
from workbench.runner.profiling.probe import Probe, probe
from workbench.runner.ranks import choose, group
from workbench.runner.ranks.divided import Divided
from workbench.runner.revision import source_facts
from workbench.runner.toggles import Situation, Toggle, all_toggles, unknown
from workbench.runner.variants.attention_facts import attention_facts
from workbench.runner.variants.build import Build, apply_toggles, assemble, autocast
from workbench.runner.variants.compiles import Compiles
from workbench.runner.variants.flops import counting_flops, model_flops
from workbench.runner.variants.footprints import others_bytes
from workbench.runner.variants.training import Trainer, Weights
from workbench.runner.variants.weights import Parameters, Quantized, Use, WeightSets, structure_key
from workbench.runner.workloads import Compute, Step
from workbench.runner.workloads._decoder import Decoder

KEPT_ARMS = 24
MOST_LETTERS = 24  # of a value in the name of an arm: a path, a checksum
FREE_SHARE = 0.3  # of a GPU's memory, for the next arm


@dataclass
class Arm:
    """A configuration that is ready to step. Call ``step`` only inside ``entered()``."""

    configuration: Configuration
    situation: Situation
    label: str
    model: Model
    batches: Batches  # of this rank
    all_batches: Batches  # of all ranks, in the same buffers
    divided: Divided | None  # where there are several
    trainer: Trainer | None
    step: Step
    compute: Compute  # what the step computes, autocast and compiled, without its update
    autocast: Callable[[Compute], Compute]  # runs a function in the arm's precision
    feeds: bool  # whether each step reads a new batch
    rounds: Rounds | None  # what begins every so many steps
    text: torch.Tensor | None  # tokens that steps write, as in ``Decoder.written``
    decoder: Decoder | None  # of a workload that decodes
    kernel_choices: dict[str, str]
    weights_dtype: torch.dtype
    quantization: str
    weights: Weights | Quantized  # that the model is around
    sets: WeightSets  # which these are of
    flags: list[Callable[[], AbstractContextManager[Any]]]
    preparations: list[Callable[[Arm], None]]
    probe: Probe
    ledger: dict[str, Scalar]
    tiles: list[kernels.Choice] = field(default_factory=list)  # of the kernels of the first step
    usage: dict[str, dict[str, int]] = field(default_factory=dict)
    reasons: dict[str, tuple[str, str]] = field(default_factory=dict)  # as in ``kernels``
    kept_operators: dict[str, int] = field(default_factory=dict)  # by a checkpoint's policy
    compiles: Compiles = field(default_factory=Compiles)
    evidence: list[Evidence] | None = None
    made_s: float = 0.0  # seconds from its build to the end of its first step; 0: not made yet
    counted: dict[str, Scalar] = field(default_factory=dict)  # facts that the first step showed
    remembered: Remembered | None = None  # by a person's model; while its numbers are checked

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Enter the process-wide flags of this arm, and leave them as they were."""
        with contextlib.ExitStack() as stack:
            for flag in self.flags:
                stack.enter_context(flag())
            stack.enter_context(kernels.using(**self.kernel_choices))
            stack.enter_context(self.compiles.following())
            if self.trainer is not None and isinstance(self.weights, Weights):
                self.weights.hand_over(self.trainer.optimizer)
            if self.divided is not None:
                stack.enter_context(self.divided.entered(self))
            yield

    def ready(self) -> bool:
        """Be ready for the next step; True where that took time that is not the step's."""
        if self.rounds is not None:
            return self.rounds.ready()
        if self.feeds:
            self.batches.advance()
        return False

    @property
    def keeper(self) -> Trainer | None:
        """Its trainer; where ranks have shares, that of the whole, which other arms go on from."""
        return self.trainer if self.divided is None else self.divided.keeper or self.trainer

    def shares(self) -> list[Tensors]:
        """Return inputs and targets of each part of the batch, in the buffers of ``batches``."""
        count = 1 if self.divided is None else self.divided.parts
        parts = (self.all_batches.part(index, count) for index in range(count))
        return [part.inputs + part.targets for part in parts]

    def plain_weights(self) -> Parameters:
        """Return full-precision, unsharded parameters; outside of ``entered()`` these are current.

        They are drawn from the seed again if only quantized codes are in memory.
        """
        if self.divided is not None and self.divided.whole is not None:
            return self.divided.whole
        if isinstance(self.weights, Weights) and self.divided is None:
            return self.weights.parameters  # and not the model's: it might hold others by mistake
        if not self.quantization:
            return self.model.weights()
        return self.sets.for_a_while(self.situation, self.weights_dtype)

    def restart(self) -> None:
        """Begin the round of steps anew; nothing where there are no rounds.

        Before the first step, and after it: a capture takes that one several times.
        """
        if self.rounds is not None:
            self.rounds.restart()

    def steps_to_settle(self) -> int:
        """Return how many steps a model that adapts needs before what it chose can stay."""
        adapts = self.situation.workload.name in ("forward", "train")  # the others have a cache
        return self.model.calls_to_settle() if adapts else 0

    def prepare(self) -> bool:
        """Run what precedes the first step; False if there is nothing. The arm is entered."""
        for prepare in self.preparations:
            prepare(self)
        return bool(self.preparations)

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Record which kernels the first step calls, and what it keeps, for the evidence."""
        kernels.reset_usage()
        kernels.reset_tiles()
        reset_kept_operators()
        with counting_flops(self.situation, self.counted):
            yield
        self.usage, self.reasons = kernels.usage(), kernels.reasons()
        self.tiles = kernels.tiles()
        self.counted |= attention_facts(self.usage, self.reasons)
        self.kept_operators = kept_operators()

    def find_evidence(self) -> list[Evidence]:
        """Ask every toggle that was switched, or chose, what proves its effect; once.

        A failure makes the toggle's evidence unknown, and is raised only if it is fatal.
        """
        if self.evidence is None:
            with self.entered():
                if self.divided is not None:  # it may compute, for which all must be there whole
                    self.divided.compare(self)
                evidence = map(self._evidence_of, all_toggles().values())
                self.evidence = [item for item in evidence if item is not None]
        return self.evidence

    def _evidence_of(self, toggle: Toggle) -> Evidence | None:
        option = self.configuration.toggles[toggle.name]
        if option == toggle.off and not (toggle.chooses and toggle.chooses(self)):
            return None
        try:
            finding = toggle.evidence(option, self)
        except Exception as error:  # evidence may run the model, which may raise anything
            if is_fatal(error):
                raise
            finding = unknown(f"looking for the evidence failed: {explain(error).sentence}")
        return Evidence(toggle.name, option, finding.status, finding.text)


def _tokens(situation: Situation) -> int:
    """Return the tokens of a step; samples of a model whose inputs are no tokens."""
    tokens = int(situation.workload.tokens(situation.configuration.settings))
    if situation.family is user_model.FAMILY:
        tokens *= user_model.tokens_of_sample(situation.config)
    return tokens


def is_short(device: torch.device) -> bool:
    """Return True if so little GPU memory is free that arms that are not in use should go."""
    if device.type != "cuda":
        return False
    free, total = torch.cuda.mem_get_info(device)
    cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return free + cached < FREE_SHARE * total


class Arms:
    """Builds arms and keeps them, least recently used first to go."""

    def __init__(self) -> None:
        self._arms: dict[bytes, Arm] = {}
        self._weights = WeightSets()
        self._numbers: dict[bytes, Numerics] = {}
        self._others: dict[int, int] = {}  # bytes by an arm's id, until an arm comes or goes

    @property
    def count(self) -> int:
        """Return how many arms are stored."""
        return len(self._arms)

    def has(self, situation: Situation, copy: int = 0) -> bool:
        """Return True if the situation's arm is built already."""
        return _arm_key(situation, copy) in self._arms

    def get(self, situation: Situation, phases: PhaseTracker, copy: int = 0) -> Arm:
        """Return the arm of a situation, built now unless it exists; each ``copy`` is an arm."""
        key = _arm_key(situation, copy)
        arm = self._arms.pop(key, None)
        if arm is None:
            while self._arms and (len(self._arms) >= KEPT_ARMS or is_short(situation.device)):
                old = self._arms.pop(next(iter(self._arms)))
                left = [weakref.ref(x) for x in (old, old.model, old.trainer) if x is not None]
                del old  # what was compiled holds its model in a cycle; looking takes 0.1 s
                if is_short(situation.device) or any(x() is not None for x in left):
                    gc.collect()
            if is_short(situation.device):
                situations = [arm.situation for arm in self._arms.values()]
                self._weights.keep_structures([*situations, situation])
            try:
                arm = self._build(situation, phases)
            finally:
                self._others.clear()
        self._arms[key] = arm
        return arm

    def others_bytes(self, arm: Arm) -> int:
        """Bytes on the device that are held for others than this arm.

        Counted once, which takes milliseconds: what is held changes as arms are built and freed.
        """
        if id(arm) not in self._others:
            self._others[id(arm)] = others_bytes(arm, self._arms.values(), self._weights)
        return self._others[id(arm)]

    def forget(self, situation: Situation, copy: int = 0) -> None:
        """Free the arm of a situation, and the gradients that it may have left half made."""
        self._arms.pop(_arm_key(situation, copy), None)
        self._others.clear()
        self._weights.drop_gradients()

    def forget_arms(self) -> int:
        """Free all arms, and gradients left half made; the weights stay, on this rank.

        Returns how many arms there were.
        """
        count = len(self._arms)
        self._arms.clear()
        self._others.clear()
        self._weights.drop_gradients()
        gc.collect()
        free_memory()
        group.forget_arms()
        return count

    def numbers_of(self, situation: Situation) -> Numerics | None:
        """Return the result of a check of the situation's numbers; None if none was made."""
        return self._numbers.get(_numbers_key(situation))

    def keep_numbers(self, situation: Situation, checked: Numerics) -> None:
        """Know what a check found for as long as there are weights of this model."""
        self._numbers[_numbers_key(situation)] = checked

    def forget_all(self) -> None:
        """Free all arms and weights, and know nothing of their numbers."""
        self._arms.clear()
        self._others.clear()
        self._weights.forget()
        self._numbers.clear()
        gc.collect()  # arms that were compiled, or divided among ranks, are in cycles
        free_memory()
        group.forget_arms()

    def keep_only(self, *situations: Situation) -> None:
        """Free everything if any of it belongs to another model or seed than these."""
        if not self._weights.are_of(situations):
            self.forget_all()

    def _build(self, situation: Situation, phases: PhaseTracker) -> Arm:
        began = time.perf_counter()
        configuration, workload = situation.configuration, situation.workload
        build = Build(situation, phases)
        if situation.family is user_model.FAMILY:  # ours switch nothing
            build.flags.insert(0, global_flags.put_back)
        apply_toggles(build)
        sets, dtype = self._weights, build.weights_dtype
        used = [*self._used(), (situation, dtype, build.quantization)]
        sets.tidy(used)
        part = sets.part(build)
        weights: Weights | Quantized
        if build.quantization:
            weights = sets.quantized(situation, dtype, build.quantization)
            model = weights.model(situation)
            build.flags.append(weights.current)
        elif part is not None:
            weights, model = part.own, part.model(build)
        else:
            weights = sets.plain(situation, dtype)
            # Each arm has modules of its own over the same parameters: structure differs only.
            model = situation.family.share(situation.config, weights.parameters)
        sets.tidy(used)
        model.share_rope_cache(False)
        unshared = model.rope_cache_bytes()
        for transform in build.transforms:
            transform(model)
        build.model = model
        model.train(workload.trains)
        all_batches = batches_of(situation, dtype)
        divided = choose.divided(build, part, model)
        batches = all_batches
        if divided is not None:
            divided.gather(configuration)
            divided.others_bytes = self.others_bytes
            batches = divided.share(all_batches)
        cast = autocast(build)
        with contextlib.ExitStack() as stack:
            for flag in build.flags:
                stack.enter_context(flag())
            stack.enter_context(kernels.using(**build.kernel_choices))
            with probed(model, situation.device):
                observed = probe(model, batches.few, cast)
            made = assemble(build, model, weights, batches, divided)
        bench, compute = made.bench, made.compute
        named = weights.parameters if divided is None else divided.whole or weights.parameters
        return Arm(
            configuration=configuration,
            situation=situation,
            label=label(configuration, situation.device),
            model=model,
            batches=batches,
            all_batches=all_batches,
            divided=divided,
            trainer=bench.trainer,
            step=made.step,
            compute=compute,
            autocast=cast,
            feeds=workload.feeds,
            rounds=workload.rounds(bench, compute) if workload.rounds else None,
            text=workload.text(bench) if workload.text else None,
            decoder=bench.decoder if workload.decodes else None,
            kernel_choices=build.kernel_choices,
            weights_dtype=build.weights_dtype,
            quantization=build.quantization,
            weights=weights,
            sets=sets,
            flags=build.flags,
            preparations=build.preparations,
            probe=observed,
            ledger={
                "parameters": sum({id(p): p.numel() for p in named.values()}.values()),
                "weights_bytes": weights.bytes,
                "tokens_per_step": _tokens(situation),
                **model_flops(situation),
                "rope_cache_bytes": model.rope_cache_bytes(),
                "rope_cache_bytes_unshared": unshared,
                **({"decode_state_bytes": bench.decoder.cache.bytes()} if workload.decodes else {}),
                "build_s": round(time.perf_counter() - began, 4),
                **source_facts(configuration),
            },
        )

    def _used(self) -> list[Use]:
        return [(arm.situation, arm.weights_dtype, arm.quantization) for arm in self._arms.values()]


def label(configuration: Configuration, device: torch.device) -> str:
    """Return what a configuration switches differently from the defaults, in a few words."""
    parts = [
        f"{toggle.title}: {toggle.options[option]}"
        for toggle in all_toggles().values()
        if (option := configuration.toggles[toggle.name]) != toggle.default_option(device)
    ]
    return ", ".join(parts) or "defaults"


def title(configuration: Configuration, beside: Configuration, device: torch.device) -> str:
    """Return an arm's name: its toggles, after whatever else differs from the other arm."""
    switched = label(configuration, device)
    if configuration.family != beside.family:
        return f"{configuration.family} {configuration.preset}: {switched}"
    flat, shared = configuration.flat(), beside.flat().items()
    apart = [
        f"{name.rpartition('.')[2].replace('_', ' ')} {str(value)[:MOST_LETTERS]}"
        for name, value in flat.items()
        if not name.startswith("toggles.") and (name, value) not in shared
    ]
    return f"{', '.join(apart)}: {switched}" if apart else switched


def _arm_key(situation: Situation, copy: int) -> bytes:
    return msgspec.json.encode(situation.configuration) + b"%d" % copy


def _numbers_key(situation: Situation) -> bytes:
    # The structure too: a file with a model of one's own may have changed under its name.
    return structure_key(situation) + _arm_key(situation, 0)
