"""Measurements of a variant leave its tensors, hooks, modes and process-wide settings as before.

Only steps may change it: they train, and draw random numbers.
"""

from __future__ import annotations

import msgspec
import pytest
import torch
from built_arms import configuration
from recording_wire import RecordingWire
from stateful_models import stateful
from variant_snapshot import Snapshot, by_family

from models import FAMILIES
from workbench import protocol
from workbench.runner.config.resolve import resolve
from workbench.runner.context import RunnerContext
from workbench.runner.engine import RUNS
from workbench.runner.experiments.run import RunEnded
from workbench.runner.failures import Cancelled
from workbench.runner.instruments.phases import PhaseTracker

CPU = torch.device("cpu")
OTHER = {"precision": "amp_bf16"}


def other(requested):
    return msgspec.structs.replace(requested, toggles=OTHER)


STUDIES = {
    "profile": lambda c: protocol.Profile(configurations=[c], steps=2),
    "attribute": lambda c: protocol.Attribute(base=c, toggles=OTHER, budget_s=0.1),
    "compare": lambda c: protocol.Compare(base=c, other=other(c), budget_s=0.1, build_count=1),
    "validate": lambda c: protocol.Validate(configuration=c, steps=4, budget_s=0.1),
}


def begin(requested):
    """Return a context whose run has built and stepped a variant, and the variant."""
    context = RunnerContext(RecordingWire(), CPU)
    with pytest.raises(RunEnded):
        RUNS[protocol.Start](
            context, protocol.Start(configuration=requested, steps=3, check="never")
        ).execute()
    return context, variant_of(context, requested)


def variant_of(context, requested):
    return context.variants.get(resolve(requested, CPU), PhaseTracker(lambda phase: None))


def by_steps(entry):
    """Return True if steps change an entry of a snapshot."""
    return entry.endswith(": values") or entry in (
        *("torch's generator", "Python's generator", "numpy's generator"),
        *("advances", "last to step", "round"),
    )


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("family", "study"),
    [
        *(by_family(name, "profile", family=name) for name in FAMILIES if name != "moe"),
        *(("moe", study) for study in STUDIES),
    ],
)
def test_a_study_leaves_all_but_the_values_of_a_bundled_model(family, study):
    requested = configuration(family, "train")
    context, variant = begin(requested)
    before, command = Snapshot(variant), STUDIES[study](requested)
    RUNS[type(command)](context, command).execute()
    assert not [name for name in before.differences(Snapshot(variant)) if not by_steps(name)]


@pytest.mark.sample(3)
@pytest.mark.parametrize("kind", ["dropout and attention", "weight norm", "hooks with state"])
@pytest.mark.parametrize("study", ["profile", "compare"])
def test_a_study_leaves_all_but_the_values_of_a_users_model(kind, study, tmp_path):
    requested = stateful(tmp_path, kind)
    context, variant = begin(requested)
    before, command = Snapshot(variant), STUDIES[study](requested)
    RUNS[type(command)](context, command).execute()
    changed = [name for name in before.differences(Snapshot(variant)) if not by_steps(name)]
    assert not [name for name in changed if not name.startswith("attribute module.seen")]


@pytest.mark.parametrize("study", STUDIES)
def test_a_study_that_is_cancelled_leaves_all_but_the_values(study):
    requested = configuration("hydra", "train")
    context, variant = begin(requested)
    before, command = Snapshot(variant), STUDIES[study](requested)
    context.wire.commands.append(protocol.Cancel())
    context.wire.cancelled.set()
    with pytest.raises(Cancelled):
        RUNS[type(command)](context, command).execute()
    assert not [name for name in before.differences(Snapshot(variant)) if not by_steps(name)]


@pytest.mark.parametrize("workload", ["train", "generate"])
def test_a_prediction_between_two_steps_leaves_everything(workload):
    requested = configuration("hydra", workload)
    context, variant = begin(requested)
    before = Snapshot(variant)
    context.answer(protocol.Predict(base=requested, other=other(requested)))
    assert context.roof.measured is not None, "the prediction has measured the ceilings"
    assert not before.differences(Snapshot(variant))
