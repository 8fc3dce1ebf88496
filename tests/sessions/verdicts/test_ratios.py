"""The basis of a ratio of two segments, and that it claims no more; on machines that drift."""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec
import numpy as np
import pytest
import session_samples as samples

from sessions.model import Configuration, PairedComparison, Segment, Session
from sessions.reproduction.command_lines import session_hint
from sessions.tables import segments_table, text
from sessions.verdicts import ratios, repeats, verdict, work
from sessions.verdicts.comparison import compare, compare_segments
from workbench.runner.toggles import all_toggles
from workbench.ui.panels import _compare_tables as compare_tables

A, B = (
    Configuration(family="hydra", preset="tiny", toggles={"adamw": option, "window": "follow"})
    for option in ("foreach", "fused")
)
COLOURED = {"FASTER", "SLOWER"}
STEPS = 130


def session_of(*runs: tuple[Configuration, float], seed: int = 0, steps: int = STEPS) -> Session:
    """Return a session of segments in sequence, each with its configuration and median in ms."""
    segments = [
        Segment(
            index=index,
            configuration=configuration,
            label=f"s{index}",
            start_s=10.0 * index,
            steps=samples.steps(steps, seed=1000 * seed + index, median_ms=median_ms, phi=0.8),
        )
        for index, (configuration, median_ms) in enumerate(runs)
    ]
    return Session(title=f"session {seed}", created=1e4 * seed, segments=segments)


def compared(
    session: Session, base: int, other: int, logs: np.ndarray, **facts: object
) -> PairedComparison:
    """Return a comparison of two segments of the session, judged."""
    pairs = range(len(logs))
    blocks = PairedComparison(
        arms=["A", "B"],
        order=[arm for _ in pairs for arm in (0, 1)],
        medians_ms=[ms for log in logs for ms in (10.0, 10.0 * math.exp(log))],
        ratio=math.nan, low=math.nan, high=math.nan, verdict="UNDECIDED",
        pairs=[pair for pair in pairs for _ in (0, 1)],
    )  # fmt: skip
    judged = msgspec.to_builtins(verdict.judge(blocks))
    ends = {name: judged.pop(name) for name in ("ratio", "low", "high", "verdict")}
    judged |= {"segments": [base, other], **facts}
    made = msgspec.structs.replace(blocks, **ends, facts=judged)
    session.comparisons.append(work.explained(session, made))
    return made


def ratio_of(session: Session, index: int = 1) -> ratios.SegmentRatio:
    runs = [(session, segment) for segment in session.segments]
    arms, _ = compare_segments(runs, [segment.title for segment in session.segments])
    ratio = arms[index].ratio
    assert ratio is not None
    return ratio


def test_segments_that_ran_one_after_the_other_have_a_ratio_and_claim_nothing():
    ratio = ratio_of(session_of((A, 10.0), (B, 5.0)))
    assert ratio.ratio == pytest.approx(0.5, abs=0.01)
    assert (ratio.low, ratio.high, ratio.source, ratio.verdict) == (
        None, None, "unpaired", "unpaired",
    )  # fmt: skip


@pytest.mark.parametrize("background", [False, True])
def test_a_verdict_of_the_two_configurations_takes_the_place_of_the_unpaired_ratio(background):
    session = session_of((A, 10.0), (B, 5.0), (B, 9.0))
    logs = np.random.default_rng(0).normal(math.log(0.8), 0.01, 20)
    made = compared(session, 0, 1, logs, **({"background": True} if background else {}))
    for index in (1, 2):
        ratio = ratio_of(session, index)
        assert (ratio.ratio, ratio.low, ratio.high) == (made.ratio, made.low, made.high)
        assert (ratio.source, ratio.verdict, ratio.note) == ("paired", "FASTER", "20 pairs")
    session.segments.reverse()  # segment numbers are places
    ratio = ratio_of(session_of_swapped(session))
    assert ratio.verdict == "SLOWER" and ratio.low == pytest.approx(1 / made.high)


def session_of_swapped(session: Session) -> Session:
    """Return the same with the other configuration first, and the comparison as it was."""
    swapped = session_of((B, 5.0), (A, 10.0))
    compared_before = session.comparisons[0]
    facts = {**compared_before.facts, "segments": [1, 0]}
    swapped.comparisons.append(msgspec.structs.replace(compared_before, facts=facts))
    return swapped


