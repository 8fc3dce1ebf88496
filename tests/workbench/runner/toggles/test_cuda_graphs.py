"""A captured step: what runs before its capture is what the graph runs."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import pytest
import torch
from built import owned, stepped

import kernels
from kernels.core import measured
from kernels.core.implementation_timing import Cost, Measurement
from models.execution.cuda_graph import CaptureError
from workbench.runner.config.resolve import resolve
from workbench.runner.distributed import world
from workbench.runner.failures import Mistake
from workbench.runner.toggles import cuda_graphs
from workbench.runner.toggles.cuda_graphs import _CapturedStep
from workbench.runner.variants.build import Build


def test_an_uncaptured_step_chooses_kernels_like_the_captured_one():
    seen = []

    def step():
        seen.append(measured.is_captured(SimpleNamespace(is_cuda=True)))
        return torch.zeros(())

    _CapturedStep(step, SimpleNamespace(phases=None)).uncaptured()
    assert seen == [True] and measured._captured_blocks == 0


@pytest.fixture
def graphs(monkeypatch) -> list[SimpleNamespace]:
    """Count the replays of graphs that are only imitated; return them in order of capture."""
    captured = []

    def graph() -> SimpleNamespace:
        imitation = SimpleNamespace(replays=0, is_freed=False)

        def replay() -> None:
            assert not imitation.is_freed
            imitation.replays += 1

        imitation.replay = replay
        imitation.reset = lambda: setattr(imitation, "is_freed", True)
        captured.append(imitation)
        return imitation

    monkeypatch.setattr(torch.cuda, "CUDAGraph", graph)
    monkeypatch.setattr(cuda_graphs, "on_capture_stream", contextlib.nullcontext)
    monkeypatch.setattr(cuda_graphs, "capturing", contextlib.nullcontext)
    return captured


def captured_step(step=lambda: torch.zeros(()), warm_up_steps=3, model=None) -> _CapturedStep:
    phases = SimpleNamespace(during=lambda phase: contextlib.nullcontext())
    return _CapturedStep(step, phases, warm_up_steps, model)


def test_a_step_runs_in_python_only_until_it_is_captured(graphs):
    runs = []
    step = captured_step(lambda: runs.append(None) or torch.zeros(()), warm_up_steps=5)
    for _ in range(4):
        step()
    assert len(runs) == 5 + 1 and step.replays == graphs[0].replays == 4


@pytest.mark.parametrize("is_replaced", [True, False], ids=["replaced", "written into"])
def test_a_step_that_replaces_the_memory_of_a_parameter_is_refused(graphs, is_replaced):
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))

    @torch.no_grad()
    def step() -> torch.Tensor:
        weight = model[0].weight
        if is_replaced:
            weight.data = weight / weight.norm()
        else:
            weight.copy_(weight / weight.norm())
        return torch.zeros(())

    captured = captured_step(step, model=model)
    refusal = pytest.raises(Mistake, match=r"new memory to 0\.weight.*with copy_, or switch CUDA")
    with refusal if is_replaced else contextlib.nullcontext():
        captured()
    assert (captured.graph is None) == is_replaced


def test_the_model_of_a_user_is_watched_while_its_step_is_captured(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "import torch\ndef build():\n"
        "    return torch.nn.Linear(2, 2), torch.zeros(1, 2), lambda y, x: y.sum()\n"
    )
    situation = resolve(owned(path), torch.device("cpu"))
    build = Build(situation, SimpleNamespace(), model=torch.nn.Linear(2, 2))
    cuda_graphs.TOGGLE.apply("on", build)
    (wrap,) = build.step_wrappers
    assert wrap(lambda: None)._model is build.model


def test_the_graph_is_freed_before_its_ranks_end_and_captured_again_after_it(graphs):
    world.close()  # of an earlier test, whose process group would be gone
    step = captured_step()
    world.release_first(step)
    step()
    world.abort()
    assert graphs[0].is_freed and step.graph is None
    step()
    assert graphs[1].replays == 1 and not graphs[1].is_freed


def test_a_graph_of_ranks_that_end_during_its_capture_is_not_replayed(graphs):
    step = captured_step(lambda: step.release() or torch.zeros(()), warm_up_steps=0)
    with pytest.raises(CaptureError, match="ranks of the step have ended"):
        step()
    assert graphs[0].replays == 0 and step.graph is None


@pytest.mark.gpu
def test_what_is_known_from_before_is_captured_in_a_process_that_never_ran_it(small, monkeypatch):
    """Libraries plan and allocate in their first call, which must not be in the capture."""
    costs = dict.fromkeys(kernels.OPS["attention"].implementations, Cost(80.0, 80.0))
    costs |= {"sdpa_flash": Cost(20.0, 20.0), "sdpa_cudnn": Cost(10.0, 90.0)}
    known = Measurement(tuple(costs), costs)
    monkeypatch.setattr(
        measured, "_lookup", lambda gpu, name, _: known if name == "attention" else None
    )
    monkeypatch.setattr(measured, "_has_new", lambda *_: False)
    toggles = {"cuda_graphs": "on", "adamw": "fused", "precision": "amp_bf16"}
    with kernels.measuring(True):
        kernels.reset_usage()
        arm = stepped(small, device="cuda", steps=2, **toggles)
    assert arm.step.replays
    assert set(kernels.usage()["attention"]) == {"sdpa_cudnn"}
