"""Every byte that the allocator holds over a step has one role, told by address and by time."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
import torch
from traces import Written

from sessions.studies import breakdown
from sessions.tracing import trace
from workbench.runner.profiling import findings, roles
from workbench.runner.profiling.roles import Known

WEIGHT, MOMENT, OTHER, KEPT, SCRATCH, GRADIENT, BUFFER = range(1, 8)


def stepped(tmp_path) -> trace.Trace:
    """Return a step with 100 bytes for backward, a gradient of 30, scratches of 50 and 200."""
    made = Written()
    made.memory(-20, OTHER, 5, allocated=85, reserved=900)
    made.mark("workbench step", 0, 1000)
    made.memory(10, KEPT, 100, reserved=1000)
    made.memory(20, SCRATCH, 50, reserved=1000)
    made.memory(30, SCRATCH, -50, reserved=1000)
    made.node("MmBackward0", 100, 200)
    made.memory(110, GRADIENT, 30, reserved=1000)
    made.memory(120, KEPT, -100, reserved=1000)
    made.mark("Optimizer.step#AdamW.step", 300, 400)
    made.memory(310, BUFFER, 200, reserved=1200)
    made.memory(320, BUFFER, -200, reserved=1200)
    made.memory(410, GRADIENT, -30, reserved=1200)
    return trace.read(made.save(tmp_path / "t.json"), "cuda")


def known(**more) -> Known:
    blocks = {WEIGHT: ("parameters", 20), MOMENT: ("optimizer", 40)}
    return Known(blocks=blocks, other=20, gradients=[{GRADIENT}], **more)


def bytes_by_role(memory, at_us) -> dict[str, float]:
    """Return what is not 0 at a time, by role."""
    row = int(np.searchsorted(np.array(memory["t_ms"]) * 1e3, at_us, side="right")) - 1
    return {role: memory[role][row] for role in breakdown.ROLES if memory[role][row]}


def test_each_block_has_the_role_of_what_it_was_for(tmp_path):
    memory = roles.memory_over_step(stepped(tmp_path), known())
    lasting = {"parameters": 20, "optimizer": 40, "other": 25}
    assert bytes_by_role(memory, 5) == lasting
    assert bytes_by_role(memory, 15) == lasting | {"activations": 100}
    assert bytes_by_role(memory, 25) == lasting | {"activations": 100, "workspace": 50}
    assert bytes_by_role(memory, 115) == lasting | {"activations": 100, "gradients": 30}
    assert bytes_by_role(memory, 315) == lasting | {"gradients": 30, "workspace": 200}
    assert bytes_by_role(memory, 999) == lasting
    totals = [sum(memory[role][n] for role in breakdown.ROLES) for n in range(len(memory["t_ms"]))]
    assert max(totals) == 85 + 30 + 200


def test_what_is_reserved_is_the_allocators_word_at_each_time(tmp_path):
    memory = roles.memory_over_step(stepped(tmp_path), known(reserved=700))
    assert memory["reserved"][0] == 900
    assert memory["reserved"][-1] == 1200


def test_private_pools_of_graphs_stand_beside_what_is_allocated(tmp_path):
    made = Written()
    made.mark("workbench step", 0, 1000)
    memory = roles.memory_over_step(
        trace.read(made.save(tmp_path / "t.json"), "cuda"), known(pools=77)
    )
    assert bytes_by_role(memory, 500) == {
        "parameters": 20,
        "optimizer": 40,
        "other": 20,
        "private_pools": 77,
    }


def test_a_block_that_was_there_before_and_goes_was_none_of_the_steps(tmp_path):
    made = Written()
    made.mark("workbench step", 0, 1000)
    made.memory(500, 999, -15)
    memory = roles.memory_over_step(trace.read(made.save(tmp_path / "t.json"), "cuda"), known())
    assert bytes_by_role(memory, 10)["other"] == 20
    assert bytes_by_role(memory, 600)["other"] == 5


def test_of_inference_everything_that_a_step_takes_is_workspace(tmp_path):
    made = Written()
    made.mark("workbench step", 0, 1000)
    made.memory(10, KEPT, 100)
    made.memory(900, KEPT, -100)
    recorded = Known(blocks={WEIGHT: ("parameters", 20)})
    memory = roles.memory_over_step(trace.read(made.save(tmp_path / "t.json"), "cuda"), recorded)
    assert bytes_by_role(memory, 500) == {"parameters": 20, "workspace": 100}


def test_a_long_course_is_thinned_and_keeps_its_peak(tmp_path):
    made = Written()
    made.mark("workbench step", 0, 100_000)
    for number in range(5000):
        size = 5000 if number == 3333 else 10
        made.memory(10 + 10 * number, 100 + number % 7, size)
        made.memory(15 + 10 * number, 100 + number % 7, -size)
    memory = roles.memory_over_step(trace.read(made.save(tmp_path / "t.json"), "cuda"), Known())
    assert len(memory["t_ms"]) <= roles.ROWS
    assert max(memory["workspace"]) == 5000
    assert memory["t_ms"] == sorted(memory["t_ms"])


def test_a_thinned_course_keeps_the_most_of_each_role(tmp_path):
    made = Written()
    made.mark("workbench step", 0, 100_000)
    made.memory(10, KEPT, 1000)
    for number in range(5000):
        made.memory(20 + 2 * number, SCRATCH, 10 + number % 7)
        made.memory(21 + 2 * number, SCRATCH, -10 - number % 7)
    made.node("MmBackward0", 20_000, 20_010)
    made.memory(20_020, KEPT, -1000)
    made.memory(20_021, GRADIENT, 77)  # only here, and never where most is held
    made.mark("Optimizer.step#AdamW.step", 20_022, 20_030)
    made.memory(20_031, GRADIENT, -77)
    memory = roles.memory_over_step(trace.read(made.save(tmp_path / "t.json"), "cuda"), known())
    assert len(memory["t_ms"]) <= roles.ROWS
    assert max(memory["gradients"]) == 77 and max(memory["activations"]) == 1000


class Allocator(Written):
    """Writes what a step allocates into a trace, and counts for itself what is held at most."""

    def __init__(self, allocated: int) -> None:
        super().__init__()
        self.allocated_now = self.peak = allocated
        self._addresses = itertools.count(100)
        self._live: dict[int, int] = {}

    def take(self, at: float, size: int) -> int:
        address = next(self._addresses)
        self._live[address] = size
        self._tell(at, address, size)
        return address

    def give(self, at: float, *addresses: int) -> None:
        for address in addresses:
            self._tell(at, address, -self._live.pop(address))

    def _tell(self, at: float, address: int, size: int) -> None:
        self.allocated_now += size
        self.peak = max(self.peak, self.allocated_now)
        self.memory(at, address, size, allocated=self.allocated_now, reserved=5000)


def training(tmp_path, nodes: list[str], seed: int) -> tuple[trace.Trace, Allocator, Known]:
    """Return a step of four layers whose backward pass has these nodes, with sizes by chance."""
    sizes = random.Random(seed)
    made = Allocator(allocated=80)
    made.mark("workbench step", 0, 1000)
    activations, gradients = [], []
    for layer in range(4):
        scratch = made.take(10 + 10 * layer, sizes.randrange(1, 99))
        activations.append(made.take(12 + 10 * layer, sizes.randrange(100, 900)))
        made.give(14 + 10 * layer, scratch)
    for number, name in enumerate(nodes):
        made.node(name, 100 + 50 * number, 140 + 50 * number)
    for layer in range(4):
        scratch = made.take(101 + 50 * layer, sizes.randrange(100, 500))
        gradients.append(made.take(105 + 50 * layer, sizes.randrange(1, 99)))
        made.give(110 + 50 * layer, activations.pop(), scratch)
    made.mark("Optimizer.step#AdamW.step", 400, 500)
    made.give(450, made.take(440, sizes.randrange(1, 2000)))
    made.give(510, *gradients)
    before = known(reserved=5000)
    before.gradients = [set(gradients)]
    return trace.read(made.save(tmp_path / "t.json"), "cuda"), made, before


EAGER = ["MmBackward0", "SiluBackward0", "MmBackward0", "EmbeddingBackward0"]
COMPILED = ["CompiledFunctionBackward"]


def at_peak(memory) -> dict[str, float]:
    table = findings.peak_by_role(memory, None, trains=True)
    return dict(zip(table["role"], table["bytes"], strict=True))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("nodes", [EAGER, COMPILED], ids=["eager", "compiled"])
def test_roles_add_up_to_what_the_allocator_held_at_most(tmp_path, nodes, seed):
    traced, allocator, before = training(tmp_path, nodes, seed)
    peak = at_peak(roles.memory_over_step(traced, before))
    assert sum(peak.values()) == allocator.peak
    assert peak["activations"] + peak["gradients"] + peak["workspace"] == allocator.peak - 80
    assert peak["private_pools"] == 0


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("nodes", [EAGER, COMPILED], ids=["eager", "compiled"])
def test_a_captured_step_has_the_uncaptured_ones_roles_within_its_pool(tmp_path, nodes, seed):
    traced, allocator, before = training(tmp_path, nodes, seed)
    plain = at_peak(roles.memory_over_step(traced, before))
    slack = 64  # of the segments in the pool
    before.pools = slack + allocator.peak - 80
    memory = roles.replayed(
        roles.memory_over_step(traced, before), known(pools=before.pools, reserved=7000)
    )
    totals = {sum(memory[role][n] for role in breakdown.ROLES) for n in range(len(memory["t_ms"]))}
    assert totals == {80 + before.pools}  # what is allocated and the pool, at any time
    assert set(memory["reserved"]) == {7000}
    assert at_peak(memory) == plain | {"private_pools": slack}
    assert memory["private_pools"][0] == before.pools


def test_a_step_that_needs_more_than_the_pool_has_shows_that_more(tmp_path):
    traced, allocator, before = training(tmp_path, EAGER, 0)
    memory = roles.replayed(roles.memory_over_step(traced, before), known(pools=10))
    peak = at_peak(memory)
    assert peak["private_pools"] == 0 and sum(peak.values()) == allocator.peak


class Halves(torch.Tensor):
    """Two tensors that stand for one, as the states of an 8-bit optimizer do."""

    @staticmethod
    def __new__(cls, codes, scale):
        return torch.Tensor._make_wrapper_subclass(cls, codes.shape, dtype=torch.float32)

    def __init__(self, codes, scale):
        self.codes, self.scale = codes, scale

    def __tensor_flatten__(self):
        return ["codes", "scale"], None

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise AssertionError(f"{func} was computed: whose memory it is needs no arithmetic")


def test_a_tensor_that_wraps_others_holds_what_they_hold():
    codes, scale = torch.zeros(64, dtype=torch.uint8), torch.zeros(2)
    storages = roles._storages(Halves(codes, scale))
    assert [storage.nbytes() for storage in storages] == [64, 8]
    assert storages[0].data_ptr() == codes.data_ptr()
    assert roles._storages(None) == []