def test_the_comparison_of_most_pairs_is_shown_and_corrected_for_their_number():
    session = session_of((A, 10.0), (B, 5.0))
    draw = np.random.default_rng(1)
    compared(session, 0, 1, draw.normal(math.log(0.8), 0.01, 9))
    most = compared(session, 0, 1, draw.normal(math.log(0.82), 0.01, 30))
    ratio = ratio_of(session)
    assert (ratio.ratio, ratio.note) == (most.ratio, "30 pairs")


def test_a_comparison_of_other_configurations_or_another_machine_is_not_used():
    first, second = session_of((A, 10.0)), session_of((B, 5.0), (A, 10.0), seed=1)
    compared(second, 1, 0, np.full(10, math.log(0.5)) + np.arange(10) / 1e3)
    arms = compare([first, second], segments=[0, 0]).arms
    assert arms[1].ratio is not None and arms[1].ratio.source == "paired"
    first.environment, second.environment = {"gpu": "H100"}, {"gpu": "H200"}
    arms = compare([first, second], segments=[0, 0]).arms
    assert arms[1].ratio is not None and arms[1].ratio.source == "unpaired"
    different = A.replaced("toggles.adamw", "8bit")
    assert ratio_of(session_of((A, 10.0), (different, 5.0))).source == "unpaired"


def test_a_comparison_of_two_commits_speaks_of_its_own_segments_in_their_order():
    session = session_of((A, 10.0), (A, 12.0))
    compared(session, 0, 1, np.random.default_rng(0).normal(math.log(1.2), 0.01, 20))
    runs = [(session, segment) for segment in session.segments]
    for baseline, word in ((0, "SLOWER"), (1, "FASTER")):
        arms, warnings = compare_segments(runs, ["old", "new"], baseline)
        ratio = arms[1 - baseline].ratio
        assert ratio is not None and (ratio.verdict, ratio.source) == (word, "paired")
        assert (ratio.ratio > 1) == (word == "SLOWER") and not warnings
    elsewhere = session_of((A, 10.0), seed=1), session_of((A, 10.0), seed=2), session
    arms = compare(elsewhere, segments=[0, 0, 1]).arms
    assert [arm.ratio and arm.ratio.source for arm in arms] == [None, "unpaired", "unpaired"]


def test_sessions_of_different_commits_are_no_repeats_and_no_drift():
    sessions = [
        session_of((configuration, ms), seed=number)
        for number, (configuration, ms) in enumerate([(A, 10.0), (B, 8.0)] * 5)
    ]
    for number, session in enumerate(sessions):
        session.environment = {"commit": f"c{number % 2}"}
    compared_sessions = compare(sessions)
    ratio = compared_sessions.arms[1].ratio
    assert ratio is not None and ratio.source == "unpaired"
    sessions[2] = session_of((A, 20.0), seed=2)
    sessions[2].environment = {"commit": "c2"}
    assert not any("drifted" in warning for warning in compare(sessions).warnings)


def test_repeats_in_turn_give_an_interval_and_repeats_in_a_row_do_not():
    alternating = [(A, 10.0), (B, 8.0)] * 6
    ratio = ratio_of(session_of(*alternating))
    assert (ratio.source, ratio.verdict, ratio.note) == (
        "repeats",
        "FASTER",
        "6 and 6 visits in turn",
    )
    assert ratio.low is not None and ratio.high is not None
    assert ratio.low < 0.8 < ratio.high
    in_a_row = sorted(alternating, key=lambda run: -run[1])
    assert ratio_of(session_of(*in_a_row), 6).source == "unpaired"
    assert ratio_of(session_of(*alternating[:4])).source == "unpaired", "two visits each"


