"""Suggestions of what to try next: ranked bounds that follow from measurements."""

from __future__ import annotations

import dataclasses

import msgspec
import numpy as np
import profile_samples
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessions.model import Configuration, Evidence, PairedComparison, Segment, Session
from sessions.studies import next_steps
from sessions.studies.next_steps import Suggestion, speedup_text, suggest


def session(**toggles: str) -> Session:
    """Return a session with one profile of these toggles."""
    made = Session(title="t")
    study = profile_samples.rich_study(blocks=2)
    configuration = Configuration(
        family="hydra", preset="base", workload="train",
        toggles={**profile_samples.TOGGLES, **toggles},
    )  # fmt: skip
    study.request["configuration"] = msgspec.json.encode(configuration).decode()
    made.segments.append(Segment(0, configuration, "defaults"))
    made.studies.append(study)
    return made


def by_toggle(suggestions) -> dict[str, Suggestion]:
    return {name: entry for entry in suggestions for name in entry.toggles}


def test_a_host_bound_step_gains_at_most_its_idle_time():
    made = session()
    made.studies[0].facts |= {"step_us": 10_000.0, "busy_us": 5_400.0}
    graphs = by_toggle(suggest(made))["cuda_graphs"]
    assert graphs.speedup == pytest.approx(1 / 0.54)
    assert graphs.text == "46 % host-bound: CUDA graphs, up to 1.9x"
    assert graphs.table().rows[0][:2] == ["GPU idle in an unprofiled step", pytest.approx(4600.0)]


@pytest.mark.parametrize(
    "toggles", [{"cuda_graphs": "on"}, {"compile": "reduce-overhead"}, {"compile": "max-autotune"}]
)
def test_a_replayed_step_is_not_called_host_bound_and_need_not_be_compiled_again(toggles):
    """The GPU idles between the kernels of a graph, too."""
    made = session(**{"compile": "default", **toggles})
    made.studies[0].facts |= {"step_us": 10_000.0, "busy_us": 9_500.0}
    suggestions = suggest(made)
    assert not any("host-bound" in entry.finding for entry in suggestions)
    assert not {"compile", "cuda_graphs"} & by_toggle(suggestions).keys()


def test_the_best_comes_first_and_memory_after_all_speed():
    suggestions = suggest(session())
    bounds = [entry.speedup for entry in suggestions if entry.speedup > 0]
    assert bounds == sorted(bounds, reverse=True) and len(bounds) >= 2
    assert suggestions[-1].toggles == {"checkpointing": "full"}
    assert "frees up to 5.0" in suggestions[-1].text
    assert len({str(entry.toggles) for entry in suggestions}) == len(suggestions)


def test_matrix_products_in_16_bits_gain_at_most_the_measured_rate_allows():
    made = session()
    suggestion = by_toggle(suggest(made))["precision"]
    study = made.studies[0]
    flops = float(study.tables["least"]["flops"][0])
    assert suggestion.details[0][2] == pytest.approx(1e6 * flops / 6e14)
    assert "precision" not in by_toggle(suggest(session(precision="amp_bf16")))


def test_what_is_on_had_no_effect_or_was_not_faster_is_not_proposed():
    assert "cuda_graphs" not in by_toggle(suggest(session(cuda_graphs="on")))
    made = session()
    made.segments[0].evidence.append(Evidence("precision", "amp_bf16", "no effect", "why; more"))
    suggestions = suggest(made)
    assert "precision" not in by_toggle(suggestions)
    assert suggestions[-1].text == "precision=amp_bf16 has no effect: why; more"
    made = session()
    graphs = {**made.segments[0].configuration.toggles, "cuda_graphs": "on"}
    other = msgspec.structs.replace(made.segments[0].configuration, toggles=graphs)
    made.segments.append(Segment(1, other, "graphs"))
    made.comparisons.append(
        PairedComparison(arms=["a", "b"], order=[], medians_ms=[], ratio=1.0, low=0.99, high=1.01,
                         verdict="SAME", facts={"segments": [0, 1]})
    )  # fmt: skip
    assert "cuda_graphs" not in by_toggle(suggest(made))


def test_options_that_cannot_be_used_here_are_left_to_the_next_best():
    suggestions = suggest(session(), usable=lambda option: option.toggle != "cuda_graphs")
    assert by_toggle(suggestions)["compile"].toggles == {"compile": "reduce-overhead"}


def test_on_a_cpu_no_option_of_a_gpu_is_proposed():
    made = session()
    made.studies[0].request["device"] = "cpu"
    kernels = made.studies[0].tables["kernels"]
    kernels["kind"][:20] = "host"
    suggestions = suggest(made)
    assert not {"cuda_graphs", "triton"} & by_toggle(suggestions).keys()
    assert any("Python and autograd" in entry.finding for entry in suggestions)


def test_without_a_profile_a_slow_segment_is_to_be_profiled():
    made = session()
    made.studies.clear()
    assert suggest(made) == []
    count = 40
    steps = {name: np.full(count, np.nan) for name in made.segments[0].steps}
    steps |= {"t_s": np.arange(count) * 0.01, "wall_ms": np.full(count, 10.0),
              "phase": np.full(count, 5), "block": np.zeros(count)}  # fmt: skip
    ledger = {"model_flops": 1e9, "matrix_flops_per_s": 4e11}
    made.segments[0] = dataclasses.replace(made.segments[0], steps=steps, ledger=ledger)
    (line,) = next_steps.lines(made)
    assert line.startswith("try next: MFU 25 %: profile these steps") and line.endswith("4.0x")


@given(st.floats(1.0, 50.0))
def test_a_bound_is_never_rounded_below_what_it_is(speedup):
    assert float(speedup_text(speedup).removesuffix("x")) >= speedup - 1e-6


def test_a_script_without_a_configuration_gets_advice_and_no_option():
    made = session()
    del made.studies[0].request["configuration"]
    assert all(not entry.toggles for entry in suggest(made))
