"""Generation on a GPU: captured in a graph or not, the text is the same, and no step waits."""

from __future__ import annotations

import pytest
import torch

from models import FAMILIES
from sessions.model import Configuration
from workbench.runner.building.variant_cache import VariantCache
from workbench.runner.config.resolve import resolve
from workbench.runner.instruments.phases import PhaseTracker

pytestmark = pytest.mark.gpu
DECODERS = [name for name, family in FAMILIES.items() if "generate" in family.workloads]
NEW = 6


def begun(family, workload, **toggles):
    """Return an arm after its first step, at the start of its first round."""
    configuration = Configuration(
        family=family,
        preset="tiny",
        workload=workload,
        settings={"batch": 2, "sequence": 8, "new_tokens": NEW},
        toggles=toggles,
    )
    situation = resolve(configuration, torch.device("cuda", 0))
    arm = VariantCache().get(situation, PhaseTracker(lambda phase: None))
    arm.restart()
    with arm.entered():
        arm.step()
    arm.restart()
    return arm


def stepped(arm, steps):
    tokens = []
    with arm.entered():
        for _ in range(steps):
            arm.ready()
            tokens.append(arm.step()[:, 0].clone())
    return torch.stack(tokens)


@pytest.mark.parametrize("workload", ["generate", "decode"])
@pytest.mark.parametrize("family", DECODERS)
def test_a_captured_step_writes_what_an_eager_one_writes(family, workload):
    eager = stepped(begun(family, workload), 3 * NEW)
    captured = stepped(begun(family, workload, cuda_graphs="on"), 3 * NEW)
    assert torch.equal(eager, captured)
    if workload == "decode":
        assert torch.equal(captured[:NEW], captured[NEW : 2 * NEW])


@pytest.mark.parametrize("family", DECODERS)
def test_a_compiled_decode_step_is_replayed_from_a_graph_that_inductor_recorded(family):
    torch.compiler.reset()
    arm = begun(family, "decode", compile="reduce-overhead")
    stepped(arm, 3 * NEW)
    (evidence,) = [item for item in arm.find_evidence() if item.toggle == "compile"]
    assert evidence.status == "effective", evidence.text
    torch.compiler.reset()


@pytest.mark.parametrize("family", DECODERS)
def test_no_step_and_no_new_prompt_waits_for_the_device(family):
    arm = begun(family, "generate")
    stepped(arm, NEW)  # what is made once is made
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        stepped(arm, 2 * NEW)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    spent = arm.rounds.spent_ms()
    torch.cuda.synchronize()
    spent += arm.rounds.spent_ms()
    assert len(spent) == 4 and min(spent) > 0  # the first round, and one after each five steps