def test_sessions_in_turn_are_repeats_too():
    runs = [session_of((A if number % 2 == 0 else B, 10.0 - number % 2), seed=number)
            for number in range(10)]  # fmt: skip
    arms = compare(runs).arms
    assert {arm.ratio.source for arm in arms[1::2] if arm.ratio} == {"repeats"}
    assert {arm.ratio.source for arm in arms[2::2] if arm.ratio} == {"unpaired"}, "as the baseline"


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({"family": "moe"}, "different models"),
        ({"preset": "base"}, "different models"),
        ({"model": {"n_layers": 3}}, "different models"),
        ({"toggles": {"adamw": "fused", "window": "128"}}, "different models"),
        ({"settings": {"batch": 2}}, "other work"),
        ({"seed": 3}, "FASTER"),
    ],
)
def test_a_ratio_of_different_models_keeps_its_interval_and_claims_no_speed_up(changed, word):
    session = session_of((A, 10.0), (msgspec.structs.replace(B, **changed), 5.0))
    compared(session, 0, 1, np.random.default_rng(0).normal(math.log(0.5), 0.01, 20))
    ratio = ratio_of(session)
    assert ratio.verdict == word and ratio.low is not None
    table = segments_table(session)
    assert text(table.rows[1][table.column("verdict")]) == word
    runs = [(session, segment) for segment in session.segments]
    arms, _ = compare_segments(runs, ["a", "b"])
    assert compare_tables.tone(arms[1]) == ("good" if word == "FASTER" else "text")


@pytest.mark.parametrize(
    ("digests", "word"),
    [(("a", "a"), "FASTER"), (("a", "b"), "different models"), (("a", ""), "different models")],
)
def test_digests_of_the_models_decide_where_both_are_known(digests, word):
    other = msgspec.structs.replace(B, toggles={**B.toggles, "window": "512"})
    session = session_of((A, 10.0), (other, 5.0))
    for segment, digest in zip(session.segments, digests, strict=True):
        segment.ledger |= {work.MODEL_DIGEST: digest} if digest else {}
    compared(session, 0, 1, np.random.default_rng(0).normal(math.log(0.5), 0.01, 20))
    assert ratio_of(session).verdict == word
    assert session.comparisons[0].facts.get(work.DIFFERENCE, "FASTER") == word


def test_equal_settings_of_versions_whose_models_differ_are_different_models():
    assert work.difference(A, A, ("a", "b")) == (work.DIFFERENT_MODELS, ["model"])
    assert work.difference(A, A, ("a", "")) == ("", [])


def test_an_invalid_segment_claims_nothing():
    session = session_of((A, 10.0), (B, 0.1))
    compared(session, 0, 1, np.random.default_rng(0).normal(math.log(0.01), 0.01, 20))
    session.segments[1].ledger[work.INVALID] = "faster than this GPU can run it"
    ratio = ratio_of(session)
    assert (ratio.low, ratio.verdict) == (None, "invalid") and "faster than" in ratio.note


def test_the_toggles_that_sessions_know_by_themselves_make_another_model():
    named = {name for name, toggle in all_toggles().items() if toggle.makes_other_model}
    assert named >= work.MODEL_TOGGLES
    assert not all_toggles()["in_place"].makes_other_model, "it configures the same mathematics"


def test_a_toggle_that_the_environment_names_makes_another_model(monkeypatch):
    monkeypatch.setattr(work, "_further", set())
    other = msgspec.structs.replace(A, toggles={**A.toggles, "pruning": "half"})
    assert work.difference(A, other) == ("", [])
    work.learn_toggles({work.FURTHER_TOGGLES: "pruning, distilling"})
    assert work.difference(A, other) == (work.DIFFERENT_MODELS, ["toggles.pruning"])
    assert work.makes_other_model("distilling") and not work.makes_other_model("")


def test_repeats_that_disagree_by_more_than_their_intervals_say_that_the_machine_drifted():
    drifted = segments_table(session_of((A, 10.0), (B, 10.0), (A, 12.6), steps=600))
    assert drifted.notes[0] == (
        "The same configuration measured 1.00 to 1.26 x its shortest step time: "
        "the machine drifted between segments."
    )
    calm = segments_table(session_of((A, 10.0), (B, 10.0), (A, 10.0), steps=600))
    assert not any("drifted" in note for note in calm.notes)


def test_a_hint_names_the_command_of_a_verdict_once_and_leaves_out_defaults():
    session = session_of((A, 10.0), (B, 5.0), (B, 5.0))
    assert session_hint(session) == (
        "For a verdict on an unpaired ratio: workbench ab hydra --preset tiny --workload forward "
        "--toggle window=follow --a adamw=foreach --b adamw=fused --budget 20 --region 1 --seed 0"
    )
    session.titles = {"toggles.window": "Window", "toggles.window=follow": "Model default"}
    assert "window" not in session_hint(session)
    assert session_hint(session_of((A, 10.0), (A, 5.0))) == ""


# Simulated machines: factors of step time by segment


