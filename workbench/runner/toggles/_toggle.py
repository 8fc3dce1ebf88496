"""The interface of a toggle: its options, what blocks, applies and proves them."""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from models import Footprint, Model
from sessions.model import Scalar
from workbench.protocol import Blocked, Failure, OptionInfo, ToggleInfo
from workbench.runner.interfaces import Situation as Situation  # for files of toggles
from workbench.runner.interfaces import Trait as Trait
from workbench.runner.interfaces import Traits as Traits

if TYPE_CHECKING:
    from workbench.runner.variants.build import Build
    from workbench.runner.variants.observed import Observed


class Stage(enum.IntEnum):
    """When a toggle is applied; a later stage sees what the earlier ones made."""

    MODEL = 0
    PRECISION = 1
    KERNELS = 2
    ATTENTION = 3
    MEMORY = 4
    OPTIMIZER = 5
    COMPILE = 6
    GRAPHS = 7


@dataclass(frozen=True)
class Finding:
    """A toggle's report about its own effect; ``status`` as in ``Evidence``."""

    status: str
    text: str


def effective(text: str) -> Finding:
    """Return the finding that the option took effect, with what shows it."""
    return Finding("effective", text)


def no_effect(text: str) -> Finding:
    """Return the finding that the requested option changed nothing, and why."""
    return Finding("no effect", text)


def as_default(text: str) -> Finding:
    """Return the finding that the option had the same effect as the default, with the reason."""
    return Finding("as default", text)


def unknown(text: str) -> Finding:
    """Return the finding that an effect could not be observed, and why."""
    return Finding("unknown", text)


def never_blocked(option: str, situation: Situation) -> Blocked | None:
    """Return None: the toggle can always be used."""
    return None


def always_has_modules(option: str, model: Model) -> bool:
    """Return True: the option does not depend on the modules of a model."""
    return True


class Alternative(NamedTuple):
    """The choices to make instead of an option that conflicts with another."""

    text: str  # a sentence
    choices: dict[str, str]


class Kind(NamedTuple):
    """A kind of parallelism: the toggle whose options are numbers of ranks, and further choices."""

    toggle: str
    choices: dict[str, str]


class Fix(NamedTuple):
    """A choice that may prevent a failure; the smallest ``order`` is tried first."""

    order: int
    choices: dict[str, str]
    meaning: str  # the consequence for the steps, as the end of a sentence


def no_fix(failure: Failure, situation: Situation, needed: Footprint | None) -> Iterable[Fix]:
    """Return no fix: the toggle cannot prevent a failure."""
    return ()


@dataclass(frozen=True, kw_only=True)
class Toggle:
    """An optimization. The first of ``options`` leaves the model alone.

    ``apply(option, build)`` is called for every option but the first, in order of stage.
    ``configure(option, config)`` returns fields of the model's configuration to change before
    that. It is called for every option that is not blocked, except the first.
    ``bundled`` is set if the toggle needs modules that only the bundled families are known to have.
    ``operators`` is set if it acts on calls of ``kernels``. A user's model must then call one of
    these operators, directly or through a toggle that ``brings`` it.
    ``evidence(option, observed)`` returns what proves the effect, in an ``Observed`` variant whose
    steps are steady. It is called once for every option but the first, and for the first too if
    ``chooses(observed)`` returns True, which means that the first option made a choice.

    Other packages read these fields:

    * ``has_modules(option, model)``: True if a user's model, once it is built, has modules that the
      option acts on.
    * ``traits``: properties of the steps, by option.
    * ``alternatives``: by option, what to choose if a trait conflicts with another toggle. The
      first alternative without the trait is used, or else the toggle's first option.
    * ``presets``: by preset, the options that it prefers, the best first.
    * ``memory(option, situation)``: arguments of the family's ``footprint``.
    * ``divided_memory(situation, arguments)``: the footprint of the rank that needs most memory,
      if the toggle shards the model.
    * ``gathered_bytes(situation, arguments)``: bytes by block that a rank saves of other ranks'
      activations.
    * ``kinds``: kinds of parallelism by their names on the command line.
    * ``matrix_rate(option, situation)``: the rate that linear layers are compared with; empty if
      the option does not determine it.
    * ``unpredictable``: why the step time is unknown before a run, for every option but the first.
    * ``known_classes``: operators whose least time stays known then, by the class of kernels.
    * ``incomparable``: why the ratio of two options is unknown before a run.
    * ``same_work``: a step calls the same operators, with the same shapes and dtypes, with every
      option. Such a toggle changes how memory is reserved, or which tiles a kernel uses.
    * ``fixes(failure, situation, needed)``: choices that may prevent a failure; ``needed`` is the
      estimated memory after an out-of-memory failure.
    * ``causes_of_slowness``: completes the advice if a verdict says that the toggle makes steps
      slower.
    """

    name: str
    title: str
    help: str
    group: str
    stage: Stage
    options: Mapping[str, str]
    apply: Callable[[str, Build], None]
    evidence: Callable[[str, Observed], Finding]
    blocked: Callable[[str, Situation], Blocked | None] = never_blocked
    default: Callable[[torch.device], str] | None = None
    configure: Callable[[str, Any], Mapping[str, Scalar]] | None = None
    chooses: Callable[[Observed], bool] | None = None
    same_mathematics: bool = False  # the model computes the same, although fields change
    bundled: str = ""  # why it cannot act on a user's model; empty if it can
    operators: tuple[str, ...] = ()
    brings: str = ""  # the operator that it adds to a user's model
    has_modules: Callable[[str, Model], bool] = always_has_modules
    includes: Collection[str] = ()  # operators that steps may not call then: it computes them too
    traits: Mapping[str, Collection[Trait]] = field(default_factory=dict)
    alternatives: Mapping[str, tuple[Alternative, ...]] = field(default_factory=dict)
    presets: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    memory: Callable[[str, Situation], Mapping[str, Any]] | None = None
    divided_memory: Callable[[Situation, dict[str, Any]], Footprint | None] | None = None
    gathered_bytes: Callable[[Situation, dict[str, Any]], tuple[int, ...]] | None = None
    kinds: Mapping[str, Kind] = field(default_factory=dict)
    matrix_rate: Callable[[str, Situation], str] | None = None
    unpredictable: str = ""
    known_classes: Mapping[str, Collection[str]] = field(default_factory=dict)
    incomparable: str = ""
    same_work: bool = False
    fixes: Callable[[Failure, Situation, Footprint | None], Iterable[Fix]] = no_fix
    causes_of_slowness: str = ""

    @functools.cached_property
    def off(self) -> str:
        """The option that leaves the model alone."""
        return next(iter(self.options))

    def alternative(self, option: str, trait: Trait) -> Alternative:
        """Return what to choose in place of an option that has the trait."""
        for alternative in self.alternatives.get(option, ()):
            if trait not in self.traits.get(alternative.choices[self.name], ()):
                return alternative
        return Alternative(f"Switch {self.title} off.", {self.name: self.off})

    @property
    def is_counted(self) -> bool:
        """True if the counted work of a step may depend on the option.

        A step is counted as it is before compilation and capture.
        """
        return self.stage < Stage.COMPILE and not self.same_work

    @property
    def makes_other_model(self) -> bool:
        """True if the model computes something else, so that no ratio of times is a speed-up."""
        return self.configure is not None and not self.same_mathematics

    def default_option(self, device: torch.device) -> str:
        """Return the option that a new configuration starts with on this device."""
        return self.default(device) if self.default else self.off

    def info(self, device: torch.device) -> ToggleInfo:
        """Return the toggle's entry in the catalogue."""
        return ToggleInfo(
            name=self.name,
            title=self.title,
            help=self.help.strip(),
            group=self.group,
            options=[OptionInfo(name=name, title=title) for name, title in self.options.items()],
            default=self.default_option(device),
        )


PARTS = "needs modules of the bundled families, which your own model may not have"
NEEDS_GPU = Blocked("needs a CUDA GPU; this runner uses the CPU", "Run it on a machine with a GPU.")
NEEDS_TRAINING = Blocked(
    "needs a backward pass, which this workload does not have",
    "Choose the training step.",
    {"workload": "train"},
)