def walk(draw: np.random.Generator, n: int) -> np.ndarray:
    return np.exp(np.cumsum(draw.normal(0, 0.04, n)))


def ramp(draw: np.random.Generator, n: int) -> np.ndarray:
    return np.exp(np.arange(n) * draw.choice([-0.03, 0.03]))


def load(draw: np.random.Generator, n: int) -> np.ndarray:
    return 1 + 0.6 * (draw.random(n) < 0.3)


def bursts(draw: np.random.Generator, n: int) -> np.ndarray:
    state, states = False, []
    for _ in range(n):
        state = draw.random() < (0.7 if state else 0.2)
        states.append(state)
    return 1 + 0.6 * np.array(states)


def steady(draw: np.random.Generator, n: int) -> np.ndarray:
    return np.ones(n)


MACHINES = [walk, ramp, load, bursts, steady]
REPEATS = 20


@pytest.mark.parametrize("machine", MACHINES)
def test_tables_of_a_drifting_machine_make_no_false_claim_and_cover_the_truth(
    machine: Callable[[np.random.Generator, int], np.ndarray],
):
    """One toggle away and back: what the table and the panel Compare show of each look."""
    draw = np.random.default_rng(5)
    intervals = missed = claimed = 0
    for repeat in range(REPEATS):
        factors = machine(draw, 16)
        truth = 1.0 if repeat % 2 else 0.95
        runs = [((A, B)[n % 2], 10 * f * (truth if n % 2 else 1)) for n, f in enumerate(factors)]
        session = session_of(*runs, seed=repeat)
        false, out = False, False
        for looks in (7, 12, 16):
            seen = Session(segments=session.segments[:looks], created=session.created)
            table = segments_table(seen)
            arms, _ = compare_segments([(seen, item) for item in seen.segments], ["s"] * looks)
            for row, arm in zip(table.rows[1:], arms[1:], strict=True):
                word = row[table.column("verdict")]
                assert (arm.ratio.low is None) == (row[table.column("ratio from")] is None)
                is_other = arm.segment.configuration == B
                false |= word in COLOURED and (truth == 1.0 or word == "SLOWER" or not is_other)
                coloured = compare_tables.tone(arm) in ("good", "bad")
                assert coloured == (word in COLOURED)
                if arm.ratio.low is not None:
                    out |= not arm.ratio.low <= truth <= arm.ratio.high
        intervals += ratio_of(session).low is not None
        missed += out
        claimed += false
    assert claimed <= 0.05 * REPEATS
    assert missed <= 0.06 * REPEATS
    assert intervals > 0.9 * REPEATS


@pytest.mark.slow
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("effect", [0.0, 0.05])
def test_the_interval_of_repeats_holds_at_every_look(machine, effect):
    draw = np.random.default_rng(11)
    missed = claimed = 0
    for _ in range(1000):
        logs = np.log(machine(draw, 24)) + draw.normal(0, 0.003, 24)
        logs[1::2] += effect
        ratio = [repeats.welch(logs[:n:2], logs[1:n:2]) for n in range(6, 25)]
        known = [item for item in ratio if math.isfinite(item.low)]
        missed += any(not item.low <= effect <= item.high for item in known)
        words = {verdict.reading(item, math.log1p(verdict.REGION)) for item in known}
        claimed += bool(words & ({"FASTER"} if effect else COLOURED))
    assert missed <= 60 and claimed <= 50


@pytest.mark.parametrize("machine", MACHINES)
def test_pairs_of_a_drifting_machine_make_no_false_claim_and_cover_the_truth(machine):
    """Blocks of identical arms in random order, as the table shows them at each look."""
    draw = np.random.default_rng(7)
    missed = claimed = 0
    for repeat in range(REPEATS):
        factors = np.log(machine(draw, 60)) + draw.normal(0, 0.004, 60)
        signs = draw.choice([-1, 1], 30)
        logs = signs * np.diff(factors.reshape(-1, 2))[:, 0]
        session = session_of((A, 10.0), (B, 13.0), seed=repeat)
        words = []
        for looks in (10, 30):
            session.comparisons.clear()
            compared(session, 0, 1, logs[:looks])
            words.append(ratio_of(session))
        missed += any(not item.low <= 1 <= item.high for item in words)
        claimed += any(item.verdict in COLOURED for item in words)
    assert missed <= 0.06 * REPEATS and claimed <= 0.05 * REPEATS
